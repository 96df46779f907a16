"""A training step of FSDP2 (``fully_shard``) among replicas on the CPU.

    python benchmarks/fsdp2.py [--replicas 2] [--layers 4] [--width 256] [--json FILE]

In each replica three ways to shard one encoder take turns: ``fully_shard`` on the xla device,
``XlaFullyShardedDataParallel`` on it, and ``fully_shard`` in eager PyTorch on the CPU, with Gloo.

Host time is the processor's time that the tracing thread takes for a step (bar: 1.2 of our FSDP's).
Step time is that of a step whose end is waited for (bar: 1.15 of Gloo's). Figures are medians over
the rounds, of the first replica. No step after the first round may compile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collectives import spawn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ROUNDS = 15
STEPS = 4
WAYS = ("fsdp2", "fsdp", "gloo")


def _encoder(layers: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
    )


def _step(way: str, layers: int, width: int) -> Callable[[], torch.Tensor]:
    """Returns a function that takes one step and returns its loss."""
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp

    device = "cpu" if way == "gloo" else "xla"
    model: Any = _encoder(layers, width).to(device)
    if way == "fsdp":
        model = Fsdp(nn.Sequential(*(Fsdp(layer) for layer in model)))
    else:
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batch = torch.randn(4, 64, width, generator=generator).to(device)

    def step() -> torch.Tensor:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _replica(args: argparse.Namespace) -> dict[str, Any]:
    import torch_xla
    import torch_xla.debug.metrics as met

    def programs() -> int:
        return (met.metric_data("CompileTime") or (0,))[0]

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.replicas))
    dist.init_process_group("cpu:gloo,xla:xla", init_method="xla://")
    steps = {way: _step(way, args.layers, args.width) for way in WAYS}
    losses: dict[str, list[float]] = {way: [] for way in WAYS}
    for way, step in steps.items():
        for _ in range(3):
            loss = step()
            torch_xla.sync(wait=True)
            losses[way].append(loss.item())
    host: dict[str, list[float]] = {way: [] for way in WAYS}
    whole: dict[str, list[float]] = {way: [] for way in WAYS}

    def run_round() -> None:
        for way, step in steps.items():
            dist.barrier()
            start, thread = time.perf_counter(), time.thread_time()
            for _ in range(STEPS):
                step()
                torch_xla.sync()
            host[way].append((time.thread_time() - thread) / STEPS)
            torch_xla.sync(wait=True)
            whole[way].append((time.perf_counter() - start) / STEPS)

    run_round()  # Compiles steps that have no result.
    before = programs()
    for _ in range(ROUNDS):
        run_round()
    result = {
        "losses": losses,
        "programs_after_warm_up": programs() - before,
        "host_ms": {way: 1e3 * statistics.median(times[1:]) for way, times in host.items()},
        "step_ms": {way: 1e3 * statistics.median(times[1:]) for way, times in whole.items()},
    }
    dist.destroy_process_group()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    result = spawn(_replica, args.replicas, args)[0]
    host, step = result["host_ms"], result["step_ms"]
    for way in WAYS:
        print(f"{way:6} host {host[way]:7.2f} ms   step {step[way]:7.2f} ms")
    print(f"host fsdp2 / fsdp {host['fsdp2'] / host['fsdp']:.2f} (bar 1.20)")
    print(f"step fsdp2 / gloo {step['fsdp2'] / step['gloo']:.2f} (bar 1.15)")
    print(f"programs after the first round: {result['programs_after_warm_up']} (bar 0)")
    for way, losses in result["losses"].items():
        print(f"{way:6} losses", *(f"{loss:.6f}" for loss in losses))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
