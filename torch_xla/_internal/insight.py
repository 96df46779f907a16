"""Why programs were compiled, and what is in device memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch_xla import _XLAC


@dataclasses.dataclass(frozen=True)
class Reason:
    """One thing by which a graph differs from the nearest one that was compiled before.

    Attributes:
        kind: ``"shape"``, ``"dtype"``, ``"constant"``, ``"argument"``, ``"operation"``,
            ``"wiring"``, ``"outputs"``, ``"donation"``, ``"sharding"``, ``"settings"``,
            ``"evicted"``, or ``"new"`` where there was nothing like it.
        text: What it is now, and what it was.
        line: ``file:line`` of the program that traced it; empty where that is not known.
        remedy: What can be done about it.
    """

    kind: str
    text: str
    line: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A program that was compiled, or taken from the cache on disk, and why.

    Attributes:
        number: Of the compilations of this process, from 1.
        cause: What asked for it: ``"torch_xla.sync() at train.py:12"``.
        line: The line of that.
        graph_hash: Of the graph.
        nearest: Hash of the graph that it was compared with; empty where there was none.
        nodes, inputs, outputs: Their numbers.
        changed: How many nodes differ from the nearest graph's.
        recompilation: Whether it is one program that changed, rather than another program.
        reasons: Never empty; the first one is the most likely cause of the others.
        text: All of this for people.
    """

    number: int
    cause: str
    line: str
    graph_hash: str
    nearest: str
    nodes: int
    changed: int
    inputs: int
    outputs: int
    recompilation: bool
    reasons: tuple[Reason, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call did.

    Attributes:
        result: What the function returned.
        compilations: Those that the call needed, in order.
    """

    result: Any
    compilations: tuple[Compilation, ...]

    def __str__(self) -> str:
        if not self.compilations:
            return "nothing was compiled: every program was in memory\n"
        return "".join(compilation.text for compilation in self.compilations)


def _compilations(after: int = 0, count: int = 1 << 30) -> tuple[Compilation, ...]:
    return tuple(
        Compilation(**{**found, "reasons": tuple(Reason(**one) for one in found["reasons"])})
        for found in _XLAC._explanations(after, count)
    )


class _Explain:
    """``explain(fn, *args)`` and ``explain.last()``."""

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
        """Calls a function, runs what it traced, and says what had to be compiled for it and why.

        Args:
            function: Is called with the other arguments.

        Returns:
            What it returned, and the compilations.
        """
        import torch_xla

        torch_xla.sync()
        last = self.last()
        result = function(*args, **kwargs)
        torch_xla.sync(wait=True)
        return Explanation(result, _compilations(last.number if last else 0))

    def last(self) -> Compilation | None:
        """Returns the last compilation of this process; None where there was none."""
        found = _compilations(count=1)
        return found[0] if found else None

    def all(self) -> tuple[Compilation, ...]:
        """Returns the last 256 compilations of this process, oldest first."""
        return _compilations()


explain = _Explain()


@contextlib.contextmanager
def on_recompile(action: str) -> Iterator[None]:
    """Says what happens within the block when a graph is nearly one that was compiled before.

    Args:
        action: ``"error"``: the call that asks for it raises a ``RuntimeError`` that says why; what
            it would have computed stays pending. ``"ignore"``: it is compiled.
    """
    if action not in ("error", "ignore"):
        raise ValueError(f'on_recompile: expected "error" or "ignore", got {action!r}')
    before = _XLAC._set_recompile_is_error(action == "error")
    try:
        yield
    finally:
        _XLAC._set_recompile_is_error(before)


@dataclasses.dataclass(frozen=True)
class LiveArray:
    """An array in device memory.

    Attributes:
        bytes: On all devices.
        shape: ``"f32[2,3]"``.
        device: Index of the device.
        line: ``file:line`` of the program that made it.
    """

    bytes: int
    shape: str
    device: int
    line: str


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What is in device memory.

    Attributes:
        arrays: The largest first.
        text: A table of the largest ones by shape and line, and of the programs that need the most.
    """

    arrays: tuple[LiveArray, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def memory_report(count: int = 10) -> MemoryReport:
    """Returns what is in device memory now, after what was queued has run.

    Args:
        count: How many lines of arrays and of programs the text has at most.
    """
    _XLAC._xla_wait_device_ops()
    arrays = sorted((LiveArray(*found) for found in _XLAC._live_arrays()), key=lambda a: -a.bytes)
    return MemoryReport(tuple(arrays), _XLAC._memory_report(count))
