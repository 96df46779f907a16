"""Runs PyTorch's whole operator database on xla against CPU and writes docs/operators.md.

    python tests/python/conformance.py                  # everything: `make conformance`
    python tests/python/conformance.py -k linalg -v     # what matches, with all failures

Each operator runs in a process of its own, forked from one that has imported torch (on a GPU a new
one): a crash or an endless loop of one is a line of the report. Exits with 1 when something failed
that opinfo_exceptions.py does not excuse, when something excused passes, or below the bar.
"""

import argparse
import collections
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# ruff: noqa: E402 - PyTorch and the plugin read the environment when they are imported.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # 180,000 small programs.
GPUS = os.environ.get("CUDA_VISIBLE_DEVICES")
if __name__ == "__main__":
    # PyTorch's database asks for GPUs, which are the xla device's alone. Each process takes what it
    # needs of their memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["PJRT_ALLOCATOR_PREALLOCATE"] = "0"

import torch
import yaml
from testing.operators_page import read_platforms, with_platforms
from testing.opinfo import check_op
from testing.opinfo_cases import CHECKS, DTYPES, OPS, dtype_name, plan
from testing.opinfo_exceptions import (
    EXCEPTIONS,
    FALLBACK_REASONS,
    LAYOUT,
    NO_EMPTY,
    UNINITIALIZED,
    Excuse,
)
from testing.processes import fork_child
from tqdm import tqdm

import torch_xla

ROOT = Path(__file__).resolve().parents[2]
PASS_BAR, FALLBACK_BAR = 0.98, 0.05
MARKS = {"native": "N", "decomposition": "D", "kernel": "K", "fallback": "C"}


def _kernel_ops() -> set[str]:
    """Operators whose one lowering is a call of PyTorch's CPU kernel."""
    lines = yaml.safe_load((ROOT / "codegen" / "xla_native_functions.yaml").read_text())
    return {
        name.partition(".")[0]
        for entry in lines["ops"]
        if isinstance(entry, dict)
        for name, options in entry.items()
        if options.get("lower") == "kernel" and "hand" not in options
    }


KERNEL_OPS = _kernel_ops()


def how(report: dict[str, Any]) -> str:
    """By what means an operator ran in one dtype."""
    if report["fallbacks"]:
        return "fallback"
    if KERNEL_OPS.intersection(report["lowered"]):
        return "kernel"
    return "decomposition" if report["decompositions"] else "native"


# ---------------------------------------------------------------- running


def _show_gpus() -> None:
    """Has the environment name the GPUs that this process was given."""
    del os.environ["CUDA_VISIBLE_DEVICES"]
    if GPUS is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = GPUS


def _make_client() -> None:
    """Lets it find the GPUs that the parent was given; PyTorch's own code is told of none.

    They stay in the environment: CUDA's libraries look there when they are first needed.
    """
    _show_gpus()
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    torch_xla.devices()


@dataclasses.dataclass
class Job:
    op: str
    pid: int
    pipe: int
    stderr: Any
    deadline: float
    data: bytes = b""


def _work(op: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All that is asked of one operator; in a child process.

    On a GPU in one of its own: cuBLAS and cuDNN, which importing PyTorch loads, crash in a process
    that was forked since.
    """
    if not args.here and os.environ["PJRT_DEVICE"] != "CPU":
        _show_gpus()
        command = [sys.executable, __file__, *sys.argv[1:], "--here", op]
        # Before this process is ended, which would leave that one behind.
        timeout = 0.95 * args.timeout
        child = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, timeout=timeout, text=True
        )
        return json.loads(child.stdout.splitlines()[-1])
    _make_client()
    torch.set_num_threads(1)
    reports = []
    for dtype, checks in plan(OPS[op]).items():
        wanted = [check for check in checks if check in args.checks]
        if args.dtypes is None or dtype_name(dtype) in args.dtypes:
            reports.append(dataclasses.asdict(check_op(OPS[op], dtype, wanted, args.limit)))
    return reports


def _start(op: str, args: argparse.Namespace) -> Job:
    child = fork_child(lambda pipe: pipe.write(json.dumps(args.work(op, args)).encode()))
    return Job(op, *child, time.monotonic() + args.timeout)


def _finish(job: Job, timed_out: bool) -> list[dict[str, Any]] | str:
    """The reports of a process that has ended, or how it ended."""
    _, status = os.waitpid(job.pid, 0)
    os.close(job.pipe)
    if status == 0:
        return json.loads(job.data)
    job.stderr.seek(0)
    lines = job.stderr.read().decode(errors="replace").strip().splitlines()
    if timed_out:
        return "did not end in time"
    if os.WIFSIGNALED(status):
        return f"{signal.Signals(os.WTERMSIG(status)).name} {lines[-1] if lines else ''}"
    return lines[-1] if lines else "ended without a word"


def _resume(path: Path) -> dict[str, Any]:
    """What a run that was cut short had written."""
    return dict(json.loads(line) for line in path.open()) if path.exists() else {}


def run_all(ops: list[str], args: argparse.Namespace) -> dict[str, list[dict[str, Any]] | str]:
    """Reports by operator, or a string for one whose process did not live to write them."""
    results = _resume(args.json) if args.json else {}
    todo = collections.deque(op for op in ops if op not in results)
    running: dict[int, Job] = {}
    selector = selectors.DefaultSelector()
    failed = 0
    with tqdm(total=len(todo), unit="op", dynamic_ncols=True, disable=args.quiet) as bar:
        while todo or running:
            while todo and len(running) < args.jobs:
                job = _start(todo.popleft(), args)
                running[job.pipe] = job
                selector.register(job.pipe, selectors.EVENT_READ)
            for key, _ in selector.select(timeout=1.0):
                job = running[key.fd]
                if chunk := os.read(key.fd, 1 << 16):
                    job.data += chunk
                    continue
                selector.unregister(key.fd)
                del running[key.fd]
                results[job.op] = _finish(job, time.monotonic() > job.deadline)
                failed += _failed(results[job.op])
                if args.json:
                    with args.json.open("a") as file:
                        file.write(json.dumps([job.op, results[job.op]]) + "\n")
                bar.update()
                bar.set_postfix_str(f"{failed} failed, {job.op}"[:40])
            for job in running.values():
                if time.monotonic() > job.deadline:
                    os.kill(job.pid, signal.SIGKILL)  # its pipe ends, above
    return {op: results[op] for op in ops}


def _failed(result: list[dict[str, Any]] | str) -> bool:
    return isinstance(result, str) or any(report["failures"] for report in result)


# ---------------------------------------------------------------- judging


@dataclasses.dataclass
class Verdict:
    """One operator in all its dtypes, after the excuses."""

    op: str
    failures: list[str]  # not excused
    excused: list[Excuse]
    stale: list[Excuse]  # excuses that nothing needed
    reports: list[dict[str, Any]]
    wrong: bool
    marks: dict[str, str]  # by dtype: ✗ something failed, * all that failed is excused

    @property
    def passed(self) -> bool:
        return not self.failures and all(e.neutral for e in self.excused)

    @property
    def fallbacks(self) -> list[str]:
        names = {f for r in self.reports for f in r["fallbacks"] + r["grad_fallbacks"]}
        return sorted(names)

    @property
    def how(self) -> str:
        """The least that it took in any dtype."""
        return max((how(r) for r in self.reports), key=list(MARKS).index, default="native")


def judge(op: str, result: list[dict[str, Any]] | str, complete: bool) -> Verdict:
    if isinstance(result, str):
        return Verdict(op, [f"the process ended: {result}"], [], [], [], False, {})
    excuses = EXCEPTIONS.get(op, [])
    used: list[Excuse] = []
    failures, wrong = [], False
    marks: dict[str, str] = {}
    for report in result:
        used += [excuses[i] for i in report["tolerances_used"]]
        for failure in report["failures"]:
            what = failure["check"], report["dtype"], failure["message"]
            excuse = next((e for e in excuses if not e.widens and e.covers(*what)), None)
            if excuse is not None:
                used.append(excuse)
                marks.setdefault(report["dtype"], "*")
                continue
            marks[report["dtype"]] = "✗"
            wrong |= failure["kind"] == "wrong"
            failures.append(
                f"{report['dtype']} {failure['check']} {failure['kind']}: "
                f"{failure['sample']}: {failure['message']}"
            )
    stale = [e for e in excuses if complete and e not in used and not e.some_cpus]
    excused = [e for e in excuses if e in used and not e.widens]
    return Verdict(op, failures, excused, stale, result, wrong, marks)


# ---------------------------------------------------------------- reporting


def write_table(verdicts: list[Verdict], path: Path, limit: int | None) -> str:
    """docs/operators.md; returns the totals as a line of text."""
    tested = [v for v in verdicts if v.reports or v.failures]
    passed = sum(v.passed for v in tested)
    means = collections.Counter(v.how for v in tested)
    cpu = [v for v in tested if v.fallbacks]
    cases = sum(sum(r["cases"].values()) for v in tested for r in v.reports)
    wrong = sum(v.wrong for v in tested)
    n = max(1, len(tested))
    totals = (
        f"{len(tested)} operators, {cases} cases: {passed} pass ({passed / n:.1%}), "
        f"{wrong} wrong; {means['native']} native, {means['decomposition']} by decomposition, "
        f"{means['kernel']} by PyTorch's CPU kernel within the program, {means['fallback']} with "
        f"a CPU fallback in the forward ({len(cpu)}, {len(cpu) / n:.1%}, counting gradients)"
    )
    dtypes = [dtype_name(d) for d in DTYPES]
    samples = f" At most {limit} samples of each operator for each check." if limit else ""
    lines = [
        "# Operators",
        "",
        "Does an operator run on `xla`, and by what means? `make conformance`",
        "(tests/python/conformance.py) writes this page: it runs PyTorch's operator database on",
        "`xla` against the CPU. It checks the forward in each dtype and the refusal of all others,",
        "non-contiguous and empty inputs, `out=` and in-place variants, view aliasing, bad input",
        "and first-order gradients. Tolerances are PyTorch's for the dtype; in half precision a",
        "result also passes if it is at most twice as far from double precision as the CPU's.",
        "",
        f"With torch {torch.__version__}, platform {os.environ['PJRT_DEVICE']}: {totals}.{samples}",
        "",
        "| mark | meaning |",
        "|---|---|",
        "| N | every operator that reached the device is lowered |",
        "| D | PyTorch's decompositions took some operators apart first |",
        "| K | some operators call PyTorch's CPU kernel within the program; elsewhere: C |",
        "| C | some operators ran on the CPU, outside of the program |",
        "| ✗ | a result differs from the CPU's (below); for a chip: it refuses a program |",
        "| \\* | a difference is excused (below) |",
        "| empty | the CPU refuses the dtype, and so does `xla` |",
        "| ✓ | for a chip ([platforms.md](platforms.md)): its programs compile |",
        "| r | for a chip: some programs read a value while they are traced |",
        "",
        "| operator | " + " | ".join(dtypes) + " | CPU fallbacks |",
        "|---" * (len(dtypes) + 2) + "|",
    ]
    for v in sorted(tested, key=lambda v: v.op):
        by_dtype = {r["dtype"]: r for r in v.reports}
        cells = [
            (MARKS[how(by_dtype[d])] if "forward" in by_dtype[d]["cases"] else "")
            + v.marks.get(d, "")
            if d in by_dtype
            else ""
            for d in dtypes
        ]
        lines.append(f"| {v.op} | " + " | ".join(cells) + f" | {', '.join(v.fallbacks)} |")
    lines += ["", "## CPU fallbacks", ""]
    reasons = collections.defaultdict(list)
    for v in cpu:
        for name in v.fallbacks:
            reasons[name].append(v.op)
    lines += ["| operator on the CPU | reached from | reason |", "|---|---|---|"]
    for name, ops in sorted(reasons.items()):
        shown = ", ".join(ops[:6]) + (f" and {len(ops) - 6} more" if len(ops) > 6 else "")
        lines.append(f"| {name} | {shown} | {FALLBACK_REASONS.get(name, '**none given**')} |")
    lines += ["", "## Exceptions", ""]
    lines += [
        "†: the operator does not count as passed. Else a tolerance is wider, the CPU's kernel is",
        "off, or XLA has no such dtype.",
        "",
    ]
    lines += ["| operator | checks | dtypes | reason |", "|---|---|---|---|"]
    for op, excuses in sorted(EXCEPTIONS.items()):
        for e in excuses:
            what = ", ".join(e.checks) or "all"
            counts = "" if e.widens or e.neutral else " †"
            lines.append(f"| {op} | {what} | {', '.join(e.dtypes) or 'all'} | {e.reason}{counts} |")
    shapes = ", ".join(sorted(UNINITIALIZED))
    lines += ["", f"Compared by shape and dtype alone, being uninitialized memory: {shapes}.", ""]
    lines += [
        f"Not given non-contiguous inputs, being about layout: {', '.join(sorted(LAYOUT))}.",
        "",
    ]
    lines += [f"Not given empty inputs, which crash the CPU's kernel: {', '.join(NO_EMPTY)}.", ""]
    bad = [v for v in tested if v.failures]
    if bad:
        lines += ["## Failures", ""]
        for v in bad:
            text = v.failures[0].replace("|", "\\|").replace("\n", " ")
            lines.append(f"- {v.op}: {len(v.failures)}, the first: `{text[:200]}`")
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    platforms = read_platforms(path.read_text()) if path.exists() else {}
    path.write_text(with_platforms("\n".join(lines), platforms))
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only operators whose name contains this")
    parser.add_argument("--ops", type=lambda s: s.split(","), help="these operators")
    parser.add_argument("--checks", type=lambda s: s.split(","), default=list(CHECKS))
    parser.add_argument("--dtypes", type=lambda s: s.split(","), help="default: all")
    parser.add_argument("--limit", type=int, help="samples per check; default: all")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=5400, help="seconds for one operator")
    parser.add_argument("--output", type=Path, help="where the table goes")
    parser.add_argument(
        "--json", type=Path, help="all reports go here, a line each; those there are kept"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("-v", "--verbose", action="store_true", help="every failure")
    parser.add_argument("--here", metavar="OP", help="this one, and prints its reports in JSON")
    parser.set_defaults(work=_work)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(_work(args.here, args)))
        return 0
    ops = args.ops or [name for name, op in OPS.items() if args.k in name and op.dtypes]
    complete = args.limit is None and args.dtypes is None and args.checks == list(CHECKS)
    start = time.monotonic()
    results = run_all(ops, args)
    wall = time.monotonic() - start
    verdicts = [judge(op, result, complete) for op, result in results.items()]
    output = args.output
    if output is None and complete and not args.k and not args.ops:
        output = ROOT / "docs" / "operators.md"
    with tempfile.TemporaryDirectory() as scratch:
        totals = write_table(verdicts, output or Path(scratch) / "operators.md", args.limit)
    bad = [v for v in verdicts if v.failures]
    for v in bad:
        shown = v.failures if args.verbose else v.failures[:1]
        print(f"FAIL {v.op} ({len(v.failures)})", *shown, sep="\n     ")
    stale = [(v.op, e) for v in verdicts for e in v.stale]
    for op, excuse in stale:
        print(f"PASS {op}: excused for “{excuse.reason}”, and nothing needed it: delete the entry")
    unexplained = sorted({f for v in verdicts for f in v.fallbacks} - set(FALLBACK_REASONS))
    if unexplained:
        print("CPU fallbacks without a reason in FALLBACK_REASONS:", ", ".join(unexplained))
    print(f"{totals}; {wall:.0f} s")
    n = max(1, len(verdicts))
    below = (
        sum(v.passed for v in verdicts) / n < PASS_BAR
        or sum(bool(v.fallbacks) for v in verdicts) / n > FALLBACK_BAR
    )
    return int(bool(bad or stale or unexplained) or (complete and below))


if __name__ == "__main__":
    sys.exit(main())
