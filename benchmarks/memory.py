"""The resident set over many steps and over many shapes.

    python benchmarks/memory.py [--steps 10000] [--shapes 300] [--json FILE]

*Steps*: an MLP is trained on one shape. *Shapes*: a batch of another size at each step, so that
each compiles a program. Both in a process of their own, with the resident set noted on the way;
what grows in the second half is what would go on growing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from multiprocessing.connection import Connection

POINTS = 10


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _work(connection: Connection, steps: int, vary: bool) -> None:
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # What it measures is compiled.
    import torch
    from torch import nn

    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met

    device = xm.xla_device()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: int) -> None:
        inputs = torch.randn(batch, 64).to(device)
        targets = torch.randint(10, (batch,)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        torch_xla.sync()

    for _ in range(5):
        step(1)
    xm.wait_device_ops()
    resident = [_resident_mb()]
    for number in range(steps):
        step(number + 2 if vary else 1)
        if (number + 1) % (steps // POINTS) == 0:
            xm.wait_device_ops()
            resident.append(_resident_mb())
    compiles = met.metric_data("CompileTime")
    connection.send((resident, compiles[0] if compiles else 0))


def measure(steps: int, vary: bool) -> tuple[list[float], int]:
    """Returns the resident set in MB, before and at ten points, and how many programs there were.

    Args:
        steps: How many steps.
        vary: Whether each has a batch of another size.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, steps, vary))
    process.start()
    theirs.close()  # So that a process that fails ends recv() with EOFError.
    result = ours.recv()
    process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=300)
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()

    results = {}
    for name, steps, vary in (("steps", args.steps, False), ("shapes", args.shapes, True)):
        resident, compiles = measure(steps, vary)
        half = (resident[-1] - resident[POINTS // 2]) / (steps - steps // 2)
        results[name] = {"resident_mb": resident, "compiles": compiles, "mb_per_step": half}
        print(f"{steps} {name}, {compiles} programs; resident MB:")
        print(" ", *(f"{mb:.0f}" for mb in resident))
        print(f"  second half: {1024 * half:+.2f} KB a step")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
