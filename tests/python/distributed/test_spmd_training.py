"""SPMD mode: loaders, FSDP, linear layers, DTensor, checkpoints, pictures."""

import collections
import contextlib
import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F  # noqa: N812
from testing.spmd import in_spmd
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.spmd.debugging as debugging
from torch_xla import _XLAC
from torch_xla.experimental.distributed_checkpoint import (
    CheckpointManager,
    SPMDLoadPlanner,
    SPMDSavePlanner,
    prime_optimizer,
)
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

pytestmark = pytest.mark.multiprocess


def grid(rows: int = 2, columns: int = 2) -> xs.Mesh:
    return xs.Mesh(range(4), (rows, columns), ("data", "model"))


def spec_of(tensor: torch.Tensor) -> str:
    return _XLAC._get_xla_sharding_spec(tensor)


def tile_shapes(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(tile.shape) for tile in _XLAC._xla_tiles(tensor)]


# ------------------------------------------------------------------------- loaders

Pair = collections.namedtuple("Pair", ["left", "right"])


@in_spmd
def test_sent_data_is_split():
    mesh = grid(4, 1)
    rows = xs.ShardingSpec(mesh, ("data", None))
    image, label = torch.randn(8, 3), torch.arange(8)
    sent = xm.send_cpu_data_to_device([image, {"label": label, "name": "x"}], "xla", rows)
    assert tile_shapes(sent[0]) == [(2, 3)] * 4
    assert torch.equal(sent[0].cpu(), image) and torch.equal(sent[1]["label"].cpu(), label)
    assert spec_of(sent[1]["label"]) != spec_of(sent[0])  # Of another rank: not split.
    assert sent[1]["name"] == "x"
    by_key = {"image": rows, "label": xs.ShardingSpec(mesh, ("data",)), "more": [None, rows]}
    data = {"image": image, "label": label, "more": [image + 1, image + 2]}
    sent = xm.send_cpu_data_to_device(data, "xla", by_key)
    assert tile_shapes(sent["label"]) == [(2,)] * 4
    assert [spec_of(t) == rows.apply(sent["image"]).sharding_spec for t in sent["more"]] == [
        False,
        True,
    ]
    pair = xm.send_cpu_data_to_device(Pair(image, label), "xla", (rows, None))
    assert isinstance(pair, Pair) and tile_shapes(pair.left) == [(2, 3)] * 4
    (half,) = xm.send_cpu_data_to_device(image.bfloat16()[:5], "xla", rows)
    assert half.dtype == torch.bfloat16 and tile_shapes(half) == [(2, 3), (2, 3), (1, 3), (0, 3)]
    for bad in ({"image": rows}, [rows, rows], (rows,), "rows"):
        with pytest.raises(ValueError, match="input_sharding: expected a ShardingSpec, or specs"):
            xm.send_cpu_data_to_device(data, "xla", bad)
    assert rows.can_apply(image) and not rows.can_apply(label)
    xs.ShardingSpec(mesh, (("data", "model"), None), minibatch=True)
    with pytest.raises(ValueError, match="splits dimension 0, with minibatch=True"):
        xs.ShardingSpec(mesh, (None, "data"), minibatch=True)


@in_spmd
def test_loaders_split_batches():
    mesh = grid()
    images, labels = torch.arange(48.0).reshape(16, 3), torch.arange(16)
    loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    spec = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
    batches = list(pl.MpDeviceLoader(loader, "xla", input_sharding=spec))
    assert len(batches) == 4
    for i, (image, label) in enumerate(batches):
        assert tile_shapes(image) == [(2, 3)] * 4
        assert torch.equal(image.cpu(), images[4 * i : 4 * i + 4])
        assert label.tolist() == labels[4 * i : 4 * i + 4].tolist()
    both = (spec, xs.ShardingSpec(mesh, (("data", "model"),)))
    for _, label in pl.MpDeviceLoader(loader, "xla", input_sharding=both):
        assert tile_shapes(label) == [(1,)] * 4
    wrong = pl.MpDeviceLoader(loader, "xla", input_sharding={"image": spec})
    with pytest.raises(ValueError, match="input_sharding: expected"):
        list(wrong)
    # A step on them is one program.
    weight = torch.randn(3, 2, device="xla")
    torch_xla.sync()
    met.clear_all()
    for image, _ in pl.MpDeviceLoader(loader, "xla", input_sharding=spec):
        weight.sub_((image @ weight).sum() * 1e-3)
    torch_xla.sync()
    assert met.counter_value("UncachedCompile") == 1


def test_loaders_need_the_mode():
    with pytest.raises(RuntimeError, match="expected SPMD mode with `input_sharding`"):
        pl.ParallelLoader([torch.zeros(2)], ["xla"], input_sharding=object())


# ------------------------------------------------------------------------- FSDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in "ab"))
        self.last = nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.first(x))) * self.scale


@in_spmd
def test_fsdp_trains_as_one_device():
    for options in (
        {},
        {"auto_wrap_policy": ModuleWrapPolicy({nn.Sequential})},
        {"extra_data_axis": "slices"},
    ):
        torch.manual_seed(0)
        model = Net()
        extra = "extra_data_axis" in options
        mesh = xs.Mesh(range(4), (2, 2) if extra else (1, 4), ("slices", "fsdp"))
        wrapped = FSDPv2(copy.deepcopy(model), mesh, **options)
        parts = 2 if extra else 4
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        wrapped_optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.02)
        for _ in range(4):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            batch = ("slices", "fsdp") if extra else "fsdp"
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            wrapped_optimizer.zero_grad()
            output = wrapped(xs.mark_sharding(x.to("xla"), mesh, (batch, None)))
            found = F.cross_entropy(output, y.to("xla"))
            found.backward()
            wrapped_optimizer.step()
            torch_xla.sync()
            torch.testing.assert_close(found.cpu(), loss, rtol=1e-4, atol=1e-5)
        assert tile_shapes(output) == [(2, 3)] * 4
        for p, q in zip(wrapped.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.cpu(), q, rtol=1e-3, atol=1e-4)
            for held in (p, p.grad, wrapped_optimizer.state[p]["exp_avg"]):
                if held.numel() % parts == 0:
                    sizes = {tile.numel() for tile in _XLAC._xla_tiles(held)}
                    assert sizes == {p.numel() // parts}, (p.shape, options)
        nested = [m for m in wrapped.modules() if isinstance(m, FSDPv2)]
        assert len(nested) == (4 if "auto_wrap_policy" in options else 1)
        assert isinstance(wrapped.module, Net) and wrapped.first is wrapped.module.first
        assert all(name.startswith("_orig_module.") for name in wrapped.state_dict())


class Tuples(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return Pair(x * 2, 7)


class Dictionaries(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": x * 2, "loss": x.sum()}


@in_spmd
def test_fsdp_outputs_and_errors():
    mesh = xs.Mesh(range(4), (4,), ("fsdp",))
    x = torch.ones(8, 3, device="xla")
    output = FSDPv2(Tuples(), mesh)(x)
    assert isinstance(output, Pair) and output.right == 7
    assert spec_of(output.left) == "{devices=[4,1]0,1,2,3}"
    with pytest.raises(ValueError, match="got dict; pass `shard_output`"):
        FSDPv2(Dictionaries(), mesh)(x)

    def mark(output: Any, mesh: xs.Mesh) -> None:
        xs.mark_sharding(output["logits"], mesh, ("fsdp", None))

    output = FSDPv2(Dictionaries(), mesh, mark)(x)
    assert spec_of(output["logits"]) == "{devices=[4,1]0,1,2,3}"
    with pytest.raises(ValueError, match="expected a mesh; pass one"):
        FSDPv2(Tuples())
    with pytest.raises(ValueError, match="a mesh with an axis 'fsdp'"):
        FSDPv2(Tuples(), grid())
    with pytest.raises(ValueError, match="a mesh with an axis 'slices'"):
        FSDPv2(Tuples(), mesh, extra_data_axis="slices")
    xs.set_global_mesh(mesh)
    wrapped = FSDPv2(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)))
    with pytest.raises(ValueError, match="wrapped already"):
        FSDPv2(wrapped, mesh)
    assert tile_shapes(wrapped[0].weight) == [(2, 3), (2, 3), (1, 3), (0, 3)]  # The largest.
    assert tile_shapes(wrapped[1].bias) == [(1,)] * 4


# ------------------------------------------------------------------------- linear layers


@in_spmd
def test_patched_linear_layers_keep_batch_dimensions():
    torch.manual_seed(0)
    mesh = grid()
    layer = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False))
    x = torch.randn(4, 8, 6)
    on_xla = xs.apply_xla_patch_to_nn_linear(copy.deepcopy(layer).to("xla"))
    xs.mark_sharding(on_xla[0].weight, mesh, ("model", None))
    x_xla = xs.mark_sharding(x.to("xla"), mesh, ("data", "model", None)).requires_grad_()
    x.requires_grad_()
    y, found = layer(x), on_xla(x_xla)
    torch.testing.assert_close(found.cpu(), y.detach(), rtol=1e-5, atol=1e-5)
    hlo = _XLAC._get_xla_tensors_hlo([on_xla(x_xla)])
    assert "dot_general" in hlo and "reshape" not in hlo
    split = on_xla[2](torch.zeros(4, 8, 5, device="xla") + x_xla.detach()[..., :5])
    torch_xla.sync()
    assert spec_of(split) == "{devices=[2,2,1]0,1,2,3}"
    gradients = torch.autograd.grad((y**2).sum(), [x, *layer.parameters()], create_graph=True)
    found_gradients = torch.autograd.grad(
        (found**2).sum(), [x_xla, *on_xla.parameters()], create_graph=True
    )
    for actual, expected in zip(found_gradients, gradients, strict=True):
        torch.testing.assert_close(actual.cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
    (second,) = torch.autograd.grad((gradients[1] ** 2).sum(), x)
    (found_second,) = torch.autograd.grad((found_gradients[1] ** 2).sum(), x_xla)
    torch.testing.assert_close(found_second.cpu(), second, rtol=1e-3, atol=1e-3)
    for shape in ((6,), (3, 6), (2, 3, 2, 6)):
        probe = torch.randn(shape)
        torch.testing.assert_close(on_xla(probe.to("xla")).cpu(), layer(probe).detach())
    copied = copy.deepcopy(on_xla)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert not torch.equal(copied(x_xla).cpu(), found.cpu())
    patched = xs.apply_xla_patch_to_nn_linear(copy.deepcopy(layer))
    assert torch.equal(patched(x), y)  # Off xla as ever.


# ------------------------------------------------------------------------- DTensor


@in_spmd
def test_dtensor_api():
    mesh = DeviceMesh("xla", torch.arange(4).reshape(2, 2), mesh_dim_names=("x", "y"))
    whole = torch.arange(24.0).reshape(6, 4)
    for placements, spec in {
        (Shard(0), Replicate()): "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}",
        (Shard(1), Shard(0)): "{devices=[2,2]0,2,1,3}",
        (Shard(0), Shard(0)): "{devices=[4,1]0,1,2,3}",
        (Replicate(), Shard(-1)): "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}",
        (Replicate(), Replicate()): "{replicated}",
    }.items():
        for tensor in (whole, whole.to("xla")):
            found = distribute_tensor(tensor, mesh, placements)
            assert isinstance(found, xs.XLAShardedTensor)
            assert found.sharding_spec == spec
            assert torch.equal(found.cpu(), whole)
    assert distribute_tensor(whole, mesh).sharding_spec == "{replicated}"
    found = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
    moved = found.redistribute(mesh, [Replicate(), Shard(1)])
    assert moved.sharding_spec == "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"
    assert torch.equal(moved.cpu(), whole)
    assert found.sharding_spec == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    full = found.full_tensor()
    assert type(full) is torch.Tensor and tile_shapes(full) == [(6, 4)] * 4
    for placements, message in (
        ([Partial(), Replicate()], r"Shard\(dim\) or Replicate\(\) on xla, got Partial"),
        ([Shard(0)], "expected 2 placements"),
        ([Shard(2), Replicate()], "placements of the 2 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            distribute_tensor(whole, mesh, placements)
    with pytest.raises(RuntimeError, match="clear_sharding"):
        distribute_tensor(found, mesh, [Replicate(), Shard(0)])


@in_spmd
def test_distribute_module():
    torch.manual_seed(0)
    mesh = DeviceMesh("xla", torch.arange(4).reshape(2, 2), mesh_dim_names=("x", "y"))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    reference = copy.deepcopy(model)

    def partition(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        if name == "0":
            weight = distribute_tensor(module.weight, mesh, [Replicate(), Shard(0)])
            module.register_parameter("weight", nn.Parameter(weight))
        elif name == "3":
            distribute_tensor(module.weight, mesh, [Replicate(), Shard(1)])  # In place.

    def split(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return (distribute_tensor(inputs[0], mesh, [Shard(0), Replicate()]),)

    def gather(module: nn.Module, outputs: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        return xs.wrap_as_sharded_tensor(outputs).full_tensor()

    distributed = distribute_module(model, mesh, partition, split, gather)
    assert distributed is model
    half = "last_tile_dim_replicate}"
    assert [spec_of(p) for p in model.parameters()] == [
        "{devices=[2,1,2]0,2,1,3 " + half,
        "{replicated}",
        "{replicated}",
        "{replicated}",
        "{devices=[1,2,2]0,2,1,3 " + half,
        "{replicated}",
    ]
    assert spec_of(model[2].running_mean) == "{replicated}"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(8, 6)
        for m, o in ((model, optimizer), (reference, reference_optimizer)):
            o.zero_grad()
            output = m(x)
            output.square().mean().backward()
            o.step()
        torch_xla.sync()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)
    with pytest.raises(RuntimeError, match="only be called once"):
        distribute_module(model, mesh)


# ------------------------------------------------------------------------- checkpoints


def make_state(*specs: tuple[Any, ...], mesh: xs.Mesh, fill: float | None = None) -> dict[str, Any]:
    """Tensors with elements that tell their places, or one number."""
    shapes = ((10, 6), (7,), (3, 5, 4))
    tensors = {}
    for i, (shape, spec) in enumerate(zip(shapes, specs, strict=True)):
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 100 * i
        if fill is not None:
            whole = torch.full(shape, fill)
        tensors[f"t{i}"] = xs.mark_sharding(whole.to("xla"), mesh, spec).global_tensor
    return {
        "nested": {"tensors": tensors, "list": [torch.ones(2) if fill is None else torch.zeros(2)]},
        "plain": torch.arange(4, device="xla") * (1 if fill is None else 0),
        "scalar": torch.tensor(2.5 if fill is None else 0.0).to("xla"),
        "empty": torch.empty(0, 3, device="xla"),
        "step": 7 if fill is None else 0,
    }


def check_state(state: dict[str, Any], mesh: xs.Mesh, *specs: tuple[Any, ...]) -> None:
    whole = make_state((None, None), (None,), (None, None, None), mesh=mesh)
    for i, spec in enumerate(specs):
        tensor = state["nested"]["tensors"][f"t{i}"]
        assert torch.equal(tensor.cpu(), whole["nested"]["tensors"][f"t{i}"].cpu())
        assert spec_of(tensor) == str(mesh.get_op_sharding(spec))
        assert tile_shapes(tensor) == [
            tuple(mesh.get_op_sharding(spec).tile_of(d, list(tensor.shape))[1]) for d in range(4)
        ]
    assert state["nested"]["list"][0].tolist() == [1, 1]
    assert state["plain"].tolist() == [0, 1, 2, 3]
    assert state["scalar"].item() == 2.5
    assert state["step"] == 7


SAVED = ((("data", "model"), None), ("model",), (None, "data", "model"))
LOADED = ((None, "model"), (None,), ("model", None, "data"))


@in_spmd
def test_checkpoints_are_loaded_onto_other_shardings(tmp_path: Path):
    mesh = grid()
    dcp.save(
        make_state(*SAVED, mesh=mesh),
        storage_writer=dcp.FileSystemWriter(tmp_path / "a"),
        planner=SPMDSavePlanner(),
        no_dist=True,
    )
    metadata = dcp.FileSystemReader(tmp_path / "a").read_metadata().state_dict_metadata
    chunks = {name: len(m.chunks) for name, m in metadata.items() if hasattr(m, "chunks")}
    # Each part once: four of [3, 6], [3, 6], [3, 6], [1, 6]; two of two halves; four.
    assert chunks["nested.tensors.t0"] == 4
    assert chunks["nested.tensors.t1"] == 2
    assert chunks["nested.tensors.t2"] == 4
    assert chunks["plain"] == chunks["scalar"] == 1
    stored = dcp.FileSystemReader(tmp_path / "a").read_metadata().storage_data
    assert len(stored) == len(set(stored))
    for other, specs in ((mesh, SAVED), (mesh, LOADED), (grid(1, 4), SAVED)):
        state = make_state(*specs, mesh=other, fill=-1.0)
        dcp.load(
            state,
            storage_reader=dcp.FileSystemReader(tmp_path / "a"),
            planner=SPMDLoadPlanner(),
            no_dist=True,
        )
        check_state(state, other, *specs)
    # Plain tensors by PyTorch's own planner.
    plain = {"nested": {"tensors": {"t2": torch.zeros(3, 5, 4)}}}
    dcp.load(plain, storage_reader=dcp.FileSystemReader(tmp_path / "a"), no_dist=True)
    assert torch.equal(plain["nested"]["tensors"]["t2"], 200 + torch.arange(60.0).reshape(3, 5, 4))
    # And what that has saved.
    whole = {"nested": {"tensors": {"t0": torch.randn(10, 6)}}}
    dcp.save(whole, storage_writer=dcp.FileSystemWriter(tmp_path / "b"), no_dist=True)
    target = xs.mark_sharding(torch.zeros(10, 6).to("xla"), mesh, ("model", "data"))
    dcp.load(
        {"nested": {"tensors": {"t0": target}}},
        storage_reader=dcp.FileSystemReader(tmp_path / "b"),
        planner=SPMDLoadPlanner(),
        no_dist=True,
    )
    assert torch.equal(target.cpu(), whole["nested"]["tensors"]["t0"])
    assert target.sharding_spec == "{devices=[2,2]0,2,1,3}"
    with pytest.raises((ValueError, dcp.CheckpointException), match="(?i)size"):
        dcp.load(
            {"plain": torch.zeros(5, device="xla")},
            storage_reader=dcp.FileSystemReader(tmp_path / "a"),
            planner=SPMDLoadPlanner(),
            no_dist=True,
        )


def make_training(mesh: xs.Mesh, axis: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Linear(8, 4).to("xla")
    spec = ["model", None] if axis == 0 else [None, "model"]
    xs.mark_sharding(model.weight, mesh, tuple(spec))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    prime_optimizer(optimizer)
    return model, optimizer


@in_spmd
def test_checkpoint_manager_goes_on_with_another_sharding(tmp_path: Path):
    def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to("xla")
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            torch_xla.sync()

    mesh = grid(1, 4)
    model, optimizer = make_training(mesh, 0)
    train(model, optimizer, range(3))
    for kind in ("save", "save_async"):
        manager = CheckpointManager(tmp_path / kind, 1, chkpt_on_preemption=False)
        assert getattr(manager, kind)(2, state_of(model, optimizer))
        manager.close()
    metadata = dcp.FileSystemReader(tmp_path / "save" / "2").read_metadata().state_dict_metadata
    assert len(metadata["model.weight"].chunks) == 4
    train(model, optimizer, range(3, 5))
    for kind in ("save", "save_async"):
        other, other_optimizer = make_training(mesh, 1)
        state = state_of(other, other_optimizer)
        manager = CheckpointManager(tmp_path / kind, 1, chkpt_on_preemption=False)
        assert manager.restore_latest(state) == 2
        manager.close()
        other.load_state_dict(state["model"])
        other_optimizer.load_state_dict(state["optimizer"])
        assert tile_shapes(other.weight) == [(4, 2)] * 4
        assert tile_shapes(other_optimizer.state[other.weight]["exp_avg"]) == [(4, 2)] * 4
        train(other, other_optimizer, range(3, 5))
        torch.testing.assert_close(other.weight.cpu(), model.weight.cpu(), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------- pictures


@in_spmd
def test_pictures():
    expected = "\n".join(
        [
            "┌─────────┬─────────┐",
            "│         │         │",
            "│  CPU 0  │  CPU 2  │",
            "│         │         │",
            "├─────────┼─────────┤",
            "│         │         │",
            "│  CPU 1  │  CPU 3  │",
            "│         │         │",
            "└─────────┴─────────┘",
        ]
    )
    x = xs.mark_sharding(torch.zeros(8, 8).to("xla"), grid(), ("model", "data"))

    def printed(function: Any, *args: Any, **kwargs: Any) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            function(*args, **kwargs)
        return output.getvalue().rstrip()

    with_rich = debugging.rich
    for module in {None, with_rich}:
        debugging.rich = module
        assert printed(xs.visualize_tensor_sharding, x, use_color=False) == expected
        assert printed(xs.visualize_sharding, x.sharding_spec, use_color=False) == expected
    debugging.rich = None
    row = "│  CPU 0  │  CPU 2  │  CPU 1  │  CPU 3  │"
    for text in ("{devices=[1,4]0,2,1,3}", "{devices=[1,4]<=[2,2]T(1,0)}", "{devices=[4]0,2,1,3}"):
        assert row in xs.visualize_sharding(text)
    assert "CPU 0,1,2,3" in xs.visualize_sharding("{replicated}")
    assert "│CPU 2,3│" in xs.visualize_sharding(
        "{devices=[2,1,2]<=[4] last_tile_dim_replicate}", scale=0.3, min_width=1
    ).replace(" CPU 2,3 ", "CPU 2,3")
    column = xs.visualize_sharding("{devices=[4,1]0,1,2,3}", scale=0.3)
    assert column.count("\n") == 8
    computed = x.global_tensor * 2
    assert "CPU" in xs.visualize_tensor_sharding(computed)
    assert "CPU 0" in xs.visualize_sharding("{maximal device=0}")
    with pytest.raises(ValueError, match="in XLA's spelling"):
        xs.visualize_sharding("{unknown}")
    with pytest.raises(ValueError, match="two dimensions at most"):
        xs.visualize_sharding("{devices=[2,2,2]0,1,2,3,4,5,6,7}")
    with pytest.raises(ValueError, match="expected 4 devices"):
        xs.visualize_sharding("{devices=[2,2]0,1,2}")
    with pytest.raises(TypeError, match="expected an xla tensor"):
        xs.visualize_tensor_sharding(torch.zeros(2))
