"""The tensor itself: device, dtypes, copies, serialization, autograd, errors, threads."""

import copy
import io
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla

XLA = torch.device("xla:0")

INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *FLOAT8]


def bits(tensor):
    """The bytes of a tensor, so that every dtype compares (and NaN equals NaN)."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def sample(dtype, *sizes):
    """Random values of any dtype, extremes of integers included."""
    count = torch.Size(sizes).numel()
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if dtype in INTEGERS:
        raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator)
        raw[: min(dtype.itemsize, raw.numel())] = 255
        return raw.to(torch.uint8).view(dtype).view(sizes)
    if dtype in COMPLEX:
        return torch.randn(sizes, dtype=dtype, generator=generator)
    return (torch.randn(sizes, generator=generator) * 8).to(dtype)


def xla(*args, **kwargs):
    return torch.tensor(*args, device="xla", **kwargs)


def run_script(script, timeout=120):
    """Runs Python in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- device


@pytest.mark.parametrize("device", ["xla", "xla:0", XLA, torch.device("xla"), torch_xla.device()])
def test_device_of_a_new_tensor(device):
    for x in (
        torch.ones(2, device=device),
        torch.tensor([1.0], device=device),
        torch.arange(3, device=device),
        torch.zeros(2).to(device),
    ):
        assert x.device == XLA
        assert str(x.device) == "xla:0"
        assert x.device.type == "xla" and x.device.index == 0
        assert x.get_device() == 0


def test_device_properties():
    x = torch.ones(2, device="xla")
    assert x.is_xla and not x.is_cpu and not x.is_cuda
    assert x.layout == torch.strided
    assert torch.ones_like(x).device == XLA and x.new_zeros(3).device == XLA
    assert (x + 1).device == XLA
    assert torch.xla.current_device() == 0 and torch.xla.device_count() >= 1


def test_default_device_context():
    with torch.device("xla"):
        assert torch.ones(2).device == XLA
        assert torch.arange(3).device == XLA
        assert nn.Linear(2, 2).weight.device == XLA
    assert torch.ones(2).device == torch.device("cpu")


@pytest.mark.parametrize("device", ["xla:99", torch.device("xla", 99)])
def test_invalid_ordinal(device):
    for make in (
        lambda: torch.ones(2, device=device),
        lambda: torch.ones(2).to(device),
        lambda: torch.ones(2, device="xla").to(device),
    ):
        with pytest.raises((RuntimeError, IndexError), match="99"):
            make().cpu()


def test_to_without_a_change_is_the_same_tensor():
    x = torch.ones(2, device="xla")
    assert x.to("xla") is x and x.to("xla:0") is x and x.to(torch.float32) is x
    other = x.to("xla", copy=True)
    other.add_(1)
    assert x.tolist() == [1, 1] and other.tolist() == [2, 2]


# ---------------------------------------------------------------- data in every dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype):
    base = sample(dtype, 4, 3)
    sources = {
        "dense": base,
        "transposed": base.t(),
        "strided": base[::2, 1:],
        "expanded": base[:1].expand(3, 3),
        "zero-dim": base[0, 0],
        "empty": base[:0],
        "one": base[:1, :1],
    }
    for name, cpu in sources.items():
        x = cpu.to("xla")
        assert x.device == XLA and x.dtype == dtype and x.shape == cpu.shape, name
        back = x.cpu()
        assert back.dtype == dtype and back.shape == cpu.shape and back.is_contiguous(), name
        assert bits(back) == bits(cpu), name
        assert bits(x.to("cpu", copy=True)) == bits(cpu), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_into_existing_memory(dtype):
    source = sample(dtype, 3, 4)
    x = torch.empty(3, 4, dtype=dtype, device="xla")
    x.copy_(source)
    dense = torch.empty(3, 4, dtype=dtype)
    dense.copy_(x)
    strided = torch.empty(4, 3, dtype=dtype).t()
    strided.copy_(x)
    assert bits(dense) == bits(source) and bits(strided) == bits(source)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_item_and_tolist(dtype):
    cpu = sample(dtype, 5)
    x = cpu.to("xla")
    for i in range(5):
        assert type(x[i].item()) is type(cpu[i].item())
    assert repr(x.tolist()) == repr(cpu.tolist())
    assert repr(x[2].item()) == repr(cpu[2].item())
    assert repr(x[1:2].item()) == repr(cpu[1:2].item())


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in FLOAT8], ids=str)
def test_fills(dtype):
    for make in (
        lambda device: torch.ones(2, 2, dtype=dtype, device=device),
        lambda device: torch.zeros(2, 2, dtype=dtype, device=device),
        lambda device: torch.full((3,), 1, dtype=dtype, device=device),
        lambda device: torch.zeros(3, dtype=dtype, device=device).fill_(1),
        lambda device: torch.ones(0, 2, dtype=dtype, device=device),
    ):
        assert bits(make("xla")) == bits(make("cpu"))


def test_the_source_may_change_after_the_copy():
    cpu = torch.arange(1000.0)
    x = cpu.to("xla", non_blocking=True)
    cpu.zero_()
    assert x.sum().item() == 499500


@pytest.mark.parametrize("value", [True, 7, -(2**62), 2.5, float("inf"), 1 + 2j])
def test_python_values(value):
    cpu = torch.tensor(value)
    x = torch.tensor(value, device="xla")
    assert x.dtype == cpu.dtype and x.item() == cpu.item()
    assert torch.full((2,), value, device="xla").dtype == torch.full((2,), value).dtype
    assert torch.full((2,), value, device="xla").tolist() == torch.full((2,), value).tolist()


def test_conversions():
    cpu = torch.tensor([0.0, 1.5, -2.75, 100.25])
    x = cpu.to("xla")
    for dtype in [torch.bool, torch.int8, torch.int32, torch.int64, *FLOATS, *COMPLEX]:
        assert bits(x.to(dtype)) == bits(cpu.to(dtype)), dtype
        assert bits(cpu.to("xla", dtype)) == bits(cpu.to(dtype)), dtype
        assert bits(x.to("cpu", dtype)) == bits(cpu.to(dtype)), dtype
    assert x.double().dtype == torch.float64 and x.half().dtype == torch.float16


def test_scalar_conversions():
    x = xla([3.0])
    assert float(x) == 3.0 and int(x) == 3 and bool(x) and complex(x) == 3
    assert [10, 11, 12, 13][xla(2)] == 12
    assert f"{xla(2.5):.1f}" == "2.5"
    with pytest.raises(RuntimeError):
        bool(xla([1.0, 2.0]))
    with pytest.raises(RuntimeError):
        xla([1.0, 2.0]).item()


def test_conjugate_and_negative_views():
    cpu = torch.tensor([1 + 2j, 3 - 4j])
    x = cpu.to("xla")
    assert x.conj().tolist() == cpu.conj().tolist()
    assert x.conj().resolve_conj().tolist() == cpu.conj().tolist()
    assert (x.conj() * 2).tolist() == (cpu.conj() * 2).tolist()
    assert cpu.conj().to("xla").tolist() == cpu.conj().tolist()
    assert cpu.conj().imag.to("xla").tolist() == cpu.conj().imag.tolist()
    assert x.real.tolist() == [1, 3] and x.imag.tolist() == [2, -4]


def test_numpy_needs_a_copy_to_the_host():
    with pytest.raises(TypeError, match="xla"):
        torch.ones(2, device="xla").numpy()
    assert torch.ones(2, device="xla").cpu().numpy().sum() == 2


# ---------------------------------------------------------------- what the user sees


def test_repr():
    x = xla([1.0, 2.0])
    assert repr(x) == "tensor([1., 2.], device='xla:0')"
    assert str(xla(3)) == "tensor(3, device='xla:0')"
    assert repr(x.requires_grad_()) == "tensor([1., 2.], device='xla:0', requires_grad=True)"
    assert "device='xla:0'" in repr(x * 2) and "grad_fn=<MulBackward0>" in repr(x * 2)
    assert "device='xla:0'" in repr(nn.Parameter(xla([1.0])))
    assert repr(torch.empty(0, 2, device="xla")) == "tensor([], device='xla:0', size=(0, 2))"
    assert repr(xla([True])) == "tensor([True], device='xla:0')"
    assert "1.+2.j" in repr(xla([1 + 2j]))
    many = repr(torch.arange(2000.0, device="xla"))
    assert "..." in many and "device='xla:0'" in many


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repr_of_every_dtype(dtype):
    cpu = sample(dtype, 2)
    text = repr(cpu)
    assert text.startswith("tensor(")
    body = text[len("tensor(") : text.index("]") + 1]
    assert body in repr(cpu.to("xla"))


def test_always_contiguous():
    x = torch.zeros(3, 4, 5, device="xla")
    for y in (
        x,
        x[0].t(),
        x.permute(2, 0, 1),
        x[:, ::2],
        x[..., 1],
        x[:1].expand(4, 4, 5),
        x.diagonal(),
        x.to(memory_format=torch.contiguous_format),
        torch.empty_strided((2, 3), (1, 2), device="xla"),
    ):
        expected = torch.empty(y.shape).stride()
        assert y.is_contiguous() and y.stride() == expected
        assert y.contiguous() is y
        y.view(-1)  # possible for whatever looks contiguous
    assert x[0].t().stride() == (4, 1)


def test_size_queries():
    x = torch.zeros(3, 4, dtype=torch.float64, device="xla")
    assert x.numel() == 12 and x.dim() == 2 and x.element_size() == 8 and x.nbytes == 96
    assert len(x) == 3 and [row.shape for row in x] == [(4,)] * 3
    assert x.storage_offset() == 0
    assert torch.equal(x, torch.zeros_like(x)) and not torch.equal(x, x + 1)
    assert x.allclose(torch.zeros_like(x))


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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 4)
        self.two = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.two(torch.relu(self.one(x))) * self.scale


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


# ---------------------------------------------------------------- errors

BAD_CALLS = {
    "add of shapes": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "matmul of shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 2, device=d),
    "view of a wrong size": lambda d: torch.ones(6, device=d).view(4),
    "view with two -1": lambda d: torch.ones(6, device=d).view(-1, -1),
    "index out of range": lambda d: torch.ones(3, device=d)[3],
    "negative index out of range": lambda d: torch.ones(3, device=d)[-4],
    "too many indices": lambda d: torch.ones(3, device=d)[0, 0],
    "select out of range": lambda d: torch.ones(3, device=d).select(0, 5),
    "narrow out of range": lambda d: torch.ones(3, device=d).narrow(0, 2, 2),
    "dim out of range": lambda d: torch.ones(3, device=d).sum(dim=2),
    "transpose dim": lambda d: torch.ones(3, device=d).transpose(0, 1),
    "permute dims": lambda d: torch.ones(2, 3, device=d).permute(0, 0),
    "t of 3-d": lambda d: torch.ones(2, 2, 2, device=d).t(),
    "expand": lambda d: torch.ones(2, device=d).expand(3),
    "squeeze dim": lambda d: torch.ones(2, device=d).squeeze(3),
    "slice step": lambda d: torch.ones(2, device=d)[::-1],
    "cast in place": lambda d: torch.ones(2, device=d, dtype=torch.int64).add_(1.5),
    "div in place": lambda d: torch.ones(2, device=d, dtype=torch.int64).div_(2),
    "broadcast in place": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "copy shape": lambda d: torch.ones(2, device=d).copy_(torch.ones(3, device=d)),
    "out dtype": lambda d: torch.add(
        torch.ones(2, device=d), 1, out=torch.ones(2, device=d, dtype=torch.int32)
    ),
    "write into expanded": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "negative size": lambda d: torch.ones(-1, device=d),
    "unfold size": lambda d: torch.ones(3, device=d).unfold(0, 4, 1),
    "cat of ranks": lambda d: torch.cat([torch.ones(2, device=d), torch.ones(2, 2, device=d)]),
    "stack of shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "mm of dtypes": lambda d: (
        torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d, dtype=torch.float64)
    ),
    "mask shape": lambda d: torch.ones(3, device=d)[torch.ones(2, device=d, dtype=torch.bool)],
    "float index": lambda d: torch.ones(3, device=d)[torch.ones(2, device=d)],
    "put shape": lambda d: torch.ones(3, device=d).__setitem__(
        torch.tensor([0, 1], device=d), torch.ones(3, device=d)
    ),
    "set item shape": lambda d: torch.ones(3, device=d).__setitem__(
        slice(0, 2), torch.ones(3, device=d)
    ),
    "fill value": lambda d: torch.ones(3, device=d).fill_(torch.ones(2, device=d)),
    "item of many": lambda d: torch.ones(3, device=d).item(),
    "as_strided out of bounds": lambda d: torch.ones(3, device=d).as_strided((4,), (1,)),
    "as_strided negative": lambda d: torch.ones(3, device=d).as_strided((2,), (-1,)),
    "view dtype": lambda d: torch.ones(3, device=d).view(torch.float64),
    "view_as_complex": lambda d: torch.view_as_complex(torch.ones(3, device=d)),
    "view_as_real": lambda d: torch.view_as_real(torch.ones(3, device=d)),
    "diagonal dims": lambda d: torch.ones(3, 3, device=d).diagonal(0, 1, 1),
    "set_ dtype": lambda d: torch.ones(3, device=d).set_(
        torch.ones(3, device=d, dtype=torch.int64)
    ),
    "bitwise of floats": lambda d: torch.ones(3, device=d) & torch.ones(3, device=d),
    "requires_grad of ints": lambda d: torch.ones(3, device=d, dtype=torch.int64).requires_grad_(),
    "arange step": lambda d: torch.arange(0, 3, -1, device=d),
    "backward of many": lambda d: torch.ones(3, device=d, requires_grad=True).mul(2).backward(),
    "leaf in place": lambda d: torch.ones(3, device=d, requires_grad=True).add_(1),
    "overflow of a fill": lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
}


def outcome(call, device):
    try:
        result = call(device)
        if isinstance(result, torch.Tensor):
            result.cpu()
    except Exception as error:
        return type(error), str(error)
    return None, ""


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_raise_as_on_cpu(name):
    expected, _ = outcome(BAD_CALLS[name], "cpu")
    found, message = outcome(BAD_CALLS[name], "xla")
    # The type that the CPU raises, or (NotImplementedError) the one that it refines.
    assert found is expected or (expected is NotImplementedError and found is RuntimeError), message
    # The device is as good as before.
    assert torch.ones(2, device="xla").add(1).tolist() == [2, 2]


MIXED = {
    "add": lambda x, c: x + c,
    "radd": lambda x, c: c + x,
    "add_": lambda x, c: x.add_(c),
    "mul": lambda x, c: torch.mul(x, c),
    "matmul": lambda x, c: x.view(1, 2) @ c.view(2, 1),
    "where": lambda x, c: torch.where(x > 0, x, c),
    "cat": lambda x, c: torch.cat([x, c]),
    "linear": lambda x, c: nn.functional.linear(x, c.view(1, 2)),
    "addcmul": lambda x, c: torch.addcmul(x, x, c),
    "lerp": lambda x, c: x.lerp(c, 0.5),
    "maximum": lambda x, c: torch.maximum(x, c),
    "lt": lambda x, c: x < c,
    "mse_loss": lambda x, c: nn.functional.mse_loss(x, c),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_devices_names_both_and_the_op(name):
    x, cpu = torch.ones(2, device="xla"), torch.ones(2)
    with pytest.raises(RuntimeError) as error:
        MIXED[name](x, cpu).cpu()
    message = str(error.value)
    assert "xla:0" in message and "cpu" in message and "aten::" in message


def test_zero_dim_cpu_tensors_mix():
    x = xla([1.0, 2.0])
    three = torch.tensor(3.0, dtype=torch.float64)
    for y in (x + three, three + x):
        assert y.device == XLA and y.dtype == torch.float32 and y.tolist() == [4, 5]
    ints = xla([1, 2], dtype=torch.int32)
    assert (ints + torch.tensor(2)).dtype == torch.int32
    assert (ints * torch.tensor(0.5)).dtype == torch.float32
    x.mul_(torch.tensor(2.0))
    assert x.tolist() == [2, 4]
    x[0] = torch.tensor(7.0)
    assert x.tolist() == [7, 4]
    assert torch.where(x > 5, x, torch.tensor(0.0)).tolist() == [7, 0]


def test_copies_between_devices_do_mix():
    x, cpu = torch.zeros(2, device="xla"), torch.tensor([1, 2])
    assert x.copy_(cpu).tolist() == [1, 2]
    assert cpu.copy_(x + 1).tolist() == [2, 3]
    x[1:] = torch.tensor([9.0])
    assert x.tolist() == [1, 9]
    assert x[torch.tensor([1])].tolist() == [9]  # CPU indices, as on any accelerator


# ---------------------------------------------------------------- type promotion

PROMOTION_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def test_promotion_of_tensors_and_numbers():
    for a in PROMOTION_DTYPES:
        for b in PROMOTION_DTYPES:
            cpu = torch.ones(2, dtype=a), torch.ones(2, dtype=b)
            x, y = (t.to("xla") for t in cpu)
            assert (x * y).dtype == (cpu[0] * cpu[1]).dtype, (a, b)
            expected = (cpu[0] * cpu[1][0]).dtype
            if expected != torch.complex32:  # XLA has no complex numbers of half precision.
                assert (x * y[0]).dtype == expected, (a, b)
        for number in (True, 2, 2.5, 1 + 1j):
            if a == torch.float16 and isinstance(number, complex):
                continue
            cpu = torch.ones(2, dtype=a)
            assert (cpu.to("xla") * number).dtype == (cpu * number).dtype, (a, number)
            assert (number + cpu.to("xla")).dtype == (number + cpu).dtype, (a, number)
            assert (cpu[0].to("xla") * number).dtype == (cpu[0] * number).dtype, (a, number)


@pytest.mark.parametrize("dtype", PROMOTION_DTYPES, ids=str)
def test_arithmetic_with_numbers(dtype):
    cpu = torch.tensor([1, 0, 1]).to(dtype)
    x = cpu.to("xla")
    for f in (
        lambda t: t + 2,
        lambda t: t * 2.5,
        lambda t: 3 - t if t.dtype != torch.bool else t * 3,
        lambda t: t / 4,
        lambda t: t == 1,
    ):
        torch.testing.assert_close(f(x).cpu(), f(cpu))


# ---------------------------------------------------------------- autograd


def test_gradients_accumulate():
    x = torch.ones(2, device="xla", requires_grad=True)
    assert x.grad is None and x.is_leaf
    (x * 3).sum().backward()
    assert x.grad.device == XLA and x.grad.tolist() == [3, 3]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [5, 5]
    x.grad.zero_()
    assert x.grad.tolist() == [0, 0]
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_gradient_assignment_checks():
    x = torch.ones(2, device="xla", requires_grad=True)
    x.grad = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(2)


def test_autograd_grad_and_higher_order():
    x = xla(3.0, requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert first.item() == 27 and second.item() == 18


def test_hooks_and_retain_grad():
    x = torch.ones(2, device="xla", requires_grad=True)
    seen = []
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda grad: seen.append(grad.device) or grad * 10)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    y.sum().backward()
    assert seen == [XLA, [20.0, 20.0]]
    assert y.grad.tolist() == [10, 10]
    module = nn.Linear(2, 2).to("xla")
    module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    module(x).sum().backward()
    assert (2,) in seen


def test_detach_shares_memory_and_no_grad():
    x = torch.ones(2, device="xla", requires_grad=True)
    y = x.detach()
    assert not y.requires_grad
    y.add_(1)
    assert x.tolist() == [2, 2] and y._version == x._version
    with torch.no_grad():
        assert not (x * 2).requires_grad
        x.add_(1)
    assert y.tolist() == [3, 3]
    z = x.clone().detach_()
    assert not z.requires_grad


def test_version_counters():
    x = torch.zeros(4, device="xla")
    view = x[1:]
    version = x._version
    view.add_(1)
    assert x._version == version + 1 == view._version
    x.mul_(2)
    assert view._version == version + 2
    x.clone().add_(1)
    torch_xla.sync()
    assert x._version == version + 2


def test_in_place_error_of_autograd():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    w = torch.ones(3, device="xla", requires_grad=True)
    h = w * 2
    z = h * h
    h[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_in_place_on_leaves():
    x = torch.ones(3, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0] = 2.0
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.zero_()


def gradients_of(f, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    result = f(*inputs)
    (
        result * torch.arange(1.0, result.numel() + 1, device=result.device).view(result.shape)
    ).sum().backward()
    return [result.detach().cpu(), *(x.grad.cpu() for x in inputs)]


def write_middle(x):
    y = x * 1
    y[1:3].mul_(3)
    return y * y


def write_column(x):
    y = x.clone()
    y[:, 1] = y[:, 0] * 2
    return y.t()


def write_other(x, v):
    y = x.clone()
    y.diagonal().copy_(v)
    y.t()[0].add_(v)
    return y.view(-1)


def write_chain(x):
    y = x.clone()
    v = y.view(-1)[2:8].view(2, 3).t()
    v.mul_(v.detach().clone())
    y.relu_()
    return y.exp()


def fill_part(x):
    y = x.clone()
    y[0].zero_()
    y[:, 2].fill_(4.0)
    return y * x


def masked(x):
    y = x.clone()
    y[x > 0] = 0.5
    return y * x


def accumulate(x):
    y = x.clone()
    y[torch.tensor([0, 0, 2], device=x.device)] += 1.5
    return y * y


GRADIENTS = {
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t() * 2,
    "reshape": lambda x: x.t().reshape(2, 6) ** 2,
    "expand": lambda x: x[:, :1].expand(2, 3, 4),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "diagonal": lambda x: x.diagonal(1),
    "as_strided": lambda x: x.as_strided((3, 2), (4, 1), 1),
    "split": lambda x: x.split(2, 1)[0] * x.split(2, 1)[1],
    "unbind": lambda x: torch.stack(x.unbind(1), 0),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2, 2)) * (1 + 2j)),
    "write middle": write_middle,
    "write column": write_column,
    "write chain": write_chain,
    "fill part": fill_part,
    "masked": masked,
    "accumulate": accumulate,
    "index": lambda x: x[torch.tensor([2, 0, 0], device=x.device)],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_autograd_through_views_and_writes(name):
    x = torch.arange(12.0).view(3, 4).sub(5.5) / 4
    for a, b in zip(
        gradients_of(GRADIENTS[name], x.to("xla")), gradients_of(GRADIENTS[name], x), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_autograd_of_a_written_value():
    x, v = torch.arange(9.0).view(3, 3), torch.tensor([1.0, 2.0, 3.0])
    found = gradients_of(write_other, x.to("xla"), v.to("xla"))
    for a, b in zip(found, gradients_of(write_other, x, v), strict=True):
        torch.testing.assert_close(a, b)


def test_base_and_view_after_a_write():
    def f(x):
        y = x * 1
        view = y[1:]
        y.mul_(2)
        view.add_(x[:2])
        return torch.cat([y, view * 3])

    x = torch.arange(12.0).view(3, 4)
    for a, b in zip(gradients_of(f, x.to("xla")), gradients_of(f, x), strict=True):
        torch.testing.assert_close(a, b)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * ctx.factor * grad, None


class Bump(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


def test_custom_functions():
    x = xla([1.0, 2.0], requires_grad=True)
    Scale.apply(x, 3.0).sum().backward()
    assert x.grad.tolist() == [6, 12]
    y = xla([1.0, 2.0], requires_grad=True)
    z = y * 1
    bumped = Bump.apply(z)
    assert bumped is z
    bumped.sum().backward()
    assert y.grad.tolist() == [5, 5]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)).to("xla")
    x = torch.ones(2, 4, device="xla", requires_grad=True)
    state = torch.xla.get_rng_state()
    model(x).sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    torch.xla.set_rng_state(state)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    for a, b in zip([x.grad, *(p.grad for p in model.parameters())], expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_functional_transforms():
    w = torch.arange(6.0).view(2, 3)
    xs = torch.arange(12.0).view(4, 3) / 7

    def loss(w, x):
        return torch.tanh(w @ x).pow(2).sum()

    expected = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, xs)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w.to("xla"), xs.to("xla"))
    torch.testing.assert_close(found.cpu(), expected)
    jacobian = torch.func.jacrev(lambda x: torch.sin(x) * x)(xs[0].to("xla"))
    torch.testing.assert_close(jacobian.cpu(), torch.func.jacrev(lambda x: torch.sin(x) * x)(xs[0]))


def test_functional_call_and_saved_tensor_hooks():
    model = Net().to("xla")
    twice = {name: p * 2 for name, p in model.named_parameters()}
    x = torch.ones(1, 3, device="xla")
    y = torch.func.functional_call(model, twice, (x,))
    assert not torch.equal(y, model(x))
    with torch.autograd.graph.save_on_cpu():
        z = xla([1.0, 2.0], requires_grad=True)
        out = (z * z).sum()
    out.backward()
    assert z.grad.tolist() == [2, 4]


# ---------------------------------------------------------------- writes


def test_index_writes():
    def f(device):
        x = torch.arange(12.0, device=device).view(3, 4)
        index = torch.tensor([2, 0], device=device)
        x[x > 9] = -1.0
        x[index] += 100
        x[index, torch.tensor([1, 1], device=device)] = 7.0
        x[:, 3] = torch.tensor([1.0, 2.0, 3.0], device=device)
        x[1, ..., None] = 5
        x[(x == 5) | (x == 7)] = torch.arange(6.0, device=device)
        x[0] += 1
        x[-1, ::2] *= 2
        x[:, 0:0] = 3
        return x

    torch.testing.assert_close(f("xla").cpu(), f("cpu"))


def test_augmented_operators_keep_identity():
    x = torch.ones(2, device="xla")
    y = x
    x += 1
    x *= 3
    x -= 2
    x /= 4
    assert x is y and y.tolist() == [1, 1]


def test_out_arguments():
    a = xla([1.0, 2.0])
    out = torch.zeros(2, device="xla")
    assert torch.add(a, 1, out=out) is out and out.tolist() == [2, 3]
    base = torch.zeros(2, 3, device="xla")
    torch.mul(a, 10, out=base[:, 1])
    assert base.tolist() == [[0, 10, 0], [0, 20, 0]]
    empty = torch.empty(0, device="xla")
    torch.exp(torch.zeros(3, device="xla"), out=empty)
    assert empty.shape == (3,) and empty.tolist() == [1, 1, 1]
    wide = torch.empty(2, device="xla", dtype=torch.float64)
    assert torch.add(a, a, out=wide).dtype == torch.float64 and wide.tolist() == [2, 4]
    values, indices = torch.empty(0, device="xla"), torch.empty(0, device="xla", dtype=torch.int64)
    torch.max(xla([[1.0, 3.0], [5.0, 2.0]]), 1, out=(values, indices))
    assert values.tolist() == [3, 5] and indices.tolist() == [1, 0]
    with pytest.raises(RuntimeError, match="xla"):
        torch.add(a, 1, out=torch.zeros(2))


def test_in_place_with_itself():
    x = xla([1.0, 2.0, 3.0, 4.0])
    x.add_(x)
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [2, 2, 4, 6]
    square = torch.arange(4.0, device="xla").view(2, 2)
    square.copy_(square.t().clone())
    assert square.tolist() == [[0, 2], [1, 3]]


def test_clone_and_values_outlive_their_sources():
    x = torch.ones(3, device="xla")
    y = x + 1
    z = x.clone()
    x.zero_()
    torch_xla.sync()
    x.add_(5)
    del x
    assert y.tolist() == [2, 2, 2] and z.tolist() == [1, 1, 1]


def test_view_of_a_dead_base():
    view = (torch.arange(6.0, device="xla") * 2)[2:4]
    torch_xla.sync()
    view.add_(1)
    assert view.tolist() == [5, 7]


# ---------------------------------------------------------------- loaders, threads, processes


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    torch.ones(1, device="xla").add(1).cpu()  # the client runs when the workers are forked
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    total = torch.zeros((), device="xla")
    for x, y in DataLoader(data, batch_size=4, num_workers=workers, timeout=60 if workers else 0):
        x, y = x.to("xla"), y.to("xla")
        total += x.sum() + y.sum()
    assert total.item() == 190 + 45


def test_threads_trace_at_once():
    # Each sync cuts what all threads have traced so far, so hardly two graphs are alike.
    threads, rounds = 3, 9
    start = threading.Barrier(threads, timeout=60)
    results, errors = [None] * threads, []

    def work(k):
        try:
            start.wait()
            x = torch.full((4,), float(k), device="xla", requires_grad=True)
            state = torch.zeros(4, device="xla")
            for step in range(rounds):
                loss = (x * x + state).sum()
                (grad,) = torch.autograd.grad(loss, x)
                state[1:].add_(grad[:-1])
                state.view(2, 2).t().mul_(0.5)
                if step % 3 == k % 3:
                    torch_xla.sync()
                elif step % 5 == 0:
                    state.sum().item()
            results[k] = state.cpu()
        except BaseException as error:  # noqa: B036 - reported by the test
            errors.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert not errors and not any(worker.is_alive() for worker in workers)
    for k in range(threads):
        state = torch.zeros(4)
        for _ in range(rounds):
            state[1:].add_(2.0 * k)
            state.view(2, 2).t().mul_(0.5)
        torch.testing.assert_close(results[k], state)


@pytest.mark.multiprocess
def test_a_forked_child_that_uses_the_device_fails_cleanly():
    out = run_script(
        """
        import os, torch, torch_xla
        x = torch.ones(2, device="xla") + 1
        torch_xla.sync(wait=True)
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                torch.ones(2, device="xla").add(1).cpu()
            except RuntimeError as error:
                code = 7 if "fork" in str(error) else 4
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), x.tolist())
        """
    )
    assert out.split() == ["7", "[2.0,", "2.0]"]


@pytest.mark.multiprocess
def test_exit_with_pending_work_and_live_tensors():
    out = run_script(
        """
        import torch, torch_xla
        x = torch.ones(300, 300, device="xla")
        for _ in range(20):
            x = x @ x * 1e-3
        torch_xla.sync()
        y = x + 1
        print("end")
        """
    )
    assert out.strip() == "end"
