"""Puts numbers out of range into every numeric argument of PyTorch's operators, on xla and CPU.

    python tests/python/bounds.py                  # everything: part of `make conformance`
    python tests/python/bounds.py -k pool -v       # operators whose name matches

Every integer, Scalar and dimension that a sample of the operator database passes, in lists too, and
those that its signature has besides, gets each of VALUES. The device must raise an error of the
CPU's class or give the CPU's result; no call may end the process or hang. Each operator runs in a
process of its own, which says what it is about to do: one that dies has named the culprit, and
another goes on after it. Exits with 1 when something failed that bounds_exceptions.py does not
excuse, when nothing needed an excuse, or when fewer than BAR of the CPU's errors are matched.
"""

import argparse
import collections
import dataclasses
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
from testing.bounds_exceptions import EXCUSES, Excuse
from testing.opinfo import _difference, _one_line
from testing.opinfo_cases import (
    OPS,
    Case,
    _attempt,
    _forward,
    _samples,
    _text,
    describe,
    dtype_name,
    dtypes_of,
)
from testing.opinfo_exceptions import RANDOM
from testing.processes import fork_child
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm

BAR = 0.99
NAN, INF = float("nan"), float("inf")
VALUES = (0, 3, -4, 7, -100, 2**31, 2**63 - 1, -(2**63), 2**64, -2.5, NAN, INF, 1e30, 1j)
HUGE = 1 << 26  # elements
NO_MEMORY = "allocate memory"
SLOW = 3.0  # seconds
BATCH = 20  # cases in one graph
GIB = 1 << 30
MEMORY = 2 * GIB  # of addresses, for what a case may allocate

# ---------------------------------------------------------------- the cases of an operator

Path_ = tuple[Any, ...]


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex)) and not isinstance(x, bool)


def _numbers(tree: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where the numbers are."""
    if _is_number(tree):
        yield path
    elif isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from _numbers(item, (*path, i))
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from _numbers(item, (*path, name))


def _with(tree: Any, path: Path_, value: Any) -> Any:
    """A copy with ``value`` at ``path``."""
    if not path:
        return value
    if isinstance(tree, dict):
        return {**tree, path[0]: _with(tree.get(path[0]), path[1:], value)}
    items = [_with(x, path[1:], value) if i == path[0] else x for i, x in enumerate(tree)]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*items)
    return tuple(items) if isinstance(tree, tuple) else items


def _parts(sample: SampleInput) -> list[Any]:
    return [sample.input, tuple(sample.args), dict(sample.kwargs)]


def _sample(parts: list[Any]) -> SampleInput:
    return SampleInput(parts[0], args=tuple(parts[1]), kwargs=parts[2])


def _optional_numbers(op: OpInfo) -> dict[str, Any]:
    """The numeric arguments that a call may leave out, and what they are then."""
    try:
        parameters = inspect.signature(op.op).parameters.values()
    except (TypeError, ValueError):
        packet = getattr(torch.ops.aten, op.aten_name or op.name, None)
        overloads = packet.overloads() if packet is not None else []
        arguments = [a for o in overloads for a in getattr(packet, o)._schema.arguments]
        return {
            a.name: a.default_value
            for a in arguments
            if a.has_default_value() and str(a.type).lower().find("tensor") < 0
            if any(kind in str(a.type) for kind in ("int", "float", "number", "Scalar"))
        }
    return {
        p.name: p.default
        for p in parameters
        if _is_number(p.default)
        or (p.default is None and any(k in str(p.annotation) for k in ("int", "float", "Number")))
    }


def _kind(x: Any) -> str:
    """Samples are alike when their first tensors are."""
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    if not isinstance(x, torch.Tensor):
        return "no tensor"
    return "number" if x.dim() == 0 else "empty" if x.numel() == 0 else "filled"


@dataclasses.dataclass
class Slot:
    sample: SampleInput
    path: Path_

    def cases(self, op: OpInfo, dtype: torch.dtype) -> Iterator[Case]:
        where = "input" if self.path[0] == 0 else ".".join(map(str, self.path[1:]))
        for value in VALUES:
            changed = _sample(_with(_parts(self.sample), self.path, value))
            name = f"{dtype_name(dtype)} {where}={value!r}: {describe(self.sample)}"
            random = op.name in RANDOM or op.full_name in RANDOM
            yield Case("bounds", name, _forward(op, changed), random=random)


def _slots(op: OpInfo, dtype: torch.dtype) -> Iterator[Slot]:
    """Each argument once for each kind of sample that has it."""
    seen = set()
    optional = _optional_numbers(op)
    cpu = torch.device("cpu")
    for sample in _samples(op, dtype, 200):
        parts = _parts(sample)
        found = [(path, parts) for path in _numbers(parts)]
        for name, default in optional.items():
            if name not in parts[2]:
                found.append(((2, name), _with(parts, (2, name), default)))
        works = None
        for path, with_it in found:
            given = parts is with_it
            now = parts[path[0]]
            for key in path[1:]:
                now = now[key] if given else None
            key = (path, type(now).__name__ if given else "", _kind(sample.input))
            if key in seen:
                continue
            if given:
                if works is None:
                    works = not isinstance(_attempt(_forward(op, sample), cpu), Exception)
                ok = works
            else:
                ok = not isinstance(_attempt(_forward(op, _sample(with_it)), cpu), Exception)
            if ok:
                seen.add(key)
                yield Slot(sample, path)


def cases_of(op: OpInfo) -> Iterator[Case]:
    """In the first floating and the first other dtype."""
    dtypes = dtypes_of(op)
    floats = [d for d in dtypes if d.is_floating_point][:1]
    for dtype in floats + [d for d in dtypes if not d.is_floating_point][:1]:
        for slot in _slots(op, dtype):
            yield from slot.cases(op, dtype)


# ---------------------------------------------------------------- running, in the child


def _matches(actual: Exception, expected: Exception) -> bool:
    """The same class. PyTorch's parser of arguments has two for numbers that do not fit."""
    parser = (OverflowError, TypeError)
    if isinstance(actual, parser) and isinstance(expected, parser):
        return True
    return isinstance(actual, type(expected))


def _tolerances(expected: Any) -> tuple[float, float]:
    """Relative to the largest number: how sums are rounded is not asked here."""
    if isinstance(expected, torch.Tensor) and expected.dtype == torch.bool:
        return 0.0, 0.0
    scale = 0.0
    if isinstance(expected, torch.Tensor):
        wide = torch.complex128 if expected.is_complex() else torch.float64
        numbers = expected.detach().to(wide).abs().flatten()
        numbers = numbers[numbers.isfinite()]
        scale = numbers.max().item() if numbers.numel() else 0.0
    return 1e-3, max(1e-4, 1e-5 * scale)


def verdict(op: OpInfo, case: Case, actual: Any, expected: Any) -> tuple[str, str]:
    """ "refused" and "equal" are right; else what is wrong, with a line about it."""
    if isinstance(expected, Exception):
        if not isinstance(actual, Exception):
            if NO_MEMORY in str(expected):  # for what is in between: XLA makes one loop of it
                return "memory", ""
            shown = ", ".join(_text(x) for x in actual)
            return "accepted", f"{shown}; on CPU {_one_line(expected)}"
        if _matches(actual, expected):
            return "refused", ""
        return "class", f"{_one_line(actual)}; on CPU {_one_line(expected)}"
    if isinstance(actual, Exception):
        return "raised", _one_line(actual)
    if len(actual) != len(expected):
        return "wrong", f"{len(actual)} results, on CPU {len(expected)}"
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor) and e.numel() > HUGE:  # expanded
            if _text(a) != _text(e):
                return "wrong", f"{_text(a)}, on CPU {_text(e)}"
        elif message := _difference(op.name, a, e, _tolerances(e), case.random):
            return "wrong", message
    return "equal", ""


def _is_huge(results: Any) -> bool:
    tensors = [] if isinstance(results, Exception) else results
    return any(isinstance(x, torch.Tensor) and x.numel() > HUGE for x in tensors)


class Child:
    """Runs cases and tells of each step: lines of JSON in a pipe."""

    def __init__(self, name: str, pipe: Any, start: int, alone: int, dead: list[int]) -> None:
        self.op, self.pipe, self.start = OPS[name], pipe, start
        self.alone = alone  # cases before this one get a graph of their own
        self.dead = set(dead)  # cases that the CPU's own kernel does not survive

    def say(self, *what: Any) -> None:
        self.pipe.write((json.dumps(what) + "\n").encode())
        self.pipe.flush()

    def run(self) -> None:
        torch.set_num_threads(1)
        self.device = torch.device(xm.xla_device())
        torch.ones(1, device=self.device).add(1).cpu()  # its threads and memory are there now
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        self.say("slots")
        batch: list[tuple[int, Case]] = []
        for i, case in enumerate(cases_of(self.op)):
            if i < self.start:
                continue
            batch.append((i, case))
            if len(batch) == BATCH or i < self.alone:
                self.run_batch(batch)
                batch = []
        self.run_batch(batch)

    def run_batch(self, batch: list[tuple[int, Case]]) -> None:
        results = []
        for i, case in batch:
            self.say("cpu", i, case.sample)
            dead = RuntimeError("the CPU's kernel ends the process, or does not end")
            expected = dead if i in self.dead else _attempt(case.run, torch.device("cpu"))
            self.say("xla", i, case.sample)
            actual = _attempt(case.run, self.device)
            if _is_huge(actual):  # the CPU has no memory for it, refuses it or expands it
                kind, text = verdict(self.op, case, actual, expected)
                kind, text = ("memory", "") if NO_MEMORY in text else (kind, text)
                self.say("done", i, kind, case.sample if text else "", text)
                del actual
                continue
            results.append((i, case, actual, expected))
            del actual  # what is huge must not be pending when the others are computed
        if not results:
            return
        self.say("sync", batch[0][0], batch[0][1].sample, batch[-1][0])
        try:
            torch_xla.sync(wait=True)
        except Exception:  # noqa: BLE001 - each is asked again, alone
            if len(batch) > 1:
                for one in batch:
                    self.run_batch([one])
                return
        for i, case, actual, expected in results:
            self.say("read", i, case.sample)
            try:
                for x in [] if isinstance(actual, Exception) else actual:
                    x.cpu() if isinstance(x, torch.Tensor) else x
            except Exception as error:  # noqa: BLE001 - it was refused when it was computed
                actual = error
            kind, text = verdict(self.op, case, actual, expected)
            if i in self.dead:
                kind, text = "cpu died", ""
            self.say("done", i, kind, case.sample if text else "", text)


# ---------------------------------------------------------------- watching, in the parent


@dataclasses.dataclass
class Process:
    """A child that runs an operator from a case on."""

    pid: int
    pipe: int
    stderr: Any
    data: bytes = b""
    last: list[Any] = dataclasses.field(default_factory=lambda: ["begin"])
    heard: float = dataclasses.field(default_factory=time.monotonic)


def _fork(name: str, start: int, alone: int, dead: list[int]) -> Process:
    return Process(*fork_child(lambda pipe: Child(name, pipe, start, alone, dead).run()))


Result = dict[str, Any]  # counts by kind, failures [kind, sample, text], slow [seconds, …]


def _listen(process: Process, limit: float, on_done: Any, slow: list[Any]) -> bool:
    """Reads until the child ends; False when it had to be killed. ``slow``: steps of some time."""
    while True:
        left = process.heard + limit - time.monotonic()
        if left <= 0:
            os.kill(process.pid, signal.SIGKILL)
            return False
        if not select.select([process.pipe], [], [], left)[0]:
            continue
        chunk = os.read(process.pipe, 1 << 16)
        if not chunk:
            return True
        *lines, process.data = (process.data + chunk).split(b"\n")
        for line in lines:
            before, process.heard = process.heard, time.monotonic()
            if process.heard - before > SLOW:
                slow.append((round(process.heard - before, 1), *process.last))
            process.last = json.loads(line)
            if process.last[0] == "done":
                on_done(*process.last[1:])


def run_op(name: str, limit: float) -> Result:
    """All cases of an operator, in as many processes as it takes."""
    counts: collections.Counter[str] = collections.Counter()
    failures: list[list[str]] = []
    done: set[int] = set()
    start, alone, dead, slow = 0, 0, [], []

    def on_done(i: int, kind: str, sample: str, text: str) -> None:
        done.add(i)
        counts[kind] += 1
        if text:
            failures.append([kind, sample, text])

    for _ in range(500):
        process = _fork(name, start, alone, dead)
        in_time = _listen(process, limit, on_done, slow)
        _, status = os.waitpid(process.pid, 0)
        os.close(process.pipe)
        if status == 0:
            break
        process.stderr.seek(0)
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        how = "did not end in time"
        if in_time:
            ended = os.WIFSIGNALED(status)
            how = signal.Signals(os.WTERMSIG(status)).name if ended else f"status {status >> 8}"
            checks = [line for line in lines if "Check failed" in line or "terminate" in line]
            how += f": {(checks or lines)[-1][:300]}" if lines else ""
        stage, *rest = process.last
        # Those of the batch that were not read are run again.
        start = next(i for i in range(len(done) + 1) if i not in done)
        if stage == "cpu":
            dead.append(rest[0])
        elif stage == "sync" and rest[0] != rest[2]:
            alone = rest[2] + 1
        elif stage in ("xla", "sync", "read"):
            on_done(rest[0], "crash" if in_time else "hang", f"{stage}: {rest[1]}", how)
            start = rest[0] + 1 if start == rest[0] else start
            alone = max(alone, start + BATCH)
        else:
            failures.append(["crash", f"while {stage}", how])
            break
    return {"counts": counts, "failures": failures, "slow": slow}


# ---------------------------------------------------------------- reporting


@dataclasses.dataclass
class Summary:
    counts: collections.Counter[str]
    failures: list[tuple[str, str, str, str]]  # operator, kind, sample, text
    stale: list[tuple[str, Excuse]]

    @property
    def matched(self) -> float:
        """Of the errors of the CPU, how many the device raises too."""
        c = self.counts
        missed = c["class"] + c["accepted"]
        return c["refused"] / max(1, c["refused"] + missed)


def summarize(results: dict[str, Result], complete: bool) -> Summary:
    counts: collections.Counter[str] = collections.Counter()
    failures, used = [], set()
    for op, result in results.items():
        counts.update(result["counts"])
        for kind, sample, text in result["failures"]:
            excuse = next((e for e in EXCUSES if e.covers(op, kind, sample, text)), None)
            if excuse is None:
                failures.append((op, kind, sample, text))
            else:
                used.add(EXCUSES.index(excuse))
                counts["excused"] += 1
    stale = [("", e) for i, e in enumerate(EXCUSES) if complete and i not in used]
    return Summary(counts, failures, stale)


def run(ops: list[str], limit: float = 60, quiet: bool = True, log: Path | None = None) -> Summary:
    """Runs the operators one after the other.

    Args:
        ops: Names of op_db.
        limit: Seconds for one step of a case (a call, or a sync).
        quiet: No progress bar.
        log: Results are kept here, a line each; operators in it are not run again.
    """
    results: dict[str, Result] = {}
    if log is not None and log.exists():
        results = dict(json.loads(line) for line in log.open())
    for op in tqdm([op for op in ops if op not in results], unit="op", disable=quiet):
        results[op] = run_op(op, limit)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps([op, results[op]]) + "\n")
    return summarize({op: results[op] for op in ops}, complete=len(ops) == len(all_ops()))


def all_ops() -> list[str]:
    return [name for name, op in OPS.items() if op.dtypes]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only operators whose name contains this")
    parser.add_argument("--ops", type=lambda s: s.split(","), help="these operators")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one step of a case")
    parser.add_argument("--log", type=Path, help="results go here; those there are kept")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("-v", "--verbose", action="store_true", help="every failure")
    args = parser.parse_args()
    ops = args.ops or [name for name in all_ops() if args.k in name]
    begin = time.monotonic()
    summary = run(ops, args.limit, args.quiet, args.log)
    shown: collections.Counter[str] = collections.Counter()
    for op, kind, sample, text in summary.failures:
        shown[op] += 1
        if args.verbose or shown[op] <= 3:
            print(f"FAIL {op} {kind}: {sample[:160]}\n     {text}")
    for _, excuse in summary.stale:
        print(f"nothing needed the excuse “{excuse.reason}”: delete it")
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(summary.counts.items()))
    print(
        f"{len(ops)} operators: {counts}; {summary.matched:.2%} of the CPU's errors matched; "
        f"{len(summary.failures)} failures in {len(shown)} operators; "
        f"{time.monotonic() - begin:.0f} s"
    )
    return int(bool(summary.failures or summary.stale) or summary.matched < BAR)


if __name__ == "__main__":
    sys.exit(main())
