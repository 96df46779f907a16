"""Trains the GPT of train_gpt.py on several devices by SPMD: batches and weights are split.

    python examples/train_gpt_spmd.py                          # 2 × 2 devices of the CPU
    python examples/train_gpt_spmd.py --data 4 --model 1       # the batch alone
    python examples/train_gpt_spmd.py --check                  # and compares with one device

One process has all devices. The mesh has two axes: batches are split over ``data``, the weights
of the attention and the MLP over ``model``. The numbers are those of one device but for rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from tqdm import tqdm
from train_gpt import GPT, MODULES, TextWindows, learning_rate_factor, read_text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=int, default=2, help="devices along the batch")
    parser.add_argument("--model", type=int, default=2, help="devices along the weights")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32, help="of all devices together")
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-steps", type=int, default=10, help="steps between shown losses")
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    parser.add_argument("--check", action="store_true", help="train on one device, too; compare")
    parser.add_argument(
        "--tolerance", type=float, default=0.02, help="of --check, relative, of each loss"
    )
    return parser.parse_args()


def split_weights(model: GPT, mesh: object) -> None:
    """Splits the weights over the axis ``model``: outputs of one layer, inputs of the next."""
    import torch_xla.distributed.spmd as xs

    for block in model.blocks:
        for layer in (block.qkv, block.mlp[0]):
            xs.mark_sharding(layer.weight, mesh, ("model", None))
            xs.mark_sharding(layer.bias, mesh, ("model",))
        for layer in (block.projection, block.mlp[2]):
            xs.mark_sharding(layer.weight, mesh, (None, "model"))
    xs.mark_sharding(model.head.weight, mesh, ("model", None))


def train(args: argparse.Namespace) -> dict[str, object]:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    import torch_xla.distributed.parallel_loader as pl
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    count = args.data * args.model
    sharding = mesh = None
    if count > 1:
        xr.use_spmd()
        if xr.global_runtime_device_count() != count:
            sys.exit(
                f"{count} devices are needed for --data {args.data} --model {args.model}, but "
                f"there are {xr.global_runtime_device_count()}; on the CPU CPU_NUM_DEVICES says "
                "how many"
            )
        mesh = xs.Mesh(range(count), (args.data, args.model), ("data", "model"))
        sharding = xs.ShardingSpec(mesh, ("data", None))
    device = xm.xla_device()

    torch.manual_seed(args.seed)
    train_set = TextWindows(read_text(*MODULES), args.context)
    sampler = RandomSampler(
        train_set,
        replacement=True,
        num_samples=args.steps * args.batch_size,
        generator=torch.Generator().manual_seed(args.seed),
    )
    loader = pl.MpDeviceLoader(
        DataLoader(train_set, args.batch_size, sampler=sampler), device, input_sharding=sharding
    )
    model = GPT(args.width, args.heads, args.layers, args.context, dropout=0.0).to(device)
    if mesh is not None:
        split_weights(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, args.steps, args.warmup)
    )

    losses: list[torch.Tensor] = []
    compiles: list[int] = []
    with tqdm(loader, desc=f"training on {count}", total=args.steps) as progress:

        def show(step: int, loss: torch.Tensor) -> None:
            progress.write(f"step {step}: loss {loss.item():.4f}")

        for step, (characters, following) in enumerate(progress):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(characters).flatten(0, 1), following.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            if step % args.log_steps == 0:
                xm.add_step_closure(show, args=(step, loss.detach()))
            compiles.append(met.counter_value("UncachedCompile") or 0)
    torch_xla.sync()
    compiled = met.counter_value("UncachedCompile") or 0

    whole = sum(p.numel() for p in model.parameters())
    held = [whole]
    if mesh is not None:
        tiles = [xs.wrap_as_sharded_tensor(p).local_shards for p in model.parameters()]
        held = [sum(shards[i].data.numel() for shards in tiles) for i in range(count)]
    return {
        "losses": torch.stack(losses).tolist(),
        "compiles": compiled,
        "compiles_after_third_step": compiled - compiles[min(3, len(compiles) - 1)],
        "parameters": whole,
        "parameters_by_device": held,
    }


def one_device(args: argparse.Namespace) -> list[float]:
    """Returns the losses of the same training in a process with one device."""
    options = vars(args) | {"data": 1, "model": 1}
    with tempfile.TemporaryDirectory() as folder:
        options["log_losses"] = Path(folder) / "losses.json"
        arguments = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in options.items()
            if name != "check"
        ]
        subprocess.run(
            [sys.executable, __file__, *arguments],
            check=True,
            env={**os.environ, "CPU_NUM_DEVICES": "1"},
        )
        return json.loads(options["log_losses"].read_text())["losses"]


def main() -> None:
    args = parse_arguments()
    # Before torch_xla makes its devices.
    os.environ.setdefault("CPU_NUM_DEVICES", str(args.data * args.model))
    result = train(args)
    losses = result["losses"]
    print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    print(f"compiles: {result['compiles']}")
    print(f"compiles after the third step: {result['compiles_after_third_step']}")
    print(f"parameters: {result['parameters']}, on each device: {result['parameters_by_device']}")
    if args.log_losses:
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump(result, file)
    if args.check:
        expected = one_device(args)
        difference = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        print(f"largest relative difference to one device: {difference:.2e}")
        if difference > args.tolerance:
            sys.exit(f"the losses differ by more than {args.tolerance}")


if __name__ == "__main__":
    main()
