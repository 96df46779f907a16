"""Trains the CNN of train_digits.py on several replicas, each on its part of every batch.

    CPU_NUM_DEVICES=4 python examples/train_digits_mp.py             # spawns four replicas
    torchrun --nproc-per-node=4 examples/train_digits_mp.py          # the same
    python examples/train_digits_mp.py --batch-size 64               # one, with the whole batch

``--batch-size`` is that of a replica. With ``--dropout 0`` and ``--norm none`` (batch
normalization sees a replica's part only) N replicas with batches of B give the losses of one
replica with batches of N × B.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from train_digits import TEST_IMAGES, DigitsNet, load_data

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="of each replica")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--norm", choices=("batch", "none"), default="batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    return parser.parse_args()


def replica(index: int, args: argparse.Namespace) -> None:
    device = xm.xla_device()
    count = xr.world_size()
    # The same model everywhere; other random numbers for dropout.
    torch.manual_seed(args.seed)
    model = DigitsNet(args.dropout)
    if args.norm == "none":
        model.features = nn.Sequential(
            *(module for module in model.features if not isinstance(module, nn.BatchNorm2d))
        )
    model = model.to(device)
    xm.broadcast_master_param(model)
    xm.set_rng_state(args.seed + 1 + index)

    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, count, index, seed=args.seed, drop_last=True)
    train_loader = pl.MpDeviceLoader(
        DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True), device
    )
    # Each replica tests its part; TEST_IMAGES is divisible by 1 to 6.
    own_test_set = torch.utils.data.Subset(test_set, range(index, TEST_IMAGES, count))
    test_loader = pl.MpDeviceLoader(DataLoader(own_test_set, 90), device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    def train_epoch(epoch: int) -> list[float]:
        model.train()
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            xm.optimizer_step(optimizer)
            losses.append(loss.detach())
        # Of the whole batch: the mean over the replicas, in one transfer for the epoch.
        means = xm.all_reduce(xm.REDUCE_SUM, torch.stack(losses), scale=1.0 / count)
        return means.tolist()

    @torch.no_grad()
    def test_accuracy() -> float:
        model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=device)
        for images, labels in test_loader:
            correct += (model(images).argmax(dim=1) == labels).sum()
        return xm.all_reduce(xm.REDUCE_SUM, correct).item() / TEST_IMAGES

    losses: list[float] = []
    seconds = steps = 0
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        epoch_losses = train_epoch(epoch)
        if epoch > 1 or args.epochs == 1:  # The first epoch compiles.
            seconds += time.perf_counter() - start
            steps += len(epoch_losses)
        losses += epoch_losses
        accuracy = test_accuracy()
        xm.master_print(
            f"epoch {epoch}/{args.epochs}: loss {losses[-1]:.4f}, accuracy {100 * accuracy:.2f} %"
        )
    xm.master_print(
        f"{count} replicas, batches of {args.batch_size} each: {steps / seconds:.1f} steps/s"
    )
    weights = sum(p.detach().double().abs().sum() for p in model.parameters()).item()
    all_weights = xm.mesh_reduce("weights", weights, list)
    if args.log_losses and xm.is_master_ordinal(local=False):
        result = {
            "losses": losses,
            "accuracy": accuracy,
            "steps_per_second": steps / seconds,
            "weights": all_weights,
        }
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump(result, file)


if __name__ == "__main__":
    torch_xla.launch(replica, args=(parse_arguments(),))
