"""Lightning's Fabric: FSDP by its XLAFSDPStrategy, and the same on one device."""

import argparse
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import XLAFSDPStrategy
from reporting import report
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accelerator", default="tpu")
parser.add_argument("--devices", type=int, default=1)
options = parser.parse_args()


def train(fabric: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    model = fabric.setup_module(net)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    inputs = torch.randn(5, 8, 6, generator=torch.Generator().manual_seed(1))
    targets = (inputs[..., :3] * inputs[..., 3:]).sum(-1).gt(0).long()
    losses = []
    for x, y in zip(inputs, targets, strict=True):
        rows = slice(fabric.global_rank, None, fabric.world_size)
        logits = model(x[rows].to(fabric.device))
        loss = nn.functional.cross_entropy(logits, y[rows].to(fabric.device))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach()).item())
    if fabric.global_rank == 0:
        sharded = [getattr(parameter, "_is_sharded", False) for parameter in model.parameters()]
        report(losses=losses, sharded=sharded)


if __name__ == "__main__":
    more = {"strategy": XLAFSDPStrategy()} if options.accelerator == "tpu" else {}
    Fabric(accelerator=options.accelerator, devices=options.devices, **more).launch(train)
