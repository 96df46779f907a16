"""Runs a function in replicas and gives back what each of them returned.

They are forked off a server that has imported everything and used nothing, which costs them no
imports.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import torch_xla.distributed.xla_multiprocessing as xmp

multiprocessing.set_forkserver_preload(
    ["torch_xla", "torch_xla.distributed.xla_backend", "torch_xla.distributed.parallel_loader"]
)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets environment variables, for processes started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _save_result(
    index: int,
    function: Callable[..., Any],
    folder: str,
    args: tuple[Any, ...],
    variables: dict[str, str],
) -> None:
    os.environ.update(variables)
    # Four replicas on two cores: more threads only get in each other's way.
    torch.set_num_threads(1)
    result = function(*args)
    torch.save(result, Path(folder) / f"{index}.pt")


def start_replicas(
    function: Callable[..., Any],
    count: int,
    folder: Path,
    *args: Any,
    method: str = "forkserver",
    **variables: str,
) -> Any:
    """Starts ``count`` replicas that call ``function(*args)``; returns their process context."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"XLA_COLLECTIVE_TIMEOUT": "60", **variables}
    with environment(CPU_NUM_DEVICES=str(count)):
        return xmp.spawn(
            _save_result,
            (function, str(folder), args, variables),
            join=False,
            daemon=True,
            start_method=method,
        )


def end_replicas(context: Any) -> None:
    for process in context.processes:
        if process.is_alive():
            process.kill()
        process.join()


def run_replicas(
    function: Callable[..., Any],
    count: int,
    folder: Path,
    *args: Any,
    timeout: float = 150,
    method: str = "forkserver",
    **variables: str,
) -> list[Any]:
    """Returns what ``function(*args)`` returned in each of ``count`` replicas.

    Raises what spawn() does where one fails, and TimeoutError after ``timeout`` seconds.
    """
    context = start_replicas(function, count, folder, *args, method=method, **variables)
    deadline = time.monotonic() + timeout
    try:
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"replicas still ran after {timeout} s")
    finally:
        end_replicas(context)
    return [torch.load(folder / f"{i}.pt", weights_only=False) for i in range(count)]


def wait_for_ends(context: Any, timeout: float) -> list[int | None]:
    """Returns the exit codes of replicas that are left to end by themselves."""
    deadline = time.monotonic() + timeout
    for process in context.processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in context.processes]
    end_replicas(context)
    return codes
