"""Why programs were compiled, and what is in device memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal.compile.step import sync
from torch_xla._internal.insight import memory_owners


@dataclasses.dataclass(frozen=True)
class Reason:
    """A difference between a graph and the nearest one that was compiled before.

    Attributes:
        kind: ``"shape"``, ``"dtype"``, ``"constant"``, ``"argument"``, ``"operation"``,
            ``"wiring"``, ``"outputs"``, ``"donation"``, ``"sharding"``, ``"settings"``,
            ``"evicted"``, or ``"new"`` where there was nothing like it.
        text: What it is now, and what it was.
        line: ``file:line`` of the program that traced it; empty where that is not known.
        remedy: What can be done about it. Empty behind a reason of kind ``"new"``: what follows
            tells it from the nearest graph, which is another program.
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
        line: The line of ``cause``.
        graph_hash: The graph's hash.
        nearest: Hash of the graph that it was compared with; empty where there was none.
        nodes, inputs, outputs: Their numbers.
        changed: How many nodes differ from the nearest graph's.
        recompilation: Whether it is one program that changed, rather than another program.
        reasons: Never empty; the first one is the most likely cause of the others.
        text: All of this for people.
        disk_key: Of the entry that the cache on disk did not have; empty where it was not asked.
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
    disk_key: bytes = dataclasses.field(repr=False)

    @functools.cached_property
    def disk(self) -> str:
        """Why the cache on disk did not have the program.

        The part of its key that no entry has: ``program``, ``options``, ``plugin``, ``processor``,
        …; or ``evicted`` or ``empty``. Empty if it had the program, or if there is no such cache.
        """
        return _XLAC._why_not_on_disk(self.disk_key) if self.disk_key else ""

    def __str__(self) -> str:
        return self.text + (f"  on disk: {self.disk}\n" if self.disk else "")


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
        return "".join(map(str, self.compilations))


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
        sync()
        last = self.last()
        result = function(*args, **kwargs)
        sync(wait=True)
        return Explanation(result, _compilations(last.number if last else 0))

    def last(self) -> Compilation | None:
        """Returns the last compilation of this process; None where there was none."""
        found = _compilations(count=1)
        return found[0] if found else None

    def all(self) -> tuple[Compilation, ...]:
        """Returns the last 256 compilations of this process, oldest first."""
        return _compilations()

    def replay(self) -> tuple[Any, ...]:
        """Returns how functions of ``torch_xla.compile(replay=True)`` fare.

        Each has ``name``, ``state`` (``"replayed"``, ``"recording"``, ``"refused"``), ``reason``
        (why the last call that was traced was not replayed), ``calls`` and ``replayed``.
        """
        from torch_xla._internal.replay import functions as replay

        return replay.statuses()


explain = _Explain()


@contextlib.contextmanager
def on_recompile(action: str) -> Iterator[None]:
    """Sets what happens in the block when a graph resembles one that was compiled before.

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
        holder: What holds it: ``"parameter"``, ``"gradient"``, ``"optimizer state"``, ``"module
            buffer"``, ``"user"`` (a tensor of the program's), ``"pending"`` (an operation that has
            not run), ``"autograd"`` (a backward pass that is to come), or ``"runtime"``.
        name: The holder's name: ``"Net.fc.weight"``, ``"SGD.momentum_buffer of Net.fc.weight"``.
    """

    bytes: int
    shape: str
    device: int
    line: str
    holder: str
    name: str


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """What a program needs on a device while it runs, by the compiler's own statistics, in bytes.

    Attributes:
        number: The number of its compilation.
        cause: What asked for it: ``"torch_xla.sync() at train.py:12"``.
        peak: The most that it needs; ``aliased`` of its outputs take arguments' place.
    """

    number: int
    cause: str
    peak: int
    temporaries: int
    arguments: int
    outputs: int
    aliased: int
    code: int


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What is in device memory.

    Attributes:
        arrays: The largest first.
        programs: Of the last 256 compilations, those that need the most first.
        text: A table of the largest ones by shape and line, of the programs that need the most, and
            of what holds the arrays.
    """

    arrays: tuple[LiveArray, ...]
    programs: tuple[ProgramMemory, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def memory_report(count: int = 10) -> MemoryReport:
    """Returns what is in device memory now, after what was queued has run.

    Args:
        count: How many lines of arrays and of programs the text has at most.
    """
    _XLAC._xla_wait_device_ops()
    known = memory_owners.find()
    arrays = [
        LiveArray(found["bytes"], found["shape"], found["device"], found["line"], *known[number])
        for found in _XLAC._live_arrays()
        if (number := found["id"]) in known
    ]
    programs = [ProgramMemory(**found) for found in _XLAC._program_memory()]
    return MemoryReport(
        tuple(sorted(arrays, key=lambda array: -array.bytes)),
        tuple(sorted(programs, key=lambda program: -program.peak)),
        _XLAC._memory_report(count) + memory_owners.text(count=min(count, 3)),
    )
