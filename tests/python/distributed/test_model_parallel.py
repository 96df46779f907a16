"""Pipelines, context parallelism and experts over replicas, against Gloo on the CPU."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from testing.mesh_cases import Cases, check
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

pytestmark = pytest.mark.multiprocess

cases = Cases()


def line(device_type: str) -> DeviceMesh:
    return init_device_mesh(device_type, (dist.get_world_size(),))


# ------------------------------------------------------------------ pipelines


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def pipeline(device_type: str, schedule: Any, each: int = 1, steps: int = 2, **options: Any) -> Any:
    """Trains a few steps; ``each``: how many stages a replica has."""
    group = line(device_type).get_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    count = each * world
    layers = nn.Sequential(*(Layer() for _ in range(count))).to(device_type)
    stages = [
        pipelining.PipelineStage(layers[i], i, count, torch.device(device_type), group=group)
        for i in range(rank, count, world)
    ]
    runner = schedule(
        stages if each > 1 else stages[0], n_microbatches=4, loss_fn=squares, **options
    )
    own = nn.ModuleList(stage.submod for stage in stages)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        x, target = torch.randn(8, 6).to(device_type), torch.randn(8, 6).to(device_type)
        losses: list[torch.Tensor] = []
        arguments = (x,) if rank == 0 else ()
        last = {"target": target, "losses": losses} if rank == world - 1 else {}
        output = runner.step(*arguments, **last)
        found.append((output, losses, [parameter.grad.clone() for parameter in own.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return found, list(own.parameters())


for _name, _each in (
    ("ScheduleGPipe", 1),
    ("Schedule1F1B", 1),
    ("ScheduleInterleaved1F1B", 2),
    ("ScheduleLoopedBFS", 2),
    ("ScheduleInterleavedZeroBubble", 2),
):
    cases.add(
        _name,
        lambda d, s=getattr(pipelining, _name), n=_each: pipeline(d, s, n),
        (2, 4),
    )


def run_all() -> dict[str, Any]:
    return cases.run_here()


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> Any:
    """By count of replicas, what they gave."""
    folder = tmp_path_factory.mktemp("model_parallel")
    return {count: cases.run(run_all, count, folder / str(count)) for count in (2, 4)}


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_model_parallel(results, count, name):
    check(results[count], name)
