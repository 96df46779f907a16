"""Complex functions at zeros of both signs, infinities and NaN, against the CPU's: which parts are
NaN, infinite or zero, and the signs, by which one tells on which side of a cut a number lies."""

import math

import pytest
import torch
from testing.ops import C64, C128, INF, NAN, check, check_many, rand

FUNCTIONS = (
    "abs acos acosh angle asin asinh atan atanh cos cosh exp exp2 log log10 log2 reciprocal rsqrt "
    "sgn sigmoid sin sinh sqrt tan tanh"
).split()
PARTS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, INF, -INF, NAN)


def _divided(z: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
    return torch.view_as_complex(torch.view_as_real(z) / by)


# PyTorch's plainest CPU kernels divide by a complex number here, and make NaN of infinities.
REFERENCES = {
    "log2": lambda z: _divided(z.log(), math.log(2)),
    "sgn": lambda z: torch.where(z == 0, 0, _divided(z, z.abs()[..., None])),
}
# Of these zeros the CPU has another sign than the C library: it takes the difference from pi / 2.
UNSIGNED = {("acos", "imag")}
# PyTorch's quotient by an infinity, where the limit is 0.
LIMITS = {"sigmoid": 0.0}


def _grid(dtype: torch.dtype) -> torch.Tensor:
    x = torch.tensor(PARTS, dtype=dtype.to_real())
    count = len(PARTS)
    return torch.complex(x[:, None].expand(count, count).contiguous(), x.expand(count, count))


def _kind(number: float, signed: bool = True) -> str:
    if math.isnan(number):
        return "nan"
    size = "inf" if math.isinf(number) else "0" if number == 0 else "finite"
    return ("-" if math.copysign(1, number) < 0 and (signed or number != 0) else "+") + size


@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_special_values(name: str, dtype: torch.dtype, device: torch.device) -> None:
    function, z = getattr(torch, name), _grid(dtype)
    expected, actual = REFERENCES.get(name, function)(z), function(z.to(device)).cpu()
    parts = ("real", "imag") if expected.is_complex() else ("real",)
    wrong = []
    for at, want, got in zip(
        z.flatten().tolist(), expected.flatten().tolist(), actual.flatten().tolist(), strict=True
    ):
        if name in LIMITS and at.real == -INF and got == LIMITS[name]:
            continue
        for part in parts:
            w, g = (getattr(complex(v), part) for v in (want, got))
            signed = (name, part) not in UNSIGNED
            close = not math.isfinite(w) or math.isclose(w, g, rel_tol=1e-4, abs_tol=1e-6)
            if _kind(w, signed) != _kind(g, signed) or not close:
                wrong.append(f"{name}({at}).{part} is {g}, not {w}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", [C64, C128])
def test_powers_that_overflow(dtype: torch.dtype, device: torch.device) -> None:
    # A real power of a real number stays on the axis.
    big = torch.finfo(dtype).max
    for base, power in (([2.0, 3.0], 2.0**30), ([big, 1.0], 1.5), ([1e-30, 0.5], 1e6)):
        x = torch.tensor(base, dtype=dtype)
        y = torch.tensor([power, power], dtype=dtype)
        expected = torch.pow(x, y)
        actual = torch.pow(x.to(device), y.to(device)).cpu()
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-4, atol=1e-6)


def test_zeros_have_no_sign_in_sign(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        zeros = torch.tensor([-0.0, 0.0], dtype=dtype)
        for function in (torch.sign, torch.sgn):
            assert not function(zeros.to(device)).signbit().any()


@pytest.mark.parametrize("dtype", [C64, C128])
def test_complex_powers_of_zero(dtype: torch.dtype) -> None:
    zero = torch.zeros(2, dtype=dtype)
    numbers = (0j, 1j, 1 + 1j, -1 + 1j, 2 + 0j, -2 + 0j, 0.5 + 0j, 1 + 0j)
    cases = [(torch.pow, (zero, number)) for number in (*numbers, 0, 2, -2, -1, 0.7, -0.7, 3)]
    cases += [(torch.pow, (zero, torch.full((2,), y, dtype=dtype))) for y in numbers]
    cases += [(torch.pow, (0, torch.full((2,), y, dtype=dtype))) for y in numbers]
    cases += [(torch.pow, (rand(4, dtype=dtype), y)) for y in numbers]
    cases += [(torch.pow, (torch.zeros(2), 1j))]
    check_many(cases, rtol=1e-5, atol=1e-6)


def test_a_number_of_one_to_complex_powers() -> None:
    exponents = torch.tensor([complex(INF, 0), complex(0, INF), complex(NAN, 1), 2 + 1j, 0])
    check_many(
        [
            (torch.pow, (base, exponents.to(dtype)))
            for base in (1, 1.0, 1 + 0j, 2, 1j)
            for dtype in (C64, C128)
        ]
    )


def test_functions_at_their_cuts() -> None:
    axis = torch.tensor([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    z = torch.complex(axis.reshape(-1, 1).expand(8, 8), axis.expand(8, 8))
    functions = torch.sqrt, torch.acos, torch.acosh, torch.asin, torch.asinh, torch.atan
    check_many([(function, (z,)) for function in functions])
    check(lambda z: torch.stack([function(z) for function in functions]), z)


def test_conjugate_in_place() -> None:
    check_many([(torch.Tensor.conj_physical_, (x,)) for x in (rand(3, 2, dtype=C64), rand(3))])


def test_powers_and_quotients() -> None:
    parts = torch.tensor([-INF, -2.0, -0.0, 0.0, 1.0, 3.0, INF, NAN])
    z = torch.complex(parts.reshape(-1, 1).expand(8, 8), parts.expand(8, 8))
    zero, inner = parts[3], z[1:6, 1:6]
    cases = [
        (torch.div, (z, z.T.contiguous())),
        (torch.div, (z, 0)),
        (torch.div, (z, torch.complex(-0.0 * zero, parts[2]))),
        (torch.pow, (z, torch.complex(zero, zero))),
        (torch.pow, (inner, 0.5)),
        (torch.pow, (inner, -0.5)),
        (torch.rsqrt, (z,)),
        (torch.rsqrt, (inner,)),
    ]
    check_many(cases, rtol=3e-3, atol=1e-4)


def test_reductions_of_little() -> None:
    cases = [(torch.amax, (torch.zeros(3, 3, 0, dtype=C64), -3))]
    check_many([*cases, (torch.var, (rand(2, dtype=C64), -1), {"correction": 2})])
