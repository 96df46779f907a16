"""SPMD mode: entering it, meshes, marks, and what computes on marked tensors."""

import copy
import io
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.processes import start_python
from testing.spmd import in_spmd
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla.distributed.spmd.hybrid_mesh import order_by_coordinates
from torch_xla.experimental.scan import scan

pytestmark = pytest.mark.multiprocess

ALL_SPECS = [
    ("data", None),
    (None, "data"),
    ("model", None),
    ("data", "model"),
    ("model", "data"),
    (("data", "model"), None),
    (None, ("model", "data")),
    (0, 1),
    ((1, 0), None),
    (None, None),
]


def grid(rows: int = 2, columns: int = 2) -> xs.Mesh:
    return xs.Mesh(np.arange(4), (rows, columns), ("data", "model"))


def marked(tensor: torch.Tensor, *spec: object, mesh: xs.Mesh | None = None) -> torch.Tensor:
    return xs.mark_sharding(tensor.to("xla"), mesh or grid(), spec)


def spec_of(tensor: torch.Tensor) -> str:
    return _XLAC._get_xla_sharding_spec(tensor)


# ------------------------------------------------------------------------- the mode


def check_mode() -> None:
    assert xr.is_spmd()
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == 4
    assert xr.addressable_device_count() == xr.global_device_count() == 1
    assert torch_xla.device_count() == torch.xla.device_count() == 1
    assert xr.world_size() == xr.process_count() == xm.xrt_world_size() == 1
    assert xr.global_ordinal() == xr.local_ordinal() == xr.process_index() == 0
    assert xm.xla_device() == torch.device("xla:0")


@in_spmd
def test_use_spmd_makes_one_device_of_all():
    check_mode()
    xr.use_spmd()  # Nothing more.
    check_mode()
    with pytest.raises(IndexError, match="there is no device xla:1"):
        torch.ones(2, device="xla:1")


@in_spmd(enter=False)
def test_use_spmd_after_tensors_exist():
    assert not xr.is_spmd()
    assert xr.addressable_runtime_device_count() == xr.addressable_device_count() == 4
    x = torch.arange(8.0).to("xla")
    computed = x * 2
    torch_xla.sync()
    traced = computed + 1
    xr.use_spmd()
    check_mode()
    xs.mark_sharding(x, xs.get_1d_mesh(), (0,))
    assert (x + traced).tolist() == [3.0 * i + 1 for i in range(8)]
    assert computed.tolist() == [2.0 * i for i in range(8)]
    assert [tile.tolist() for tile in _XLAC._xla_tiles(x)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@in_spmd(enter=False)
def test_what_is_queued_when_the_mode_is_entered_runs_where_it_was_to():
    x = torch.arange(16.0, device="xla").view(4, 4)
    kept = x.clone()
    torch_xla.sync(wait=True)
    for _ in range(7):
        x = (x @ x).tanh() + kept
        torch_xla.sync()
    # As a thread that uses the device meanwhile would have it: nobody waits for what is queued.
    _XLAC._xla_enter_spmd_mode()
    expected = torch.arange(16.0).view(4, 4)
    start = expected.clone()
    for _ in range(7):
        expected = (expected @ expected).tanh() + start
    y = marked(torch.ones(4, 4), "data", None)
    close(x @ y + kept, expected @ torch.ones(4, 4) + start)
    close(x, expected)
    close(kept, start)


@in_spmd(enter=False)
def test_use_spmd_wants_xla_0():
    xm.xla_device(1)
    with pytest.raises(RuntimeError, match="one device xla:0, but the current device is xla:1"):
        xr.use_spmd()


@in_spmd(enter=False, XLA_USE_SPMD="1")
def test_spmd_by_environment():
    assert xr.is_spmd()
    check_mode()
    x = marked(torch.arange(8.0), "model")
    assert [shard.data.tolist() for shard in x.local_shards][1] == [4, 5, 6, 7]


@in_spmd
def test_automatic_sharding_is_refused():
    with pytest.raises(ValueError, match="auto-sharding is not available"):
        xr.use_spmd(auto=True)


@in_spmd
def test_launch_is_refused():
    calls = []
    for start in (torch_xla.launch, xmp.spawn):
        with pytest.raises(RuntimeError, match="`nprocs` of 1 in SPMD mode"):
            start(calls.append)
    torch_xla.launch(calls.append, debug_single_process=True)
    xmp.spawn(calls.append, nprocs=1)
    assert calls == [0, 0]


@in_spmd(enter=False, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
def test_replicas_are_refused():
    with pytest.raises(RuntimeError, match="expected one process.*one of 2 replicas"):
        xr.use_spmd()
    result = start_python("-c", "import torch_xla", timeout=60, XLA_USE_SPMD="1")
    assert "one of 2 replicas" in result.stderr


# ------------------------------------------------------------------------- meshes


@in_spmd
def test_meshes():
    mesh = xs.Mesh([0, 2, 1, 3], (2, 2), ("data", "model"))
    assert list(mesh.shape().items()) == [("data", 2), ("model", 2)]
    assert mesh.size() == 4
    assert mesh.get_logical_mesh().tolist() == [[0, 2], [1, 3]]
    assert mesh.get_axis_name_idx("model") == 1
    assert mesh.get_axis_name_idx("other") is None
    assert str(mesh.get_op_sharding(("model", "data"))) == "{devices=[2,2]0,1,2,3}"
    unnamed = xs.Mesh(np.arange(4).reshape(4, 1), (4, 1))
    assert list(unnamed.shape().items()) == [(0, 4), (1, 1)]
    assert xs.get_1d_mesh("all").shape() == {"all": 4}
    assert mesh == xs.Mesh([0, 2, 1, 3], (2, 2), ("data", "model")) != unnamed
    assert xs.get_global_mesh() is None
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh


@in_spmd
def test_hybrid_meshes():
    mesh = xs.HybridMesh(ici_mesh_shape=(1, 2), dcn_mesh_shape=(2, 1), axis_names=("a", "b"))
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3]]
    assert list(mesh.shape().items()) == [("a", 2), ("b", 2)]
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 1), dcn_mesh_shape=(1, 2))
    # Groups are [0, 1] and [2, 3]; the second axis goes over them.
    assert mesh.get_logical_mesh().tolist() == [[0, 2], [1, 3]]
    mesh = xs.HybridMesh(ici_mesh_shape=(2,), dcn_mesh_shape=(2,))
    assert mesh.get_logical_mesh().tolist() == [0, 1, 2, 3]
    for shapes in (((2,), (1,)), ((2, 2), (1,))):
        with pytest.raises(ValueError, match="HybridMesh: expected"):
            xs.HybridMesh(ici_mesh_shape=shapes[0], dcn_mesh_shape=shapes[1])


def test_order_by_coordinates():
    torus = [(x, y, 0) for y in range(4) for x in range(2)]  # The plugin's order is another.
    order = order_by_coordinates(torus, (4, 2))
    assert [[torus[i] for i in row] for row in order.tolist()] == [
        [(0, y, 0), (1, y, 0)] for y in range(4)
    ]
    # One axis takes two dimensions.
    assert order_by_coordinates(torus, (8, 1)).ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    # Where no dimensions have these sizes, and where the box is not full, it is their order.
    cube = [(x, y) for x in range(3) for y in range(4)]
    assert order_by_coordinates(cube, (6, 2)).ravel().tolist() == list(range(12))
    assert order_by_coordinates([(0, 0), (0, 1), (1, 0)], (3,)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], (2, 2)), "expected 4 device_ids"),
        (([0, 0], (2,)), "device_ids from 0 that differ"),
        (([0, 1], (2,), ("a", "b")), "expected 1 axis_names"),
        (([0, 1], (1, 2), ("a", "a")), "strings as axis_names, each once"),
        (([], ()), "axes of at least 1"),
    ],
)
def test_bad_meshes(arguments, message):
    with pytest.raises(ValueError, match=message):
        xs.Mesh(*arguments)


# ------------------------------------------------------------------------- marks


@in_spmd
def test_shards_are_the_parts_of_the_tensor():
    whole = torch.arange(45.0).reshape(9, 5)  # Nothing is divisible.
    for spec in ALL_SPECS:
        x = marked(whole, *spec)
        assert isinstance(x, xs.XLAShardedTensor)
        covered = torch.zeros_like(whole)
        for device, shard in enumerate(x.local_shards):
            assert shard.shard_device == f"CPU:{device}"
            assert (shard.indices is ...) == (spec == (None, None))
            place = shard.indices if shard.indices is ... else tuple(shard.indices)
            assert torch.equal(shard.data, whole[place])
            if shard.replica == 0:
                covered[place] += 1
        assert torch.equal(covered, torch.ones_like(whole)), spec
        assert torch.equal(x.cpu(), whole)
    x = marked(whole, ("data", "model"), None)
    assert x.sharding_spec == "{devices=[4,1]0,1,2,3}" == spec_of(x)
    assert x.sharding_type is xs.ShardingType.TILED
    assert [shard.data.shape[0] for shard in x.local_shards] == [3, 3, 3, 0]
    assert marked(whole, None, "model").sharding_type is xs.ShardingType.PARTIAL
    assert marked(whole, None, None).sharding_type is xs.ShardingType.REPLICATED
    cube = marked(torch.arange(24).reshape(2, 3, 4), "model", None, "data")
    assert [shard.data[0, 0].tolist() for shard in cube.local_shards] == [
        [0, 1],
        [12, 13],
        [2, 3],
        [14, 15],
    ]
    assert marked(torch.tensor(3.0)).item() == 3  # A spec of no dimensions.


@in_spmd
def test_bad_marks():
    mesh = grid()
    x = torch.zeros(4, 4, device="xla")
    for spec, message in {
        ("data",): "entry for each of the 2 dimensions",
        ("data", "data"): "each axis of the mesh once",
        (("data", "model"), "model"): "each axis of the mesh once",
        ("rows", None): r"names \('data', 'model'\), got 'rows'",
        (2, None): "an axis from 0 to 1, got 2",
        (-1, None): "an axis from 0 to 1, got -1",
        (1.5, None): "got 1.5",
        "data": "a tuple with an entry for each dimension",
    }.items():
        with pytest.raises(ValueError, match=message):
            xs.mark_sharding(x, mesh, spec)
    with pytest.raises(ValueError, match="along 'a' of 3: expected devices of the 4"):
        xs.mark_sharding(x, xs.Mesh([0, 1, 2], (3,), ("a",)), (0, None))
    with pytest.raises(ValueError, match="along 0 of 2: expected devices of the 4"):
        xs.mark_sharding(x, xs.Mesh([0, 4], (2,)), (0, None))
    with pytest.raises(TypeError, match="expected an xla tensor, got one on cpu"):
        xs.mark_sharding(torch.zeros(4, 4), mesh, ("data", None))
    with pytest.raises(TypeError, match="expected an xla tensor, got one on cpu"):
        xs.clear_sharding(torch.zeros(4, 4))
    with pytest.raises(TypeError, match="expected a Mesh, got ndarray"):
        xs.mark_sharding(x, np.arange(4), ("data", None))
    with pytest.raises(TypeError, match="expected an xla tensor"):
        xs.XLAShardedTensor(torch.zeros(2))
    assert _XLAC._xla_marked_sharding(x) is None


def test_marks_need_the_mode():
    with pytest.raises(RuntimeError, match=r"call torch_xla.runtime.use_spmd\(\) first"):
        xs.mark_sharding(torch.zeros(2, device="xla"), xs.Mesh([0], (1,)), (0,))


@in_spmd
def test_a_mark_is_cleared_before_another():
    whole = torch.arange(16.0).reshape(4, 4)
    x = marked(whole, "data", None)
    xs.mark_sharding(x, grid(), ("data", None))  # The same.
    with pytest.raises(RuntimeError, match=r"clear_sharding\(\) before"):
        xs.mark_sharding(x, grid(), ("model", None))
    torch_xla.sync()
    plain = xs.clear_sharding(x)
    assert type(plain) is torch.Tensor
    assert spec_of(plain) == spec_of(x) == ""
    again = xs.mark_sharding(plain, grid(), (None, ("data", "model")))
    assert [shard.data[0].tolist() for shard in again.local_shards] == [[0], [1], [2], [3]]
    assert torch.equal(x.cpu(), whole)


@in_spmd
def test_a_sharded_tensor_is_the_tensor_that_was_marked():
    x = torch.ones(4, 4).to("xla")
    y = xs.mark_sharding(x, grid(), ("data", None))
    y.add_(1)
    assert x[0, 0].item() == 2
    assert type(y + 1) is type(y.t()) is torch.Tensor
    assert type(y.global_tensor) is torch.Tensor
    assert "sharding_spec='{devices=[2,1,2]0,1,2,3" in repr(y)
    assert xs.wrap_as_sharded_tensor(y) is y
    assert type(xs.wrap_as_sharded_tensor(torch.ones(2, device="xla"))) is xs.XLAShardedTensor
    assert type(xs.wrap_if_sharded(x)) is xs.XLAShardedTensor
    plain = torch.ones(2, device="xla")
    assert xs.wrap_if_sharded(plain) is plain
    assert xs.wrap_if_sharded(3) == xs.unwrap_sharded_tensor(3) == 3
    assert type(xs.unwrap_sharded_tensor(y)) is torch.Tensor
    parameter = nn.Parameter(y)
    assert isinstance(parameter, nn.Parameter) and isinstance(parameter, xs.XLAShardedTensor)
    copied = copy.deepcopy(parameter)
    assert isinstance(copied, nn.Parameter)
    assert copied.sharding_spec == y.sharding_spec
    y.mul_(2)
    assert copied[0, 0].item() == 2
    file = io.BytesIO()
    torch.save([y, parameter], file)
    file.seek(0)
    loaded = torch.load(file)
    assert type(loaded[0]) is torch.Tensor
    assert loaded[0].tolist() == [[4.0] * 4] * 4
    assert xs.XLAShardedTensor(plain, requires_grad=True).requires_grad
    assert not plain.requires_grad
    leaf = torch.ones(4, requires_grad=True, device="xla")
    (xs.mark_sharding(leaf, grid(), ("data",)) ** 2).sum().backward()
    assert type(leaf.grad) is torch.Tensor and leaf.grad.tolist() == [2.0] * 4


@in_spmd
def test_local_shards_are_loaded():
    x = marked(torch.arange(15.0).reshape(5, 3), ("model", "data"), None)
    shards = x.local_shards
    for shard in shards:
        shard.data.mul_(10)
    x.load_local_shards_(shards)
    assert torch.equal(x.cpu(), torch.arange(15.0).reshape(5, 3) * 10)
    assert x.sharding_spec == "{devices=[4,1]0,2,1,3}"
    with pytest.raises(ValueError, match="expected 4 shards, one for each device, got 3"):
        x.load_local_shards_(shards[:3])
    with pytest.raises(ValueError, match=r"expected a shard 1 of shape \[1, 3\]"):
        x.load_local_shards_([*shards[1:], shards[0]][::-1])
    shards[2].data = shards[2].data.double()
    with pytest.raises(ValueError, match="expected a shard 2 .* and torch.float32"):
        x.load_local_shards_(shards)


@in_spmd
def test_marks_stay_through_what_writes():
    spec = "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    x = marked(torch.arange(20.0).reshape(5, 4), "data", None)
    expected = torch.arange(20.0).reshape(5, 4)

    def check() -> None:
        assert spec_of(x) == spec
        assert [tile.shape[0] for tile in _XLAC._xla_tiles(x)] == [3, 3, 2, 2]
        assert torch.equal(x.cpu(), expected)

    for write in (
        lambda t: t.add_(1),
        lambda t: t[1:3].mul_(2),
        lambda t: t.t()[0].fill_(7),
        lambda t: t.copy_(torch.ones(5, 4) * 3),  # From the host.
        lambda t: t.copy_((torch.eye(5, 4) + 1).to(t.device)),  # From data that lies otherwise.
        lambda t: t.index_fill_(1, torch.tensor([2], device=t.device), -1.0),
        lambda t: t.zero_(),
    ):
        write(x)
        write(expected)
        torch_xla.sync()
        check()
    replicated = (torch.eye(5, 4) * 5).to("xla") * 1
    torch_xla.sync()
    x.copy_(replicated)
    expected.copy_(replicated.cpu())
    check()
    like = torch.zeros_like(x)
    assert spec_of(like) == spec
    module = nn.Linear(4, 4).to("xla")
    xs.mark_sharding(module.weight, grid(), (None, "model"))
    state = {name: torch.randn(tensor.shape) for name, tensor in module.state_dict().items()}
    module.load_state_dict(state)
    assert [tile.shape for tile in _XLAC._xla_tiles(module.weight)] == [(4, 2)] * 4
    assert torch.equal(module.weight.cpu(), state["weight"])


@in_spmd
def test_gradients_are_marked():
    base = torch.randn(4, 6)
    x = base.to("xla").requires_grad_()
    hidden = xs.mark_sharding_with_gradients(x * 2, grid(), ("data", "model"))
    assert type(hidden) is torch.Tensor
    seen = []
    hidden.register_hook(lambda gradient: seen.append(gradient))
    x.register_hook(lambda gradient: seen.append(gradient))
    (hidden**2).sum().backward()
    torch_xla.sync()
    assert spec_of(hidden) == "{devices=[2,2]0,1,2,3}"
    torch.testing.assert_close(x.grad.cpu(), 8 * base)
    hlo = _XLAC._get_xla_tensors_hlo([xs.mark_sharding_with_gradients(x * 2, grid(), (0, 1)).sum()])
    assert "Sharding" in hlo or "sdy.sharding_constraint" in hlo


# ------------------------------------------------------------------------- computing


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


@in_spmd
def test_matrix_products():
    a, b = torch.randn(6, 10), torch.randn(10, 7)
    for mesh in (grid(), grid(4, 1)):
        for left, right in (
            (("data", None), (None, "model")),
            (("data", "model"), ("model", None)),
            ((None, ("data", "model")), (("data", "model"), None)),
            ((None, None), ("data", None)),
        ):
            close(marked(a, *left, mesh=mesh) @ marked(b, *right, mesh=mesh), a @ b)


@in_spmd
def test_reductions_and_softmax():
    a = torch.randn(7, 9)
    functions = (
        lambda t: torch.stack([t.sum(), t.mean(), t.max(), t.std(), t.norm()]),
        lambda t: torch.cat([t.sum(0), t.amin(0), t.softmax(0).flatten()]),
        lambda t: torch.cat([t.prod(1), t.logsumexp(1), t.log_softmax(1).flatten()]),
        lambda t: torch.cat([t.cumsum(0).flatten(), t.sort(1).values.flatten()]),
        lambda t: torch.cat([t.argmax(1), t.topk(3, 0).indices.flatten()]),
    )
    for spec in (("data", "model"), (("data", "model"), None), (None, "model")):
        for function in functions:
            close(function(marked(a, *spec)), function(a))


@in_spmd
def test_layers():
    torch.manual_seed(0)
    image, tokens = torch.randn(4, 3, 9, 9), torch.randint(0, 11, (4, 5))
    convolution, embedding = nn.Conv2d(3, 8, 3, padding=1), nn.Embedding(11, 6)
    normalization = nn.BatchNorm2d(8)
    model = nn.Sequential(convolution, normalization, nn.ReLU(), nn.MaxPool2d(2))
    on_xla, lookup = copy.deepcopy(model).to("xla"), copy.deepcopy(embedding).to("xla")
    mesh = grid()
    xs.mark_sharding(on_xla[0].weight, mesh, ("model", None, None, None))
    xs.mark_sharding(lookup.weight, mesh, ("model", None))
    expected = model(image)
    actual = on_xla(marked(image, "data", None, None, None))
    close(actual, expected, 1e-4)
    actual.square().sum().backward()
    expected.square().sum().backward()
    for p, q in zip(on_xla.parameters(), model.parameters(), strict=True):
        close(p.grad, q.grad, 1e-3)
    found, wanted = lookup(marked(tokens, "data", None)), embedding(tokens)
    close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    close(lookup.weight.grad, embedding.weight.grad)
    queries = torch.randn(4, 2, 6, 8)
    heads = marked(queries, "data", "model", None, None)
    close(
        F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        F.scaled_dot_product_attention(queries, queries, queries, is_causal=True),
    )


def check_convolution(image, weight, of_image, of_weight, of_result, function=F.conv2d, **options):
    """Compares it and its gradients with the CPU's; None is no mark."""
    ours = [t.to("xla").requires_grad_() for t in (image, weight)]
    image, weight = image.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = function(image, weight, **options)
    for t, spec in zip(ours, (of_image, of_weight), strict=True):
        if spec:
            xs.mark_sharding(t, grid(), spec)
    found = function(*ours, **options)
    if of_result:
        found = xs.mark_sharding_with_gradients(found, grid(), of_result)
    found.sin().sum().backward()
    expected.sin().sum().backward()
    close(found.detach(), expected.detach(), 1e-4)
    for t, u in zip(ours, (image, weight), strict=True):
        close(t.grad, u.grad, 1e-4)


ALL = ("data", "model")
MARKS_OF_MAPS = [
    ((None, None, None, "data"), None, None),
    ((None, None, None, "data"), ("model", None, None, None), None),
    ((None, None, None, "data"), (None, "model", None, None), ("model", None, None, "data")),
    (("model", None, None, "data"), ("data", "model", None, None), None),
    ((None, None, "model", "data"), None, ("model", None, None, "data")),
    ((None, "model", None, "data"), (None, "model", None, None), None),
    (("data", None, None, None), None, (None, "model", None, "data")),
    # Some are split by both sides, some by one over some of the axes.
    ((None, None, "model", "data"), None, (None, None, None, "data")),
    ((None, None, "data", None), (ALL, None, None, None), (None, None, "model", "data")),
    ((None, "data", "model", None), (ALL, None, None, None), (None, None, None, "data")),
    (None, (ALL, None, None, None), (None, None, None, "data")),
]


@in_spmd
def test_convolutions_of_maps_that_are_split():
    """XLA's partitioner adds copies up where maps are split over some of the mesh's axes only."""
    for marks in MARKS_OF_MAPS:
        check_convolution(torch.randn(4, 2, 6, 6), torch.randn(4, 2, 3, 3), *marks, padding=1)
    odd, wide = torch.randn(3, 4, 7, 5), (None, None, "model", "data")
    for function, weight in ((F.conv2d, (4, 1, 4, 4)), (F.conv_transpose2d, (4, 3, 3, 3))):
        options = {"padding": "same", "groups": 4} if function is F.conv2d else {"stride": 2}
        kernel = torch.randn(weight)
        check_convolution(odd, kernel, wide, None, (None, None, None, "data"), function, **options)
    # What is no image before: rows of pixels, channels last, and an image without a batch.
    weight, rows = torch.randn(4, 2, 3, 3), (None, "data", None)
    for shape, spec, to_image in (
        ((4, 36, 2), rows, lambda t: t.mT.unflatten(2, (6, 6))),
        ((4, 6, 6, 2), (*rows, None), lambda t: t.permute(0, 3, 1, 2)),
        ((2, 6, 6), rows, lambda t: t),
    ):
        check_convolution(
            torch.randn(shape), weight, spec, None, None, lambda t, w, f=to_image: F.conv2d(f(t), w)
        )


@in_spmd
def test_convolutions_of_maps_that_are_split_over_all_devices_are_split():
    """Batch and sides over all devices are what the partitioner convolves in parts, and right."""
    image, weight = torch.randn(4, 2, 8, 8), torch.randn(4, 2, 3, 3)
    for spec, whole in (
        (("data", None, "model", None), False),
        ((None, None, "data", "model"), False),
        (("data", None, None, None), True),
    ):
        check_convolution(image, weight, spec, None, None, padding=1)
        y = F.conv2d(marked(image, *spec), weight.to("xla"), padding=1)
        text = _XLAC._get_xla_tensors_hlo([y])
        assert ("{?}" in text or "unspecified_dims" in text) == whole


@in_spmd
def test_convolutions_of_maps_that_are_split_in_a_loop():
    kernels = torch.randn(2, 2, 2, 3, 3)
    for spec in ((None, None, None, "data"), ("data", None, None, None)):
        images, expected = torch.randn(4, 2, 6, 6), kernels.clone().requires_grad_()
        ours = kernels.to("xla").requires_grad_()
        start = xs.mark_sharding(images.to("xla"), grid(), spec).global_tensor
        found = scan(lambda x, w: (F.conv2d(x, w, padding=1), x.sum()), start, ours)[0]
        for w in expected:
            images = F.conv2d(images, w, padding=1)
        found.sin().sum().backward()
        images.sin().sum().backward()
        close(found.detach(), images.detach(), 1e-4)
        close(ours.grad, expected.grad, 1e-3)


@in_spmd
def test_strides_of_split_maps_with_much_padding():
    """XLA's partitioner ends the process at interior padding whose first elements are cropped."""
    line = xs.Mesh(np.arange(4), (4,), ("data",))
    for dtype in (torch.float32, torch.float64):
        for size, kernel, stride, padding in ((12, 3, 2, 3), (10, 3, 3, 1), (8, 1, 2, 1)):
            image = torch.randn(2, 3, size, dtype=dtype).requires_grad_()
            weight = torch.randn(3, 3, kernel, dtype=dtype)
            on_xla = image.detach().to("xla").requires_grad_()
            xs.mark_sharding(on_xla, line, (None, None, "data"))
            for function in (F.conv1d, F.conv_transpose1d):
                image.grad = on_xla.grad = None
                expected = function(image, weight, stride=stride, padding=padding)
                found = function(on_xla, weight.to("xla"), stride=stride, padding=padding)
                expected.sin().sum().backward()
                found.sin().sum().backward()
                close(found.detach(), expected.detach(), 1e-4)
                close(on_xla.grad, image.grad, 1e-4)


@in_spmd
def test_random_numbers_do_not_depend_on_the_sharding():
    found = []
    for spec in (None, ("data", None), ("model", "data"), (("data", "model"), None)):
        torch.manual_seed(3)
        x = torch.zeros(8, 6, device="xla")
        if spec:
            xs.mark_sharding(x, grid(), spec)
        x.normal_()
        dropped = F.dropout(torch.ones(8, 6, device="xla"), 0.5)
        if spec:
            xs.mark_sharding(dropped, grid(), spec)
        found.append((x.cpu(), dropped.cpu(), torch.randperm(9, device="xla").cpu()))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@in_spmd
def test_views_of_marked_tensors():
    whole = torch.arange(48.0).reshape(8, 6)
    x = marked(whole, "data", "model")
    expected = whole.clone()
    close(x[1:7:2].t().reshape(2, 9), expected[1:7:2].t().reshape(2, 9))
    close(torch.cat([x[:3], x[5:]]).flip(0), torch.cat([expected[:3], expected[5:]]).flip(0))
    close(x.roll(3, 0)[:, 2:4], expected.roll(3, 0)[:, 2:4])
    x.view(4, 12)[2].neg_()
    expected.view(4, 12)[2].neg_()
    close(x, expected)
    # A mark on a view is a hint for its value.
    part = xs.mark_sharding(x[2:6], grid(), ("model", None))
    close(part * 2, expected[2:6] * 2)
    assert spec_of(x) == "{devices=[2,2]0,1,2,3}"
    assert [shard.data.shape for shard in part.local_shards]
    # Where several elements are one in memory there is no place for it.
    base = torch.arange(8.0).reshape(2, 1, 4)
    for view in (lambda t: t.expand(2, 3, 4), lambda t: t.expand(2, 3, 4).transpose(1, 2)[:, 1:]):
        for tensor in (base.to("xla"), base.to("xla").requires_grad_()):
            expanded = xs.mark_sharding(view(tensor), grid(), ("data", None, None))
            close(expanded * 2, view(base) * 2)
    close(
        torch.where(x > 3, x, 0.0)[x[:, 0] > 5],
        torch.where(expected > 3, expected, 0.0)[expected[:, 0] > 5],
    )


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@in_spmd
def test_training_equals_the_cpu_and_compiles_once():
    for name, make in OPTIMIZERS.items():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 3))
        on_xla = copy.deepcopy(model).to("xla")
        mesh = grid()
        xs.mark_sharding(on_xla[0].weight, mesh, ("model", None))
        xs.mark_sharding(on_xla[0].bias, mesh, ("model",))
        xs.mark_sharding(on_xla[2].weight, mesh, (None, "model"))
        optimizer, on_xla_optimizer = make(model.parameters()), make(on_xla.parameters())
        torch_xla.sync()
        met.clear_all()
        for _ in range(5):
            x, y = torch.randn(8, 10), torch.randint(0, 3, (8,))
            optimizer.zero_grad()
            on_xla_optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found = F.cross_entropy(on_xla(marked(x, "data", None)), marked(y, "data"))
            found.backward()
            on_xla_optimizer.step()
            torch_xla.sync()
            close(found, loss.detach(), 1e-4)
        # The first step makes the optimizer's state.
        assert met.counter_value("UncachedCompile") <= 2, name
        for p, q in zip(on_xla.parameters(), model.parameters(), strict=True):
            close(p, q.detach(), 1e-3)
        for state in on_xla_optimizer.state[on_xla[0].weight].values():
            if isinstance(state, torch.Tensor) and state.dim() == 2:
                assert [tile.shape for tile in _XLAC._xla_tiles(state)] == [(8, 10)] * 4, name


@in_spmd(alone=True)
def test_a_step_is_one_program_for_all_devices():
    x = marked(torch.randn(8, 4), ("data", "model"), None)
    weight = marked(torch.randn(4, 4), None, "model")
    torch_xla.sync()
    met.clear_all()
    for _ in range(6):
        weight.sub_((x @ weight).mean(0) * 0.1)
        torch_xla.sync()
    xm.wait_device_ops()
    assert met.counter_value("UncachedCompile") == 1
    assert met.metric_data("ExecuteTime")[0] == 6


@in_spmd
def test_extremes_of_parts_keep_a_nan():
    """Of so many that XLA:CPU's own would drop it."""
    x = torch.randn(512, 512)
    x[3, 5], x[400, 7] = float("nan"), float("inf")
    for spec in ((0, None), (None, 1), (0, 1)):
        y = marked(x, *spec)
        for name in ("amax", "amin"):
            for dim in (0, 1, (0, 1)):
                expected = getattr(torch, name)(x, dim)
                actual = getattr(torch, name)(y, dim).cpu()
                torch.testing.assert_close(actual, expected, equal_nan=True)
        assert torch.equal(y.argmax(0).cpu(), x.argmax(0))


@in_spmd
def test_extremes_that_devices_exchange_keep_a_nan():
    x = torch.randn(8, 6)
    x[1, 2] = x[6, 4] = float("nan")
    x[7, 0] = float("inf")
    into = torch.zeros(3, 6)
    into[2, 3] = float("nan")
    places = torch.arange(8).remainder(2)[:, None].expand(8, 6).contiguous()
    cases = {
        "amax": lambda t: t.amax(0),
        "amin": lambda t: t.amin(1),
        "all": lambda t: t.aminmax(),
        "max": lambda t: t.max(0),
        "norm": lambda t: t.norm(float("inf"), 0),
        "scatter": lambda t: into.to(t.device).scatter_reduce(0, places.to(t.device), t, "amax"),
        "bag": lambda t: F.embedding_bag(places.to(t.device), t, mode="max"),
    }
    for spec in (("data", None), (None, "model"), ("data", "model"), (("data", "model"), None)):
        y = marked(x, *spec)
        for name, f in cases.items():
            found, expected = f(y), f(x)
            if not isinstance(found, tuple):
                found, expected = (found,), (expected,)
            for one, other in zip(found, expected, strict=True):
                same = torch.allclose(one.cpu().float(), other.float(), equal_nan=True)
                assert same, (name, spec, one, other)


@in_spmd
def test_uneven_tiles_of_indices():
    """XLA's partitioner pads what it divides, 64-bit indices, too; some are out of range."""
    at, source = torch.arange(7) % 6, torch.arange(28.0).view(7, 4)
    weight = torch.arange(24.0).view(6, 4)
    functions = {
        "index_add": lambda at, x, w: w.index_add(0, at, x),
        "bincount": lambda at, x, w: torch.bincount(at, minlength=6),
        "index_put": lambda at, x, w: w.index_put((at,), x, accumulate=True),
        "embedding": lambda at, x, w: torch.autograd.grad(
            (F.embedding(at, w.requires_grad_()) * x).sum(), w
        )[0],
        "bag": lambda at, x, w: F.embedding_bag(at, w, at.new_tensor([0, 3, 3]), mode="mean"),
    }
    for name, function in functions.items():
        expected = function(at, source, weight.clone())
        found = function(
            marked(at, ("data", "model")), marked(source, "data", None), weight.to("xla")
        )
        torch.testing.assert_close(found.cpu(), expected, msg=lambda text, n=name: f"{n}: {text}")
    far = torch.tensor([0, 1, 2, 3, 4, 2**32 + 1, 2**40])
    at = marked(far, "data") * 1  # The device's: the host's own are checked.
    found = weight.to("xla").index_add(0, at, marked(source, "data", None))
    expected = weight.index_add(0, far[:5], source[:5])
    torch.testing.assert_close(found.cpu(), expected)


@in_spmd
def test_an_array_is_padded_by_several_values():
    """The partitioner gives an array's parts that are padded for one window to all with it."""
    cases = {
        "pads": lambda x: [F.pad(x, (0, 0, 1, 2), value=v) for v in (0.0, 1.0, 2.0)],
        "scans": lambda x: [
            *(f(0) for f in (x.cumprod, x.cumsum, x.logcumsumexp)),
            *(f(0)[0] for f in (x.cummax, x.cummin)),
        ],
        "pools": lambda x: [
            F.max_pool1d(x.T[None], 3, 1, 1),
            -F.max_pool1d(-x.T[None], 3, 1, 1),
            F.avg_pool1d(x.T[None], 3, 1, 1),
        ],
    }
    for rows in (8, 9):
        x = torch.randn(rows, 3)
        for name, f in cases.items():
            results = f(marked(x, "data", None))
            torch_xla.sync()
            for i, (found, expected) in enumerate(zip(results, f(x), strict=True)):
                torch.testing.assert_close(found.cpu(), expected, msg=lambda m: f"{name} {i}: {m}")  # noqa: B023


@in_spmd
def test_transforms_of_unevenly_split_arrays():
    x = torch.randn(8, 7)
    for spec in (None, "data"), ("model", "data"), (None, ("data", "model")):
        found = marked(x, *spec)
        for f in torch.fft.fft, torch.fft.fft2, torch.fft.rfft, lambda t: torch.fft.irfft(t + 0j):
            torch.testing.assert_close(f(found).cpu(), f(x), rtol=1e-4, atol=1e-4)


@in_spmd(CPU_NUM_DEVICES="8")
def test_meshes_of_one_program_have_the_devices_in_their_own_orders():
    layer, x = nn.GRU(12, 16), torch.randn(8, 5, 12)
    expected = layer(x)[0].detach()
    orders = np.arange(8), np.array([6, 2, 1, 7, 3, 0, 5, 4]), np.array([7, 0, 3, 5, 2, 1, 6, 4])
    meshes = [xs.Mesh(order, (2, 2, 2), ("a", "b", "c")) for order in orders]
    for of_hidden, of_input, specs in (
        (1, 0, [(0, 1), (None, 1)]),
        (1, 1, [((1, 2), 0), (2, None)]),
        (1, 2, [(1, 0), (0, 1)]),
    ):
        marked = copy.deepcopy(layer).to("xla")
        weights = (marked.weight_hh_l0, of_hidden), (marked.weight_ih_l0, of_input)
        with torch.no_grad():
            for (weight, mesh), spec in zip(weights, specs, strict=True):
                xs.mark_sharding(weight, meshes[mesh], spec)
            found = marked(xs.mark_sharding(x.to("xla"), meshes[0], (0, None, 1)))[0]
            doubled = xs.mark_sharding(found * 2, meshes[1], (0, None, (1, 2)))
            torch_xla.sync()
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        for shard in doubled.local_shards:
            part = 2 * expected[tuple(shard.indices)]
            torch.testing.assert_close(shard.data.cpu(), part, rtol=1e-4, atol=1e-5)


@in_spmd(CPU_NUM_DEVICES="8")
def test_loops_that_wait_for_each_other_have_threads():
    """A device holds a thread for each loop that waits; 8 threads for 8 devices were too few."""
    torch_xla.device()
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert sum(name.startswith("tf_XLAEigen") for name in names) >= 8 * 16
    # Processes that this one starts have no use for it.
    assert b"PJRT_NPROC" not in subprocess.run(["env"], stdout=subprocess.PIPE, check=True).stdout


@in_spmd(CPU_NUM_DEVICES="8")
def test_a_mesh_has_the_devices_in_any_order():
    """Where partitions have the devices' numbers, the partitioner pairs the wrong ones."""
    layer, x = nn.LSTM(12, 16), torch.randn(4, 5, 12)

    def results(layer, x):
        out = layer(x)[0]
        return out, *torch.autograd.grad(out.square().sum(), layer.parameters())

    expected = results(layer, x)
    device_layer, device_x = copy.deepcopy(layer).to("xla"), x.to("xla")
    mesh = xs.Mesh(np.array([7, 0, 3, 5, 2, 1, 6, 4]), (2, 2, 2), ("a", "b", "c"))
    for spec in (0, 1), ((1, 0), 2):
        with torch.no_grad():
            for weight in device_layer.weight_hh_l0, device_layer.weight_ih_l0:
                xs.mark_sharding(xs.clear_sharding(weight), mesh, spec)
        found = results(device_layer, device_x)
        doubled = xs.mark_sharding(found[0] * 2, mesh, (*spec, None))
        torch_xla.sync()
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
        for shard in doubled.local_shards:
            part = 2 * expected[0][tuple(shard.indices)]
            torch.testing.assert_close(shard.data.cpu(), part, rtol=1e-4, atol=1e-5)
