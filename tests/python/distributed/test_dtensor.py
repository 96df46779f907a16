"""DTensor, tensor parallelism and FSDP2 in replicas, against Gloo on the CPU."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from testing.mesh_cases import Cases, check
from testing.replicas import run_replicas
from torch import nn
from torch.distributed.checkpoint import state_dict as checkpoints
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    zeros,
)
from torch.distributed.tensor import rand as rand_dtensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug
import torch_xla.debug.metrics as met

pytestmark = pytest.mark.multiprocess

cases = Cases()


def line(device_type: str) -> DeviceMesh:
    return init_device_mesh(device_type, (dist.get_world_size(),))


PLACEMENTS: dict[str, Placement] = {
    "S0": Shard(0),
    "S1": Shard(1),
    "R": Replicate(),
    "P": Partial(),
}


def _add_redistributions() -> None:
    def moved(device_type: str, before: Placement, after: Placement, rows: int) -> Any:
        mesh = line(device_type)
        local = (torch.randn(rows, 3) + dist.get_rank()).to(device_type)
        if before.is_shard() or before.is_replicate():
            x = distribute_tensor(local.detach(), mesh, [before]).requires_grad_()
        else:
            x = DTensor.from_local(local, mesh, [before]).requires_grad_()
        y = x.redistribute(placements=[after])
        (y.full_tensor() ** 2).sum().backward()
        return y, x.grad

    for first, before in PLACEMENTS.items():
        for second, after in PLACEMENTS.items():
            if second == "P":  # PyTorch keeps that for itself.
                continue
            for rows in (4, 5):
                cases.add(
                    f"redistribute_{first}_{second}_{rows}",
                    lambda d, b=before, a=after, n=rows: moved(d, b, a, n),
                )


_add_redistributions()


@cases.case(2, 4)
def redistributions_of_uneven_parts(device_type: str) -> Any:
    """All pairs, of sizes that leave some replicas fewer rows or none."""
    mesh, found = line(device_type), {}
    partials = [Partial(operation) for operation in ("sum", "avg", "max", "min")]
    for shape in ((5, 3), (3, 5), (1, 2), (0, 3)):
        for before in (Shard(0), Shard(1), Replicate(), *partials):
            for after in (Shard(0), Shard(1), Replicate()):
                own = torch.randn(shape).to(device_type)
                if before.is_partial():
                    x = DTensor.from_local(own + dist.get_rank(), mesh, [before])
                else:
                    x = distribute_tensor(own, mesh, [before])
                x = x.detach().requires_grad_()
                y = x.redistribute(placements=[after]).to_local()
                (y**2).sum().backward()
                found[f"{shape} {before} {after}"] = y, x.grad.to_local()
    return found


def _add_operations() -> None:
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "matmul": lambda x, y: x @ y.t(),
        "sum_0": lambda x, y: (x * y).sum(0),
        "sum_1": lambda x, y: (x * y).sum(1, keepdim=True),
        "softmax": lambda x, y: (x * y).softmax(1),
        "gelu": lambda x, y: nn.functional.gelu(x) + y,
        "layer_norm": lambda x, y: nn.functional.layer_norm(x + y, (6,)),
        "view": lambda x, y: (x - y).view(4, 2, 3),
        "cat": lambda x, y: torch.cat([x, y], 1),
        "max": lambda x, y: torch.maximum(x, y).amax(0),
        "slice": lambda x, y: (x + y)[:, 1:4],
        "norm": lambda x, y: (x * y).norm() + torch.norm(x, "fro"),
        "norm_1": lambda x, y: torch.norm(x + y, 1, 0, dtype=torch.float64),
        "norm_inf": lambda x, y: (x * y).norm(float("inf"), 1),
        "one_hot": lambda x, y: nn.functional.one_hot(x.abs().long(), 5) * (x * y).unsqueeze(-1),
    }

    def apply(device_type: str, function: Any, placement: Placement, rows: int = 4) -> Any:
        mesh = line(device_type)
        x, y = (distribute_tensor(torch.randn(rows, 6), mesh, [placement]) for _ in range(2))
        x.requires_grad_()
        y.requires_grad_()
        result = function(x, y)
        (result.full_tensor() ** 2).sum().backward()
        return result, x.grad, y.grad

    for name, function in functions.items():
        for label in ("S0", "S1", "R"):
            cases.add(
                f"{name}_{label}",
                lambda d, f=function, p=PLACEMENTS[label]: apply(d, f, p),
            )

    def uneven(device_type: str) -> Any:
        """Of 5 rows and 6 columns over 4 replicas: the last one has none."""
        refused = ("view", "max", "norm_inf")  # PyTorch's for no rows, on every device.
        return {
            f"{name} {label}": [x.to_local() for x in apply(device_type, function, placement, 5)]
            for name, function in functions.items()
            for label, placement in PLACEMENTS.items()
            if name not in refused and placement.is_shard()
        }

    cases.add("operations_on_uneven_parts", uneven, (4,))


_add_operations()


@cases.case(4)
def two_dimensions(device_type: str) -> Any:
    mesh = init_device_mesh(device_type, (2, 2), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(torch.randn(6, 5), mesh, [Shard(0), Shard(1)])
    y = distribute_tensor(torch.randn(5, 4), mesh, [Replicate(), Shard(0)])
    z = x @ y
    return z, z.redistribute(placements=[Shard(1), Replicate()]), zeros(3, 3, device_mesh=mesh)


@cases.case(2)
def source_of_no_rank(device_type: str) -> Any:
    own = torch.ones(4, 2) * dist.get_rank()
    x = distribute_tensor(own, line(device_type), [Shard(0)], src_data_rank=None)
    return x.to_local(), distribute_tensor(own, line(device_type), [Shard(0)]).to_local()


@cases.case(2)
def saved_and_copied(device_type: str) -> Any:
    x = distribute_tensor(torch.randn(4, 3), line(device_type), [Shard(0)])
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return loaded, loaded.to_local(), copy.deepcopy(x).to_local()


@cases.case(2)
def module_distributed(device_type: str) -> Any:
    model = distribute_module(nn.Linear(3, 4).to(device_type), line(device_type))
    return list(model.parameters())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


def trained(model: nn.Module, device_type: str, own: bool = True, steps: int = 3) -> Any:
    """Losses and parameters of a few steps; ``own``: each replica has its own batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    dtype = next(model.parameters()).dtype
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + (dist.get_rank() if own else 0))
        x = torch.randn(2, 4, 8, generator=generator).to(device_type, dtype)
        loss = (model(x).float() ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if device_type == "xla":
            torch_xla.sync()
    return losses, dict(model.named_parameters())


@cases.case(2)
def tensor_parallel(device_type: str) -> Any:
    model = nn.Sequential(Block(), Block()).to(device_type)
    for block in model:
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(block, line(device_type), plan)
    return trained(model, device_type, own=False)


@cases.case(2)
def sequence_parallel(device_type: str) -> Any:
    block = Block().to(device_type)
    plan = {
        "norm": SequenceParallel(),
        "first": ColwiseParallel(input_layouts=Shard(1)),
        "second": RowwiseParallel(output_layouts=Shard(1)),
    }
    mesh = line(device_type)
    parallelize_module(block, mesh, plan)
    x = torch.randn(2, 4, 8).to(device_type)
    y = block.second(block.first(block.norm(distribute_tensor(x, mesh, [Shard(1)]).to_local())))
    (y**2).sum().backward()
    return y, [parameter.grad for parameter in block.parameters()]


def recomputed(device_type: str, reentrant: bool) -> Any:
    """A checkpoint that is given a DTensor, and one that is given its plain part."""
    block = Block().to(device_type)
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "first": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "second": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    mesh = line(device_type)
    parallelize_module(block, mesh, plan)
    x = distribute_tensor(torch.randn(2, 4, 8), mesh, [Shard(1)]).requires_grad_()
    y = checkpoint(block, x * 2, use_reentrant=reentrant)
    z = checkpoint(
        lambda part: block.second(block.first(part)), y.to_local(), use_reentrant=reentrant
    )
    (z**2).sum().backward()
    return y, z, x.grad, [parameter.grad for parameter in block.parameters()]


for _reentrant in (True, False):
    cases.add(f"recomputed_{_reentrant}", lambda d, r=_reentrant: recomputed(d, r))


@cases.case(2)
def loss_over_classes(device_type: str) -> Any:
    mesh = line(device_type)
    x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)]).requires_grad_()
    target = torch.tensor([0, 5, 3, 1]).to(device_type)
    with loss_parallel():
        loss = nn.functional.cross_entropy(x, target)
        loss.backward()
    return loss, x.grad


# ------------------------------------------------------------------ FSDP2


def sharded(device_type: str, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    model = nn.Sequential(Block(), Block()).to(device_type)
    mesh = line(device_type) if mesh is None else mesh
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


cases.add("fsdp", lambda d: trained(sharded(d), d), (2, 4))
cases.add(
    "fsdp_of_odd_sizes",
    lambda d: trained(
        fully_shard(
            nn.Sequential(nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 1), nn.Linear(1, 3)).to(d),
            mesh=line(d),
        ),
        d,
    ),
    (2, 4),
)
cases.add("fsdp_kept", lambda d: trained(sharded(d, reshard_after_forward=False), d))
cases.add("fsdp_resharded", lambda d: trained(sharded(d, reshard_after_forward=True), d))
cases.add("fsdp_resharded_to_2", lambda d: trained(sharded(d, reshard_after_forward=2), d), (4,))


@cases.case(4)
def hybrid(device_type: str) -> Any:
    mesh = init_device_mesh(device_type, (2, 2), mesh_dim_names=("replicate", "shard"))
    return trained(sharded(device_type, mesh), device_type)


@cases.case(4)
def fsdp_of_tensor_parallel(device_type: str) -> Any:
    mesh = init_device_mesh(device_type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(Block(), Block()).to(device_type)
    for block in model:
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    return trained(fully_shard(model, mesh=mesh["dp"]), device_type, own=False)


@cases.case(2)
def fsdp_accumulates(device_type: str) -> Any:
    model = sharded(device_type)
    for step in range(2):
        model.set_requires_gradient_sync(step == 1)
        model(torch.randn(2, 4, 8).to(device_type)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@cases.case(2)
def fsdp_clips(device_type: str) -> Any:
    model = sharded(device_type)
    model(torch.randn(2, 4, 8).to(device_type)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return norm, [parameter.grad for parameter in model.parameters()]


@cases.case(2)
def fsdp_state_dict(device_type: str) -> Any:
    model = sharded(device_type)
    options = checkpoints.StateDictOptions(full_state_dict=True)
    state = checkpoints.get_model_state_dict(model, options=options)
    other = sharded(device_type)
    checkpoints.set_model_state_dict(other, copy.deepcopy(state), options=options)
    return state, trained(other, device_type)


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_dtensor(results, count, name):
    check(results[count], name, 1e-4)


# ------------------------------------------------------------------ what xla alone has


def run_random() -> Any:
    dist.init_process_group("xla", init_method="xla://")
    mesh = line("xla")
    torch.manual_seed(3)
    found = [
        rand_dtensor(4, 6, device_mesh=mesh, placements=[placement]).full_tensor().cpu()
        for placement in (Shard(0), Shard(1), Replicate())
    ]
    return found


def test_random_numbers_differ_between_shards_and_agree_between_replicas(tmp_path):
    first, second = run_replicas(run_random, 2, tmp_path)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) and one.unique().numel() == 24


def run_watched() -> None:
    dist.init_process_group("xla", init_method="xla://")
    model = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 4)).to("xla")
    fully_shard(model, mesh=line("xla"))
    seen = torch_xla.debug.watch(model, every=1)
    model(torch.ones(2, 8, device="xla")).sum().backward()
    found = {(one.kind, one.name): one.largest for one in seen.records()}
    parameters = dict(model.named_parameters())
    for kind in ("weights", "gradients"):
        parts = {name: x if kind == "weights" else x.grad for name, x in parameters.items()}
        parts = {name: x.to_local() for name, x in parts.items()}
        expected = {n: x.abs().max().item() for n, x in parts.items() if x.numel()}
        assert {name: v for (k, name), v in found.items() if k == kind} == expected


def test_a_replica_measures_its_own_part(tmp_path):
    """The second one has no row of the first layer."""
    run_replicas(run_watched, 2, tmp_path)


def run_counted() -> list[tuple[int, int]]:
    dist.init_process_group("xla", init_method="xla://")
    counts = []
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=torch.bfloat16)):
        model = sharded("xla", mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(6):
            loss = (model(torch.ones(2, 4, 8, device="xla")).float() ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync(wait=True)
            counts.append(
                tuple((met.metric_data(name) or (0,))[0] for name in ("CompileTime", "ExecuteTime"))
            )
    return counts


def test_a_step_of_fsdp_is_one_program(tmp_path):
    for counts in run_replicas(run_counted, 2, tmp_path):
        for of_policy in (counts[:6], counts[6:]):
            assert of_policy[2][0] == of_policy[5][0]  # Programs.
            assert of_policy[5][1] - of_policy[2][1] == 3  # Executions.
