"""Conversions between dtypes, by value and by views of the same bytes."""

import pytest
import torch
from testing.ops import (
    BF16,
    C64,
    C128,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INF,
    NAN,
    U8,
    check,
    check_many,
    rand,
)

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


def test_bit_views_of_complex() -> None:
    cases = []
    for dtype in (C64, C128):
        x = rand(2, 4, dtype=dtype)
        for to in (I16, I32, I64, U8, F32, F64, C64, C128, torch.float16):
            cases.append((lambda x, to=to: x.flip(-1).view(to), (x,)))
            cases.append((lambda x, to=to, dtype=dtype: x.view(to).view(dtype), (x,)))
    for dtype, to in ((C64, F64), (C64, I64), (C128, C128)):
        cases.append((lambda x, to=to: x.view(to), (rand(dtype=dtype),)))
    check_many(cases)


def test_a_write_through_a_bit_view_of_complex() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.view(I16)[:, 1] = 16384
        return x

    check(write, rand(2, 3, dtype=C64))


def test_a_view_as_what_the_device_lacks_is_refused_at_the_call(device: torch.device) -> None:
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        torch.ones(2, device=device).view(torch.complex32)


def test_views_as_bool() -> None:
    def as_bools(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.bool)

    def written(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.view(torch.bool)[..., 0] = False
        return x

    def inverted(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.view(torch.bool).logical_not_()
        return x

    small = torch.tensor([5, 7, 0], dtype=I8)
    bools = torch.tensor([True, False, True, True])
    check_many(
        [
            *((as_bools, (x,)) for x in (rand(2, 3), small, rand(2, dtype=C64))),
            *((written, (x,)) for x in (small, small.to(U8), rand(2, 3))),
            *((inverted, (x,)) for x in (small, small.to(U8))),
            *((lambda x, dtype=d: x.view(dtype), (bools,)) for d in (U8, I16, I32)),
        ]
    )


def test_casts_to_floats_without_infinities(device: torch.device) -> None:
    numbers = [0.0, -0.0, 1.5, -3.0, 448.0, 449.0, 1e6, -1e6, INF, -INF, NAN, 1e-3, 2**-130]
    for dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float8_e5m2):
        for source in (F32, F64, torch.bfloat16):
            x = torch.tensor(numbers, dtype=source)
            actual, expected = x.to(device).to(dtype).cpu().float(), x.to(dtype).float()
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
            numbers_alone = ~expected.isnan()
            assert torch.equal(actual.signbit()[numbers_alone], expected.signbit()[numbers_alone])
        whole = torch.arange(0, 1000, 100)
        assert torch.equal(whole.to(device).to(dtype).float().cpu(), whole.to(dtype).float())
