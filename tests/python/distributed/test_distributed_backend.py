"""torch.distributed's backend xla, DDP, functional collectives, ZeRO-1, autograd over replicas."""

import copy
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from testing.replicas import run_replicas
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
from torch_xla._internal.compile import tracing
from torch_xla.distributed import xla_backend
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

pytestmark = pytest.mark.multiprocess


def start() -> torch.device:
    dist.init_process_group("xla", init_method="xla://")
    return xm.xla_device()


def run_collectives() -> dict[str, Any]:
    device = start()
    rank, count = dist.get_rank(), dist.get_world_size()
    out: dict[str, Any] = {"place": (rank, count, dist.get_backend())}

    def own(*shape: int) -> torch.Tensor:
        return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=device).view(shape) + (
            10 * rank
        )

    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        x = own(3)
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        out[f"all_reduce {op}"] = x
    x = own(3)
    dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(0.25))
    out["all_reduce PREMUL_SUM"] = x
    x, given = torch.zeros(2, device=device), own(2 * count)
    factor = torch.tensor(3.0, device=device)
    dist.reduce_scatter_tensor(x, given, op=dist.ReduceOp.PREMUL_SUM(factor))
    out["reduce_scatter_tensor PREMUL_SUM"] = x
    with pytest.raises(TypeError, match="expected an output of torch.float32, got torch.float64"):
        dist.reduce_scatter_tensor(x.double(), given)
    with pytest.raises(TypeError, match="expected an output of torch.float32, got torch.int32"):
        dist.all_gather_into_tensor(own(3 * count).int(), own(3))
    assert torch.equal(given, own(2 * count))
    x = own(3).int()
    dist.all_reduce(x, dist.ReduceOp.BXOR)
    out["all_reduce BXOR"] = x
    x = own(3).int()
    dist.all_reduce(x, dist.ReduceOp.BOR)
    out["all_reduce BOR"] = x
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed()

    parts = [torch.zeros(2, 2, device=device) for _ in range(count)]
    dist.all_gather(parts, own(2, 2))
    out["all_gather"] = torch.stack(parts)
    x = torch.zeros(2 * count, 2, device=device)
    dist.all_gather_into_tensor(x, own(2, 2))
    out["all_gather_into_tensor"] = x
    x = torch.zeros(2, device=device)
    dist.reduce_scatter(x, list(own(count, 2).unbind(0)))
    out["reduce_scatter"] = x
    x = torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(x, own(2 * count), op=dist.ReduceOp.AVG)
    out["reduce_scatter_tensor"] = x
    parts = [torch.zeros(2, device=device) for _ in range(count)]
    dist.all_to_all(parts, list(own(count, 2).unbind(0)))
    out["all_to_all"] = torch.stack(parts)
    x = torch.zeros(count, 2, device=device)
    dist.all_to_all_single(x, own(count, 2))
    out["all_to_all_single"] = x
    # Rank r sends r + 1 rows to everyone.
    x = torch.zeros(sum(r + 1 for r in range(count)), device=device)
    dist.all_to_all_single(
        x, own((rank + 1) * count), [r + 1 for r in range(count)], [rank + 1] * count
    )
    out["all_to_all_single uneven"] = x
    x = own(3)
    dist.broadcast(x, src=1)
    out["broadcast"] = x
    x = own(3)
    dist.reduce(x, dst=1)
    out["reduce"] = x
    parts = [torch.zeros(2, device=device) for _ in range(count)] if rank == 0 else None
    dist.gather(own(2), parts, dst=0)
    out["gather"] = torch.stack(parts) if rank == 0 else None
    x = torch.zeros(2, device=device)
    dist.scatter(x, list(own(count, 2).unbind(0)) if rank == 1 else None, src=1)
    out["scatter"] = x
    dist.barrier()
    x = torch.zeros(5000, device=device)
    if rank == 0:
        dist.send(own(5000), dst=1)
    elif rank == 1:
        dist.recv(x, src=0)
        out["recv"] = x

    # A group of some replicas; the others do not take part.
    group = dist.new_group([0, count - 1])
    x = own(2)
    if rank in (0, count - 1):
        dist.all_reduce(x, group=group)
        y = torch.zeros(4, device=device)
        dist.all_gather_into_tensor(y, own(2), group=group)
        out["group"] = (x, y)

    out["funcol all_reduce"] = functional.all_reduce(own(3), "sum", dist.group.WORLD)
    out["funcol all_gather"] = functional.all_gather_tensor(own(2, 2), 1, dist.group.WORLD)
    out["funcol reduce_scatter"] = functional.reduce_scatter_tensor(
        own(2 * count), "avg", 0, dist.group.WORLD
    )
    out["funcol all_to_all"] = functional.all_to_all_single(
        own(count, 2), None, None, dist.group.WORLD
    )
    out["funcol broadcast"] = functional.broadcast(own(2), 1, dist.group.WORLD)
    out["funcol coalesced"] = functional.all_reduce_coalesced(
        [own(2), own(3)], "max", dist.group.WORLD
    )
    wrapped = DTensor.from_local(own(2), init_device_mesh("xla", (count,)))
    with pytest.raises(RuntimeError, match="holds others, as a DTensor does"):
        xm.all_reduce(xm.REDUCE_SUM, [wrapped])
    result = torch.utils._pytree.tree_map(
        lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, out
    )
    dist.destroy_process_group()
    return result


def test_collectives(tmp_path):
    count = 3
    results = run_replicas(run_collectives, count, tmp_path)

    def own(rank: int, *shape: int) -> torch.Tensor:
        return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) + 10 * rank

    def every(*shape: int) -> torch.Tensor:
        return torch.stack([own(rank, *shape) for rank in range(count)])

    for rank, out in enumerate(results):
        assert out["place"] == (rank, count, "xla")
        rows = torch.cat([own(r, (r + 1) * count).view(count, r + 1)[rank] for r in range(count)])
        expected = {
            "all_reduce SUM": every(3).sum(0),
            "all_reduce AVG": every(3).mean(0),
            "all_reduce PRODUCT": every(3).prod(0),
            "all_reduce MIN": every(3).amin(0),
            "all_reduce MAX": every(3).amax(0),
            "all_reduce BXOR": torch.tensor([1 ^ 11 ^ 21, 2 ^ 12 ^ 22, 3 ^ 13 ^ 23]).int(),
            "all_reduce PREMUL_SUM": every(3).sum(0) / 4,
            "reduce_scatter_tensor PREMUL_SUM": every(2 * count).sum(0).view(count, 2)[rank] * 3,
            "all_gather": every(2, 2),
            "all_gather_into_tensor": every(2, 2).view(-1, 2),
            "reduce_scatter": every(count, 2).sum(0)[rank],
            "reduce_scatter_tensor": every(2 * count).mean(0).view(count, 2)[rank],
            "all_to_all": every(count, 2)[:, rank],
            "all_to_all_single": every(count, 2)[:, rank],
            "all_to_all_single uneven": rows,
            "broadcast": own(1, 3),
            "reduce": every(3).sum(0) if rank == 1 else own(rank, 3),
            "gather": every(2) if rank == 0 else None,
            "scatter": own(1, count, 2)[rank],
            "funcol all_reduce": every(3).sum(0),
            "funcol all_gather": torch.cat([own(r, 2, 2) for r in range(count)], 1),
            "funcol reduce_scatter": every(2 * count).mean(0).view(count, 2)[rank],
            "funcol all_to_all": every(count, 2)[:, rank],
            "funcol broadcast": own(1, 2),
        }
        for name, value in expected.items():
            if value is None:
                assert out[name] is None
            else:
                torch.testing.assert_close(out[name], value, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(out["funcol coalesced"], [every(2).amax(0), every(3).amax(0)])
        if rank == 1:
            assert torch.equal(out["recv"], own(0, 5000))
            assert "group" not in out
        else:
            both = torch.stack([own(0, 2), own(2, 2)])
            assert torch.equal(out["group"][0], both.sum(0))
            assert torch.equal(out["group"][1], both.view(-1))


# ------------------------------------------------------------------------------- training


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )


def make_batches(steps: int, count: int) -> torch.Tensor:
    """[steps, count, 4, 6]: a batch of 4 for each replica."""
    return torch.randn(steps, count, 4, 6, generator=torch.Generator().manual_seed(5))


STEPS = 5


def train(model: nn.Module, optimizer: Any, batches: torch.Tensor, step: Any) -> list[torch.Tensor]:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch.to(next(model.parameters()).device)).square().mean()
        loss.backward()
        step(optimizer)
        losses.append(loss.detach())
    return losses


def run_ddp(view: bool) -> dict[str, Any]:
    device = start()
    rank, count = dist.get_rank(), dist.get_world_size()
    model = make_model()
    if rank > 0:  # DDP gives everyone the parameters of rank 0.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    model = nn.parallel.DistributedDataParallel(
        model.to(device), gradient_as_bucket_view=view, bucket_cap_mb=0.001
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiles = []

    def step(optimizer: Any) -> None:
        optimizer.step()
        torch_xla.sync()
        torch_xla.core.xla_model.wait_device_ops()
        compiles.append(met.counter_value("UncachedCompile") or 0)

    batches = make_batches(STEPS, count)[:, rank]
    losses = train(model, optimizer, batches, step)
    return {
        "losses": torch.stack(losses).cpu(),
        "weights": [p.detach().cpu() for p in model.module.parameters()],
        "compiles": compiles,
    }


def run_ddp_in_one_graph() -> list[Any]:
    device = start()
    model = nn.parallel.DistributedDataParallel(make_model().to(device), bucket_cap_mb=0.001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = torch_xla.compile(step, full_graph=True)
    for batch in make_batches(STEPS, dist.get_world_size())[:, dist.get_rank()]:
        before = met.counter_value("UncachedCompile") or 0
        step(batch.to(device))
    compiles = (met.counter_value("UncachedCompile") or 0) - before
    return [compiles, [p.detach().cpu() for p in model.module.parameters()]]


def test_ddp_within_a_step_of_one_graph(tmp_path):
    weights = reference(2, lambda p: torch.optim.AdamW(p, lr=0.01))
    for compiles, found in run_replicas(run_ddp_in_one_graph, 2, tmp_path):
        torch.testing.assert_close(found, weights, rtol=1e-4, atol=1e-5)
        assert compiles == 0


def run_compiled_ddp() -> None:
    device = start()
    x = torch.full((2,), dist.get_rank() + 1.0, device=device)

    def told(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.broadcast(y, src=1)  # Which has no functional form in graphs.
        return y + 1

    assert torch.compile(told)(x).tolist() == [5.0, 5.0]
    model = nn.parallel.DistributedDataParallel(make_model().to(device))
    compiled, batch = torch.compile(model), make_batches(1, 2)[0, dist.get_rank()].to(device)
    for _ in range(3):
        torch.testing.assert_close(compiled(batch), model(batch))


def test_ddp_under_torch_compile(tmp_path):
    run_replicas(run_compiled_ddp, 2, tmp_path)


def reference(count: int, make_optimizer: Any, clip: float | None = None) -> list[torch.Tensor]:
    """The weights that one process gets from whole batches."""
    model = make_model()
    optimizer = make_optimizer(model.parameters())

    def step(optimizer: Any) -> None:
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    train(model, optimizer, make_batches(STEPS, count).flatten(1, 2), step)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("view", [True, False])
def test_ddp(view, tmp_path):
    results = run_replicas(run_ddp, 2, tmp_path, view)
    weights = reference(2, lambda p: torch.optim.AdamW(p, lr=0.01))
    for out in results:
        torch.testing.assert_close(out["weights"], weights, rtol=1e-4, atol=1e-5)
        assert torch.isfinite(out["losses"]).all()
    # DDP rebuilds its buckets after the first step; then the program stays the same.
    assert results[0]["compiles"][2] == results[0]["compiles"][-1]


def run_zero(clip: float | None, options: dict[str, Any]) -> dict[str, Any]:
    device = xm.xla_device()
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    model = make_model().to(device)
    first, *others = model.parameters()

    def make() -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(
            [{"params": [first], "weight_decay": 0.1}, {"params": others}],
            torch.optim.AdamW,
            grad_clipping=clip is not None,
            max_norm=clip,
            **options,
            lr=0.01,
            weight_decay=0.0,
        )

    optimizer = make()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    compiles = []

    def step(optimizer: Any) -> None:
        optimizer.step()
        scheduler.step()
        torch_xla.sync(wait=True)
        compiles.append(met.counter_value("UncachedCompile") or 0)

    batches = make_batches(STEPS, count)[:, rank]
    train(model, optimizer, batches[:2], step)
    # A new optimizer goes on where the state was saved.
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.remove_hooks()
    optimizer = make()
    optimizer.load_state_dict(state)
    scheduler.optimizer = optimizer
    train(model, optimizer, batches[2:], step)
    return {
        "weights": [p.detach().cpu() for p in model.parameters()],
        "state": sum(
            t.numel()
            for s in optimizer.base_optimizer.state.values()
            for t in s.values()
            if t.numel() > 1
        ),
        "compiles": compiles,
    }


def run_zero_interface() -> None:
    device = xm.xla_device()
    weight = torch.nn.Parameter(torch.zeros(4, device=device))
    other = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16, device=device))

    def make(**options: Any) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer([weight, other], torch.optim.SGD, lr=1.0, **options)

    # The norm is 1 where nothing else is said.
    optimizer = make()
    assert optimizer.sharding_groups == [[0, 1]] and optimizer.grad_norm is None
    assert optimizer.get_shape_info() == {0: (4,), 1: (4,)}
    weight.grad = torch.full_like(weight, 10.0)
    optimizer.step()
    assert optimizer.grad_norm.item() == 20.0
    torch.testing.assert_close(weight.cpu().detach(), torch.full((4,), -0.5))
    for flat in optimizer._all_flats():
        flat.shard.grad = torch.full_like(flat.shard, 3.0)
    assert optimizer._clip_grad_norm(1.0, float("inf")).item() == 3.0
    assert optimizer._clip_grad_norm(10.0, 1.0).item() == pytest.approx(8.0, rel=1e-5)
    # A backward pass that failed leaves nothing behind.
    optimizer.zero_grad()
    hooked = make(grad_clipping=False, use_grad_acc_hook=True)
    (weight.sum() + other.sum() * 0).backward()  # Both of a bucket's arrays have been there.
    assert weight.grad is None and hooked._all_flats()[0]._ready == 0
    hooked._all_flats()[0]._ready = 1  # One of its parameters had come when it failed.
    hooked.zero_grad()
    assert hooked._all_flats()[0]._ready == 0
    hooked.remove_hooks()
    # States of other forms.
    state = hooked.state_dict()
    before_this = {name: state[name] for name in ("param_groups", "state", "shape_info")}
    for other_state in ({**before_this, "sharded_master_weights": {}}, {}, []):
        with pytest.raises(ValueError, match="expected a state of this optimizer"):
            hooked.load_state_dict(other_state)
    parts = [torch.zeros(1), torch.zeros(1)]
    with pytest.raises(ValueError, match="number of replicas"):
        hooked.load_state_dict({**state, "shards": parts})
    hooked.load_state_dict(state)
    # In the backward pass, several passes, a parameter that has no part.
    optimizer.zero_grad()
    weight.detach().zero_()
    early = make(grad_clipping=False, use_grad_acc_hook=True)
    for _ in range(2):
        (weight * (1 + xm.get_ordinal())).sum().backward()
        assert weight.grad is None
    early.step()
    assert weight.tolist() == [-3.0] * 4 and other.tolist() == [0.0] * 4
    weight.sum().backward()
    early.zero_grad()
    early.step()
    assert weight.tolist() == [-3.0] * 4
    early.remove_hooks()
    weight.sum().backward()
    assert weight.grad is not None
    # 1 and 2**-8, whose sum bfloat16 has no room for.
    precise = make(grad_clipping=False, higher_cc_precision=True, optimizer_dtype=torch.float32)
    other.grad = torch.full_like(other, 1.0 if xm.get_ordinal() else 2.0**-8)
    precise.step()
    assert precise._all_flats()[1].shard.tolist() == [-(1 + 2.0**-8) / 2] * 2


def _part(x: torch.Tensor, rank: int, count: int) -> torch.Tensor:
    if not x.dim():
        return x
    padding = [0, 0] * (x.dim() - 1) + [0, -len(x) % count]
    return torch.nn.functional.pad(x.detach(), padding).chunk(count)[rank].clone()


def _state_of_29(optimizer: torch.optim.Optimizer, rank: int, masters: bool) -> dict[str, Any]:
    """The state that 2.9 has of a replica, of the state of an optimizer of the whole model."""
    count = xm.xrt_world_size()
    parameters = dict(enumerate(optimizer.param_groups[0]["params"]))
    state = optimizer.state_dict()
    rows = {
        i: {name: _part(x, rank, count) for name, x in values.items()}
        for i, values in state["state"].items()
    }
    result = {
        "state": {},
        "param_groups": state["param_groups"],
        "base_state": rows,
        "shape_info": {i: p.shape for i, p in parameters.items()},
    }
    if masters:
        shards = {i: _part(p, rank, count) for i, p in parameters.items()}
        result["sharded_master_weights"] = shards
    return result


def run_zero_states(ours: list[dict[str, Any]]) -> dict[str, list[torch.Tensor]]:
    """Goes on from states of 2.9, of its replica or of all, and of ours in another number."""
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    results = {}
    for form in ("2.9", "2.9 with masters", "2.9 of all", "ours of all"):
        model = make_model()
        whole = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, whole, make_batches(2, 1)[:, 0], lambda optimizer: optimizer.step())
        states = [_state_of_29(whole, i, "masters" in form) for i in range(count)]
        of_all = ours if "ours" in form else states
        model.to(xm.xla_device())
        if "masters" in form:
            with torch.no_grad():
                model[0].weight.zero_()  # The masters have it.
        zero = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, grad_clipping=False, lr=1.0
        )
        zero.load_state_dict(of_all if "of all" in form else states[rank])
        assert zero.param_groups[0]["lr"] == 0.01
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)
        zero.step()
        results[form] = [p.detach().cpu() for p in model.parameters()]
        broken = {i: {"exp_avg": torch.zeros(1000)} for i in range(9)}
        with pytest.raises(ValueError, match="elements, in parts of all replicas"):
            zero.load_state_dict({**states[rank], "base_state": broken})
    return results


def _zero_states_to_load(count: int) -> list[dict[str, Any]]:
    """What ``count`` replicas save: here by one, whose arrays are cut as theirs are."""
    model = make_model().to(xm.xla_device())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, grad_clipping=False, lr=0.01
    )
    batches = make_batches(2, 1)[:, 0]
    train(model, zero, batches, lambda optimizer: optimizer.step())
    state = zero.state_dict()

    base = state["base_state"]
    return [
        {
            **state,
            "base_state": {
                **base,
                "state": {
                    i: {name: _part(x, rank, count).cpu() for name, x in values.items()}
                    for i, values in base["state"].items()
                },
            },
            "shards": [_part(shard, rank, count).cpu() for shard in state["shards"]],
        }
        for rank in range(count)
    ]


def test_zero_redundancy_states_of_others(tmp_path):
    results = run_replicas(run_zero_states, 2, tmp_path, _zero_states_to_load(3))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, make_batches(2, 1)[:, 0], lambda optimizer: optimizer.step())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer.step()
    for of_replica in results:
        expected = list(map(torch.detach, model.parameters()))
        torch.testing.assert_close(of_replica, dict.fromkeys(of_replica, expected))


def test_zero_redundancy_optimizers_interface(tmp_path):
    run_replicas(run_zero_interface, 2, tmp_path)


@pytest.mark.parametrize(
    ("clip", "options"),
    [(None, {}), (0.05, {"bucket_cap_mb_all_gather": 1}), (0.05, {"use_grad_acc_hook": True})],
)
def test_zero_redundancy_optimizer(clip, options, tmp_path):
    results = run_replicas(run_zero, 3, tmp_path, clip, options)

    class Scheduled(torch.optim.AdamW):
        def step(self) -> None:
            super().step()
            for group in self.param_groups:
                group["lr"] *= 0.8

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": others}]
        return Scheduled(groups, lr=0.01, weight_decay=0.0)

    weights = reference(3, make_optimizer, clip)
    whole = 2 * sum(weight.numel() for weight in weights)
    for out in results:
        torch.testing.assert_close(out["weights"], weights, rtol=1e-4, atol=1e-5)
        assert whole / 3 <= out["state"] <= whole / 3 + 8
        assert out["compiles"][-1] == out["compiles"][-2]


# ------------------------------------------------------------------------------- autograd


def _gradients(
    function: Any, inputs: list[torch.Tensor], rank: int, second: bool
) -> tuple[Any, Any]:
    """This replica's gradient of all replicas' weighted sums, by autograd and by differences.

    With ``second`` they are the sums of the squares of the gradients.
    """
    device = xm.xla_device()
    weights = torch.linspace(0.5, 1.5, 512, dtype=torch.float64).roll(rank * 7)

    def value(x: torch.Tensor) -> torch.Tensor:
        is_leaf = x.requires_grad
        x = x.requires_grad_(second or is_leaf)
        y = function(x * x if second else x)  # Some functions are linear.
        total = (y.reshape(-1) * weights[: y.numel()].to(device)).sum()
        if second:
            total = torch.autograd.grad(total, x, create_graph=True)[0].square().sum()
        return total if is_leaf else xm.all_reduce(xm.REDUCE_SUM, total.detach())

    x = inputs[rank].to(device).requires_grad_()
    value(x).backward()
    numeric = torch.zeros_like(inputs[rank])
    step = 1e-6
    for replica, tensor in enumerate(inputs):
        for i in range(tensor.numel()):
            values = []
            for sign in (1, -1):
                moved = inputs[rank].clone()
                if replica == rank:
                    moved.view(-1)[i] += sign * step
                values.append(value(moved.to(device)))
            difference = (values[0] - values[1]) / (2 * step)
            if replica == rank:
                numeric.view(-1)[i] = difference.item()
    return x.grad.cpu(), numeric


def run_gradients() -> list[Any]:
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(count)]
    with_zero = [x.clone() for x in inputs]
    with_zero[1][0, 0] = 0.0
    groups = [[0, 2], [1]]
    functions = [
        (lambda x: xf.all_reduce(xm.REDUCE_SUM, x, scale=0.5), inputs),
        (lambda x: xf.all_reduce(xm.REDUCE_SUM, x * x, groups=groups), inputs),
        (lambda x: xf.all_reduce(xm.REDUCE_MUL, x, scale=2.0), with_zero),
        (lambda x: xf.all_reduce(xm.REDUCE_MUL, x, groups=groups), inputs),
        (lambda x: xf.all_reduce(xm.REDUCE_MAX, x, scale=3.0), inputs),
        (lambda x: xf.all_reduce(xm.REDUCE_MIN, x.sin()), inputs),
        (lambda x: xf.all_gather(x, 1).cos(), inputs),
        (lambda x: xf.all_gather(x.sum()), inputs),
    ]
    return [
        _gradients(function, given, rank, second)
        for second in (False, True)
        for function, given in functions
    ]


def test_gradients_across_replicas(tmp_path):
    for results in run_replicas(run_gradients, 3, tmp_path):
        for i, (gradient, numeric) in enumerate(results):
            torch.testing.assert_close(
                gradient, numeric, rtol=1e-5, atol=1e-6, msg=lambda m, i=i: f"function {i}: {m}"
            )


def run_objects() -> dict[str, Any]:
    start()
    rank, count = dist.get_rank(), dist.get_world_size()
    out: dict[str, Any] = {}
    everyones: list[Any] = [None] * count
    dist.all_gather_object(everyones, {"rank": rank, "text": "x" * rank})
    out["all_gather_object"] = everyones
    for place in (None, "xla", torch.device("xla", 0), torch.device("cpu")):
        told = [{"step": 3}, "name"] if rank == 0 else [None, None]
        dist.broadcast_object_list(told, src=0, device=place)
        sent = [f"to {place}" if rank == 0 else None]
        if rank == 0:
            dist.send_object_list(sent, dst=1, device=place)
        else:
            dist.recv_object_list(sent, src=0, device=place)
        out[place] = told, sent
    mine = [None]
    dist.scatter_object_list(mine, [("part", i) for i in range(count)] if rank == 0 else None)
    out["scatter_object_list"] = mine[0]
    found: list[Any] | None = [None] * count if rank == 1 else None
    dist.gather_object(rank, found, dst=1)
    out["gather_object"] = found
    dist.barrier()
    return out


def test_objects(tmp_path):
    """What PyTorch pickles for the other replicas goes through the device."""
    everyones = [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}]
    for rank, out in enumerate(run_replicas(run_objects, 2, tmp_path)):
        assert out["all_gather_object"] == everyones
        for place in (None, "xla", torch.device("xla", 0), torch.device("cpu")):
            assert out[place] == ([{"step": 3}, "name"], [f"to {place}"])
        assert tuple(out["scatter_object_list"]) == ("part", rank)
        assert out["gather_object"] == ([0, 1] if rank else None)


def run_beside_a_saving_thread(folder: str, use_collectives: bool) -> list[Any]:
    device = start()
    rank = dist.get_rank()

    class Slow(dcp.FileSystemWriter):
        def prepare_local_plan(self, plan: Any) -> Any:
            if rank == 0:  # Which comes late, so the main threads have gone on.
                time.sleep(0.5)
            return super().prepare_local_plan(plan)

    state = {f"own{rank}": torch.full((2,), rank + 1.0, device=device)}
    saving = dcp.async_save(
        state, storage_writer=Slow(folder), use_collectives=use_collectives
    )  # Without them, there is a barrier.
    out = []
    for step in range(3):
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, (step, rank))
        x = torch.full((2,), rank + step)
        dist.all_reduce(x)
        y = torch.full((2, step + 1), rank + step, device=device)
        dist.all_reduce(y)
        assert y.eq(2 * step + 1).all()
        out.append((objects, x.tolist()))
        time.sleep(0.3 * rank)
    saving.result()
    return out


@pytest.mark.parametrize("use_collectives", [True, False])
def test_a_thread_that_saves_has_collectives_of_its_own(tmp_path, use_collectives):
    folder = tmp_path / "saved"
    results = run_replicas(run_beside_a_saving_thread, 2, tmp_path, str(folder), use_collectives)
    for out in results:
        assert out == [([(step, 0), (step, 1)], [2 * step + 1] * 2) for step in range(3)]
    assert len(list(folder.glob("*.distcp"))) == 2


def run_scattered_in_tiles() -> list[Any]:
    device = start()
    rank = dist.get_rank()
    found = []
    with mock.patch.object(xla_backend._XLAC, "_xla_platform", lambda: "TPU"):
        for shape, dtype in (((4,), torch.int32), ((6, 5), torch.bfloat16), ((2, 4096), None)):
            x = torch.arange(math.prod(shape)).view(shape).to(dtype or torch.float32) + rank
            out = torch.empty(shape[0] // 2, *shape[1:], dtype=x.dtype, device=device)
            dist.reduce_scatter_tensor(out, x.to(device))
            parts = [x.to(device), (x + 1).to(device)]
            own = torch.empty_like(parts[0])
            dist.reduce_scatter(own, parts)
            found.append((out.cpu(), own.cpu()))
    return found


def test_parts_are_padded_to_tiles_on_tpus(tmp_path):
    for rank, found in enumerate(run_replicas(run_scattered_in_tiles, 2, tmp_path)):
        for (out, own), shape in zip(found, ((4,), (6, 5), (2, 4096)), strict=True):
            x = torch.arange(math.prod(shape)).view(shape).to(out.dtype)
            assert torch.equal(out, (x + x + 1).chunk(2)[rank])
            assert torch.equal(own, x + x + 1 + 2 * rank)


def run_what_replicas_have_not() -> None:
    device = start()
    x = torch.zeros(2, 2, device=device)
    with pytest.raises(RuntimeError, match=r"use_spmd\(\).*torch_xla\.distributed\.fsdp"):
        xs.mark_sharding(x, xs.Mesh([0], (1,)), (0, None))
    # The device has the LOCAL_RANK for a name, too, and no other.
    own, other = f"xla:{dist.get_rank()}", f"xla:{2 + dist.get_rank()}"
    one_device = rf"no device {other}.* has one device, xla:0, which its LOCAL_RANK names.*{own}"
    places: list[Callable[[str], Any]] = [
        lambda name: torch.zeros(2, device=name).device,
        lambda name: x.to(name).device,
        lambda name: nn.Linear(2, 2).to(name).weight.device,
        lambda name: torch.empty_like(x, device=name).device,
        lambda name: torch.accelerator.set_device_index(int(name[4:])),
        lambda name: torch.xla.set_device(name),
        lambda name: torch.xla.synchronize(name),
    ]
    for place in places:
        assert place(own) in (torch.device("xla:0"), None)
        with pytest.raises(IndexError, match=one_device):
            place(other)
    assert torch.accelerator.current_device_index() == 0
    # PyTorch's own on the CPU are as ever.
    host_mesh = init_device_mesh("cpu", (2,))
    assert host_mesh.get_coordinate() == (dist.get_rank(),)
    assert dist.get_world_size(host_mesh.get_group()) == 2
    distributed = distribute_tensor(torch.arange(4.0), host_mesh, [Shard(0)])
    assert distributed.full_tensor().tolist() == [0, 1, 2, 3]


def test_what_replicas_have_not_is_said(tmp_path):
    run_replicas(run_what_replicas_have_not, 2, tmp_path)


def run_with_errors_in_a_file(folder: str) -> str:
    file = os.path.join(folder, f"stderr{os.environ['RANK']}")
    os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), 2)
    device = start()
    x = torch.ones(4, device=device)
    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
    functional.all_gather_tensor(x, 0, dist.group.WORLD).cpu()
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).to(device))
    for _ in range(3):
        model(x).sum().backward()
    model.module.weight.grad.cpu()
    return Path(file).read_text()


def test_no_warnings_that_are_not_true(tmp_path):
    for text in run_replicas(run_with_errors_in_a_file, 2, tmp_path, str(tmp_path)):
        assert "Registering collective work" not in text and "Time stats" not in text, text


def run_ties() -> list[float]:
    x = torch.tensor([1.0, float(xm.get_ordinal())], device=xm.xla_device(), requires_grad=True)
    xf.all_reduce(xm.REDUCE_MAX, x).sum().backward()
    return x.grad.tolist()


def test_equal_maxima_share_the_gradient(tmp_path):
    assert run_replicas(run_ties, 2, tmp_path) == [[1.0, 0.0], [1.0, 2.0]]


def test_backend_of_one_process():
    dist.init_process_group("xla", init_method="xla://")
    try:
        x = torch.arange(3.0, device="xla")
        dist.all_reduce(x)
        assert x.tolist() == [0, 1, 2]
        parts = [torch.zeros(3, device="xla")]
        dist.all_gather(parts, x)
        assert parts[0].tolist() == [0, 1, 2]
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_compiled_collectives() -> dict[str, Any]:
    device = start()
    rank, world = dist.get_rank(), dist.group.WORLD
    out: dict[str, Any] = {}

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def of_argument(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    def into(x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(2 * x.shape[0])
        dist.all_gather_into_tensor(y, x + 1)
        return y

    def of_two(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x, "sum", world)
        return functional.all_reduce(y * (rank + 1), "max", world)

    functions = {
        "all_reduce": lambda x: functional.all_reduce(x * 2, "sum", world) + 1,
        "all_gather": lambda x: functional.all_gather_tensor(x * 2, 0, world) + 1,
        "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x * 2, "sum", 0, world) + 1,
        "xm": lambda x: xm.all_reduce("sum", x * 2) + 1,
        "in_place": in_place,
        "of_argument": of_argument,
        "into": into,
        "of_two": of_two,
    }
    for name, function in functions.items():
        torch._dynamo.reset()
        run = torch.compile(function, backend="openxla", dynamic=False)
        calls = []
        for step in range(3):
            # Collectives of the same arrays before and behind it, none of which is read first.
            given = torch.arange(4.0, device=device) + 10 * rank + step
            eager = functional.all_reduce(given, "max", world)
            mine, theirs = given.clone(), given.clone()
            results = [run(mine), mine, xm.all_reduce("sum", given * (step + 1)), eager]
            expected = [function(theirs), theirs]
            if step == 1:
                torch_xla.sync()
            calls.append(([x.cpu() for x in results], [x.cpu() for x in expected]))
        out[name] = calls
    # What a failing compilation traced is forgotten.
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="inside"), tracing.trace("test", device) as capture:
        x = capture.placeholder(torch.empty(2, device="meta"))
        xm.all_reduce("sum", x)
        raise ValueError("inside")
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(device))
    model(torch.ones(3, 2, device=device) * (rank + 1)).sum().backward()
    out["gradient"] = model.module.weight.grad.cpu()
    return out


def test_collectives_in_compiled_functions(tmp_path):
    """They stand in one order with those around them, and leave nothing of the tracing behind."""
    for out in run_replicas(run_compiled_collectives, 2, tmp_path):
        torch.testing.assert_close(out.pop("gradient"), torch.full((1, 2), 4.5))
        for name, calls in out.items():
            for step, (results, expected) in enumerate(calls):
                torch.testing.assert_close(results[:2], expected, msg=lambda m, n=name: f"{n}: {m}")
                base = torch.arange(4.0) + step
                assert results[2].tolist() == ((2 * base + 10) * (step + 1)).tolist(), name
                assert results[3].tolist() == (base + 10).tolist(), name


# ------------------------------------------------------------------- which tensors a group takes


def calls_of_a_group(x: torch.Tensor) -> dict[str, Any]:
    """A call of each function that has tensors of ``x``'s device, by its name."""
    count = dist.get_world_size()

    def parts() -> list[torch.Tensor]:
        return [torch.zeros_like(x) for _ in range(count)]

    def coalesced(call: Any) -> None:
        with dist._coalescing_manager():
            call(x.clone())
            call(x.clone())

    other = 1 - dist.get_rank()
    group = dist.group.WORLD
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async": lambda: dist.all_reduce(x, async_op=True),
        "all_reduce coalesced": lambda: coalesced(dist.all_reduce),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "all_gather": lambda: dist.all_gather(parts(), x),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.cat(parts()), x),
        "gather": lambda: dist.gather(x, None if other == 0 else parts(), 0),
        "scatter": lambda: dist.scatter(x, None if other == 0 else parts(), 0),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts()),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, torch.cat(parts())),
        "all_to_all": lambda: dist.all_to_all(parts(), parts()),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros_like(x), x),
        "send": lambda: dist.send(x, other),
        "recv": lambda: dist.recv(x, other),
        "irecv": lambda: dist.irecv(x, other),
        "functional all_reduce": lambda: functional.all_reduce(x, "sum", group),
        "functional coalesced": lambda: functional.all_reduce_coalesced([x], "sum", group),
        "functional all_gather": lambda: functional.all_gather_tensor(x, 0, group),
        "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(x, "sum", 0, group),
        "functional all_to_all": lambda: functional.all_to_all_single(x, None, None, group),
        "functional broadcast": lambda: functional.broadcast(x, 0, group),
    }


def train_one_step() -> float:
    """A step of two replicas, by the package's own collectives."""
    weight = nn.Parameter(torch.ones(2, device=xm.xla_device()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (weight.sum() * (1 + xm.get_ordinal())).backward()
    xm.optimizer_step(optimizer)
    xm.mark_step()
    return weight[0].item()


def run_gloo() -> dict[str, Any]:
    dist.init_process_group("gloo", init_method="xla://")
    rank = dist.get_rank()
    x = torch.arange(4.0, device=xm.xla_device()) + rank
    texts = {}
    for name, call in calls_of_a_group(x).items():
        with pytest.raises(RuntimeError) as error:
            call()
        texts[name] = str(error.value)
    dist.distributed_c10d._world.pg_coalesce_state.clear()  # Left behind by an error of any group.
    with pytest.raises(RuntimeError) as error:
        nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(x.device))
    texts["DDP"] = str(error.value)
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank)
    dist.barrier()
    return {"texts": texts, "x": x.tolist(), "objects": objects, "step": train_one_step()}


def test_a_group_of_another_backend_refuses_xla_tensors(tmp_path):
    for rank, out in enumerate(run_replicas(run_gloo, 2, tmp_path)):
        for name, text in out["texts"].items():
            assert 'init_process_group("xla")' in text, (name, text)
        assert out["x"] == [rank, rank + 1, rank + 2, rank + 3]
        assert out["objects"] == [0, 1] and out["step"] == -0.5


def run_backends(backend: str | None, with_device: bool) -> dict[str, Any]:
    device = xm.xla_device()
    assert dist.get_default_backend_for_device("xla") == "xla"
    (torch.ones(1, device=device) + 1).cpu()  # It is used: a group without a name is for it.
    dist.init_process_group(
        backend, init_method="xla://", device_id=torch.device("xla:0") if with_device else None
    )
    rank = dist.get_rank()
    out: dict[str, Any] = {}
    for place in (device, torch.device("cpu")):
        x = torch.arange(4.0, device=place) + rank
        calls = calls_of_a_group(x)
        for name in ("send", "recv", "irecv"):
            del calls[name]
        for call in calls.values():
            call()
        x = torch.arange(4.0, device=place) + rank
        dist.all_reduce(x)
        parts = [torch.zeros(2, device=place) for _ in range(2)]
        dist.all_gather(parts, x[:2].clone())
        y = torch.zeros(3, device=place)
        if rank == 0:
            dist.send(torch.ones(3, device=place), 1)
        else:
            dist.recv(y, 0)
        out[place.type] = (x.tolist(), [part.tolist() for part in parts], y.tolist())
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, "a" * (1 + rank))
    out["objects"] = objects
    dist.barrier()
    group = dist.new_group([0, 1])
    x = torch.ones(2, device=device)
    dist.all_reduce(x, group=group)
    out["group"] = x.tolist()
    # Training, without a word on the backend.
    for place in (device, torch.device("cpu")):
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False).to(place))
        model(torch.full((1, 2), 1.0 + rank, device=place)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
    dist.destroy_process_group()
    return out


@pytest.mark.parametrize(
    ("backend", "with_device"),
    [("xla", True), (None, False), ("cpu:gloo,xla:xla", False), ("xla:xla,cpu:gloo", True)],
)
def test_groups_of_both_kinds_of_tensors(backend, with_device, tmp_path):
    results = run_replicas(run_backends, 2, tmp_path, backend, with_device)
    for rank, out in enumerate(results):
        for kind in ("xla", "cpu"):
            total, parts, received = out[kind]
            assert total == [1, 3, 5, 7] and parts == [[1, 3], [1, 3]]
            assert received == [rank] * 3
        assert out["objects"] == ["a", "aa"] and out["group"] == [2, 2]


def run_again(backend: str) -> None:
    for i in range(1, 4):
        dist.init_process_group(backend, init_method="xla://")
        for group in (None, dist.new_group([0, 1]), dist.new_group([0, 1], backend="gloo")):
            x = torch.full((2,), float(i))
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2 * i] * 2
        if backend != "gloo":
            x = torch.full((2,), float(i), device=xm.xla_device())
            dist.all_reduce(x)
            assert x.tolist() == [2 * i] * 2
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, (i, dist.get_rank()))
        assert objects == [(i, 0), (i, 1)]
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["xla", "gloo", "cpu:gloo,xla:xla"])
def test_groups_are_made_again(backend, tmp_path):
    """What the groups before wrote to the store is not read."""
    run_replicas(run_again, 2, tmp_path, backend)


# ------------------------------------------------------------------------------- messages


def run_messages() -> dict[str, Any]:
    device = start()
    rank, count = dist.get_rank(), dist.get_world_size()
    following, before = (rank + 1) % count, (rank - 1) % count
    out: dict[str, Any] = {}

    def filled(value: float, size: int = 2) -> torch.Tensor:
        return torch.full((size,), float(value), device=device)

    def exchange(order: str, size: int) -> list[float]:
        y = filled(-1, size)
        send = dist.P2POp(dist.isend, filled(rank, size), following)
        receive = dist.P2POp(dist.irecv, y, before)
        for work in dist.batch_isend_irecv([send, receive] if order == "sr" else [receive, send]):
            work.wait()
        return [y[0].item(), y[-1].item()]

    out["batches"] = [exchange(order, size) for order in ("sr", "rs") for size in (3, 300_000)]
    # One by one, in whatever order each has, with a collective between.
    for receives_first in (rank == 0, True, False):
        y = filled(-1)
        if receives_first:
            works = [dist.irecv(y, before), dist.isend(filled(rank), following)]
        else:
            works = [dist.isend(filled(rank), following), dist.irecv(y, before)]
        x = filled(1)
        dist.all_reduce(x)
        for work in works[::-1] if rank else works:
            assert work.wait() is not False and work.is_completed()
        out.setdefault("single", []).append([*y.tolist(), *x.tolist()])
    # Several, before anybody takes them; by tags and groups out of their order.
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    if rank == 0:
        for i in range(5):
            dist.send(filled(i), 1)
        for tag in (1, 2):
            dist.send(filled(10 * tag), 1, tag=tag)
        for i, group in enumerate(groups):
            dist.send(filled(100 + i), 1, group=group)
        dist.send(torch.zeros(0, device=device), 1)
        dist.isend(filled(7), 1, tag=(1 << 31) - 1)
    elif rank == 1:
        values = [filled(-1) for _ in range(10)]
        works = [dist.irecv(value, 0) for value in values[:3]]
        for work in works[::-1]:  # Messages come in the order of the calls, not of the waits.
            work.wait()
        dist.irecv(values[3], 0)  # Nobody waits for this one.
        dist.recv(values[4], 0)
        for i, tag in enumerate((2, 1)):
            dist.recv(values[5 + i], 0, tag=tag)
        for i, group in enumerate(groups[::-1]):
            dist.recv(values[7 + i], 0, group=group)
        dist.recv(torch.zeros(0, device=device), 0)
        dist.irecv(values[9], 0, tag=(1 << 31) - 1).get_future().wait()
        out["taken"] = [value[1].item() for value in values]
    # Of several sizes.
    parts = [torch.zeros(1 + i, 2, device=device) for i in range(count)]
    dist.all_gather(parts, torch.full((1 + rank, 2), float(rank), device=device))
    out["uneven"] = [part.tolist() for part in parts]
    parts = [torch.full((1 + i,), 1.0 + rank, device=device) for i in range(count)]
    y = torch.zeros(1 + rank, device=device)
    dist.reduce_scatter(y, parts)
    out["uneven sum"] = y.tolist()
    # What is refused is not traced, so the others do not wait for it, nor does what follows.
    x = torch.ones(5, device=device)
    three = torch.zeros(3, device=device)
    for call, text in (
        (lambda: dist.all_gather([three] * count, x), "all_gather: expected an output of 5 el"),
        (lambda: dist.all_gather_into_tensor(three, x), f"an output of {5 * count} el"),
        (lambda: dist.reduce_scatter_tensor(three, x), f"an input of {count} times"),
        (lambda: dist.reduce_scatter(three, [x] * count), "an output of 5"),
        (lambda: dist.all_to_all_single(torch.zeros(5, device=device), x), "divisible by"),
        (lambda: dist.scatter(x, [three] * count, rank), "an output of 3"),
        (lambda: dist.gather(x, [three] * count, rank), "an output of 5"),
        (lambda: dist.recv(x), "from a rank that `src` names"),
        (lambda: dist.isend(x, rank), "not to its own"),
        (lambda: dist.irecv(x, rank), "not to its own"),
        (lambda: dist.send(x, following, tag=1 << 31), "expected a tag"),
        (lambda: dist.irecv(x, following, tag=-1), "expected a tag"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    dist.all_reduce(x)
    out["after"] = x.tolist()
    return out


@pytest.mark.parametrize("count", [2, 3])
def test_messages(count, tmp_path):
    for rank, out in enumerate(run_replicas(run_messages, count, tmp_path)):
        before = float((rank - 1) % count)
        assert out["batches"] == [[before, before]] * 4
        assert out["single"] == [[before, before, count, count]] * 3
        assert out["uneven"] == [[[float(i)] * 2] * (1 + i) for i in range(count)]
        assert out["uneven sum"] == [count * (count + 1) / 2] * (1 + rank)
        assert out["after"] == [float(count)] * 5
        if rank == 1:
            assert out["taken"] == [0, 1, 2, 3, 4, 20, 10, 101, 100, 7]


def _error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


def run_wrong_messages(what: str) -> str:
    device = start()
    rank = dist.get_rank()
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    x.cpu()

    def body() -> None:
        if what == "size":
            if rank == 1:
                dist.recv(torch.zeros(3, device=device), 0)
            else:
                dist.send(x, 1)
                dist.all_reduce(x)
        elif what == "never sent":
            if rank == 1:
                dist.recv(x, 0)
            else:
                dist.all_reduce(x)
        else:  # Never taken, while both go on.
            if rank == 0:
                dist.isend(x, 1)
            for _ in range(100):
                dist.all_reduce(x)
                x.cpu()
                time.sleep(0.2)
        x.cpu()
        torch_xla.sync(wait=True)

    return _error_of(body)


@pytest.mark.parametrize("what", ["size", "never sent", "never taken"])
def test_messages_that_differ(what, tmp_path):
    seconds = {"XLA_COLLECTIVE_TIMEOUT": "5"} if what == "never taken" else {}
    sender, receiver = run_replicas(run_wrong_messages, 2, tmp_path, what, **seconds)
    if what == "size":
        assert "different transfers" in receiver
        assert "f32[3]" in receiver and "f32[2]" in receiver
    elif what == "never sent":
        assert "waits for a message, but rank 0 runs all_reduce(sum, f32[2]" in receiver
    else:
        sender, receiver = receiver, sender
        assert "rank 1 did not take what rank 0 (this one) sent" in receiver
    assert "gave up" in sender


def run_unread_at_the_end(folder: str, what: str) -> None:
    device = start()
    rank = dist.get_rank()
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    x.cpu()
    try:
        if rank == 0:
            dist.isend(x, 1)
            torch_xla._internal.replicas.replication.finish()
        elif what == "collective":
            dist.all_reduce(x)
            x.cpu()
        else:
            time.sleep(1)
    except RuntimeError as error:
        Path(folder, f"error{rank}").write_text(str(error))


@pytest.mark.parametrize("what", ["end", "collective"])
def test_a_message_that_is_unread_at_the_end(what, tmp_path):
    """Who sent it waits neither for ever nor for the timeout, since nobody will take it."""
    begin = time.monotonic()
    run_replicas(run_unread_at_the_end, 2, tmp_path, str(tmp_path), what)
    assert time.monotonic() - begin < 40
    text = (tmp_path / "error0").read_text()
    if what == "end":  # Perhaps before the message was sent.
        assert "rank 1 did not take what rank 0" in text or "rank 1 has ended" in text
    else:
        assert "rank 1 did not take what rank 0 (this one) sent" in text
        assert "rank 1 runs all_reduce(sum, f32[2]" in text
        assert "rank 0 has ended" in (tmp_path / "error1").read_text()
