"""torch.distributed's backend xla, DDP, functional collectives, ZeRO-1, autograd over replicas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from replica_testing import run_replicas
from torch import nn

pytestmark = pytest.mark.multiprocess


def start() -> torch.device:
    import torch_xla.core.xla_model as xm

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
    for op in ("BXOR",):
        with pytest.raises(ValueError, match="reduces by SUM"):
            dist.all_reduce(own(2).int(), getattr(dist.ReduceOp, op))
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
    import torch_xla
    import torch_xla.debug.metrics as met

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
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

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
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

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


def _gradients(function: Any, inputs: list[torch.Tensor], rank: int) -> tuple[Any, Any]:
    """This replica's gradient of all replicas' weighted sums, by autograd and by differences."""
    import torch_xla.core.xla_model as xm

    device = xm.xla_device()
    weights = torch.linspace(0.5, 1.5, 512, dtype=torch.float64).roll(rank * 7)

    def value(x: torch.Tensor) -> torch.Tensor:
        y = function(x)
        total = (y.reshape(-1) * weights[: y.numel()].to(device)).sum()
        return xm.all_reduce(xm.REDUCE_SUM, total) if not x.requires_grad else total

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
    import torch_xla.core.functions as xf
    import torch_xla.core.xla_model as xm

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
    return [_gradients(function, given, rank) for function, given in functions]


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
    told = [{"step": 3}, "name"] if rank == 0 else [None, None]
    dist.broadcast_object_list(told, src=0)
    out["broadcast_object_list"] = told
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
        assert out["broadcast_object_list"] == [{"step": 3}, "name"]
        assert tuple(out["scatter_object_list"]) == ("part", rank)
        assert out["gather_object"] == ([0, 1] if rank else None)


def run_ties() -> list[float]:
    import torch_xla.core.functions as xf
    import torch_xla.core.xla_model as xm

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
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._internal import tracing

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
