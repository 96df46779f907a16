"""Where the time of steps went: intervals of the program's thread and of the device, and sums.

The runtime keeps the last 1,024 samples of each kind (``csrc/debug/timeline.h``), whoever asks for
them. Times are in seconds since 1970.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from torch_xla import _XLAC

Interval = tuple[float, float]

# Metrics whose samples are intervals that end at the sample's time. Those of the program's thread
# come first.
HOST = ("HostSyncTime", "HostWaitTime", "HostTransferTime", "HostInputTime")
ROWS = (
    *HOST,
    "LowerTime",
    "CompileTime",
    "ExecuteTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
)
_ALL = (*HOST, "LowerTime", "CompileTime", "ExecuteTime")
TRACING = "tracing, and the rest of the program"
INPUT = "waiting for input"
DEVICE = "waiting for the device"
COMPILER = "waiting for the compiler"
TRANSFER = "transfers"
LOWERING = "lowering"
CUTTING = "cutting graphs"
# How many floating-point operations of a line take as long as one byte of its memory traffic.
_FLOPS_PER_BYTE = 10


def intervals(row: str, begin: float = 0.0, end: float = float("inf")) -> list[Interval]:
    """Returns the samples of a metric that lie partly between two times."""
    data = _XLAC._xla_metric_data(row)
    found = ((stamp - value * 1e-9, stamp) for stamp, value in (data[2] if data else ()))
    return [one for one in found if one[1] > begin and one[0] < end]


def _kind(active: dict[str, int]) -> str:
    if active["HostInputTime"]:
        return INPUT
    if active["HostWaitTime"]:
        return COMPILER if active["CompileTime"] else DEVICE
    if active["HostTransferTime"]:
        # A read waits until the program that computes the value has run.
        return DEVICE if active["ExecuteTime"] else TRANSFER
    if active["HostSyncTime"]:
        return LOWERING if active["LowerTime"] else CUTTING
    return TRACING


_Piece = tuple[float, float, dict[str, int]]


def _sweep(begin: float, end: float, rows: Iterable[str]) -> Iterator[_Piece]:
    """Yields the pieces of a span within which the same rows are active."""
    active = dict.fromkeys(rows, 0)
    changes = []
    for row in active:
        for one in intervals(row, begin, end):
            changes += [(max(one[0], begin), row, 1), (min(one[1], end), row, -1)]
    at = begin
    for when, row, change in sorted(changes):
        if when > at:
            yield at, when, active
            at = when
        active[row] += change
    if end > at:
        yield at, end, active


def parts(begin: float, end: float) -> dict[str, float]:
    """Returns what the program's thread did between two times, in seconds by kind."""
    sums: dict[str, float] = {}
    for start, stop, active in _sweep(begin, end, _ALL):
        kind = _kind(active)
        sums[kind] = sums.get(kind, 0.0) + stop - start
    return sums


def idle(begin: float, end: float) -> list[tuple[float, float, str]]:
    """Returns when the device was idle, and what the program's thread did then."""
    found: list[tuple[float, float, str]] = []
    for start, stop, active in _sweep(begin, end, _ALL):
        if active["ExecuteTime"]:
            continue
        kind = COMPILER if active["CompileTime"] else _kind(active)
        if kind == DEVICE:  # The program is about to run.
            kind = "starting"
        if found and found[-1][2] == kind and found[-1][1] == start:
            found[-1] = (found[-1][0], stop, kind)
        else:
            found.append((start, stop, kind))
    return found


@dataclasses.dataclass(frozen=True)
class LineTime:
    """What a line cost on the device.

    Attributes:
        line: ``file:line`` of the program; "(backward)" behind it for its derivatives.
        seconds: Its part of the time of its programs, by their cost analysis.
        operations: How many operations are of it, in all programs.
    """

    line: str
    seconds: float
    operations: int


def lines(begin: float, end: float) -> list[LineTime]:
    """Returns what lines cost on the device between two times, the dearest first.

    An operation has that part of its program's time that its floating-point operations and bytes,
    by its shapes, are of the whole, which XLA's analysis says.
    """
    times: dict[int, float] = {}
    for program, _, start, stop in _XLAC._executions():
        if stop * 1e-9 > begin and start * 1e-9 < end:
            times[program] = times.get(program, 0.0) + (stop - start) * 1e-9
    seconds: dict[str, float] = {}
    operations: dict[str, int] = {}
    for program, time in times.items():
        costs = _XLAC._line_costs(program)
        if costs is None or not costs[0]:
            continue
        rows, whole = costs[0], dict(costs[1])
        all_flops, all_bytes = sum(row[1] for row in rows), sum(row[2] for row in rows)
        flops = whole.get("flops", all_flops) / (all_flops or 1)
        weight = whole.get("bytes accessed", all_bytes) / (all_bytes or 1) * _FLOPS_PER_BYTE
        weights = [row[1] * flops + row[2] * weight for row in rows]
        total = sum(weights) or 1.0
        for row, part in zip(rows, weights, strict=True):
            seconds[row[0]] = seconds.get(row[0], 0.0) + time * part / total
            operations[row[0]] = operations.get(row[0], 0) + row[3]
    found = [LineTime(line, time, operations[line]) for line, time in seconds.items()]
    return sorted(found, key=lambda one: -one.seconds)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Where the time of steps went.

    Attributes:
        steps: How many.
        seconds: From the beginning of the first to the end of the last.
        parts: What the program's thread did, in seconds by kind.
        busy: How long the device ran programs, in seconds.
        idle: What the program's thread did while the device had nothing to run, likewise.
        lines: What lines cost on the device, the dearest first.
    """

    steps: int
    seconds: float
    parts: dict[str, float]
    busy: float
    idle: dict[str, float]
    lines: tuple[LineTime, ...]

    def __str__(self) -> str:
        if not self.steps:
            return "no step yet: a step is the time between two torch_xla.sync()\n"

        def rows(of: Iterable[tuple[str, float]], whole: float) -> str:
            found = [(name, time) for name, time in of if time >= 0.0005 * whole]
            return "".join(f"  {100 * time / whole:5.1f} %  {name}\n" for name, time in found)

        def largest(of: dict[str, float]) -> list[tuple[str, float]]:
            return sorted(of.items(), key=lambda item: -item[1])

        each = 1e3 * self.seconds / self.steps
        text = f"last {self.steps} steps, {each:.3f} ms each; the program's thread:\n"
        text += rows(largest(self.parts), self.seconds)
        text += (
            f"the device: busy {100 * self.busy / self.seconds:.1f} %; idle while the program was\n"
        )
        text += rows(largest(self.idle), self.seconds)
        if self.lines:
            text += "the device's time by line, by the compiler's cost analysis:\n"
            named = [
                (f"{one.line}, {one.operations} operations", one.seconds) for one in self.lines
            ]
            text += rows(named[:5], sum(one.seconds for one in self.lines))
        return text


def summary(steps: int | None = None) -> Summary:
    """Returns where the time of the last steps went; a step is the time between two syncs.

    It needs no recording: what it is made of is always kept, of the last 1,024 steps at most.

    Args:
        steps: How many steps; None: all that are kept. The steps that compile are dear: leave
            them out.

    Returns:
        Its text is for people, its attributes for programs.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"summary(): expected `steps` of at least 1, got {steps}")
    found = intervals("StepTime")
    # Skip steps for which the other metrics have dropped their samples.
    for row in (*HOST, "ExecuteTime"):
        known = intervals(row)
        if len(known) >= 1024:
            found = [one for one in found if one[0] >= known[0][0]]
    found = found[-steps:] if steps else found
    if not found:
        return Summary(0, 0.0, {}, 0.0, {}, ())
    begin, end = found[0][0], found[-1][1]
    gaps: dict[str, float] = {}
    for start, stop, kind in idle(begin, end):
        gaps[kind] = gaps.get(kind, 0.0) + stop - start
    seconds = end - begin
    return Summary(
        len(found),
        seconds,
        parts(begin, end),
        seconds - sum(gaps.values()),
        gaps,
        tuple(lines(begin, end)),
    )
