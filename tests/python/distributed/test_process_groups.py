"""What programs ask of process groups besides collectives of tensors, against Gloo on the CPU."""

import datetime
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from testing.mesh_cases import Cases, check
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import torch_xla
from torch_xla.distributed import xla_backend

pytestmark = pytest.mark.multiprocess

cases = Cases()


def drawn(device_type: str, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17 * seed + dist.get_rank())
    return torch.randn(shape, generator=generator).to(device_type)


# ------------------------------------------------------------------ DDP's communication hooks


def hooked(device_type: str, state: Callable[[], Any], hook: Any) -> Any:
    """Losses and parameters of a few steps with a hook.

    With one bucket: hooks of PowerSGD wait in Gloo's threads, of which it has two.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device_type)
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(state(), hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = wrapped(drawn(device_type, 5, 8, seed=step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if device_type == "xla":
            torch_xla.sync()
    return losses, list(model.parameters())


def power(**options: Any) -> Callable[[], Any]:
    return lambda: powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1, **options
    )


def unnamed(hook: Any) -> Any:
    """DDP refuses hooks by their name where there is no CUDA: those of bfloat16."""
    return lambda state, bucket: hook(state, bucket)


HOOKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "allreduce": (lambda: None, default_hooks.allreduce_hook),
    "fp16": (lambda: None, default_hooks.fp16_compress_hook),
    "bf16": (lambda: None, unnamed(default_hooks.bf16_compress_hook)),
    "power": (power(), powerSGD_hook.powerSGD_hook),
    "power_without_feedback": (
        power(use_error_feedback=False, warm_start=False),
        powerSGD_hook.powerSGD_hook,
    ),
    "power_bf16": (
        power(),
        unnamed(default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
    ),
}
for name, (state, hook) in HOOKS.items():
    counts = (2, 4) if name in ("fp16", "power") else (2,)
    cases.add(f"hook_{name}", lambda d, s=state, h=hook: hooked(d, s, h), counts)


# ------------------------------------------------------------------ objects


def group_of(device_type: str) -> dist.ProcessGroup:
    """The group that a program with only such a device has."""
    return dist.new_group(backend="gloo" if device_type == "cpu" else "xla")


def mine() -> dict[str, Any]:
    return {"rank": dist.get_rank(), "text": "a" * dist.get_rank()}


@cases.case(2, 4)
def broadcast_object_list(device_type: str) -> Any:
    objects = [mine(), dist.get_rank(), None] if dist.get_rank() == 1 else [None] * 3
    dist.broadcast_object_list(objects, src=1, group=group_of(device_type))
    return objects


@cases.case(2, 4)
def all_gather_object(device_type: str) -> Any:
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, mine(), group=group_of(device_type))
    return objects


@cases.case(2, 4)
def gather_object(device_type: str) -> Any:
    objects = [None] * dist.get_world_size() if dist.get_rank() == 1 else None
    dist.gather_object(mine(), objects, dst=1, group=group_of(device_type))
    return objects


@cases.case(2, 4)
def scatter_object_list(device_type: str) -> Any:
    ranks = range(dist.get_world_size())
    given = [{"for": rank} for rank in ranks] if dist.get_rank() == 0 else None
    found = [None]
    dist.scatter_object_list(found, given, src=0, group=group_of(device_type))
    return found


@cases.case(2, 4)
def send_object_list(device_type: str) -> Any:
    group = group_of(device_type)
    objects: list[Any] = [mine()]
    if dist.get_rank() == 0:
        dist.send_object_list(objects, dst=1, group=group)
    elif dist.get_rank() == 1:
        dist.recv_object_list(objects, src=0, group=group)
    return objects


@cases.case()
def late_messages(device_type: str) -> Any:
    """Of the host: who waits looks whether the other has ended, and waits on."""
    group, before = group_of(device_type), xla_backend._LOOK
    xla_backend._LOOK = datetime.timedelta(milliseconds=20)
    found = []
    try:
        for late in (0, 1):
            x = torch.full((3,), float(dist.get_rank()))
            if late == dist.get_rank():
                time.sleep(0.3)
            if dist.get_rank() == 0:
                dist.send(x, 1, group=group)
                work = dist.isend(x + 1, 1, group=group, tag=7)
                work.wait()
                found += [x, work.is_completed()]
            else:
                sender = dist.recv(x, None, group=group)
                work = dist.irecv(y := torch.zeros(3), 0, group=group, tag=7)
                work.wait()
                found += [x, y, sender]
    finally:
        xla_backend._LOOK = before
    dist.barrier(group)
    return found


@cases.case(2, 4)
def monitored_barrier(device_type: str) -> Any:
    """PyTorch has it for Gloo alone, whose groups work beside those of xla."""
    if device_type == "xla":
        with pytest.raises(ValueError, match="only implemented for GLOO"):
            dist.monitored_barrier(group_of(device_type))
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=30))
    dist.monitored_barrier(group, wait_all_ranks=True)
    return dist.get_rank(group)


@cases.case(2, 4)
def backends_by_device(device_type: str) -> Any:
    group = dist.new_group(backend="cpu:gloo,xla:xla")
    x, y = torch.ones(2, device=device_type), torch.ones(3) * dist.get_rank()
    dist.all_reduce(x, group=group)
    dist.all_reduce(y, group=group)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, mine(), group=group)
    dist.barrier(group)
    return x, y, objects


@cases.case(2)
def group_made_while_another_waits(device_type: str) -> Any:
    """For what this one has traced."""
    x = torch.ones(2, device=device_type)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        x.tolist()
    return x, dist.new_group().size()


@cases.case(2)
def graph_with_a_collective(device_type: str) -> Any:
    x, total = (torch.full((2,), float(n), device=device_type) for n in (dist.get_rank(), 0))

    def work() -> None:
        y = x * 2
        dist.all_reduce(y)
        total.add_(y)

    if device_type == "xla":
        graph = torch.accelerator.Graph()
        with graph:
            work()
        work = graph.replay
    found = []
    for step in range(3):
        x.add_(step)
        work()
        found.append(total.clone())
        dist.all_reduce(x)
    return found, x


# ------------------------------------------------------------------ SyncBatchNorm


def normalized(
    device_type: str, *shape: int, uneven: bool = False, dtype: Any = torch.float32, **options: Any
) -> Any:
    """Of two steps: results, gradients and running statistics.

    On the CPU, where PyTorch has no SyncBatchNorm, a BatchNorm has the batches of all replicas.
    """
    ranks = range(dist.get_world_size())
    sizes = [shape[0] + rank if uneven else shape[0] for rank in ranks]
    norm: Any = nn.SyncBatchNorm if device_type == "xla" else nn.BatchNorm1d
    module = norm(shape[1], **options).to(device_type)
    if device_type == "cpu":
        module._check_input_dim = lambda x: None
    first = sum(sizes[: dist.get_rank()])
    part = slice(first, first + sizes[dist.get_rank()])
    found = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        x, weights = (torch.randn(sum(sizes), *shape[1:], generator=generator) for _ in range(2))
        x, weights = (t.to(dtype) * 2 + 1 for t in (x, weights))
        if device_type == "xla":
            x, weights = x[part].to("xla"), weights[part].to("xla")
        y = module(x.requires_grad_())
        (y * weights).sum().backward()
        both = [y, x.grad]
        found += both if device_type == "xla" else [t[part] for t in both]
    module.eval()
    if module.track_running_stats:
        found += [module(x) if device_type == "xla" else module(x)[part]]
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    for gradient in gradients:  # Each replica has those of its own part.
        if device_type == "xla":
            dist.all_reduce(gradient)
    return found, gradients, list(module.buffers())


_HAS_BIAS = "bias" in inspect.signature(nn.SyncBatchNorm).parameters  # torch 2.13

for name, shape, options in (
    ("1d", (3, 4), {}),
    ("2d", (2, 3, 4, 5), {}),
    ("3d", (2, 3, 2, 2, 2), {}),
    ("uneven", (2, 3, 4), {"uneven": True}),
    ("one_of_each", (1, 3), {}),
    ("not_affine", (2, 3, 4), {"affine": False}),
    ("cumulative", (2, 3, 4), {"momentum": None}),
    ("without_statistics", (2, 3, 4), {"track_running_stats": False}),
    ("without_bias", (2, 3, 4), {"bias": False} if _HAS_BIAS else {}),
    ("bfloat16", (4, 3, 4), {"dtype": torch.bfloat16}),
):
    counts = (2, 4) if name in ("2d", "uneven") else (2,)
    cases.add(f"norm_{name}", lambda d, s=shape, o=options: normalized(d, *s, **o), counts)


@cases.case(2, 4)
def norm_of_a_group_and_converted(device_type: str) -> Any:
    """A group of one replica is a BatchNorm."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.ReLU()).to(device_type)
    if device_type == "xla":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model, groups[dist.get_rank()])
        assert isinstance(model[1], nn.SyncBatchNorm)
    return model(drawn(device_type, 3, 2, 4)), dict(model.named_buffers())


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_group(results, count, name):
    check(results[count], name, 1e-4)
