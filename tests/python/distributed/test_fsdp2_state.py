"""FSDP2 in replicas: CPU offload, mixed precision, state dicts and checkpoints, against Gloo."""

import copy
import shutil
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from testing.mesh_cases import Cases, check
from torch import nn
from torch.distributed.checkpoint import state_dict as checkpoints
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import torch_xla
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

pytestmark = pytest.mark.multiprocess

cases = Cases()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.second(nn.functional.gelu(self.first(self.norm(x))))


def sharded(device_type: str, **options: Any) -> nn.Module:
    torch.manual_seed(4)
    model = nn.Sequential(Block(), Block())
    model.to(device_type)
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, device_type: str) -> Any:
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    x = torch.randn(2, 4, 8, generator=generator).to(device_type)
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if device_type == "xla":
        torch_xla.sync()
    return loss.detach()


def trained(device_type: str, **options: Any) -> Any:
    model = sharded(device_type, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [step(model, optimizer, seed, device_type) for seed in range(3)]
    return losses, dict(model.named_parameters())


@cases.case()
def from_the_cpu(device_type: str) -> Any:
    """PyTorch moves the model; its parameters stay the same objects, tied and frozen."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 7))
    model[3].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    before = [*model.parameters(), *model.buffers()]
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert {x.device.type for x in (*before, *model.parameters(), *model.buffers())} == {
        device_type
    }
    assert model[3].weight is model[0].weight and not model[0].bias.requires_grad
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        losses.append(model(torch.randn(4, 7).to(device_type)).square().mean())
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return [loss.detach() for loss in losses], model.state_dict()


def offloaded(device_type: str, pin_memory: bool) -> Any:
    """Gloo gathers in memory that no accelerator of the build pins."""
    policy = CPUOffloadPolicy(pin_memory=pin_memory and device_type == "xla")
    model = sharded(device_type, offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [step(model, optimizer, seed, device_type) for seed in range(3)]
    parameters = dict(model.named_parameters())
    assert {x.device.type for x in parameters.values()} == {"cpu"}
    return losses, [x.to_local() for x in parameters.values()]


for pinned in (True, False):
    cases.add(f"offload_{pinned}", lambda d, p=pinned: offloaded(d, p))

POLICIES: dict[str, MixedPrecisionPolicy] = {
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    "bf16_reduced_in_fp32": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
    "bf16_with_fp32_results": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, output_dtype=torch.float32
    ),
    "reduced_in_bf16": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16),
}
for name, policy in POLICIES.items():
    cases.add(f"mixed_{name}", lambda d, p=policy: trained(d, mp_policy=p))


@cases.case(2, 4)
def divided_gradients(device_type: str) -> Any:
    """By another number than the replicas, as frameworks that weigh tokens do."""
    model = sharded(device_type)
    for module in (model, *model):
        module.set_gradient_divide_factor(3.0)
        module.set_force_sum_reduction_for_comms(device_type == "cpu")  # Gloo has but sums.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    return [step(model, optimizer, seed, device_type) for seed in range(3)], model.state_dict()


def states(device_type: str, **options: Any) -> Any:
    """State dicts of model and optimizer, and what goes on from them."""
    wanted = checkpoints.StateDictOptions(**options)
    model = sharded(device_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for seed in range(2):
        step(model, optimizer, seed, device_type)
    of_model = checkpoints.get_model_state_dict(model, options=wanted)
    of_optimizer = checkpoints.get_optimizer_state_dict(model, optimizer, options=wanted)
    places = sorted({x.device.type for x in of_model.values()} & {"cpu"})
    kept = copy.deepcopy((of_model, of_optimizer))
    expected = step(model, optimizer, 5, device_type)
    other = sharded(device_type)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    given = copy.deepcopy(kept)  # Which the optimizer may keep.
    # Only the first rank has whole states on the CPU.
    wanted.broadcast_from_rank0 = wanted.cpu_offload and wanted.full_state_dict
    checkpoints.set_model_state_dict(other, given[0], options=wanted)
    checkpoints.set_optimizer_state_dict(other, second, given[1], options=wanted)
    again = step(other, second, 5, device_type)
    torch.testing.assert_close(again.cpu(), expected.cpu())
    return kept, places if options.get("cpu_offload") else [], expected


cases.add("state_sharded", states)
cases.add("state_sharded_offloaded", lambda d: states(d, cpu_offload=True))
cases.add("state_full", lambda d: states(d, full_state_dict=True), (2, 4))
cases.add("state_full_offloaded", lambda d: states(d, full_state_dict=True, cpu_offload=True))


@cases.case(2, 4)
def broadcast_from_rank_0(device_type: str) -> Any:
    """As a checkpoint that only rank 0 has read."""
    model = sharded(device_type)
    state = {}
    if dist.get_rank() == 0:
        torch.manual_seed(9)
        state = nn.Sequential(Block(), Block()).state_dict()
    wanted = checkpoints.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    checkpoints.set_model_state_dict(model, state, options=wanted)
    return dict(model.named_parameters())


def saved(device_type: str, how: str) -> Any:
    """Saves, goes on, reads back what was saved into another model."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0, group=dist.new_group(backend="gloo"))
    # Of the thread that saves: its collectives are not in the order of the program's.
    group = dist.new_group(backend="gloo" if device_type == "cpu" else "xla")
    model = sharded(device_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step(model, optimizer, 0, device_type)
    state = dict(
        zip(("model", "optimizer"), checkpoints.get_state_dict(model, optimizer), strict=True)
    )
    expected = [x.detach().clone() for x in model.parameters()]
    manager = CheckpointManager(folder[0], 1, chkpt_on_preemption=False)
    if how == "manager":
        manager.save_async(0, state)
        step(model, optimizer, 1, device_type)  # Meanwhile.
        manager.join()
    elif how == "save":
        dcp.save(state, checkpoint_id=folder[0], process_group=group)
    else:
        future = dcp.async_save(state, checkpoint_id=folder[0], process_group=group)
        step(model, optimizer, 1, device_type)  # Meanwhile.
        future.result()
    other = sharded(device_type)
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    step(other, second, 3, device_type)
    found = dict(
        zip(("model", "optimizer"), checkpoints.get_state_dict(other, second), strict=True)
    )
    if how == "manager":
        assert manager.restore_latest(found) == 0
    else:
        dcp.load(found, checkpoint_id=folder[0], process_group=group)
    checkpoints.set_state_dict(
        other, second, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
    )
    for x, y in zip(other.parameters(), expected, strict=True):
        assert isinstance(x, DTensor)
        torch.testing.assert_close(x.to_local().cpu(), y.to_local().cpu(), rtol=0, atol=0)
    result = step(other, second, 1, device_type)
    dist.barrier(group)
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return result, dict(other.named_parameters())


cases.add("dcp_save", lambda d: saved(d, "save"))
cases.add("dcp_async_save", lambda d: saved(d, "async_save"), (2, 4))
cases.add("manager_save_async", lambda d: saved(d, "manager"))


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_fsdp2(results, count, name):
    check(results[count], name, 2e-2 if "mixed" in name else 1e-4)


def test_views_are_staged_as_they_look(device):
    x = torch.arange(12.0, device=device).view(3, 4)
    state = {
        "whole": x,
        "transposed": x.t(),
        "columns": x[:, 1:],
        "rows": x[1:],
        "expanded": x[0].expand(2, 4),
        "bits": x.view(torch.int32),
        "imaginary": torch.complex(x, x + 1).imag,
        "tied": x,
    }
    staged = StateDictStager().stage(state)
    for name, tensor in state.items():
        assert staged[name].device.type == "cpu" and staged[name].dtype == tensor.dtype
        assert torch.equal(staged[name], tensor.cpu()), name
    assert staged["tied"].data_ptr() == staged["whole"].data_ptr() != staged["columns"].data_ptr()
