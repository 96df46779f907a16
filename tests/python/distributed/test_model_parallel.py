"""Pipelines, context parallelism and experts over replicas, against Gloo on the CPU."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from testing.mesh_cases import Cases, check
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)

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
    """Trains a few steps; ``each``: how many stages a replica has, from both ends if folded."""
    group = line(device_type).get_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    count = each * world
    folded = schedule in (pipelining.ScheduleZBVZeroBubble, pipelining.ScheduleDualPipeV)
    places = [rank, count - 1 - rank] if folded else list(range(rank, count, world))
    layers = nn.Sequential(*(Layer() for _ in range(count))).to(device_type)
    stages = [
        pipelining.PipelineStage(layers[i], i, count, torch.device(device_type), group=group)
        for i in places
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
        last = {"target": target, "losses": losses} if count - 1 in places else {}
        output = runner.step(*arguments, **last)
        found.append((output, losses, [parameter.grad.clone() for parameter in own.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return found, list(own.parameters())


for _schedule, _each, _counts in (
    (pipelining.ScheduleGPipe, 1, (2, 4)),
    (pipelining.Schedule1F1B, 1, (2, 4)),
    (pipelining.ScheduleInterleaved1F1B, 2, (2,)),
    (pipelining.ScheduleLoopedBFS, 2, (2,)),
    (pipelining.ScheduleInterleavedZeroBubble, 2, (2,)),
    (pipelining.ScheduleZBVZeroBubble, 2, (2,)),
    (pipelining.ScheduleDualPipeV, 2, (2,)),
):
    cases.add(_schedule.__name__, lambda d, s=_schedule, n=_each: pipeline(d, s, n), _counts)


@cases.case(2)
def pipeline_of_a_traced_model(device_type: str) -> Any:
    """Its stages greet each other by a number of no dimensions, which is received as of one."""
    torch.manual_seed(2)
    points = {"1": pipelining.SplitPoint.BEGINNING}
    pipe = pipelining.pipeline(
        nn.Sequential(Layer(), Layer()), mb_args=(torch.randn(2, 6),), split_spec=points
    )
    stage = pipe.build_stage(dist.get_rank(), torch.device(device_type))
    runner = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=squares)
    x, target = torch.randn(8, 6).to(device_type), torch.randn(8, 6).to(device_type)
    losses: list[torch.Tensor] = []
    if dist.get_rank() == 0:
        output = runner.step(x)
    else:
        output = runner.step(target=target, losses=losses)
    return output, losses, [parameter.grad for parameter in stage.submod.parameters()]


# ------------------------------------------------------------------ context parallelism


def attention(x: torch.Tensor, weight: torch.Tensor, is_causal: bool) -> torch.Tensor:
    batch, length, width = x.shape
    q, k, v = (
        part.view(batch, length, 2, width // 2).transpose(1, 2)
        for part in (x @ weight).split(width, -1)
    )
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return x + y.transpose(1, 2).reshape(x.shape)


@contextlib.contextmanager
def rotated(method: str, balanced: bool) -> Iterator[None]:
    options = _attention._cp_options
    before = options.enable_load_balance
    options.enable_load_balance = balanced
    set_rotate_method(method)
    try:
        yield
    finally:
        set_rotate_method("allgather")
        options.enable_load_balance = before


def over_a_sequence(device_type: str, method: str, is_causal: bool) -> Any:
    """Attention over all of a sequence; on xla over parts of it, a ring.

    PyTorch's context parallelism does not know the CPU's attention.
    """
    mesh = line(device_type)
    torch.manual_seed(1)
    x = torch.randn(2, 16, 8).to(device_type)
    places = torch.randn(16, 8).to(device_type)
    weight = (torch.randn(8, 24) / 3).to(device_type).requires_grad_()
    before = [x.clone(), places.clone()]
    parts = contextlib.nullcontext()
    if device_type == "xla":
        parts = context_parallel(mesh, buffers=[x, places], buffer_seq_dims=[1, 0])
    with rotated(method, is_causal):
        with parts:
            y = attention(x + places, weight, is_causal)
            (y**2).sum().div(100).backward()
            if device_type == "xla":
                dist.all_reduce(weight.grad)
                y = context_parallel_unshard(mesh, [y.detach()], [1])[0]
    restored = torch.equal(x, before[0]) and torch.equal(places, before[1])
    return y, weight.grad, restored


for _method in ("allgather", "alltoall"):
    for _causal in (True, False):
        cases.add(
            f"context_{_method}_{'causal' if _causal else 'whole'}",
            lambda d, m=_method, c=_causal: over_a_sequence(d, m, c),
            (2, 4) if _causal else (2,),
        )


@cases.case(2)
def attention_of_heads(device_type: str) -> Any:
    """Each replica has its heads, of a sequence long enough for a flash kernel."""
    mesh = line(device_type)
    q, k, v = (
        distribute_tensor(torch.randn(1, 4, 300, 8), mesh, [Shard(1)]).requires_grad_()
        for _ in range(3)
    )
    if device_type == "cpu":  # Whose flash kernel DTensor does not know.
        tensors = [tensor.to_local().detach().requires_grad_() for tensor in (q, k, v)]
    else:
        tensors = [q, k, v]
    y = nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    (y**2).sum().backward()
    found = [y, *(tensor.grad for tensor in tensors)]
    return [x.to_local() if isinstance(x, DTensor) else x for x in found]


# ------------------------------------------------------------------ experts


def uneven(rank: int, world: int) -> tuple[list[int], list[int]]:
    """How much this replica gives to each and gets from each; some give nothing."""
    return [(rank + i) % 3 for i in range(world)], [(i + rank) % 3 for i in range(world)]


@cases.case(2, 4)
def uneven_exchange(device_type: str) -> Any:
    group = line(device_type).get_group()
    sizes, own = uneven(dist.get_rank(), dist.get_world_size())
    x = (torch.randn(sum(sizes), 2) + dist.get_rank()).to(device_type)
    y = torch.empty(sum(own), 2, device=device_type)
    dist.all_to_all_single(y, x, own, sizes, group=group)
    return y


@cases.case(2, 4)
def uneven_exchange_gradient(device_type: str) -> Any:
    group = line(device_type).get_group()
    sizes, own = uneven(dist.get_rank(), dist.get_world_size())
    x = (torch.randn(sum(sizes), 2) + dist.get_rank()).to(device_type).requires_grad_()
    y = functional.all_to_all_single_autograd(x, own, sizes, group)
    (y**3).sum().backward()
    return x.grad


@cases.case(2)
def grouped_product(device_type: str) -> Any:
    x = torch.randn(8, 16).to(device_type).requires_grad_()
    weight = torch.randn(3, 16, 8).to(device_type).requires_grad_()
    ends = torch.tensor([2, 2, 8], dtype=torch.int32).to(device_type)
    y = nn.functional.grouped_mm(x, weight, offs=ends)
    (y**2).sum().backward()
    return y, x.grad, weight.grad


class Experts(nn.Module):
    """A mixture whose experts are spread over a mesh: tokens go to their expert's replica."""

    def __init__(self, mesh: DeviceMesh, experts: int, device_type: str) -> None:
        super().__init__()
        self.mesh, self.count = mesh, experts
        self.router = nn.Linear(16, experts, bias=False).to(device_type)
        weights = (torch.randn(experts, 16, 16) / 4 for _ in range(2))
        first, second = (distribute_tensor(w.to(device_type), mesh, [Shard(0)]) for w in weights)
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group, world = self.mesh.get_group(), self.mesh.size()
        weight, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.count)
        their = functional.all_to_all_single(counts, None, None, group)
        their = functional.wait_tensor(their).view(world, -1)
        sizes, own = counts.view(world, -1).sum(1).tolist(), their.sum(1).tolist()
        sent = functional.all_to_all_single_autograd(x[order], own, sizes, group)
        # By sender and expert; from here by expert and sender.
        local = torch.arange(their.numel(), device=x.device) % their.shape[1]
        local = local.repeat_interleave(their.flatten(), output_size=sum(own))
        by_expert = local.argsort(stable=True)
        ends = their.sum(0).cumsum(0).to(torch.int32)
        hidden = nn.functional.grouped_mm(sent[by_expert], self.first.to_local(), offs=ends)
        made = nn.functional.grouped_mm(hidden.relu(), self.second.to_local(), offs=ends)
        made = made[by_expert.argsort()]
        back = functional.all_to_all_single_autograd(made, sizes, own, group)
        return x + back[order.argsort()] * weight.unsqueeze(-1)


@cases.case(2, 4)
def mixture_of_experts(device_type: str) -> Any:
    """Groups of two replicas have all experts; FSDP2 over all replicas for a layer before them."""
    world = dist.get_world_size()
    mesh = init_device_mesh(device_type, (world // 2, 2), mesh_dim_names=("dp", "ep"))
    everywhere = mesh._flatten("all")
    dense = fully_shard(nn.Linear(16, 16).to(device_type), mesh=everywhere)
    experts = Experts(mesh["ep"], 4, device_type)
    model = nn.Sequential(dense, experts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(12, 16, generator=generator).to(device_type)
        loss = (model(x) ** 2).mean()
        loss.backward()
        # An expert has had the tokens of all of its group.
        sums = [
            (parameter.grad.to_local(), mesh["dp"])
            for parameter in experts.parameters(recurse=False)
        ]
        for gradient, of in [(experts.router.weight.grad, everywhere), *sums]:
            dist.all_reduce(gradient, group=of.get_group())
            gradient.div_(world)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, list(model.parameters())


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_model_parallel(results, count, name):
    check(results[count], name)
