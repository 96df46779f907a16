"""The tensor itself: device, dtypes, what it says of itself, errors, type promotion."""

import pytest
import torch
from testing.tensors import COMPLEX, DTYPES, FLOAT8, FLOATS, XLA, bits, sample, xla
from torch import nn

import torch_xla

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


def _is_half_complex(dtype):  # XLA has no complex numbers of half precision.
    return dtype.is_complex and dtype.itemsize == 4


def test_promotion_of_tensors_and_numbers():
    for a in PROMOTION_DTYPES:
        for b in PROMOTION_DTYPES:
            cpu = torch.ones(2, dtype=a), torch.ones(2, dtype=b)
            x, y = (t.to("xla") for t in cpu)
            assert (x * y).dtype == (cpu[0] * cpu[1]).dtype, (a, b)
            expected = torch.result_type(cpu[0], cpu[1][0])
            if not _is_half_complex(expected):
                assert (x * y[0]).dtype == expected, (a, b)
        for number in (True, 2, 2.5, 1 + 1j):
            cpu = torch.ones(2, dtype=a)
            if _is_half_complex(torch.result_type(cpu, number)):
                continue
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
