"""Runs every program under every surface: ``python matrix.py -k "Pads x replay"`` one pair.

Each group of surfaces has a process of its own, or several that are replicas; another one is
started where it ends, hangs or cannot train any more. A pair is equal to eager PyTorch on the CPU,
or refused for a reason that excuses.py lists; what else it may be is a failure, but for those that
known.py lists, which have to fail. Where all pairs run, docs/matrix.md is written.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import excuses
import known
from programs import PROGRAMS
from surfaces import GROUPS, SURFACES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "matrix.md"
START_SECONDS = 120
ENDED, HUNG, POISONED = "ended the process", "hung", "poisoned"
# Of a pair that failed, from bad to worse.
MARKS = {
    "equal": "=",
    "refused": "r",
    "raised": "E",
    "different": "D",
    POISONED: "P",
    HUNG: "H",
    ENDED: "X",
}


@dataclasses.dataclass
class Outcome:
    """What came of a pair.

    Attributes:
        mark: Of `MARKS`.
        said: What differs or was raised; of a refused one the reason's name.
        known: The reason why this is expected.
    """

    program: str
    surface: str
    mark: str
    said: str = ""
    known: str = ""

    @property
    def name(self) -> str:
        return f"{self.program} x {self.surface}"

    @property
    def ok(self) -> bool:
        return (self.mark in ("equal", "refused")) != bool(self.known)


# ------------------------------------------------------------------ workers


def _answer(group: Any, job: list[str]) -> list[str]:
    from surfaces import pair, train_a_little

    program = PROGRAMS.get(job[0]) or getattr(importlib.import_module("wrong_programs"), job[0])
    mark, said = pair(program, job[1])
    trouble = train_a_little(group)
    return [POISONED, f"{trouble} (after: {said or mark})"] if trouble else [mark, said]


def _child(group: Any, connection: Any, other_end: Any) -> None:
    from surfaces import enter

    if other_end is not None:
        other_end.close()
    enter(group)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_answer(group, connection.recv()))


def _answers_of_children(group: Any) -> Iterator[Any]:
    """Has children answer: a forked one for each job, or a spawned one for all of them."""
    import multiprocessing

    context = multiprocessing.get_context(group.child)
    process = None
    job = yield
    while True:
        if process is None:
            ours, theirs = context.Pipe()
            inherited = ours if group.child == "fork" else None  # Open there, it would never end.
            process = context.Process(target=_child, args=(group, theirs, inherited), daemon=True)
            process.start()
            theirs.close()
        ours.send(job)
        try:
            answer = ours.recv()
        except EOFError:
            process.join()
            answer = [ENDED, f"exit code {process.exitcode}"]
            process = None
        if group.child == "fork" and process is not None:
            ours.close()
            process.join(30)
            if process.exitcode != 0:
                answer = [ENDED, f"exit code {process.exitcode} at the end"]
            process = None
        job = yield answer


def _work(group_name: str, out: int) -> None:
    """Answers jobs that come as lines of JSON."""
    from surfaces import enter

    group = GROUPS[group_name]
    enter(group)
    children = _answers_of_children(group) if group.child else None
    if children is not None:
        next(children)
    os.write(out, b"ready\n")
    for line in sys.stdin:
        job = json.loads(line)
        answer = children.send(job) if children is not None else _answer(group, job)
        os.write(out, json.dumps(answer).encode() + b"\n")


class Workers:
    """The processes of a group."""

    def __init__(self, group: str, folder: str) -> None:
        self.group, self.folder = group, folder
        self.processes: list[tuple[subprocess.Popen[bytes], int, Any]] = []

    def _start(self) -> None:
        group = GROUPS[self.group]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(group.replicas):
            read, write = os.pipe()
            variables = {
                **os.environ,
                "PJRT_DEVICE": "CPU",
                "CPU_NUM_DEVICES": "1",
                "XLA_PERSISTENT_CACHE_PATH": f"{self.folder}/programs",
                "XLA_COLLECTIVE_TIMEOUT": "30",
                "MATRIX_FOLDER": self.folder,
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                "OMP_NUM_THREADS": "1",
                # It is not XLA that is tried here, and this halves what it costs.
                "XLA_FLAGS": "--xla_backend_optimization_level=0",
                "XLA_RECOMPILE_WARNING": "0",
                **group.environment,
            }
            if group.replicas > 1:
                names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
                values = (rank, rank, group.replicas, group.replicas)
                variables |= {n: str(v) for n, v in zip(names, values, strict=True)}
                variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            errors = tempfile.TemporaryFile(dir=self.folder)
            process = subprocess.Popen(
                [sys.executable, __file__, "--worker", self.group, "--out", str(write)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=(write,),
                env=variables,
                start_new_session=True,
            )
            os.close(write)
            self.processes.append((process, read, errors))
        for _, read, _ in self.processes:
            answer = self._line(read, time.monotonic() + START_SECONDS)
            if answer != "ready":
                raise RuntimeError(f"the worker of {self.group} did not start: {self._tail()}")

    def _line(self, read: int, deadline: float) -> str | None:
        """Returns a line, "" where the process has ended, or None where nothing comes."""
        text = b""
        while not text.endswith(b"\n"):
            if not select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            piece = os.read(read, 1 << 16)
            if not piece:
                return ""
            text += piece
        return text.decode().strip()

    def _tail(self) -> str:
        texts = []
        for _, _, errors in self.processes:
            errors.seek(max(0, errors.seek(0, 2) - 1500))
            texts.append(errors.read().decode(errors="replace").strip()[-700:])
        return " | ".join(texts)

    def run(self, program: str, surface: str, limit: float) -> Outcome:
        try:
            if not self.processes:
                self._start()
            for process, _, _ in self.processes:
                process.stdin.write(json.dumps([program, surface]).encode() + b"\n")
                process.stdin.flush()
        except (BrokenPipeError, RuntimeError) as error:
            said = f"{error} {self._tail()}"
            self.close()
            return Outcome(program, surface, ENDED, said)
        worst = Outcome(program, surface, "equal")
        deadline = time.monotonic() + limit
        for place, (process, read, _) in enumerate(self.processes):
            line = self._line(read, deadline)
            if line:
                mark, said = json.loads(line)
            elif line is None:
                mark, said = HUNG, f"no answer within {limit:.0f} s: {self._tail()}"
            else:
                mark, said = ENDED, f"exit code {process.wait()}: {self._tail()}"
            if mark == "raised" and excuses.reason(said):
                mark, said = "refused", f"{excuses.reason(said)}: {said}"
            if list(MARKS).index(mark) > list(MARKS).index(worst.mark):
                place_text = f"replica {place}: " if len(self.processes) > 1 else ""
                worst.mark, worst.said = mark, place_text + said
        if worst.mark in (ENDED, HUNG, POISONED) or len(self.processes) > 1 and worst.said:
            self.close(kill=True)
        return worst

    def close(self, kill: bool = False) -> str:
        """Ends the processes as programs end; "" or how they did not."""
        said = ""
        for process, _, _ in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process, read, _ in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2 if kill else 60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if code and not kill:
                said = f"{self.group}: exit code {code} at the end: {self._tail()}"
            os.close(read)
        for _, _, errors in self.processes:
            errors.close()
        self.processes = []
        return said


# ------------------------------------------------------------------ choosing and running


def pairs(
    seed: int | None = None, key: str = "", groups: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """All pairs, or the quarter of a seed, or those of a key: "program", "x surface", or both."""
    program_key, _, surface_key = key.partition("x ") if "x " in key else (key, "", "")
    found = []
    for program in PROGRAMS:
        for surface, way in SURFACES.items():
            if groups and way.group not in groups:
                continue
            if seed is not None and zlib.crc32(f"{program} {surface}".encode()) % 4 != seed % 4:
                continue
            if program_key.strip().lower() in program.lower() and surface_key.strip() in surface:
                found.append((program, surface))
    return found


def source_seed() -> int:
    """A number of the package's sources: the quarter changes with them alone."""
    value = 0
    for path in sorted((ROOT / "torch_xla").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h"):
            value = zlib.crc32(path.read_bytes(), value)
    return value % 4


def run(chosen: list[tuple[str, str]], limit: float = 60, show: Any = None) -> list[Outcome]:
    """Runs pairs, group by group."""
    outcomes = []
    (ROOT / "build").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="matrix-", dir=ROOT / "build")
    try:
        for group in GROUPS:
            mine = [p for p in chosen if SURFACES[p[1]].group == group]
            workers = Workers(group, folder)
            try:
                for program, surface in sorted(mine, key=lambda p: list(SURFACES).index(p[1])):
                    began = time.monotonic()
                    outcome = workers.run(program, surface, limit)
                    outcome.known = known.reason(outcome.name)
                    outcomes.append(outcome)
                    if show is not None:
                        show(outcome, len(outcomes), time.monotonic() - began)
            finally:
                said = workers.close()
            if said:
                outcomes.append(Outcome("(the end)", group, ENDED, said))
                if show is not None:
                    show(outcomes[-1], len(outcomes), 0.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def check_runner() -> int:
    """Prints what comes of programs that go wrong in each way."""
    names = ("Numbers", "_Wrong", "_Aliases", "_Raises", "_Poisons", "_Ends", "_Hangs", "Numbers")
    run([(name, "sync") for name in names], 15, lambda o, *_: print(f"{o.program}: {o.mark}"))
    return 0


def describe(outcome: Outcome) -> str:
    if outcome.known and outcome.mark in ("equal", "refused"):
        return f"{outcome.name}: {outcome.mark}, though known.py lists it: {outcome.known}"
    return f"{outcome.name}: {outcome.mark}: {outcome.said[:900]}"


def summary(outcomes: list[Outcome]) -> str:
    counts = {mark: sum(o.mark == mark for o in outcomes) for mark in MARKS}
    share = 100 * counts["equal"] / max(1, len(outcomes))
    parts = ", ".join(f"{count} {mark}" for mark, count in counts.items() if count)
    return f"{len(outcomes)} pairs: {parts}; {share:.1f} % equal"


# ------------------------------------------------------------------ the page

_HEAD = """# Programs and surfaces

Every program of `tests/python/matrix/programs.py` under every surface of
`tests/python/matrix/surfaces.py`, compared with eager PyTorch on the CPU: results, the state of the
model and of the optimizer, gradients, and what shares memory with what. After each pair a training
step has to work in the same process. `make matrix` runs all pairs and writes this page; `make test`
runs a quarter.

`=` is equal; a letter is a refusal with an error, for the reason below; what fails today has the
number of its reason.
"""


def write_page(outcomes: list[Outcome]) -> None:
    by_pair = {(o.program, o.surface): o for o in outcomes}
    letters = {name: chr(ord("a") + k) for k, name in enumerate(excuses.EXCUSES)}
    numbers = {reason: k + 1 for k, reason in enumerate(known.KNOWN)}

    def cell(program: str, surface: str) -> str:
        outcome = by_pair.get((program, surface))
        if outcome is None:
            return " "
        if outcome.mark == "refused":
            return letters[outcome.said.partition(":")[0]]
        if outcome.mark == "equal":
            return "="
        return str(numbers.get(outcome.known, MARKS[outcome.mark]))

    lines = [_HEAD, summary([o for o in outcomes if o.program in PROGRAMS]) + ".", ""]
    lines += ["| program | what it covers | " + " | ".join(SURFACES) + " |"]
    lines += ["|---|---|" + "---|" * len(SURFACES)]
    for name, program in PROGRAMS.items():
        what = (program.__doc__ or "").strip().split("\n")[0].rstrip(".")
        cells = " | ".join(cell(name, surface) for surface in SURFACES)
        lines.append(f"| {name} | {what} | {cells} |")
    used = {o.said.partition(":")[0] for o in outcomes if o.mark == "refused"}
    lines += ["", "## Refusals", ""]
    lines += [
        f"- `{letters[name]}`: {excuse.why}"
        for name, excuse in excuses.EXCUSES.items()
        if name in used
    ]
    if known.KNOWN:
        lines += ["", "## Known faults", ""]
        lines += [f"- {number}: {reason}" for reason, number in numbers.items()]
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help='"Pads", "x replay", "Pads x replay"')
    parser.add_argument("--group", nargs="*", default=[], choices=list(GROUPS), help="processes")
    parser.add_argument("--seed", help='a quarter: 0 to 3, or "sources", whose number is used')
    parser.add_argument("--limit", type=float, default=60, help="seconds for a pair")
    parser.add_argument("-v", action="store_true", help="a line for pairs that are equal, too")
    parser.add_argument("--json", help="a file for the outcomes")
    parser.add_argument("--check-runner", action="store_true", help="programs that go wrong")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        _work(args.worker, args.out)
        return 0
    if args.check_runner:
        return check_runner()
    seed = source_seed() if args.seed == "sources" else args.seed and int(args.seed)
    if seed is not None:
        print(f"--seed {seed}", flush=True)
    chosen = pairs(seed, args.k, args.group)

    def show(outcome: Outcome, done: int, seconds: float) -> None:
        if args.v or not outcome.ok or done % 50 == 0:
            star = "" if outcome.ok else "** "
            print(f"{star}[{done}/{len(chosen)}] {seconds:.1f} s {describe(outcome)}", flush=True)

    outcomes = run(chosen, args.limit, show)
    print(summary(outcomes))
    if args.json:
        Path(args.json).write_text(json.dumps([dataclasses.asdict(o) for o in outcomes]))
    if len(chosen) == len(pairs()):
        write_page(outcomes)
    return 0 if all(o.ok for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
