"""A Google Cloud Storage server in this process, and a proxy before it that breaks connections."""

import asyncio
import collections
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
)


def _request(connection: socket.socket) -> bytes:
    """Reads one HTTP request."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(1 << 16)
        if not chunk:
            return data
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head.replace(b"\r\nConnection: keep-alive", b"") + b"\r\n\r\n" + body


class FaultyProxy(socketserver.ThreadingTCPServer):
    """Forwards each request to the server, or does what ``faults`` has for it.

    ``"drop"`` closes the connection without an answer, ``"cut"`` in the middle of it, ``"busy"``
    answers 503.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = ("127.0.0.1", port)
        self.faults: collections.deque[str] = collections.deque()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    server: FaultyProxy

    def handle(self) -> None:
        request = _request(self.request)
        if not request:
            return
        self.server.requests.append(request.split(b"\r\n")[0].decode())
        fault = self.server.faults.popleft() if self.server.faults else ""
        if fault == "drop":
            return
        if fault == "busy":
            self.request.sendall(_BUSY)
            return
        answer = b""
        with socket.create_connection(self.server.target) as upstream:
            upstream.sendall(request)
            head = b""
            while chunk := upstream.recv(1 << 16):
                answer += chunk
                head = answer.partition(b"\r\n\r\n")[0].lower()
                length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
                if length and len(answer) >= len(head) + 4 + int(length):
                    break
        if fault == "cut":
            answer = answer[: -len(answer) // 3]
        self.request.sendall(answer)


class _Impatient:
    """asyncio for gcsfs.retry, which waits a second before its third try, then two, ..."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


@contextmanager
def gcs_server() -> Iterator[FaultyProxy]:
    """Runs the server and the proxy; ``gs://bucket`` is there, empty, inside the block."""
    from gcp_storage_emulator.server import create_server

    server = create_server("localhost", 0, in_memory=True)
    server.start()
    proxy = FaultyProxy(server._api._httpd.socket.getsockname()[1])
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    environment = {
        "STORAGE_EMULATOR_HOST": proxy.url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # It asks for credentials.
    }
    try:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, environment))
            import gcsfs

            stack.enter_context(mock.patch.object(gcsfs.retry, "asyncio", _Impatient()))
            gcsfs.GCSFileSystem.clear_instance_cache()
            gcsfs.GCSFileSystem().mkdir("bucket")
            proxy.requests.clear()
            yield proxy
            gcsfs.GCSFileSystem.clear_instance_cache()
    finally:
        proxy.shutdown()
        proxy.server_close()
        server.stop()
        thread.join(10)
