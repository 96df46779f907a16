"""XlaFullyShardedDataParallel: the training of whole batches, with a part of everything."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from replica_testing import run_replicas
from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

pytestmark = pytest.mark.multiprocess

STEPS = 4


class Net(nn.Module):
    """Blocks, a tied weight, a frozen parameter, a buffer, and one that has no part."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 6, bias=False)
        self.tail = nn.Linear(6, 6, bias=False)
        self.tail.weight = self.head.weight
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))
        self.register_buffer("offset", torch.full((6,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.tail(torch.tanh(self.head(x))) + self.offset + self.frozen.sum()


def make_net() -> Net:
    torch.manual_seed(2)
    return Net()


def make_batches(count: int) -> torch.Tensor:
    """[steps, count, 4, 6]: a batch of 4 for each replica."""
    return torch.randn(STEPS, count, 4, 6, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def run_training(options: dict[str, Any], nested: str, clip: float | None) -> dict[str, Any]:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    from torch_xla.distributed.fsdp import checkpoint_module

    device = xm.xla_device()
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    net = make_net().to(device)
    if nested == "blocks":
        for i, block in enumerate(net.blocks):
            net.blocks[i] = FSDP(block, **options)
    elif nested == "checkpointed":
        for i, block in enumerate(net.blocks):
            net.blocks[i] = FSDP(checkpoint_module(block), **options)
    elif nested == "policy":
        options["auto_wrap_policy"] = functools.partial(
            size_based_auto_wrap_policy, min_num_params=50
        )
    model = FSDP(net, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    compiles, norms = [], []
    for batch in make_batches(count)[:, rank]:
        optimizer.zero_grad()
        loss_of(model, batch.to(device)).backward()
        if clip is not None:
            norms.append(model.clip_grad_norm_(clip))
        optimizer.step()
        torch_xla.sync(wait=True)
        compiles.append(met.counter_value("UncachedCompile") or 0)
    return {
        "state": model.full_state_dict(),
        "sizes": [p.numel() for p in model.parameters()],
        "empty": all(full.numel() == 0 for b in model._buckets for full in b.full),
        "wrappers": sum(isinstance(m, FSDP) for m in model.modules()),
        "gathers": met.counter_value("xla::all_gather"),
        "norms": [norm.item() for norm in norms],
        "compiles": compiles,
    }


def reference(count: int, clip: float | None = None) -> tuple[dict[str, torch.Tensor], list[float]]:
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    norms = []
    for batch in make_batches(count).flatten(1, 2):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), clip).item())
        optimizer.step()
    return net.state_dict(), norms


@pytest.mark.parametrize(
    ("options", "nested", "wrappers"),
    [
        ({}, "", 1),
        ({"flatten_parameters": True}, "blocks", 3),
        ({"reshard_after_forward": False}, "blocks", 3),
        ({}, "checkpointed", 3),
        ({"disable_reshard_on_root": False, "mark_step_on_finalization": True}, "policy", 5),
    ],
)
def test_trains_as_one_process(options, nested, wrappers, tmp_path):
    results = run_replicas(run_training, 2, tmp_path, options, nested, None)
    state, _ = reference(2)
    whole = sum(parameter.numel() for parameter in make_net().parameters())
    for out in results:
        assert out["wrappers"] == wrappers
        assert out["empty"]
        assert whole / 2 <= sum(out["sizes"]) <= whole / 2 + len(out["sizes"])
        # Tied parameters are one, but have both of their names in a module's state.
        for name, tensor in state.items():
            found = out["state"].get(name, out["state"].get(name.replace("tail", "head")))
            torch.testing.assert_close(found, tensor, rtol=1e-4, atol=1e-5)
        assert out["compiles"][-1] == out["compiles"][-2]


@pytest.mark.parametrize("clip", [0.1])
def test_clip_grad_norm(clip, tmp_path):
    state, norms = reference(3, clip)
    for out in run_replicas(run_training, 3, tmp_path, {}, "blocks", clip):
        torch.testing.assert_close(out["norms"], norms, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            out["state"]["blocks.0.0.weight"], state["blocks.0.0.weight"], rtol=1e-4, atol=1e-5
        )


def run_checkpoint(folder: str) -> dict[str, Any]:
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints

    rank = xm.get_ordinal()

    def make() -> FSDP:
        net = make_net().to(xm.xla_device())
        net.blocks[0] = FSDP(net.blocks[0], flatten_parameters=True)
        return FSDP(net)

    model = make()
    checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(checkpoint, f"{folder}/model_rank-{rank}.pth", master_only=False)
    xm.rendezvous("saved")
    other = make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    saved = torch.load(f"{folder}/model_rank-{rank}.pth", weights_only=False)
    other.load_state_dict(saved["model"])
    joined = None
    if rank == 0:
        joined, path = consolidate_sharded_model_checkpoints(f"{folder}/model", "_rank-*.pth")
        assert path == f"{folder}/model_consolidated.pth" and Path(path).exists()
    return {"loaded": other.full_state_dict(), "joined": joined}


def test_checkpoints(tmp_path):
    results = run_replicas(run_checkpoint, 2, tmp_path, str(tmp_path))
    state = make_net().state_dict()
    for found in (results[0]["joined"], results[0]["loaded"], results[1]["loaded"]):
        assert set(found) | {"tail.weight"} == set(state)
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    # What was joined is for the module itself.
    net = make_net()
    net.load_state_dict(
        {**results[0]["joined"], "tail.weight": results[0]["joined"]["head.weight"]}
    )


def run_variants() -> dict[str, Any]:
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

    device = xm.xla_device()
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    batches = make_batches(count)[:, rank].to(device)

    # Gradients that add up before they are reduced.
    model = FSDP(make_net().to(device), flatten_parameters=True)
    with model.no_sync():
        loss_of(model, batches[0]).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    loss_of(model, batches[1]).backward()
    twice = FSDP(make_net().to(device), flatten_parameters=True)
    loss_of(twice, batches[0]).backward()
    loss_of(twice, batches[1]).backward()
    pairs = [
        (a.grad, b.grad)
        for a, b in zip(model.parameters(), twice.parameters(), strict=True)
        if b.grad is not None
    ]
    out: dict[str, Any] = {"no_sync": [(a.cpu(), b.cpu()) for a, b in pairs]}

    # Another dtype for the computation, not for what is kept.
    half = FSDP(make_net().to(device), compute_dtype=torch.bfloat16, fp32_reduce_scatter=True)
    result = half(batches[0])
    out["dtypes"] = (result.dtype, next(half.parameters()).dtype, half.module.offset.dtype)
    result.float().square().mean().backward()
    whole = FSDP(make_net().to(device))
    loss_of(whole, batches[0]).backward()
    out["half"] = [
        (a.grad.cpu(), b.grad.cpu())
        for a, b in zip(half.parameters(), whole.parameters(), strict=True)
        if b.grad is not None
    ]
    with torch.no_grad():
        out["eval"] = whole(batches[0]).cpu()
    with pytest.raises(ValueError, match="wrapped already"):
        FSDP(whole)
    # Sharded within groups of one: nothing to gather.
    alone = FSDP(make_net().to(device), sharding_groups=[[i] for i in range(count)])
    out["alone"] = alone(batches[0]).detach().cpu()
    return out


def test_variants(tmp_path):
    for rank, out in enumerate(run_replicas(run_variants, 2, tmp_path)):
        assert out["no_sync"]
        for a, b in out["no_sync"]:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert out["dtypes"] == (torch.bfloat16, torch.float32, torch.bfloat16)
        for a, b in out["half"]:
            torch.testing.assert_close(a, b, rtol=0.1, atol=0.02)
        expected = make_net()(make_batches(2)[0, rank]).detach()
        torch.testing.assert_close(out["eval"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out["alone"], expected, rtol=1e-4, atol=1e-5)
