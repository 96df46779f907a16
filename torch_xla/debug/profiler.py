"""The host's timeline: what was traced, compiled, run and transferred, and when.

A recording has the regions named with :class:`Trace`, :class:`StepTrace` and
``torch.profiler.record_function``, on all threads, with ``host_tracer_level=3`` also PyTorch's
operators, and, on rows of their own, the runtime's latest compiles, executions and transfers (at
most 1,024 of a kind), and what the program did while the device was idle. It is a file of the
Chrome trace format, which ``chrome://tracing`` and https://ui.perfetto.dev open, and one that
TensorBoard's profile plugin reads, in the folders in which that looks; the second also has what
the device plugin's own profiler saw, where it has one (CUDA's and TPU's do). Recordings of
``torch.profiler.profile`` have the same rows. :func:`summary` needs no recording.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gzip
import json
import os
import secrets
import socket
import socketserver
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch._C._profiler import RecordScope

from torch_xla import _XLAC, runtime
from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import profiles, xspace
from torch_xla._internal.insight.timeline import LineTime, Summary, summary

__all__ = [
    "LineTime",
    "StepTrace",
    "Summary",
    "Trace",
    "start_server",
    "start_trace",
    "stop_trace",
    "summary",
    "trace",
    "trace_detached",
    "trace_me",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class Trace(contextlib.ContextDecorator):
    """Names a region of the program in recordings: a ``with`` block, or a function.

    Args:
        name: The name.
        **kwargs: What to show beside it.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._name = name
        self._arguments = ", ".join(f"{key}={value}" for key, value in kwargs.items())
        self._regions: list[Any] = []  # Open ones: a decorator may be entered again inside.

    def __enter__(self) -> Trace:
        region = torch.profiler.record_function(self._name, self._arguments or None)
        region.__enter__()
        self._regions.append(region)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._regions.pop().__exit__(*exc_info)


class StepTrace(Trace):
    """Names a training step: ``with StepTrace("train_step", step_num=i):``."""


def trace_me(scope: str) -> Callable[[_F], _F]:
    """Returns a decorator that names every call of a function ``scope``."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return cast(_F, named)

    return decorate


_ALL_SCOPES: set[RecordScope] = set()

# Functions of C++ that the type stub lacks.
_autograd: Any = torch.autograd


class _Recording:
    """One recording, from its construction to :meth:`finish`.

    ``torch.profiler.profile`` always records operators, at 1 µs each; these are the functions that
    it calls.
    """

    def __init__(self, host_tracer_level: int, device_tracer_level: int) -> None:
        self._device = _start_device_profiler() if device_tracer_level > 0 else None
        activities = {torch.profiler.ProfilerActivity.CPU}
        config = _autograd.ProfilerConfig(
            _autograd.ProfilerState.KINETO,
            False,  # shapes
            False,  # memory
            False,  # stacks
            False,  # operations
            False,  # modules
            torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        )
        scopes = _ALL_SCOPES if host_tracer_level > 2 else {RecordScope.USER_SCOPE}
        _autograd._prepare_profiler(config, activities)
        _autograd._enable_profiler(config, activities, scopes)

    def finish(self) -> tuple[bytes, bytes]:
        """Ends it; returns the Chrome trace, compressed with gzip, and the XSpace."""
        result = _autograd._disable_profiler()
        device_planes = _device_planes(self._device) if self._device else b""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "trace.json")
            result.save(file)
            profiles.add_rows(file)
            trace = Path(file).read_bytes()
        # Two concatenated messages are one message: protobuf merges their repeated fields.
        space = xspace.from_chrome(json.loads(trace), socket.gethostname()) + device_planes
        return gzip.compress(trace, compresslevel=3), space


# Without the device's profiler the recording of the host is still useful.
def _start_device_profiler() -> _XLAC.DeviceProfiler | None:
    try:
        return _XLAC._start_device_profiler()
    except RuntimeError as error:
        warnings.warn(f"torch_xla: recording without the device: {error}", stacklevel=4)
        return None


def _device_planes(profiler: _XLAC.DeviceProfiler) -> bytes:
    try:
        return profiler.stop()
    except RuntimeError as error:
        warnings.warn(f"torch_xla: a recording without the device: {error}", stacklevel=4)
        return b""


# Set at exit: recordings that are still running end then and are written.
_ending = threading.Event()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # That record or will write.
_EXIT_TIMEOUT = 60.0  # For all of them, in seconds.


def _wait(milliseconds: float) -> None:
    """Waits, at most until the process ends."""
    _ending.wait(milliseconds * 1e-3)


@atexit.register
def _finish() -> None:
    _ending.set()
    end = time.monotonic() + _EXIT_TIMEOUT
    for thread in list(_threads):
        thread.join(max(end - time.monotonic(), 0))
    if _current is not None:
        stop_trace()


_lock = threading.Lock()
_current: tuple[_Recording, str] | None = None


def start_trace(log_dir: str, host_tracer_level: int = 2, device_tracer_level: int = 1) -> None:
    """Begins to record, until :func:`stop_trace` or the end of the program.

    Args:
        log_dir: The folder for :func:`stop_trace` to write to.
        host_tracer_level: 3 for PyTorch's operators too, which slow the program down.
        device_tracer_level: 0 to leave the device plugin's profiler off.

    Raises:
        RuntimeError: A recording is on already.
    """
    global _current
    with _lock:
        if _current is not None:
            raise RuntimeError("start_trace(): a recording is on already; call stop_trace() first")
        _current = (_Recording(host_tracer_level, device_tracer_level), os.fspath(log_dir))


def stop_trace() -> None:
    """Ends the recording, and writes it under ``plugins/profile`` of its folder.

    Raises:
        RuntimeError: There is none.
    """
    global _current
    with _lock:
        if _current is None:
            raise RuntimeError("stop_trace(): there is no recording; call start_trace() first")
        (recording, log_dir), _current = _current, None
    _write(log_dir, *recording.finish())


def _write(log_dir: str, trace: bytes, space: bytes) -> None:
    folder = Path(log_dir) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"
    write_file(folder / f"{name}.trace.json.gz", trace)
    write_file(folder / f"{name}.xplane.pb", space)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        _wait(request["delay_ms"])
        with _lock:
            if _ending.is_set():
                self.wfile.write(b'{"error": "it has ended"}\n')
                return
            if _current is not None:
                self.wfile.write(b'{"error": "a recording is on already"}\n')
                return
            recording = _Recording(request["host_tracer_level"], request["device_tracer_level"])
            _wait(request["duration_ms"])
            trace, space = recording.finish()
        sizes = json.dumps({"sizes": [len(trace), len(space)]}).encode()
        self.wfile.write(sizes + b"\n" + trace + space)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        _threads.add(threading.current_thread())
        super().process_request_thread(request, client_address)


_servers: dict[tuple[int, int], _Server] = {}


def start_server(port: int, only_on_master: bool = True) -> object | None:
    """Lets :func:`trace` record this process, from any process of this host.

    Args:
        port: The TCP port on the loopback interface; with 0 the system chooses one, which the
            result's ``server_address`` tells.
        only_on_master: Whether only the replica with local ordinal 0 does so.

    Returns:
        The server, which ends with the program; None where there is none. This process's own on
        that port if it has one already.

    Raises:
        OSError: Another process has taken the port.
    """
    if only_on_master and runtime.local_ordinal() != 0:
        return None
    found = _servers.get((os.getpid(), port))
    if found is not None and found.fileno() != -1:  # The server is still open.
        return found
    server = _Server(("127.0.0.1", port), _Handler)
    _servers[os.getpid(), server.server_address[1]] = server
    threading.Thread(target=server.serve_forever, name="torch_xla profiler", daemon=True).start()
    return server


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interactive: bool = True,
) -> None:
    """Records a process that has called :func:`start_server`.

    Args:
        service_addr: Its address, as ``"localhost:9012"``.
        logdir: The folder to write to, as :func:`stop_trace` does.
        duration_ms: How long to record, in milliseconds.
        num_tracing_attempts: How often to try where it does not answer.
        host_tracer_level: 3 for PyTorch's operators too, which slow the program down.
        device_tracer_level: 0 to leave the device plugin's profiler off.
        delay_ms: How long it waits before it begins, in milliseconds.
        timeout_s: How long to wait for an answer beyond that, in seconds.
        interactive: Not needed: the recording is written in any case.

    Raises:
        RuntimeError: It does not answer, or is being recorded already.
    """
    host, _, port = service_addr.rpartition(":")
    asked = {
        "delay_ms": delay_ms,
        "duration_ms": duration_ms,
        "host_tracer_level": host_tracer_level,
        "device_tracer_level": device_tracer_level,
    }
    request = json.dumps(asked).encode() + b"\n"
    seconds = timeout_s + (delay_ms + duration_ms) * 1e-3
    for attempts_left in reversed(range(max(num_tracing_attempts, 1))):
        try:
            with (
                socket.create_connection((host or "localhost", int(port)), seconds) as connection,
                connection.makefile("rwb") as file,
            ):
                file.write(request)
                file.flush()
                answer = json.loads(file.readline() or b'{"error": "it has ended"}')
                if "error" in answer:
                    raise RuntimeError(f"trace(): {service_addr}: {answer['error']}")
                trace, space = (file.read(size) for size in answer["sizes"])
            return _write(logdir, trace, space)
        except OSError as error:
            if not attempts_left:
                raise RuntimeError(f"trace(): {service_addr} does not answer: {error}") from error
            time.sleep(0.5)
    return None


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """Does what :func:`trace` does, on another thread, and returns at once.

    At the end of the program that is recorded the recording ends, too, and is written.
    """
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, daemon=True)
    _threads.add(thread)
    thread.start()
