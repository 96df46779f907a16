"""The steady training step, against eager CPU and against the bare executable.

    python benchmarks/train_step.py [--models mlp resnet18 bert] [--json FILE]

One process trains on the xla device and one in eager PyTorch on the CPU; they take turns, block
by block, so that both see the same machine and never run at once. A block is a number of steps
in flight, with one wait at its end. The bare executable's own time is the mean ``ExecuteTime``
of more blocks in between, in which each step is waited for before the next one is traced, so that
nothing else runs on the cores. ``memory`` is the peak resident set of each process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from models import WORKLOADS

WARM_UP_STEPS = 3


def _peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _work(connection: Connection, model_name: str, device_name: str) -> None:
    """A training process: reports its warm-up, then a block for each (steps, bare) it receives."""
    torch.manual_seed(0)
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # What it measures is compiled.
    if device_name == "xla":
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met

        device = xm.xla_device()
    else:
        device = torch.device("cpu")
    workload = WORKLOADS[model_name]()
    model = workload.model.to(device).train()
    inputs, targets = (tensor.to(device) for tensor in workload.batch)
    optimizer = workload.make_optimizer(list(model.parameters()))

    def run(steps: int, bare: bool = False) -> float:
        """Returns the seconds that a step takes; with ``bare``, that its program runs."""
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = workload.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if device_name == "xla":
                torch_xla.sync(wait=bare)
        if device_name == "xla":
            xm.wait_device_ops()
        seconds = (time.perf_counter() - start) / steps
        if bare:
            samples = met.metric_data("ExecuteTime")[2][-steps:]
            seconds = statistics.mean(value for _, value in samples) / 1e9
        return seconds

    start = time.perf_counter()
    if device_name == "xla":
        torch_xla.sync()  # The initial values are no part of the step.
    run(WARM_UP_STEPS)
    report: dict[str, Any] = {"warm_up_s": time.perf_counter() - start}
    if device_name == "xla":
        compiles, nanoseconds, _ = met.metric_data("CompileTime") or (0, 0, [])
        report |= {"compiles": compiles, "compile_s": nanoseconds / 1e9}
        met.clear_all()
    connection.send(report)

    while (block := connection.recv()) is not None:
        connection.send(run(*block))
    report = {"memory_mb": _peak_memory_mb()}
    if device_name == "xla":
        recompiles = met.metric_data("CompileTime")
        report |= {
            "executions": met.metric_data("ExecuteTime")[0],
            "recompiles": recompiles[0] if recompiles else 0,
            "fallbacks": met.executed_fallback_ops(),
        }
    connection.send(report)


def measure(model_name: str, blocks: int, seconds: float) -> dict[str, Any]:
    """Returns the medians of a model's step on xla and in eager, and what each process said.

    Args:
        model_name: A key of ``models.WORKLOADS``.
        blocks: How many turns each process has.
        seconds: About how long a turn lasts; a turn has at least 2 steps.
    """
    context = multiprocessing.get_context("spawn")
    connections, processes = {}, {}
    reports: dict[str, dict[str, Any]] = {}
    for device in ("cpu", "xla"):
        connections[device], theirs = context.Pipe()
        processes[device] = context.Process(target=_work, args=(theirs, model_name, device))
        processes[device].start()
        theirs.close()  # So that a process that fails ends recv() with EOFError.
        reports[device] = connections[device].recv()

    def turn(device: str, steps: int, bare: bool = False) -> float:
        connections[device].send((steps, bare))
        return connections[device].recv()

    steps = {device: max(2, round(seconds / turn(device, 2))) for device in connections}
    times: dict[str, list[float]] = {"cpu": [], "xla": [], "bare": []}
    for _ in range(blocks):
        for device in connections:
            times[device].append(turn(device, steps[device]))
        times["bare"].append(turn("xla", steps["xla"], bare=True))
    for device, connection in connections.items():
        connection.send(None)
        reports[device] |= connection.recv()
        processes[device].join()

    xla, eager, bare = (statistics.median(times[what]) for what in ("xla", "cpu", "bare"))
    # The ratio of neighbouring blocks: whatever else the machine does hits both.
    over_bare = statistics.median(a / b for a, b in zip(times["xla"], times["bare"], strict=True))
    total_steps = 2 + 2 * blocks * steps["xla"]
    executions = reports["xla"]["executions"]
    return {
        "xla_ms": 1e3 * xla,
        "eager_ms": 1e3 * eager,
        "bare_ms": 1e3 * bare,
        "xla_over_eager": xla / eager,
        # Of one graph a step; there is no such number for a step in pieces.
        "xla_over_bare": over_bare if abs(executions - total_steps) <= 1 else None,
        "executions_per_step": executions / total_steps,
        "processes": reports,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="about, for a block")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()

    results = {}
    print(
        f"{'model':<10}{'xla ms':>9}{'eager ms':>10}{'/ eager':>9}{'bare ms':>9}{'/ bare':>8}"
        f"{'compile s':>11}{'memory MB':>11}{'eager MB':>10}"
    )
    for name in args.models:
        row = results[name] = measure(name, args.blocks, args.seconds)
        xla, eager = row["processes"]["xla"], row["processes"]["cpu"]
        bare = row["xla_over_bare"]
        print(
            f"{name:<10}{row['xla_ms']:>9.2f}{row['eager_ms']:>10.2f}"
            f"{row['xla_over_eager']:>9.2f}{row['bare_ms']:>9.2f}"
            f"{'-' if bare is None else f'{bare:.3f}':>8}{xla['compile_s']:>11.2f}"
            f"{xla['memory_mb']:>11.0f}{eager['memory_mb']:>10.0f}"
        )
        for what in ("recompiles", "fallbacks"):
            if xla[what]:
                print(f"  {what} in the steady state: {xla[what]}")
        if bare is None:
            print(f"  executions a step: {row['executions_per_step']:.2f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
