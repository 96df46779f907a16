"""The first training step of a process whose programs are on disk, against a steady one.

    python benchmarks/warm_start.py [--models resnet18 bert] [--rounds 3] [--json FILE]

Each process makes the model on the xla device and trains it for some steps, each with its loss
read. The first process starts with an empty cache, the others with what that has left. Times are
in seconds; those of the warm processes are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

STEPS = 8


def train(name: str) -> dict[str, Any]:
    """Returns the times of the steps of this process, and what the cache says of them."""
    import torch
    from models import WORKLOADS

    import torch_xla
    import torch_xla.debug.metrics as met

    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    model = workload.model.to("xla").train()
    optimizer = workload.make_optimizer(list(model.parameters()))
    data, target = (tensor.to("xla") for tensor in workload.batch)
    torch_xla.sync(wait=True)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = workload.loss(model(data), target)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        loss.item()
        times.append(time.perf_counter() - start)
    counts = {event: met.counter_value(f"PersistentCache{event}") or 0 for event in ("Hit", "Miss")}
    return {"first": times[0], "steady": statistics.median(times[STEPS // 2 :]), **counts}


def _run(name: str, folder: str) -> dict[str, Any]:
    output = subprocess.run(
        [sys.executable, __file__, "--train", name],
        env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": folder},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["resnet18", "bert"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train)))
        return
    results = {}
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            cold = _run(name, folder)
            warm = [_run(name, folder) for _ in range(options.rounds)]
        first, steady = (statistics.median(r[key] for r in warm) for key in ("first", "steady"))
        results[name] = {"cold": cold["first"], "warm": first, "steady": steady}
        bar = 1.5 * steady + 0.3
        print(
            f"{name}: first step cold {cold['first']:.2f}, warm {first:.2f}, steady {steady:.3f}; "
            f"1.5 x steady + 0.3 = {bar:.2f}; hits {warm[0]['Hit']}, misses {warm[0]['Miss']}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
