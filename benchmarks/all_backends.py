"""The steps of many jobs by every backend, in turns, beside the machine's limit.

    python benchmarks/all_backends.py [--jobs mlp bert] [--backends eager xla] [--json FILE]

Each backend has a process of its own; they take turns (A B C … C B A), so that all see the same
machine and none runs beside another. Each step is waited for, or with ``--together N`` so many at
once, as a training loop that reads its loss now and then does. "Cold" and "warm" are a process
with an empty and one with a filled folder for what is compiled: its first step, and the most memory
that it has held once nothing is compiled any more. The limit is that of
``machine.py``. ``--upstream PYTHON`` names the interpreter of an environment with another
torch_xla. A job that a backend cannot run is named, with the last line of its error.

With ``--platform CUDA`` all of them run on the first GPU, whose memory is what is counted; JAX
multiplies matrices in float32, as PyTorch does there. It has no limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from workloads import JOBS, LARGE_JOBS, Wrap

BACKENDS = {
    "limit": "the machine's",
    "eager": "PyTorch",
    "inductor": "torch.compile",
    "jax": "JAX, jitted",
    "xla": "this project, traced",
    "replay": "this project, torch_xla.compile(replay=True)",
    "dynamo": "this project, torch.compile(backend='openxla')",
    "upstream": "another torch_xla, see --upstream",
}


# What the processes of a platform have in their environment beside PJRT_DEVICE. A GPU is shared.
PLATFORMS = {
    "CPU": {"JAX_PLATFORMS": "cpu"},
    "CUDA": {
        "JAX_PLATFORMS": "cuda",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "0",
        "PJRT_ALLOCATOR_PREALLOCATE": "0",
    },
}

# ---------------------------------------------------------------- in the processes


class Steps(NamedTuple):
    """What launches a step, what waits for its end, and after how many all is compiled."""

    launch: Callable[[], Any]
    wait: Callable[[], Any]
    warm_up: int


def _torch_steps(backend: str, name: str) -> Steps:
    wraps: dict[str, Wrap] = {
        "inductor": torch.compile,
        "dynamo": lambda model: torch.compile(model, backend="openxla"),
    }
    wrap = wraps.get(backend, lambda model: model)
    jobs = JOBS | LARGE_JOBS
    torch.manual_seed(0)
    if backend in ("eager", "inductor"):
        on_gpu = os.environ["PJRT_DEVICE"] == "CUDA"
        job = jobs[name](torch.device("cuda" if on_gpu else "cpu"), wrap)

        wait = torch.cuda.synchronize if on_gpu else lambda: None
        return Steps(lambda: job.step(*next(job.batches)), wait, job.warm_up)
    import torch_xla
    import torch_xla.core.xla_model as xm

    job = jobs[name](torch_xla.device(), wrap)
    step = torch_xla.compile(job.step, replay=True) if backend == "replay" else job.step
    torch_xla.sync(wait=True)  # The initial values are no part of the step.

    def launch() -> Any:
        result = step(*next(job.batches))
        torch_xla.sync()
        return result

    return Steps(launch, xm.wait_device_ops, job.warm_up)


def _jax_steps(name: str) -> Steps:
    import jax_workloads

    job = jax_workloads.make(name)
    last: list[Any] = [None]

    def launch() -> None:
        last[0] = job.step()

    return Steps(launch, lambda: last[0].block_until_ready(), job.warm_up)


def _limit(name: str) -> float:
    import machine

    job = JOBS[name](torch.device("cpu"), lambda model: model)
    job.step(*next(job.batches))
    return machine.products(job) + machine.optimizer_bytes(job) / machine.bandwidth()


def _peak_mb(backend: str) -> float:
    """Returns the most memory held so far: of the device, where that has its own."""
    if os.environ["PJRT_DEVICE"] == "CPU":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if backend in ("eager", "inductor"):
        return torch.cuda.max_memory_allocated() / 1e6
    if backend == "jax":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6
    return torch.xla.max_memory_allocated() / 1e6


def _work(backend: str, name: str, together: int) -> None:
    """Answers each line of its input, a number of steps, by their times."""
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers)

    if backend == "limit":
        answer(first_s=0)
        for _ in sys.stdin:
            answer(times=[_limit(name)], cpu_s=0, memory_mb=0)
        return
    steps = _jax_steps(name) if backend == "jax" else _torch_steps(backend, name)

    def run(count: int) -> float:
        """Seconds a step."""
        start = time.perf_counter()
        for _ in range(count):
            steps.launch()
        steps.wait()
        return (time.perf_counter() - start) / count

    answer(first_s=run(1))
    for i, line in enumerate(sys.stdin):
        for _ in range(steps.warm_up if i == 0 else 0):
            run(1)
        cpu = time.process_time()
        times = [run(together) for _ in range(-(-int(line) // together))]
        cpu = (time.process_time() - cpu) / (len(times) * together)
        answer(times=times, cpu_s=cpu, memory_mb=_peak_mb(backend))
    if backend in ("xla", "replay", "dynamo"):
        import torch_xla.cache

        torch_xla.cache.flush()
    os._exit(0)  # Workers of loaders need not be waited for.


# ---------------------------------------------------------------- the parent


class Worker:
    """A process of a backend that runs steps of a job."""

    def __init__(
        self, backend: str, name: str, python: str, cache: Path, platform: str, together: int
    ) -> None:
        environment = {
            **os.environ,
            **PLATFORMS[platform],
            "PJRT_DEVICE": platform,
            "XLA_PERSISTENT_CACHE_PATH": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, __file__, "--worker", backend, name, str(together)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self.first_s: float = self._read()["first_s"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["ended without a word"]
        raise RuntimeError(said[-1])

    def run(self, steps: int) -> dict[str, Any]:
        """Returns times, CPU seconds a step and peak memory."""
        assert self._process.stdin
        print(steps, file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)
        self._errors.close()


def measure(
    name: str,
    backends: list[str],
    python: dict[str, str],
    rounds: int,
    seconds: float,
    platform: str = "CPU",
    together: int = 1,
) -> dict[str, dict[str, Any]]:
    """Measures a job.

    Args:
        name: Of the job.
        backends: Some of BACKENDS.
        python: The interpreter, by backend; this one for those not named.
        rounds: How many turns each has.
        seconds: About how long a turn lasts; it has at least 3 steps.
        platform: One of PLATFORMS.
        together: How many steps are waited for at once.

    Returns:
        By backend: ``step_s`` (median), ``least_s``, ``spread`` (of the middle half of the steps,
        over the median), ``cpu_s``, ``cold_mb``, ``memory_mb`` (warm), ``cold_s``, ``warm_s``; or
        ``error``.
    """
    results: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    steps: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for backend in backends:
            interpreter, cache = python.get(backend, sys.executable), Path(scratch, backend)
            where = backend, name, interpreter, cache, platform, together
            try:
                cold = Worker(*where)
                cold_mb = cold.run(1)["memory_mb"]
                cold.end()
                workers[backend] = warm = Worker(*where)
                took = statistics.median(warm.run(3)["times"])
                steps[backend] = max(3, round(seconds / took))
                results[backend] = {
                    "cold_s": cold.first_s,
                    "cold_mb": cold_mb,
                    "warm_s": warm.first_s,
                    "times": [],
                }
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                workers.pop(backend, None)
                results[backend] = {"error": str(error)}
        for turn in range(rounds):
            order = list(workers) if turn % 2 == 0 else list(workers)[::-1]
            for backend in order:
                answer = workers[backend].run(steps[backend] if backend != "limit" else 1)
                results[backend]["times"] += answer.pop("times")
                results[backend] |= answer
        for worker in workers.values():
            worker.end()
    for result in results.values():
        if times := result.pop("times", None):
            result["step_s"], result["least_s"] = statistics.median(times), min(times)
            if len(times) > 2:
                low, _, high = statistics.quantiles(times, n=4)
                result["spread"] = (high - low) / result["step_s"]
    if "limit" in workers:  # What was once reached can be.
        least = min(results[backend]["least_s"] for backend in workers)
        results["limit"] |= {"step_s": least, "least_s": least}
    return results


def table(results: dict[str, dict[str, dict[str, Any]]], backends: list[str]) -> str:
    """Returns a Markdown table: ms a step, and percent of the limit.

    The limit is a sum of least times, so it is the least step that is held against it: by the
    median the machine's neighbours would count as the step's own.
    """

    def cell(name: str, backend: str) -> str:
        found, limit = results[name][backend], results[name].get("limit", {}).get("least_s")
        if "step_s" not in found:
            return "–"
        text = f"{1e3 * found['step_s']:.3g}"
        return f"{text} ({100 * limit / found['least_s']:.0f} %)" if limit else text

    def rows(title: str, cells: Callable[[str, str], str], names: list[str]) -> list[str]:
        head = f"| {title} | {' | '.join(names)} |\n|---|{'---|' * len(names)}"
        lines = (f"| {n} | {' | '.join(cells(n, b) for b in names)} |" for n in results)
        return [head, *lines]

    def of(key: str, scale: float) -> Callable[[str, str], str]:
        return lambda n, b: f"{scale * results[n][b][key]:.3g}" if key in results[n][b] else "–"

    running = [backend for backend in backends if backend != "limit"]
    parts = [
        rows("ms a step (its least, of the limit)", cell, backends),
        rows("CPU ms a step", of("cpu_s", 1e3), running),
        rows("peak MB, cold", of("cold_mb", 1), running),
        rows("peak MB, warm", of("memory_mb", 1), running),
        rows("first step, cold, s", of("cold_s", 1), running),
        rows("first step, warm, s", of("warm_s", 1), running),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(f"{name:<10}{text}" for name, text in BACKENDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS | LARGE_JOBS, default=list(JOBS), metavar="JOB"
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, metavar="BACKEND")
    parser.add_argument("--platform", choices=PLATFORMS, default="CPU")
    parser.add_argument("--together", type=int, default=1, help="steps that are waited for at once")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="about, for a turn")
    parser.add_argument("--upstream", metavar="PYTHON", help="of an environment of torch_xla")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()

    missing = {"upstream"} if not args.upstream else set()
    missing |= {"limit"} if args.platform != "CPU" else set()
    backends = args.backends or [b for b in BACKENDS if b not in missing]
    python = {"upstream": args.upstream} if args.upstream else {}
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in (progress := tqdm(args.jobs)):
        progress.set_postfix_str(name)
        results[name] = measure(
            name, backends, python, args.rounds, args.seconds, args.platform, args.together
        )
        for backend, found in results[name].items():
            if "error" in found:
                tqdm.write(f"{name} by {backend}: {found['error']}")
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=2))
    print(table(results, backends))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(*sys.argv[2:4], together=int(sys.argv[4]))
    else:
        main()
