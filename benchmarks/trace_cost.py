"""What it costs to trace an operation from Python, against eager CPU's own call.

    python benchmarks/trace_cost.py [--json FILE]

For each operation on 4x4 tensors, blocks of calls on the xla device and of the same calls in
eager PyTorch on the CPU alternate in one process. A block times the calls alone; the graph that
they left is dropped or run, and waited for, outside. Then a one-operation step, which is traced
and launched, with many in flight. Times are medians over blocks, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import timeit
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import torch_xla
import torch_xla.core.xla_model as xm

# Name, and the statement that is timed. Results are dropped at once, but for in-place ones.
OPERATIONS = {
    "a + b": "a + b",
    "relu": "relu(a)",
    "view": "a.view(16)",
    "add_": "c.add_(b)",
    "a[2:5]": "v[2:5]",
    "linear": "linear(a, w, bias)",
    "a * 2.5": "a * 2.5",
}
# An in-place operation makes a chain, which is compiled as one graph: keep it short.
CALLS_PER_BLOCK = {"add_": 50}


def tensors_on(device: torch.device) -> dict[str, Any]:
    """Returns the names that the statements use, their tensors on ``device``."""
    values = {
        "a": torch.randn(4, 4),
        "b": torch.randn(4, 4),
        "c": torch.randn(4, 4),
        "v": torch.randn(8, 4),
        "w": torch.randn(4, 4),
        "bias": torch.randn(4),
    }
    tensors = {name: value.to(device) for name, value in values.items()}
    return {**tensors, "relu": torch.relu, "linear": F.linear}


def settle() -> None:
    """Runs what was traced and waits for it, so that a block begins with an idle device."""
    torch_xla.sync(wait=True)
    xm.wait_device_ops()


def measure_operation(name: str, device: torch.device, blocks: int, calls: int) -> dict[str, float]:
    """Returns the median times of a call on xla and in eager, in microseconds, and the ratio."""
    calls = CALLS_PER_BLOCK.get(name, calls)
    statement = OPERATIONS[name]
    xla = timeit.Timer(statement, globals=tensors_on(device))
    eager = timeit.Timer(statement, globals=tensors_on(torch.device("cpu")))
    settle()
    times: dict[str, list[float]] = {"xla": [], "eager": []}
    for block in range(blocks + 3):  # The first blocks fill caches.
        xla_time = xla.timeit(calls)
        settle()
        eager_time = eager.timeit(calls)
        if block >= 3:
            times["xla"].append(1e6 * xla_time / calls)
            times["eager"].append(1e6 * eager_time / calls)
    medians = {key: statistics.median(values) for key, values in times.items()}
    # The ratio of neighbouring blocks: a change of clock frequency hits both.
    ratios = [a / b for a, b in zip(times["xla"], times["eager"], strict=True)]
    return {**medians, "ratio": statistics.median(ratios)}


def measure_step(device: torch.device, blocks: int, steps: int) -> dict[str, float]:
    """Returns microseconds a step of ``a + b`` and sync: to submit, and with the final wait."""
    a = torch.randn(4, 4).to(device)
    b = torch.randn(4, 4).to(device)
    settle()
    submit, total = [], []
    for block in range(blocks + 3):
        start = time.perf_counter()
        for _ in range(steps):
            c = a + b  # noqa: F841 - keeps the result alive, or there is nothing to run
            torch_xla.sync()
        submitted = time.perf_counter()
        xm.wait_device_ops()
        done = time.perf_counter()
        if block >= 3:
            submit.append(1e6 * (submitted - start) / steps)
            total.append(1e6 * (done - start) / steps)
    return {"submit": statistics.median(submit), "step": statistics.median(total)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=101)
    parser.add_argument("--calls", type=int, default=500, help="calls, or steps, in a block")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = xm.xla_device()
    gc.disable()
    results: dict[str, Any] = {"device": torch_xla.real_devices()[0], "torch": torch.__version__}
    print(f"device: {results['device']}, torch {torch.__version__}")
    print(f"{'operation':<12}{'xla µs':>10}{'eager µs':>10}{'ratio':>8}")
    with torch.no_grad():
        results["operations"] = {}
        for name in OPERATIONS:
            row = measure_operation(name, device, args.blocks, args.calls)
            results["operations"][name] = row
            print(f"{name:<12}{row['xla']:>10.3f}{row['eager']:>10.3f}{row['ratio']:>8.2f}")
        results["one_op_step"] = measure_step(device, args.blocks, args.calls)
    row = results["one_op_step"]
    print(f"one-op step: {row['step']:.2f} µs ({row['submit']:.2f} µs to submit)")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
