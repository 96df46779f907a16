"""While replicas connect, anybody else may connect, too: nobody waits for them."""

import hmac
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from testing.processes import run_python

from torch_xla._internal.replicas import greeting, replication
from torch_xla._internal.replicas.replication import Topology

COUNT = 3
# More than it takes by far: whoever waits for a stranger waits so long.
SECONDS = 60.0


def address_of(keys: dist.Store, rank: int) -> tuple[str, int]:
    host, port = keys.get(f"address/{rank}").decode().split(" ")
    return host, int(port)


def cookie(keys: dist.Store) -> bytes:
    return keys.get("cookie")


STRANGERS = {
    "silent": [lambda keys: b""],
    "half a cookie": [lambda keys: cookie(keys)[:16]],
    "a wrong cookie": [lambda keys: b"0" * 32 + (1).to_bytes(4, "little")],
    "no rank": [cookie],
    "a rank out of range": [
        lambda keys, rank=rank: cookie(keys) + rank.to_bytes(4, "little")
        for rank in (COUNT, 1 << 31, (1 << 32) - 1, 0)
    ],
    "a thousand": [lambda keys: b""] * 1000,
}


@pytest.fixture
def local_address(monkeypatch):
    monkeypatch.setattr(replication, "_address", "127.0.0.1")


def connect(keys: dist.Store, rank: int) -> list[socket.socket | None]:
    return replication._open_sockets(keys, Topology(rank, COUNT, rank, COUNT), SECONDS)


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_do_not_stall_the_start(stranger, local_address):
    keys = dist.HashStore()
    open_sockets: list[socket.socket] = []
    with ThreadPoolExecutor(COUNT) as threads:
        begin = time.monotonic()
        # Ranks 0 and 1 listen, and the strangers are there before rank 2 comes.
        found = [threads.submit(connect, keys, rank) for rank in (0, 1)]
        for message in STRANGERS[stranger]:
            for rank in (0, 1):
                peer = socket.create_connection(address_of(keys, rank), timeout=SECONDS)
                peer.sendall(message(keys))
                open_sockets.append(peer)
        found.append(threads.submit(connect, keys, 2))
        sockets = [future.result() for future in found]
    assert time.monotonic() - begin < SECONDS / 2
    for a in range(COUNT):
        assert sockets[a][a] is None
        for b in range(a):
            # Each has the socket whose other end the other has, and nothing else is in it.
            sockets[a][b].sendall(bytes([a, b]))
            assert sockets[b][a].recv(3) == bytes([a, b])
    for peer in [*open_sockets, *(s for row in sockets for s in row if s is not None)]:
        peer.close()


def test_who_was_sent_away_comes_again(local_address, monkeypatch):
    """A replica among more strangers than there is room for."""
    monkeypatch.setattr(greeting, "_MAX_UNKNOWN", 0)
    keys = dist.HashStore()
    with ThreadPoolExecutor(COUNT) as threads:
        found = [threads.submit(connect, keys, rank) for rank in range(COUNT)]
        time.sleep(0.2)
        assert not any(future.done() for future in found)
        monkeypatch.setattr(greeting, "_MAX_UNKNOWN", 1)
        for row in [future.result() for future in found]:
            assert sum(peer is not None for peer in row) == COUNT - 1
            for peer in row:
                if peer is not None:
                    peer.close()


def test_missing_replicas_are_named_among_strangers(local_address):
    keys = dist.HashStore()
    for rank in (1, 2):  # They said where they listen, and are gone.
        keys.set(f"address/{rank}", "127.0.0.1 9")
    place = Topology(0, COUNT, 0, COUNT)
    done = threading.Event()

    def knock() -> None:
        while not done.wait(0.01):
            with socket.socket() as peer:
                peer.connect_ex(address_of(keys, 0))

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        with pytest.raises(RuntimeError, match=r"replicas \[1, 2\] did not connect to replica 0"):
            replication._open_sockets(keys, place, 0.3)
    finally:
        done.set()
        knocking.join()


def test_cookies_are_compared_in_constant_time(local_address, monkeypatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(greeting, "same_digest", compare)
    keys = dist.HashStore()
    with ThreadPoolExecutor(COUNT) as threads:
        for row in [threads.submit(connect, keys, rank) for rank in range(COUNT)]:
            for peer in row.result():
                if peer is not None:
                    peer.close()
    assert compared == [(cookie(keys), cookie(keys))] * COUNT


@pytest.mark.multiprocess
def test_lengths_from_a_socket_are_bounded(tmp_path):
    """What cannot be a message ends the connection: nothing is read beyond what has come."""
    code = """
    import datetime, socket, struct
    import torch.distributed as dist
    from torch_xla._internal.replicas import replication

    replication._override = replication.Topology(0, 2, 0, 2)
    texts = []
    many = struct.pack("<IIQQ", 1, 0, 0, 1) * 1000
    for device, sizes in enumerate([(5, 2**64 - 5), (0, 2**40), (2**20 + 1, 0), (0, 2**63), None]):
        ours, theirs = socket.socketpair()
        alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=5))
        _XLAC._xla_connect_replicas(0, [-1, ours.detach()], 20.0, alone)
        theirs.sendall(struct.pack("<IIQQ", 1, *sizes, 1) + b"x" * 64 if sizes else many)
        x = torch.ones(2, device=f"xla:{device}")
        try:
            xm.all_reduce("sum", x).cpu()
        except RuntimeError as error:
            texts.append(str(error))
        _XLAC._xla_disconnect_replicas("done")
    report(texts=texts)
    """
    reported, _ = run_python(code, tmp_path, CPU_NUM_DEVICES="5")
    assert len(reported["texts"]) == 5
    for text in reported["texts"][:4]:
        assert "rank 1 has ended or closed its connection" in text, text
