"""Nested data: walking through it, and generating it. And small things for scripts."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import torch

from torch_xla._internal.nested_data import (  # noqa: F401
    DataWrapper,
    for_each_instance,
    for_each_instance_rewrite,
    map_tensors,
)


class SampleGenerator:
    """Iterable that returns the same data a number of times.

    Stands in for a ``DataLoader`` when real data is not needed.

    Args:
        data: What every step returns, the same object: nested data with tensors of any shape.
        sample_count: How many steps there are; its ``len()``.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    def next(self) -> Any:
        """The same as ``next(self)``."""
        return next(self)

    def __len__(self) -> int:
        return self._sample_count


class FnDataGenerator:
    """Iterable over what a function makes of tensors.

    Args:
        func: Called with ``gen_tensor`` for each batch; gives ``(data, target)`` or one of them.
        batch_size: The size of a batch; the first dimension where ``dims`` are given.
        gen_tensor: Makes a tensor of a shape, for example ``torch.randn``.
        dims: The dimensions behind the first.
        count: How many batches there are.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._shape = (batch_size, *(dims or (1,)))
        self._gen_tensor = gen_tensor
        self._count = count
        self._made = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(
            self._func, self._shape[0], self._gen_tensor, self._shape[1:], self._count
        )

    def __next__(self) -> tuple[torch.Tensor, Any]:
        if self._made >= self._count:
            raise StopIteration
        self._made += 1
        data = self._gen_tensor(*self._shape)
        return data, self._func(data)

    def next(self) -> tuple[torch.Tensor, Any]:
        """The same as ``next(self)``."""
        return next(self)


class Cleaner:
    """Calls a function at the end of a ``with`` block."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    def __enter__(self) -> Cleaner:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.func()


class LazyProperty:
    """A value that is made when it is first asked for."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn = gen_fn

    @property
    def value(self) -> Any:
        """The value."""
        if not hasattr(self, "_value"):
            self._value = self._gen_fn()
        return self._value


class TmpFolder:
    """A folder that is removed at the end of a ``with`` block, which gets its name."""

    def __init__(self) -> None:
        self.name = ""

    def __enter__(self) -> str:
        self.name = tempfile.mkdtemp()
        return self.name

    def __exit__(self, *exc_info: Any) -> None:
        shutil.rmtree(self.name, ignore_errors=True)


class TimedScope:
    """Prints how long a ``with`` block took, and what it raised.

    Args:
        msg: What to print before the time.
        printfn: Prints it; None: nothing is printed.
    """

    def __init__(self, msg: str = "", printfn: Callable[[str], Any] | None = None) -> None:
        self._msg = msg
        self._printfn = eprint if printfn is None and msg else printfn
        self._error: Any = None

    def set_error(self, error: Any) -> None:
        """Has ``error`` printed, too."""
        self._error = error

    def __enter__(self) -> TimedScope:
        self._start = time.monotonic()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if self._printfn is not None:
            error = self._error or exc_info[1]
            passed = f"{self._msg}{time.monotonic() - self._start:.3f}s"
            self._printfn(passed if error is None else f"{passed} (error: {error})")


def as_list(t: Any) -> list[Any]:
    """Returns a list or tuple as a list, anything else as a list of it."""
    return list(t) if isinstance(t, (tuple, list)) else [t]


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Returns an environment variable as a type; ``defval`` where it is not set.

    Args:
        name: The variable.
        type: What to make of its text. A ``bool`` is false for ``0``, ``false`` and nothing.
        defval: What to return without it.
    """
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() not in ("", "0", "false") if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Returns whether an environment variable is one of ``ON``, ``1``, ``YES``, ``TRUE``, ``Y``."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def shape(inputs: Any) -> list[int]:
    """Returns the shape of an array, or of nested lists of one."""
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        inputs = inputs[0]
    return sizes + list(getattr(inputs, "shape", ()))


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """Returns the leaves of nested tuples and lists as one tuple."""
    if not isinstance(inputs, (list, tuple)):
        return (inputs,)
    return tuple(leaf for item in inputs for leaf in flatten_nested_tuple(item))


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """Returns a new list with one item more."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to the standard error."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """Returns :func:`eprint` if ``debug`` (or ``DEBUG`` is set), else :func:`null_print`."""
    return eprint if (check_env_flag("DEBUG") if debug is None else debug) else null_print


def timed(
    fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], Any] | None = eprint
) -> Any:
    """Returns what ``fn()`` does, and prints how long it took, with ``msg`` before."""
    with TimedScope(msg, printfn):
        return fn()


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Returns numbers of TCP ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for free in sockets:
            free.bind(("", 0))
        return [free.getsockname()[1] for free in sockets]
    finally:
        for free in sockets:
            free.close()


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """Returns ``map(fn, *args)`` as a list, made by threads.

    Raises:
        Exception: The first that ``fn`` raised.
    """
    with futures.ThreadPoolExecutor(max_workers=num_workers) as executor:
        return list(executor.map(fn, *args))
