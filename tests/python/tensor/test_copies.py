"""Copies of tensors: files, modules that move, memory that changes hands."""

import copy
import io
import pickle
import tempfile

import pytest
import torch
from testing.tensors import DTYPES, FLOAT8, XLA, Net, bits, looks, sample, xla
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.utils import serialization

# ---------------------------------------------------------------- copies and files


# PyTorch cannot unpickle (other than by torch.load) these on the CPU either.
NOT_PICKLED = [torch.uint16, torch.uint32, torch.uint64, *FLOAT8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pickle_and_deepcopy(dtype):
    x = sample(dtype, 2, 3).to("xla")
    copies = [copy.deepcopy(x)]
    if dtype not in NOT_PICKLED:
        copies.append(pickle.loads(pickle.dumps(x)))
    for y in copies:
        assert y.device == XLA and y.dtype == dtype and y.shape == x.shape
        assert bits(y) == bits(x)


def test_deepcopy_is_a_copy():
    x = torch.ones(2, device="xla", requires_grad=True)
    (x * 3).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad and y.grad.tolist() == [3, 3]
    with torch.no_grad():
        x.add_(1)
    assert y.tolist() == [1, 1]
    a = torch.ones(2, device="xla")
    one, two = copy.deepcopy([a, a])
    assert one is two
    p = copy.deepcopy(nn.Parameter(a))
    assert isinstance(p, nn.Parameter) and p.device == XLA
    with pytest.raises(RuntimeError):
        copy.deepcopy(x * 2)  # as on CPU: only leaves


def test_pickle_keeps_requires_grad():
    p = pickle.loads(pickle.dumps(nn.Parameter(xla([1.0, 2.0]))))
    assert isinstance(p, nn.Parameter) and p.requires_grad and p.device == XLA
    x = pickle.loads(pickle.dumps(torch.ones(2, device="xla", requires_grad=True)))
    assert x.requires_grad and x.is_leaf


def save_and_load(obj, **kwargs):
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, **kwargs)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_save_and_load(dtype, weights_only):
    x = sample(dtype, 3, 2).to("xla")
    y = save_and_load(x, weights_only=weights_only)
    assert y.device == XLA and y.dtype == dtype and bits(y) == bits(x)


@pytest.mark.parametrize("weights_only", [True, False])
def test_load_elsewhere(weights_only):
    x = xla([1.0, 2.0])
    for location in ("cpu", torch.device("cpu")):
        y = save_and_load(x, map_location=location, weights_only=weights_only)
        assert y.device.type == "cpu" and y.tolist() == [1, 2]


def test_load_moves_a_cpu_checkpoint_to_the_device():
    loaded = save_and_load(torch.ones(2), map_location="xla")
    assert loaded.device == XLA and loaded.tolist() == [1, 1]


@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load_a_state_dict(weights_only):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("xla")
    state = save_and_load(model.state_dict(), weights_only=weights_only)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("xla")
    other.load_state_dict(state)
    for (name, a), (_, b) in zip(
        model.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert state[name].device == XLA and b.device == XLA and torch.equal(a, b), name


def test_save_a_view():
    x = torch.arange(12.0, device="xla").view(3, 4)
    assert save_and_load(x.t()[1:]).tolist() == x.t()[1:].tolist()


# ---------------------------------------------------------------- modules


def test_module_to_and_back():
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(5, 3)
    expected = model(x)
    model.to("xla")
    assert {p.device for p in model.parameters()} == {XLA} and model.scale.device == XLA
    assert all(p.is_leaf and p.requires_grad for p in model.parameters())
    torch.testing.assert_close(model(x.to("xla")).cpu(), expected)
    model.to("cpu")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    torch.testing.assert_close(model(x), expected)


def test_module_to_moves_gradients():
    model = Net()
    model(torch.ones(2, 3)).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.to("xla")
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert p.grad.device == XLA
        torch.testing.assert_close(p.grad.cpu(), grad)


@pytest.mark.parametrize("swap", [True, False])
def test_module_to_with_swapped_parameters(swap):
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = Net()
        expected = [p.detach().clone() for p in model.parameters()]
        model.to("xla")
        state = model.state_dict()
        model.load_state_dict({name: value.cpu() + 1 for name, value in state.items()})
        for p, value in zip(model.parameters(), expected, strict=True):
            assert p.device == XLA and isinstance(p, nn.Parameter)
            torch.testing.assert_close(p.detach().cpu(), value + 1)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def test_module_dtypes():
    model = Net().to("xla", torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model(torch.ones(2, 3, device="xla", dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert next(model.double().parameters()).dtype == torch.float64


def test_load_state_dict_copies_in_place_and_assigns():
    source, model = Net(), Net().to("xla")
    weight = model.one.weight
    model.load_state_dict(source.state_dict())
    assert model.one.weight is weight and weight.device == XLA
    torch.testing.assert_close(weight.detach().cpu(), source.one.weight.detach())
    model.load_state_dict({k: v.to("xla") for k, v in source.state_dict().items()}, assign=True)
    assert model.one.weight is not weight and model.one.weight.device == XLA


def test_to_empty_and_meta():
    with torch.device("meta"):
        model = Net()
    model.to_empty(device="xla")
    model.load_state_dict(Net().state_dict())
    assert model.one.weight.device == XLA
    assert model(torch.ones(1, 3, device="xla")).shape == (1, 2)


def test_parameter_and_data_swaps():
    p = nn.Parameter(xla([1.0, 2.0]))
    p.data = xla([5.0, 6.0])
    assert p.tolist() == [5, 6] and p.requires_grad and p.is_leaf
    view = p.data
    view.mul_(2)
    assert p.tolist() == [10, 12]
    p.data.copy_(torch.tensor([1.0, 2.0]))
    assert p.tolist() == [1, 2]
    p.data = p.data.to(torch.float64)
    assert p.dtype == torch.float64
    p.data = torch.ones(3, 2, device="xla", dtype=torch.float64)
    assert p.shape == (3, 2) and p.tolist() == [[1, 1]] * 3
    x = torch.zeros(2)
    x.data = torch.ones(3)
    assert x.tolist() == [1, 1, 1]


def test_swap_tensors():
    a, b = xla([1.0]), xla([2.0, 3.0])
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [2, 3] and b.tolist() == [1]
    cpu, x = torch.zeros(1), xla([7.0])
    torch.utils.swap_tensors(cpu, x)
    assert cpu.device == XLA and cpu.tolist() == [7] and x.device.type == "cpu"


def test_set_():
    a, b = xla([1.0, 2.0]), xla([3.0, 4.0, 5.0])
    a.set_(b)
    assert a.tolist() == [3, 4, 5]
    b.add_(1)  # they share memory now
    assert a.tolist() == [4, 5, 6]
    a.set_(b[1:])
    a.zero_()
    assert b.tolist() == [4, 0, 0]
    a.set_()
    assert a.shape == (0,) and a.untyped_storage().nbytes() == 0 and a.dtype == b.dtype
    assert b.tolist() == [4, 0, 0]


def test_is_set_to(device):
    """The same elements of the same storage in the same order."""
    for x in (torch.ones(3, 4), torch.ones(3, 4).to(device)):
        answers = [
            x.is_set_to(other)
            for other in (x, x.view(3, 4), x.detach(), x[:], x[1:], x.view(4, 3), x.clone(), x.t())
        ]
        assert answers == [True, True, True, True, False, False, False, False]
        assert x[1:].is_set_to(x[1:])


def test_resize_():
    cpu, x = torch.arange(6.0), torch.arange(6.0, device="xla")
    for sizes in ((2, 3), (2, 2), (3,), (3, 2)):
        cpu.resize_(sizes)
        x.resize_(sizes)
        assert x.shape == cpu.shape and x.tolist() == cpu.tolist()
    x.resize_(4, 4)
    assert x.shape == (4, 4) and x.view(-1)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    y = torch.empty(0, device="xla")
    y.resize_(2).copy_(torch.ones(2))
    assert y.tolist() == [1, 1]
    z = torch.ones(3, device="xla").resize_(0)
    assert z.shape == (0,) and z.tolist() == []


@pytest.mark.parametrize("sizes", [(0, 24), (8, 24), (40, 24), (24,)])
def test_a_resized_storage_keeps_what_fits(sizes):
    """As on the CPU, where what is new has no values."""
    kept = {}
    for device in ("cpu", "xla"):
        x = torch.arange(6, dtype=torch.float32).to(device).view(2, 3)
        for size in sizes:
            x.untyped_storage().resize_(size)
            assert x.untyped_storage().nbytes() == size
        kept[device] = x.view(-1)[: min(*sizes, 24) // 4].tolist()
    assert kept["xla"] == kept["cpu"]


def test_resize_beside_another_look():
    # On CPU the other tensor keeps seeing the first elements of the same memory.
    x = torch.arange(6.0, device="xla")
    alias = x.detach()
    view = x[2:4]
    x.resize_(4)
    assert alias.tolist() == [0, 1, 2, 3, 4, 5]
    assert view.tolist() == [2, 3]
    x.zero_()
    assert alias.tolist() == [0, 0, 0, 0, 4, 5]
    assert view.tolist() == [0, 0]


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_large_fills(value, dtype):
    """Zeros come from pages that nobody has written."""
    x = torch.full((1 << 18, 5), value, dtype=dtype, device="xla")
    torch_xla.sync()
    want = torch.full((1 << 18, 5), value, dtype=dtype)
    assert torch.equal(x.cpu(), want) and torch.equal(x.cpu().signbit(), want.signbit())
    x += 1  # Into the buffer that the zeros were copied to.
    torch_xla.sync()
    assert torch.equal(x.cpu(), want + 1)
    y = torch.zeros(1 << 18, 5, dtype=dtype, device="xla")
    torch_xla.sync()
    assert y.cpu().count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_large_zeros_of_other_dtypes(dtype):
    x = torch.zeros(1 << 20, 2, dtype=dtype, device="xla")
    torch_xla.sync()
    assert x.dtype == dtype and x.cpu().count_nonzero() == 0


# ---------------------------------------------------------------- copies that share memory


def as_copied(x):
    return copy.copy(x)


def by_reduction(x):
    function, arguments = x.__reduce_ex__(2)[:2]
    return function(*arguments)


@pytest.mark.parametrize("copied", [as_copied, by_reduction])
def test_copy_shares_memory(device, copied):
    """As on the CPU and on CUDA: a new tensor on the same device, over the same memory."""
    results = {}
    for on in ("cpu", device):
        for name, x in looks(on).items():
            if name == "uint16":
                continue  # PyTorch rebuilds it from a file alone.
            y = copied(x)
            assert y is not x and y.device == x.device and type(y) is type(x), name
            assert y.requires_grad == x.requires_grad and y.is_leaf and y.shape == x.shape, name
            assert getattr(y, "note", "") == getattr(x, "note", ""), name
            assert y.is_conj() == x.is_conj(), name
            with torch.no_grad():
                (x.detach() if name == "subclass" else x).fill_(7)
                seen = y.detach().tolist()
                y.detach().fill_(5)
                results.setdefault(name, []).append((seen, x.detach().tolist()))
    for name, (reference, ours) in results.items():
        assert ours == reference, name


# Of memory of 12 numbers, which the look has in another dtype.
OTHER_DTYPES = {
    "narrower": (torch.int32, lambda x: x[1:].view(torch.int16)),
    "wider": (torch.int16, lambda x: x.view(torch.int64)[1:]),
    "as wide": (torch.float32, lambda x: x[2].view(torch.int32)),
    "a step": (torch.int32, lambda x: x.view(torch.uint8)[1:, ::3]),
    "transposed": (torch.int32, lambda x: x.view(torch.int16).T),
    "real parts": (torch.complex64, lambda x: x[1].real),
    "imaginary parts": (torch.complex64, lambda x: x[1:].imag),
    "pairs": (torch.complex64, lambda x: torch.view_as_real(x)[2:]),
    "complex numbers": (torch.float32, lambda x: torch.view_as_complex(x.view(3, 2, 2))[1:]),
    # Looks at a view that is no block of the memory.
    "columns": (torch.float32, lambda x: x[:, 1:3].view(torch.int32)),
    "narrower columns": (torch.int32, lambda x: x[1:, 1:3].view(torch.int16)[:, 1:]),
    "wider columns": (torch.int32, lambda x: x[:, 2:].view(torch.int64)),
    "every other row": (torch.float32, lambda x: x[::2].view(torch.int32)[1:]),
    "turned": (torch.float32, lambda x: x.T.view(torch.int32)[1:]),
    "imaginary columns": (torch.complex64, lambda x: x[1:, 2:].imag),
    "pairs of columns": (torch.complex64, lambda x: torch.view_as_real(x[:, ::2])[1:, :, 0]),
}
AS_THEY_LOOK = {"transposed", *list(OTHER_DTYPES)[9:]}  # as_strided on xla reads them so.


@pytest.mark.parametrize("name", OTHER_DTYPES)
def test_copies_of_a_look_in_another_dtype(device, name):
    """They lie in the memory where the look does, and copies share it."""
    dtype, look = OTHER_DTYPES[name]
    results = []
    for on in ("cpu", device):
        x = torch.arange(12, device=on).reshape(3, 4).to(dtype)
        y = look(x)
        places = [y.storage_offset(), y.data_ptr() - x.data_ptr()]
        storage = y.untyped_storage()
        first = torch.empty(0, dtype=y.dtype, device=on).set_(storage, y.storage_offset(), (1,))
        first.fill_(7)
        copied = copy.copy(y)
        copied[-1] = 5
        base, seen = copy.deepcopy([x, y])
        seen[0] = 3
        file = io.BytesIO()
        torch.save(y, file)
        file.seek(0)
        restored = torch.load(file)
        restored[0] = 2
        results.append((places, *map(torch.Tensor.tolist, (x, y, copied, base, seen, restored))))
        if name not in AS_THEY_LOOK:
            start = y.as_strided((1,), (1,), y.storage_offset())
            assert start.tolist() == first.tolist()
    assert results[0] == results[1]


def test_a_storage_makes_no_others(device):
    """PyTorch asks its allocator, and ended the process without one."""
    with pytest.raises(NotImplementedError, match="storage on xla is made with its tensor"):
        torch.ones(2, device=device).untyped_storage().new()


def test_looks_in_another_dtype_are_not_saved_together(device):
    """A file has one dtype for each memory; to save them apart would lose that they share it."""
    for on in ("cpu", device):
        x = torch.arange(12.0, device=on).reshape(3, 4)
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            torch.save([x, x[:, 1:3].view(torch.int32)], io.BytesIO())


def test_copies_of_containers_and_modules_share_memory(device):
    model = nn.Linear(2, 2).to(device)
    for copied in (copy.copy(model), {k: copy.copy(v) for k, v in model.state_dict().items()}):
        weight = copied["weight"] if isinstance(copied, dict) else copied.weight
        with torch.no_grad():
            model.weight.fill_(3)
            assert weight.tolist() == [[3, 3]] * 2
            weight.fill_(4)
        assert model.weight.tolist() == [[4, 4]] * 2


def by_safetensors(x):
    from safetensors.torch import load, save

    return load(save({"x": x.detach().clone()}))["x"]


def by_xser(x):
    with tempfile.TemporaryDirectory() as folder:
        serialization.save(x, folder + "/file")
        return serialization.load(folder + "/file", weights_only=False)


def by_xm(x):
    file = io.BytesIO()
    xm.save(x, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def by_old_format(x):
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=False)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def by_pickle(x):
    return pickle.loads(pickle.dumps(x))


SAVED = [copy.deepcopy, by_pickle, save_and_load, by_old_format, by_xm, by_xser, by_safetensors]


@pytest.mark.parametrize("kept", [as_copied, lambda x: x.__reduce_ex__(2), torch.Tensor.detach])
@pytest.mark.parametrize("saved", SAVED)
def test_saved_after_a_write_while_a_copy_lives(device, saved, kept):
    """What is saved is what the tensor is now, whatever somebody made of it before."""
    for name, x in looks(device).items():
        # As on the CPU, where these do not load, or cannot be copied or written.
        if name == "conj" and saved in (by_pickle, by_safetensors):
            continue
        if name == "uint16" and (kept is as_copied or saved in (by_pickle, by_old_format)):
            continue
        # As on the CPU, where no subclass is deeply copied, and files keep no attributes.
        if name == "subclass" or name in ("buffer", "noted") and saved is not copy.deepcopy:
            x = x.detach().as_subclass(torch.Tensor)
        holder = kept(x)
        first = saved(x).detach().tolist()
        assert first == x.detach().tolist(), name
        with torch.no_grad():
            x.fill_(9)
            assert saved(x).detach().tolist() == x.detach().tolist(), name
            if isinstance(holder, torch.Tensor):
                holder.detach().fill_(8)
                assert saved(x).detach().tolist() == x.detach().tolist(), name
        assert set(saved(x).detach().flatten().tolist()) <= {8, 9}, name


def test_a_storage_keeps_its_memory(device):
    function, arguments = (torch.arange(3.0).to(device) * 2).__reduce_ex__(2)
    storage = (torch.arange(3.0).to(device) + 1).untyped_storage()
    again = torch.empty(0, device=device).set_(storage)
    assert function(*arguments).tolist() == [0, 2, 4] and again.tolist() == [1, 2, 3]
    assert again.untyped_storage()._cdata == storage._cdata
    # Who asks of whom it shares memory with does not keep others from writing.
    x = torch.zeros(3).to(device)
    x.untyped_storage()
    x.add_(1)
    assert x.tolist() == [1, 1, 1]


def test_saving_compiles_nothing(device):
    tensors = [torch.rand(n, 3).to(device) for n in (2, 3)] + [torch.tensor([True]).to(device)]
    tensors.append(torch.rand(3).to(device).to(torch.complex64))
    torch_xla.sync(wait=True)
    compiled = met.metric_data("CompileTime")
    for x in tensors:
        for saved in (by_pickle, save_and_load):
            assert torch.equal(saved(x).cpu(), x.cpu())
    assert met.metric_data("CompileTime") == compiled


def test_save_without_data(device):
    file = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save({"x": torch.ones(2, 3).to(device)}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))["x"]
    assert loaded.device == device and loaded.shape == (2, 3)
