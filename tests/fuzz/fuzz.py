"""Runs random programs on xla against the CPU: ``python tests/fuzz/fuzz.py --count 400``.

Programs run in a process of their own, many in one graph (``--batch``); when one ends the process,
its batch is run again one by one and the seed is named. Some programs are also run on a surface
that is drawn for each (surfaces.py), and some with other sizes in each step (sizes.py). Failures
are shrunk and printed as tests; the exit status is 1 when there are any.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import programs
import sizes
import surfaces
from tqdm import tqdm

# Of so many programs one is run on another surface, too.
SURFACE_EVERY = 10


def run_batch(seeds: list[int], length: int) -> list[tuple[int, str, str]]:
    """Runs these seeds' programs in one graph: (seed, difference, test) for each that fails."""
    import torch_xla

    def sync() -> None:
        torch_xla.sync()

    devices = ("xla:0", "xla:1")
    made = {seed: programs.write(seed, length) for seed in seeds}
    runs = {}
    for seed, program in made.items():
        env = programs.environment(*devices, sync)
        runs[seed] = env, program.run(env)
    torch_xla.sync()
    found = []
    for seed, program in made.items():
        said = programs.check(program, *runs[seed])
        if not said or programs.excused(said):
            continue
        alone = programs.blame(program, devices, sync)
        if programs.excused(alone):
            continue
        if not alone and programs.explained_by_rounding(program, said):
            continue

        def fails(candidate: programs.Program, line_alone: bool = bool(alone)) -> bool:
            if line_alone:
                again = programs.blame(candidate, devices, sync)
                return bool(again) and not programs.excused(again)
            env = programs.environment(*devices, sync)
            again = programs.check(candidate, env, candidate.run(env))
            return bool(again) and not programs.explained_by_rounding(candidate, again)

        short = programs.shrink(program, fails)
        found.append((seed, alone or said, programs.as_test(short, alone or said, seed)))
    # A program of its own takes as long as a whole batch in one graph.
    for seed in seeds:
        if seed % SURFACE_EVERY:
            continue
        if failure := surfaces.failure(seed, length, devices):
            found.append(failure)
    return found


def _worker() -> None:
    """Reads batches as JSON lines, writes what failed."""
    for line in sys.stdin:
        seeds, length = json.loads(line)
        if "XLA_DYNAMIC_SIZES" in os.environ:
            found = [said for seed in seeds if (said := sizes.failure(seed, length))]
        else:
            found = run_batch(seeds, length)
        print("FOUND " + json.dumps(found), flush=True)


class Worker:
    """A process that runs batches; a new one after each that died.

    Args:
        timeout: Seconds for a batch.
        env: Variables of the process, such as ``sizes.MODE``.
    """

    def __init__(self, timeout: float, env: dict[str, str] | None = None) -> None:
        self.timeout = timeout
        self.env = env or {}
        self.process: subprocess.Popen[str] | None = None

    def run(self, seeds: list[int], length: int) -> list[tuple[int, str, str]]:
        found = self._ask(seeds, length)
        if found is None and len(seeds) == 1:
            lines = "\n".join(programs.write(seeds[0], length).lines)
            return [(seeds[0], "the process ended, or did not answer", lines)]
        if found is None:
            return [failure for seed in seeds for failure in self.run([seed], length)]
        return found

    def _ask(self, seeds: list[int], length: int) -> list[tuple[int, str, str]] | None:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", **self.env},
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        # A batch that takes too long is ended from outside: reading its answer then ends, too.
        guard = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import os,time; time.sleep({self.timeout}); os.kill({self.process.pid}, 9)",
            ]
        )
        try:
            self.process.stdin.write(json.dumps([seeds, length]) + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.startswith("FOUND "):
                    return [tuple(failure) for failure in json.loads(line[6:])]
        except BrokenPipeError:
            pass
        finally:
            guard.kill()
            guard.wait()
        self.close()
        return None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="programs")
    parser.add_argument("--start", type=int, default=0, help="the first one's seed")
    parser.add_argument("--batch", type=int, default=20, help="programs in one graph")
    parser.add_argument("--length", type=int, default=11, help="lines of a program")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long; 0: never")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a batch")
    parser.add_argument(
        "--show", type=int, default=-1, help="print the program of this seed and end"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        _worker()
        return 0
    if args.show >= 0:
        print("\n".join(programs.write(args.show, args.length).lines))
        return 0
    worker, resizing = Worker(args.timeout), Worker(args.timeout, sizes.MODE)
    failures, began = 0, time.monotonic()
    done = 0
    with tqdm(total=args.count, unit="program", disable=not sys.stderr.isatty()) as progress:
        for start in range(args.start, args.start + args.count, args.batch):
            seeds = list(range(start, min(start + args.batch, args.start + args.count)))
            found = worker.run(seeds, args.length)
            found += resizing.run([s for s in seeds if not s % sizes.EVERY], sizes.LENGTH)
            for seed, said, test in found:
                failures += 1
                print(f"# seed {seed}: {said[:400]}\n{test}\n", flush=True)
            done += len(seeds)
            progress.update(len(seeds))
            if args.seconds and time.monotonic() - began > args.seconds:
                break
    worker.close()
    resizing.close()
    print(f"{done} programs, {failures} failures, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
