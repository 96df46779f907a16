"""One small network and the ways to train it: what each adds to the plain loop.

    python examples/train_ways.py plain
    python examples/train_ways.py amp                      # float16 with a scaled loss, no reads
    CPU_NUM_DEVICES=4 python examples/train_ways.py ddp    # torch.distributed and DDP
    CPU_NUM_DEVICES=4 python examples/train_ways.py fsdp   # each keeps a part of the weights
    CPU_NUM_DEVICES=4 python examples/train_ways.py spmd   # one process, batches over a mesh
    CPU_NUM_DEVICES=4 python examples/train_ways.py fsdp_v2    # and the weights, too

All give the losses of the plain loop (``amp`` but for rounding): the batch of a step is the same.
Several of a kind may be named at once: the first two, the next two, the last two.
"""

from __future__ import annotations

import argparse
import contextlib
import json

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from train_digits import load_data

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend  # noqa: F401 - the backend "xla", and xla://
import torch_xla.runtime as xr
from torch_xla.amp import GradScaler, autocast, syncfree
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

BATCH = 64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
    )


def train(how: str, args: argparse.Namespace) -> list[float]:
    """Returns the loss of each step, the mean over the replicas."""
    device, model, mesh = torch_xla.device(), network(), None
    if how == "ddp":
        dist.init_process_group("xla", init_method="xla://")
        model = nn.parallel.DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
    elif how == "fsdp":
        for i in (1, 3):  # wrapped alone: gathered, used and let go one after the other
            model[i] = FSDP(model[i])
        model = FSDP(model)
    elif how in ("spmd", "fsdp_v2"):
        count = xr.global_runtime_device_count()
        mesh = xs.Mesh(np.arange(count), (count,), ("fsdp",))
        model = model.to(device)
        if how == "fsdp_v2":
            model = FSDPv2(model, mesh=mesh, shard_output=lambda output, mesh: None)
    else:
        model = model.to(device)
    amp = how == "amp"
    scaler = GradScaler(enabled=amp)
    precision = autocast(device, dtype=torch.float16) if amp else contextlib.nullcontext()
    optimizer = syncfree.AdamW(model.parameters(), lr=0.01)

    images, labels = load_data()[0].tensors
    part = slice(None) if mesh else slice(xr.global_ordinal(), None, xr.world_size())
    losses = []
    for step in range(args.steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH).remainder(len(labels))[part]
        x, y = images[rows].to(device), labels[rows].to(device)
        if mesh:
            xs.mark_sharding(x, mesh, ("fsdp", None, None, None))
        optimizer.zero_grad()
        with precision:
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        torch_xla.sync()
    means = torch.stack(losses)
    if not mesh:
        means = xm.all_reduce(xm.REDUCE_SUM, means, scale=1 / xr.world_size())
    return means.tolist()


def run(index: int, args: argparse.Namespace) -> None:
    results = {}
    for how in args.how:
        losses = results[how] = train(how, args)
        xm.master_print(f"{how}: loss {losses[0]:.4f} to {losses[-1]:.4f} in {args.steps} steps")
    if args.log_losses and xm.is_master_ordinal(local=False):
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump({"losses": results}, file)


def main() -> None:
    description, epilog = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    spmd = {"spmd", "fsdp_v2"}
    ways = ("plain", "amp", "ddp", "fsdp", *sorted(spmd))
    parser.add_argument("how", choices=ways, nargs="+")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    args = parser.parse_args()
    if spmd.issuperset(args.how):
        xr.use_spmd()
        run(0, args)
    elif spmd.isdisjoint(args.how):
        torch_xla.launch(run, args=(args,))
    else:
        parser.error(
            "spmd and fsdp_v2 take all devices into one process, the others do not: "
            "name them in two runs"
        )


if __name__ == "__main__":
    main()
