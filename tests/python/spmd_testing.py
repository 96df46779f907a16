"""Runs tests in processes of their own, in SPMD mode with four devices.

They are forked off a server that has imported everything and used nothing: see replica_testing.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import replica_testing  # noqa: F401  (what the server imports)
import torch

import torch_xla.runtime as xr


def _run(
    connection: Connection,
    module: str,
    name: str,
    enter: bool,
    environment: dict[str, str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        if enter:
            xr.use_spmd()
        getattr(importlib.import_module(module), name).__wrapped__(*args, **kwargs)
        connection.send(None)
    except BaseException:
        connection.send(traceback.format_exc())


def in_spmd(
    function: Callable[..., None] | None = None,
    *,
    enter: bool = True,
    timeout: float = 120,
    **environment: str,
) -> Any:
    """Decorates a test of a module: it runs in a process with ``CPU_NUM_DEVICES=4``.

    Args:
        function: The test; its arguments must pickle.
        enter: Whether to call ``use_spmd()`` before.
        timeout: In seconds.
        **environment: More variables.
    """
    if function is None:
        return functools.partial(in_spmd, enter=enter, timeout=timeout, **environment)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        variables = {"CPU_NUM_DEVICES": "4", **environment}
        process = context.Process(
            target=_run,
            args=(
                sender,
                function.__module__,
                function.__name__,
                enter,
                variables,
                args,
                kwargs,
            ),
            daemon=True,
        )
        process.start()
        sender.close()
        try:
            try:
                error = receiver.recv() if receiver.poll(timeout) else f"no end after {timeout} s"
            except EOFError:
                process.join(10)
                error = f"the process ended with exit code {process.exitcode}"
            process.join(30)
            assert error is None, error
            assert process.exitcode == 0, f"exit code {process.exitcode}"
        finally:
            if process.is_alive():
                process.kill()
            process.join()

    return wrapper
