"""How replicas find each other: a socket between every two of them.

Each replica listens, says where in the store, and connects to those of a lower rank. Who connects
says the cookie that the store has and its rank, and gets a byte back. Anybody else may connect,
too, and say nothing, or anything, any number of times: nobody is waited for by itself, and who
keeps a replica from room for more is sent away and, if it is a replica, comes again.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from hmac import compare_digest as same_digest

COOKIE_SIZE = 32
_HELLO_SIZE = COOKIE_SIZE + 4
_WELCOME = b"\1"
# How many connections may wait that have not identified themselves.
_MAX_UNKNOWN = 128
# Seconds to wait before connecting again to a replica that closed the connection.
_RETRY_INTERVAL = 0.05


class _Greeter:
    """The sockets of one replica while it connects."""

    def __init__(
        self, server: socket.socket, cookie: bytes, rank: int, addresses: list[tuple[str, int]]
    ) -> None:
        self.sockets: list[socket.socket | None] = [None] * len(addresses)
        self._server = server
        self._cookie = cookie
        self._rank = rank
        self._addresses = addresses
        self._selector = selectors.DefaultSelector()
        # Accepted connections that have not identified themselves, oldest first.
        self._unknown: dict[socket.socket, bytes] = {}
        self._retries: dict[int, float] = {}
        server.setblocking(False)
        self._watch(server, self._accept)

    def missing(self) -> list[int]:
        return [r for r, peer in enumerate(self.sockets) if peer is None and r != self._rank]

    def _watch(
        self, peer: socket.socket, on_ready: Callable[[], None], write: bool = False
    ) -> None:
        event = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        self._selector.register(peer, event, on_ready)

    def _accept(self) -> None:
        try:
            peer, _ = self._server.accept()
        except (BlockingIOError, ConnectionError):
            return  # The peer has disconnected.
        except OSError:  # This process has no descriptor left.
            self._send_away(0)
            return
        peer.setblocking(False)
        self._unknown[peer] = b""
        self._watch(peer, lambda: self._listen(peer))
        self._send_away(_MAX_UNKNOWN)

    def _send_away(self, limit: int) -> None:
        """Closes the oldest connection that has not identified itself."""
        while len(self._unknown) > limit:
            self._close(next(iter(self._unknown)))

    def _close(self, peer: socket.socket) -> None:
        self._unknown.pop(peer, None)
        self._selector.unregister(peer)
        peer.close()

    def _listen(self, peer: socket.socket) -> None:
        """Reads the greeting of an accepted connection."""
        if peer not in self._unknown:
            return  # Dropped after it became ready.
        try:
            part = peer.recv(_HELLO_SIZE - len(self._unknown[peer]))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        said = self._unknown[peer] + part
        self._unknown[peer] = said
        if part and len(said) < _HELLO_SIZE:
            return
        rank = int.from_bytes(said[COOKIE_SIZE:], "little")
        known = same_digest(said[:COOKIE_SIZE], self._cookie)
        expected = self._rank < rank < len(self.sockets) and self.sockets[rank] is None
        if not part or not known or not expected:
            self._close(peer)
            return
        try:
            peer.send(_WELCOME)
        except OSError:
            self._close(peer)
            return
        del self._unknown[peer]
        self._selector.unregister(peer)
        self.sockets[rank] = peer

    def connect(self, rank: int) -> None:
        """Starts to connect to a replica of a lower rank."""
        family, kind, _, _, target = socket.getaddrinfo(
            *self._addresses[rank], self._server.family, socket.SOCK_STREAM
        )[0]
        peer = socket.socket(family, kind)
        peer.setblocking(False)
        peer.connect_ex(target)
        self._watch(peer, lambda: self._greet(peer, rank), write=True)

    def _greet(self, peer: socket.socket, rank: int) -> None:
        self._selector.unregister(peer)
        try:
            peer.send(self._cookie + self._rank.to_bytes(4, "little"))
        except OSError:
            self._retry(peer, rank)
            return
        self._watch(peer, lambda: self._finish(peer, rank))

    def _finish(self, peer: socket.socket, rank: int) -> None:
        self._selector.unregister(peer)
        try:
            answer = peer.recv(len(_WELCOME))
        except OSError:
            answer = b""
        if answer == _WELCOME:
            self.sockets[rank] = peer
        else:
            self._retry(peer, rank)

    def _retry(self, peer: socket.socket, rank: int) -> None:
        peer.close()
        self._retries[rank] = time.monotonic() + _RETRY_INTERVAL

    def run(self, deadline: float) -> None:
        """Returns when all replicas are connected, or at the deadline."""
        for rank in range(self._rank):
            self.connect(rank)
        while self.missing():
            now = time.monotonic()
            for rank in [rank for rank, when in self._retries.items() if when <= now]:
                del self._retries[rank]
                self.connect(rank)
            until = min([deadline, *self._retries.values()])
            if now >= deadline:
                return
            for key, _ in self._selector.select(max(0.0, until - now)):
                key.data()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._server:
                key.fileobj.close()
        self._selector.close()


def meet(
    server: socket.socket,
    cookie: bytes,
    rank: int,
    addresses: list[tuple[str, int]],
    deadline: float,
) -> list[socket.socket | None]:
    """Connects this process with every other replica.

    Args:
        server: The socket at which this replica listens.
        cookie: A secret of ``COOKIE_SIZE`` bytes that only replicas know.
        rank: This replica's rank.
        addresses: Where each of them listens.
        deadline: When to give up, by ``time.monotonic()``.

    Returns:
        The sockets in order of rank; None for this replica itself and for those that did not
        come.
    """
    greeter = _Greeter(server, cookie, rank, addresses)
    try:
        greeter.run(deadline)
    finally:
        greeter.close()
    for peer in greeter.sockets:
        if peer is not None:
            peer.setblocking(True)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return greeter.sockets
