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
from testing.replicas import run_replicas
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


@cases.case(2, 4)
def join_with_unused_parameters(device_type: str) -> Any:
    """Replicas have batches of several numbers, and steps use several branches."""
    torch.manual_seed(1)
    first, *branches = (nn.Linear(8, 8).to(device_type) for _ in range(3))

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branches = first, nn.ModuleList(branches)

        def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
            return self.branches[which](self.first(x))

    group = group_of(device_type)
    model = DistributedDataParallel(Branches(), process_group=group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for by_all in (True, False):
        with model.join(divide_by_initial_world_size=by_all):
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                loss = model(drawn(device_type, 4, 8, seed=step), step % 2).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    return losses, list(model.parameters())


# ------------------------------------------------------------------ groups


@cases.case(2, 4)
def short_forms(device_type: str) -> Any:
    """ProcessGroup's methods with tensors where other forms have lists, and numbers for options."""
    group, world, largest = group_of(device_type), dist.get_world_size(), dist.ReduceOp.MAX
    found: list[torch.Tensor] = []

    def call(name: str, *arguments: Any, rank: int | None = None, **named: Any) -> None:
        getattr(group, name)(*arguments, **named).wait()
        if rank in (None, dist.get_rank()):
            first = arguments[0]
            found.extend(first if isinstance(first, list) else [first])

    def places() -> list[torch.Tensor]:
        return [torch.zeros(3, device=device_type) for _ in range(world)]

    parts = [drawn(device_type, 3, seed=seed) for seed in range(world)]
    call("allreduce", drawn(device_type, 3))
    call("allreduce", torch.tensor(1.0 + dist.get_rank(), device=device_type))
    call("allreduce", drawn(device_type, 3), largest)
    call("allreduce", drawn(device_type, 3), op=largest)
    call("allreduce", [drawn(device_type, 3)], largest)
    call("broadcast", drawn(device_type, 3), 1)
    call("broadcast", drawn(device_type, 3), root=1)
    call("reduce", drawn(device_type, 3), 1, largest, rank=1)
    call("allgather", places(), drawn(device_type, 3))
    call("gather", places() if dist.get_rank() == 1 else [], drawn(device_type, 3), 1, rank=1)
    call("scatter", places()[0], parts if dist.get_rank() == 1 else [], 1)
    call("reduce_scatter", places()[0], parts)
    call("reduce_scatter", places()[0], parts, largest)
    return found


@cases.case(2, 4)
def lists_of_a_wrong_length(device_type: str) -> Any:
    """All members refuse them, so that none waits for another."""
    group, x, root = group_of(device_type), drawn(device_type, 2), dist.get_rank() == 0
    alone = [torch.zeros(2, device=device_type)]
    for call in (
        lambda: dist.all_gather(alone, x, group=group),
        lambda: dist.reduce_scatter(x, alone, group=group),
        lambda: dist.all_to_all(alone, alone, group=group),
        lambda: dist.gather(x, alone, group=group) if root else 1 / 0,
        lambda: dist.scatter(x, alone, group=group) if root else 1 / 0,
    ):
        with pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):
            call()
    dist.all_reduce(x, group=group)
    return x


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
def works(device_type: str) -> Any:
    """Every collective's work, by every method that programs call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = (torch.full((size,), float(n), device=device_type) for n in (rank, 0))
    one, parts = torch.zeros(1, device=device_type), [torch.zeros_like(x) for _ in range(size)]
    root = parts if rank == 1 else None
    made: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(x, async_op=True),
        lambda: dist.broadcast(x, 1, async_op=True),
        lambda: dist.reduce(x.clone(), 1, async_op=True),  # Gloo leaves sums elsewhere, too.
        lambda: dist.all_gather(parts, x, async_op=True),
        lambda: dist.all_to_all_single(y, x, async_op=True),
        lambda: dist.gather(x, root, 1, async_op=True),
        lambda: dist.scatter(y, root, 1, async_op=True),
        lambda: dist.barrier(async_op=True),
    ]
    asked: list[Callable[[Any], Any]] = [
        lambda work: work.wait(datetime.timedelta(seconds=30)),
        lambda work: work.wait(timeout=datetime.timedelta(seconds=30)),
        lambda work: type(work).unbox(work.boxed()).wait(datetime.timedelta(seconds=30)),
        lambda work: (work.wait(), work.is_completed(), work.is_success(), work.exception()),
        lambda work: (work.wait(), work.result())[0],
        lambda work: (work.get_future().then(lambda done: len(done.value())).wait(), work.wait()),
    ]
    found = [ask(make()) for make in made for ask in asked]
    asked[3:] = [
        lambda work: (work.wait(), work.source_rank(), work._source_rank()),
        # Gloo's synchronize does nothing.
        lambda work: (work.wait if device_type == "cpu" else work.synchronize)() and None,
    ]
    for ask in asked:
        sent = dist.isend(x, (rank + 1) % size)
        found.append(ask(dist.irecv(y.zero_(), (rank - 1) % size)))
        sent.wait()
        found.append(y.clone())
    for name in ("_get_duration", "get_future_result", "source_rank", "block_current_stream"):
        with pytest.raises(RuntimeError) as error:
            getattr(dist.all_reduce(one, async_op=True), name)()
        found.append(str(error.value).split("\n")[0])
    return found, x, parts


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


@pytest.mark.parametrize("error", [None, "failed"])
def test_a_work_that_ends_when_a_look_at_it_does(error):
    """Then it was neither late nor does it have the error of the look."""

    class Late:
        is_done = False

        def wait(self, timeout: datetime.timedelta) -> bool:
            was_done, self.is_done = self.is_done, True
            if error or not was_done:
                raise RuntimeError(error if was_done else "Operation timed out!")
            return was_done

        def is_completed(self) -> bool:
            return self.is_done

    work = xla_backend._HostWork(Late(), [0])
    if error:
        with pytest.raises(RuntimeError, match="^failed$"):
            work.wait()
    else:
        assert work.wait()


def run_first_message() -> Any:
    dist.init_process_group("xla", init_method="xla://")
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    x = torch.full((2,), float(rank), device="xla")
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        store.set("received", str(x.tolist()))
    return store.get("received").decode()


def test_a_first_message_does_not_wait_for_others(tmp_path):
    """They may wait for its receiver, who tells them by other means."""
    found = run_replicas(run_first_message, 3, tmp_path, XLA_COLLECTIVE_TIMEOUT="20")
    assert found == ["[0.0, 0.0]"] * 3


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_group(results, count, name):
    check(results[count], name, 1e-4)
