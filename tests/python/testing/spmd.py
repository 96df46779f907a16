"""Runs tests in SPMD mode with four devices, in another process.

That is one process for all tests, as long as none breaks it, or one for a test alone. They are
forked off a server that has imported everything and used nothing: see replicas.
"""

import functools
import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import replicas  # noqa: F401  (which says what the server imports)


def _serve(connection: Connection, enter: bool, environment: dict[str, str]) -> None:
    """Runs the tests that come; answers with None, or the traceback."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    if enter:
        xr.use_spmd()
    while True:
        try:
            module, name, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            if enter:  # As if it were the first one.
                torch_xla.sync(wait=True)
                xs.set_global_mesh(None)
                torch.manual_seed(0)
            getattr(importlib.import_module(module), name).__wrapped__(*args, **kwargs)
            connection.send(None)
        except BaseException:
            connection.send(traceback.format_exc())


class _Worker:
    def __init__(self, enter: bool, environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, enter, environment), daemon=True
        )
        self._process.start()
        theirs.close()

    def run(self, timeout: float, *job: Any) -> str | None:
        """Returns None, or what went wrong."""
        try:
            self._connection.send(job)
            if self._connection.poll(timeout):
                return self._connection.recv()
            return f"the test did not end within {timeout} s"
        except (EOFError, OSError):
            self._process.join(10)
            return f"the process ended with exit code {self._process.exitcode}"

    def end(self) -> None:
        """Lets it exit as programs do; it has to do so without an error."""
        self._connection.close()
        self._process.join(30)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        assert code == 0, f"exit code {code} at the end"

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()


_shared: _Worker | None = None


def _run_shared(timeout: float, *job: Any) -> str | None:
    global _shared
    if _shared is None:
        _shared = _Worker(True, {"CPU_NUM_DEVICES": "4"})
    error = _shared.run(timeout, *job)
    if error is not None:  # It may have left anything behind.
        _shared.kill()
        _shared = None
    return error


def _run_alone(timeout: float, enter: bool, environment: dict[str, str], *job: Any) -> str | None:
    worker = _Worker(enter, {"CPU_NUM_DEVICES": "4", **environment})
    error = worker.run(timeout, *job)
    if error is None:
        worker.end()
    else:
        worker.kill()
    return error


def in_spmd(
    function: Callable[..., None] | None = None,
    *,
    enter: bool = True,
    alone: bool = False,
    timeout: float = 120,
    **environment: str,
) -> Any:
    """Decorates a test of a module: it runs in a process with ``CPU_NUM_DEVICES=4``.

    Args:
        function: The test; its arguments must pickle.
        enter: Whether ``use_spmd()`` was called before.
        alone: Whether to run it in a process of its own, which then has to exit well. So it does
            without ``enter`` or with variables.
        timeout: In seconds.
        **environment: More variables.
    """
    if function is None:
        return functools.partial(in_spmd, enter=enter, alone=alone, timeout=timeout, **environment)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        job = (function.__module__, function.__name__, args, kwargs)
        if alone or environment or not enter:
            error = _run_alone(timeout, enter, environment, *job)
        else:
            error = _run_shared(timeout, *job)
        assert error is None, error

    return wrapper
