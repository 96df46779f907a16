"""Corners in which the device gave another zero, number or error than the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing.ops import BF16, C64, F16, F32, F64, I8, I16, I32, I64, INF, NAN, U8, check_many

FIRST = torch.tensor([-0.0, 0.0, -0.0, 0.0, 1.0, NAN, -1.0, 2.0])
SECOND = torch.tensor([0.0, -0.0, -0.0, 0.0, NAN, 1.0, -0.0, -3.0])
# Not maximum, minimum and clamp by tensors: the CPU's vectors have the second zero, and what is
# left over at their end the first.
ZEROS = {
    "relu": lambda a, b: F.relu(a),
    "relu_": lambda a, b: F.relu_(a.clone()),
    "relu6": lambda a, b: F.relu6(a),
    "hardtanh": lambda a, b: F.hardtanh(a, 0.0, 1.0),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp": lambda a, b: torch.clamp(a, 0.0, 0.5),
    "clamp min": lambda a, b: torch.clamp(a, min=0.0),
    "clamp max": lambda a, b: torch.clamp(a, max=-0.0),
}


@pytest.mark.parametrize("name", ZEROS)
def test_which_zero_it_is(name: str) -> None:
    # The CPU's fmax and fmin of bfloat16 prefer the second operand; all else the first.
    for dtype in (F32, F64, F16) if name in ("fmax", "fmin") else (F32, F64, F16, BF16):
        a, b = FIRST.to(dtype), SECOND.to(dtype)
        expected = ZEROS[name](a, b)
        actual = ZEROS[name](a.to("xla"), b.to("xla")).cpu()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        number = ~expected.isnan()
        assert torch.equal(actual.signbit()[number], expected.signbit()[number]), dtype


# What x86 makes of numbers that do not fit: the smallest integer of 32 or 64 bits, cut.
WIDE = [
    NAN,
    INF,
    -INF,
    1e10,
    -1e10,
    3e9,
    2.5,
    -2.5,
    255.9,
    256.5,
    -1.0,
    -0.5,
    1e20,
    65536.0,
    1.8e19,
]
LOW32, LOW64 = -(2**31), -(2**63)
CASTS = {
    I8: [0, 0, 0, 0, 0, 0, 2, -2, -1, 0, -1, 0, 0, 0, 0],
    I16: [0, 0, 0, 0, 0, 0, 2, -2, 255, 256, -1, 0, 0, 0, 0],
    I32: [LOW32] * 6 + [2, -2, 255, 256, -1, 0, LOW32, 65536, LOW32],
    I64: [LOW64] * 3 + [10**10, -(10**10), 3 * 10**9, 2, -2, 255, 256, -1, 0, LOW64, 65536, LOW64],
    U8: [0, 0, 0, 0, 0, 0, 2, 254, 255, 0, 255, 0, 0, 0, 0],
    torch.uint16: [0, 0, 0, 0, 0, 0, 2, 65534, 255, 256, 65535, 0, 0, 0, 0],
    torch.uint32: [2**31, 0, 2**31, 0, 2**31, 3 * 10**9, 2, 2**32 - 2, 255, 256, 2**32 - 1]
    + [0, 0, 65536, 0],
    torch.uint64: [2**63, 0, 2**63, 10**10, 2**64 - 10**10, 3 * 10**9, 2, 2**64 - 2, 255, 256]
    + [2**64 - 1, 0, 0, 65536, 18 * 10**18],
}


@pytest.mark.parametrize("dtype", CASTS)
def test_casts_of_what_does_not_fit(dtype: torch.dtype) -> None:
    assert torch.tensor(WIDE, dtype=F64, device="xla").to(dtype).tolist() == CASTS[dtype]
    numbers = torch.tensor(WIDE[:-1], device="xla")  # the last is none of a float's
    assert numbers.to(dtype).tolist() == CASTS[dtype][:-1]


def test_casts_of_little_floats_and_complex() -> None:
    for dtype in (F16, BF16):
        few = torch.tensor([NAN, 300.0, -300.0, 1.5, -1.0], dtype=dtype)
        for to in (I8, I16, I32, I64, U8, torch.bool):
            check_many([(torch.Tensor.to, (few, to))])
    numbers = torch.tensor([complex(NAN, 1), 1j, 2.7 - 1j, 0j], dtype=C64)
    check_many([(torch.Tensor.to, (numbers, to)) for to in (I32, I64, torch.bool)])


def test_lgamma_is_0_at_1_and_2() -> None:
    for dtype in (F32, F64):
        x = torch.tensor([1.0, 2.0, 1.0001, 1.9999, 0.5, -1.5, 0.0, INF, 1e30], dtype=dtype)
        for actual in (torch.lgamma(x.to("xla")), torch._foreach_lgamma([x.to("xla")])[0]):
            torch.testing.assert_close(actual.cpu(), torch.lgamma(x), rtol=1e-6, atol=0)


def test_zeta_of_large_numbers() -> None:
    x = torch.tensor([2.0, 1.5, 50.0, 200.0, 1e10, 1e300], dtype=F64).reshape(-1, 1)
    q = torch.tensor([1.0, 2.0, 0.5, 1e10, 1e300, -1.5, -2.0, 0.0, -1e10], dtype=F64)
    actual = torch.special.zeta(x.to("xla"), q.to("xla")).cpu()
    torch.testing.assert_close(actual, torch.special.zeta(x, q), equal_nan=True)


def test_bessel_j1_of_what_is_nearly_too_small() -> None:
    x = torch.tensor([1e-37, -1e-37, 1e-30])
    actual = torch.special.bessel_j1(x.to("xla")).cpu()
    torch.testing.assert_close(actual, torch.special.bessel_j1(x), rtol=1e-5, atol=0)


def test_dtypes_of_out() -> None:
    for device in ("cpu", "xla"):
        flags = torch.tensor([[1, 0]], dtype=U8, device=device)
        for fn, expected in ((torch.any, [True, False]), (torch.all, [True, False])):
            for dtype in (torch.bool, U8):
                out = torch.zeros(2, dtype=dtype, device=device)
                assert fn(flags, 0, out=out).tolist() == expected and out.dtype == dtype
            with pytest.raises(RuntimeError):
                fn(flags, 0, out=torch.zeros(2, device=device))
        whole = torch.tensor([1, 2], device=device)
        with pytest.raises(RuntimeError, match="could not infer output dtype"):
            torch.mean(whole, 0, out=torch.zeros((), device=device))
        out = torch.zeros((), dtype=F64, device=device)
        assert torch.mean(whole.float(), 0, out=out).item() == 1.5


def test_what_the_cpu_refuses() -> None:
    for device in ("cpu", "xla"):
        for dtype in (torch.uint16, torch.uint32, torch.uint64):
            with pytest.raises(NotImplementedError):
                torch.arange(3, dtype=dtype, device=device)
        x = torch.arange(4, device=device)
        for value in (torch.tensor(8.6), torch.tensor([8.6])):
            with pytest.raises(RuntimeError, match="source and destination dtypes match"):
                x[torch.tensor([3], device=device)] = value.to(device)
