"""The replicas: one process each, who they are, and how they find each other.

The environment says who this process is, in the variables of ``torchrun``: ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``. Processes of
:func:`torch_xla.distributed.xla_multiprocessing.spawn` get them too, and in ``TORCH_XLA_STORE``
the address of a key-value store that their parent keeps.

The replicas connect when the first collective is traced: a socket between every two of them,
made here, for what each is about to run, and c10d's Gloo for the data (see
``csrc/distributed/``).
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import errno
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.distributed.rendezvous import rendezvous as _torch_rendezvous

from torch_xla import _XLAC
from torch_xla._internal.plugins import device_counts, finder, platform_choice
from torch_xla._internal.replicas import greeting

STORE_VARIABLE = "TORCH_XLA_STORE"
TIMEOUT_VARIABLE = "XLA_COLLECTIVE_TIMEOUT"
ADDRESS_VARIABLE = "XLA_REPLICA_ADDRESS"
DEFAULT_TIMEOUT = 300.0

# The shortest and the longest pause between two checks for a key, in seconds.
_POLL_INTERVALS = (0.0005, 0.05)


class Topology(NamedTuple):
    """Where this process is among the replicas."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_override: Topology | None = None
_timeout: float | None = None
_store: Store | None = None
_address: str | None = None
_lock = threading.RLock()
_rendezvous_counts: dict[tuple[str, tuple[int, ...]], int] = {}
_process_groups = 0


def topology() -> Topology:
    """Returns this process's place, from the environment; a process by itself is the only one."""
    if _override is not None:
        return _override
    rank, world_size, local_rank = (os.environ.get(name) for name in _PLACE)
    if rank is None or world_size is None or local_rank is None:
        return Topology()
    return Topology(
        int(rank), int(world_size), int(local_rank), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )


def is_launched() -> bool:
    """Returns whether something (torchrun, spawn) has started this process as a replica."""
    return all(name in os.environ for name in _PLACE)


def adopt(store: Store, rank: int, world_size: int) -> None:
    """Makes this process one of the replicas that ``init_process_group`` has named.

    Nothing changes where the environment has said so already.
    """
    global _override, _store
    if topology().world_size > 1:
        if (rank, world_size) != topology()[:2]:
            raise RuntimeError(
                f"this process is replica {topology().rank} of {topology().world_size}, but "
                f"init_process_group was given rank {rank} of {world_size}"
            )
        return
    if world_size > 1:
        device_counts.use_one()
        _override = Topology(rank, world_size, rank, world_size)
        _store = _store_of_this_start(PrefixStore("torch_xla", store), rank, world_size)
        _join_processes()


def stand_for_all(count: int) -> None:
    """Makes this process the first of ``count`` replicas; no other one exists.

    It is for compiling for absent devices: nothing runs, so nobody waits for the others.
    """
    global _override, _store
    _override = Topology(0, count, 0, count)
    _store = HashStore()
    _join_processes()


def _join_processes() -> None:
    """Tells the runtime of the other processes, whose devices have collectives of their own.

    The plugin asks the store when it starts. CPU devices need none: their collectives run on the
    host.
    """
    if not finder.may_have_accelerator() or _XLAC._xla_is_initialized():
        return
    place = topology()
    _XLAC._xla_set_process_place(
        place.rank, place.world_size, place.local_rank, PrefixStore("plugin", store())
    )


def timeout() -> float:
    """Returns how long replicas wait for each other, in seconds."""
    if _timeout is not None:
        return _timeout
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return DEFAULT_TIMEOUT
    return checked_timeout(text)


def checked_timeout(value: str | float) -> float:
    """Returns ``value`` as a number of seconds; raises ValueError when it is none above 0."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got {value!r}")
    return seconds


def set_timeout(seconds: float) -> None:
    """Sets how long replicas wait for each other; for the time before they are connected."""
    global _timeout
    if _XLAC._xla_replicas_connected():
        raise RuntimeError("the timeout must be set before the first collective")
    _timeout = checked_timeout(seconds)


def make_store(host: str, port: int, server: bool) -> TCPStore:
    """Returns a store: the server itself, or a client of the one at ``host:port``.

    Args:
        host: Name or address.
        port: The port; 0 lets a server choose one.
        server: Whether to be the server.
    """
    return TCPStore(
        host,
        port,
        is_master=server,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=timeout()),
    )


def store() -> Store:
    """Returns the store that all replicas share."""
    global _store
    with _lock:
        if _store is None:
            place = topology()
            if place.world_size == 1:
                _store = HashStore()
            elif STORE_VARIABLE in os.environ:
                host, port = os.environ[STORE_VARIABLE].rsplit(":", 1)
                _store = make_store(host, int(port), server=False)
            else:
                found = _torch_rendezvous(
                    "env://",
                    place.rank,
                    place.world_size,
                    timeout=datetime.timedelta(seconds=timeout()),
                )
                keys = PrefixStore("torch_xla", next(found)[0])
                _store = _store_of_this_start(keys, place.rank, place.world_size)
        return _store


def _store_of_this_start(keys: Store, rank: int, world_size: int) -> Store:
    """Returns a part of ``keys`` in which only these processes have written.

    A launcher's store outlives the processes that it starts again, and has what the ones before
    wrote. So replica 0 draws a name, which the others take once it has confirmed that it saw them.

    Raises:
        RuntimeError: Some did not come within the timeout; the message names them.
    """
    own = secrets.token_hex(8)
    if rank == 0:
        keys.set("start", own)
        names = {f"{own}/replica/{other}": other for other in range(1, world_size)}
        if names:
            wait_for_keys(keys, names)
        keys.set(f"{own}/replicas", " ".join(keys.get(name).decode() for name in names))
        return PrefixStore(own, keys)
    deadline = time.monotonic() + timeout()
    joined = ""
    interval, longest = _POLL_INTERVALS
    while time.monotonic() < deadline:
        if keys.check(["start"]):
            start = keys.get("start").decode()
            if start != joined:  # Unless confirmed, it may be the start of earlier processes.
                keys.set(f"{start}/replica/{rank}", own)
                joined = start
            confirmed = f"{joined}/replicas"
            if keys.check([confirmed]) and own.encode() in keys.get(confirmed).split(b" "):
                return PrefixStore(joined, keys)
        time.sleep(interval)
        interval = min(2 * interval, longest)
    raise RuntimeError(f"replicas [0] did not come within {timeout():g} s")


def _store_host() -> str:
    if STORE_VARIABLE in os.environ:
        return os.environ[STORE_VARIABLE].rsplit(":", 1)[0]
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def address() -> str:
    """Returns this host's address as the others reach it.

    That is ``XLA_REPLICA_ADDRESS``, or the one with which it reaches the store.
    """
    global _address
    if _address is None:
        _address = os.environ.get(ADDRESS_VARIABLE)
    if _address is None:
        family, _, _, _, target = socket.getaddrinfo(_store_host(), 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # This sends nothing.
            _address = probe.getsockname()[0]
    return _address


def _open_sockets(keys: Store, place: Topology, seconds: float) -> list[socket.socket | None]:
    """Connects this process with every other one; returns the sockets in order of rank."""
    deadline = time.monotonic() + seconds
    host = address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The longest queue that the system allows, so that unknown peers cannot fill it.
    with socket.create_server((host, 0), family=family, backlog=1 << 16) as server:
        if place.rank == 0:
            keys.set("cookie", secrets.token_hex(greeting.COOKIE_SIZE // 2))
        keys.set(f"address/{place.rank}", f"{host} {server.getsockname()[1]}")
        wait_for_keys(keys, {f"address/{rank}": rank for rank in range(place.world_size)}, seconds)
        addresses = []
        for rank in range(place.world_size):
            peer_host, port = keys.get(f"address/{rank}").decode().split(" ")
            addresses.append((peer_host, int(port)))
        sockets = greeting.meet(server, keys.get("cookie"), place.rank, addresses, deadline)
    missing = [rank for rank, s in enumerate(sockets) if s is None and rank != place.rank]
    if missing:
        raise RuntimeError(
            f"replicas {missing} did not connect to replica {place.rank} within {seconds:g} s"
        )
    return sockets


def connect() -> None:
    """Connects the replicas, once. All of them have to call it.

    Raises:
        RuntimeError: Some did not come within the timeout; the message names them.
    """
    with _lock:
        if _XLAC._xla_replicas_connected():
            return
        place = topology()
        seconds = timeout()
        if platform_choice.topology():  # Nothing runs; only the identities matter.
            alone = dist.ProcessGroupGloo(HashStore(), 0, 1, datetime.timedelta(seconds=seconds))
            _XLAC._xla_connect_replicas(place.rank, [-1] * place.world_size, seconds, alone)
            atexit.register(_finish_at_exit, getattr(sys, "last_value", None))
            return
        keys = PrefixStore("connect", store())
        sockets = _open_sockets(keys, place, seconds)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = datetime.timedelta(seconds=seconds)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address())]
        options._threads = 1  # For Gloo's own collectives, which are not used.
        bulk = dist.ProcessGroupGloo(
            PrefixStore("gloo", keys), place.rank, place.world_size, options
        )
        _XLAC._xla_connect_replicas(
            place.rank,
            [-1 if peer is None else peer.detach() for peer in sockets],
            seconds,
            bulk,
        )
        atexit.register(_finish_at_exit, getattr(sys, "last_value", None))
        os.register_at_fork(after_in_child=_XLAC._xla_close_replicas_in_child)


def finish() -> None:
    """Runs the collectives that are traced, which others may wait for, and disconnects.

    Raises:
        RuntimeError: One of them failed.
    """
    if not _XLAC._xla_replicas_connected():
        return
    if _XLAC._xla_collective_pending():
        _XLAC._xla_sync([], False)
    _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
    with contextlib.suppress(RuntimeError):  # The store may have ended with its process.
        store().set(f"finished/{topology().rank}", "")
    _XLAC._xla_disconnect_replicas()


def abandon(error: BaseException) -> None:
    """Disconnects after an error: what is under way fails, and the others are told why."""
    if _XLAC._xla_replicas_connected():
        _XLAC._xla_disconnect_replicas(f"{type(error).__name__}: {error}"[:2000])


def _finish_at_exit(shown_before: BaseException | None) -> None:
    # After an error do not wait for this replica's collectives. (An interactive session goes on
    # after an error, and connects again.)
    error = getattr(sys, "last_value", None)
    if error is None or error is shown_before:
        finish()
    else:
        abandon(error)


def _ended(ranks: Sequence[int]) -> list[int]:
    """Returns those of ``ranks`` whose processes have ended, as far as this one is connected."""
    if not _XLAC._xla_replicas_connected():
        return []
    return [rank for rank in _XLAC._xla_ended_replicas() if rank in ranks]


def _text_of_ended(ended: Sequence[int]) -> str:
    return f"replica {ended[0]} has ended, for which replica {topology().rank} waits"


def raise_for_ended(error: Exception, ranks: Sequence[int], failed: bool) -> None:
    """Raises RuntimeError, from ``error``, if it came because one of ``ranks`` has ended.

    Args:
        error: What came while this process waited for the others.
        ranks: The others, this one perhaps among them.
        failed: Whether the wait is over. Otherwise it may have what it needs from those that have
            ended well, and waits for others.
    """
    for _ in range(20 if failed else 1):  # The connections of a process close one after the other.
        ended = _ended(ranks)
        if not failed:
            ended = [rank for rank in ended if not store().check([f"finished/{rank}"])]
        if ended:
            raise RuntimeError(_text_of_ended(ended)) from error
        time.sleep(0.01)


def wait_for_keys(keys: Store, names: dict[str, int], seconds: float | None = None) -> None:
    """Waits until every key is there.

    Args:
        keys: The store.
        names: The keys, each with the rank that sets it.
        seconds: The timeout; that of all replicas when None.

    Raises:
        RuntimeError: A replica has ended, or did not set its key in time; the message names it.
    """
    seconds = timeout() if seconds is None else seconds
    deadline = time.monotonic() + seconds
    interval, longest = _POLL_INTERVALS
    while not keys.check(list(names)):
        time.sleep(interval)
        interval = min(2 * interval, longest)
        late = time.monotonic() > deadline
        if interval < longest and not late:
            continue
        missing = [rank for name, rank in names.items() if not keys.check([name])]
        if missing and (ended := _ended(missing)):
            raise RuntimeError(_text_of_ended(ended))
        if missing and late:
            raise RuntimeError(f"replicas {missing} did not come within {seconds:g} s")


def exchange(tag: str, payload: bytes, ordinals: Sequence[int]) -> list[bytes]:
    """Gives ``payload`` to ``ordinals``, this one among them, and returns theirs in that order.

    Raises:
        RuntimeError: As :func:`wait_for_keys`.
    """
    members = tuple(ordinals)
    rank = topology().rank
    if platform_choice.topology():  # As if all members had the same payload.
        return [payload] * len(members)
    with _lock:
        count = _rendezvous_counts.get((tag, members), 0)
        _rendezvous_counts[(tag, members)] = count + 1
        # A client serves one call at a time, and other callers must not wait for this one.
        keys = PrefixStore(f"rendezvous/{tag}/{members}/{count}", store().clone())  # type: ignore[attr-defined]
    keys.set(str(rank), payload)  # type: ignore[arg-type]  # Bytes, too.
    names = {str(member): member for member in members}
    wait_for_keys(keys, names)
    payloads = [keys.get(name) for name in names]
    if keys.add("done", 1) == len(members):
        for name in (*names, "done"):
            keys.delete_key(name)
    return payloads


def rendezvous(tag: str, payload: bytes | str = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits until all replicas have come to the same point, and exchanges data.

    Collectives that were traced are launched first, since others may wait for them.

    Args:
        tag: The name of the point.
        payload: What the others get from this replica.
        replicas: The ordinals that take part, this one among them; all when empty.

    Returns:
        The payloads in order of the ordinals that take part; where all do, that of ordinal i is
        at position i.

    Raises:
        RuntimeError: A replica did not come within the timeout, or has ended.
        ValueError: ``replicas`` is not as above.
    """
    place = topology()
    data = payload.encode() if isinstance(payload, str) else bytes(payload)
    members = sorted(set(replicas)) or list(range(place.world_size))
    if place.rank not in members or not 0 <= members[0] <= members[-1] < place.world_size:
        raise ValueError(
            f"rendezvous(): expected `replicas` from 0 to {place.world_size - 1} with this one, "
            f"{place.rank}, among them, got {members}"
        )
    if len(members) == 1:
        return [data]
    if _XLAC._xla_collective_pending():
        _XLAC._xla_sync([], False)
    return exchange(tag, data, members)


_channels: dict[tuple[int, bool], tuple[int, int]] = {}


def ends_of_channel(channel: int, sends: bool) -> tuple[int, int]:
    """Returns which replica sends on a channel and which receives; this one is one of them.

    Both have to ask, and wait for each other the first time.

    Raises:
        RuntimeError: The other one did not ask in time, or this end is another replica's.
    """
    if (channel, sends) not in _channels:
        rank = topology().rank
        keys = PrefixStore(f"channel/{channel}", store().clone())  # type: ignore[attr-defined]
        own, other = ("source", "target") if sends else ("target", "source")
        verb, opposite = ("sends", "receives") if sends else ("receives", "sends")
        # The first replica that sets the key owns this end of the channel.
        taken = int(keys.compare_set(own, "", str(rank)))
        if taken != rank:
            raise RuntimeError(f"replica {taken} {verb} on channel {channel} already")
        deadline = time.monotonic() + timeout()
        while not keys.check([other]):
            if time.monotonic() > deadline:
                text = f"no replica {opposite} on channel {channel} within {timeout():g} s"
                raise RuntimeError(text)
            time.sleep(_POLL_INTERVALS[1])
        ends = (rank, int(keys.get(other)))
        _channels[channel, sends] = ends if sends else ends[::-1]
    return _channels[channel, sends]


class HostLock:
    """A lock among the replicas of a host; it is given up when its process ends.

    Replicas that make the same locks in the same order share them.
    """

    _made = 0

    def __init__(self) -> None:
        self._index = HostLock._made
        HostLock._made += 1

    def _name(self) -> str:
        # An abstract address needs no file, and disappears with the process.
        where = os.environ.get(STORE_VARIABLE) or ":".join(
            os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")
        )
        return f"\0torch_xla/{where}/{self._index}"

    def __enter__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.bind(self._name())
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                time.sleep(0.005)

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()


def place_environment(place: Topology) -> dict[str, str]:
    """Returns the environment variables that make a process a replica."""
    return dict(zip((*_PLACE, "LOCAL_WORLD_SIZE"), map(str, place), strict=True))


def _rendezvous(
    url: str, timeout: datetime.timedelta | None = None, **kwargs: object
) -> Iterator[tuple[Store, int, int]]:
    """``xla://``: the replicas that the environment names."""
    global _process_groups
    place = topology()
    # After destroy_process_group the next group must not find old keys.
    _process_groups += 1
    keys = PrefixStore(f"process_group/{_process_groups}", store())
    yield keys, place.rank, place.world_size
    raise RuntimeError("init_method 'xla://' cannot rendezvous twice")


def register(create_group: Callable[..., dist.ProcessGroup]) -> None:
    """At import: torch.distributed's backend ``xla``, and what one of several replicas needs.

    Args:
        create_group: Makes a group of the backend.
    """
    dist.Backend.register_backend("xla", create_group, extended_api=True, devices=["xla"])
    # torch 2.15 cannot attach its flight recorder to a group that is no list of backends.
    recording: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("xla")
    register_rendezvous_handler("xla", _rendezvous)
    join()


def join() -> None:
    """Prepares a process that is one of several replicas, before it uses a device."""
    if topology().world_size > 1:
        device_counts.use_one()
        _join_processes()
