"""Special functions, and numbers taken apart and put together."""

import pytest
import torch
from testing.ops import (
    BF16,
    C64,
    F32,
    F64,
    I32,
    I64,
    INF,
    NAN,
    SPECIAL,
    U8,
    check,
    check_many,
    rand,
    special,
)

UNARY = [
    getattr(torch.special, name)
    for name in (
        "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0 i0e i1 i1e log_ndtr "
        "modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri "
        "scaled_modified_bessel_k0 scaled_modified_bessel_k1 sinc spherical_bessel_j0"
    ).split()
]
POLYNOMIALS = [
    getattr(torch.special, name)
    for name in (
        "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u "
        "shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w hermite_polynomial_h "
        "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
    ).split()
]


@pytest.mark.parametrize("dtype", [F32, F64])
def test_functions_of_one_number(dtype: torch.dtype) -> None:
    points = torch.linspace(-12, 12, 97, dtype=torch.float64)
    x = torch.cat([points, points / 30, torch.tensor(SPECIAL, dtype=F64)]).to(dtype)
    tolerance = {"rtol": 3e-4, "atol": 3e-6} if dtype == F32 else {"rtol": 1e-9, "atol": 1e-12}
    check_many([(f, (x,)) for f in UNARY], **tolerance)
    check_many([(f, (rand(5, dtype=I64),)) for f in UNARY], rtol=3e-4, atol=3e-6)


def test_polynomials() -> None:
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.3, 0.5, 1.0, 1.5, 40.0], dtype=F64)[:, None]
    n = torch.arange(-1, 13, dtype=F64)
    check_many([(f, (x, n)) for f in POLYNOMIALS], rtol=1e-8, atol=1e-9)
    check_many([(f, (x, 3)) for f in POLYNOMIALS] + [(f, (0.5, n)) for f in POLYNOMIALS])


def test_gamma_family() -> None:
    x = torch.tensor([0.1, 0.5, 1.0, 2.5, 10.0, 300.0, -0.5, -2.5, 0.0, INF, NAN], dtype=F64)
    y = torch.tensor([1.1, 1.5, 2.0, 3.0, 8.0], dtype=F64)[:, None]
    cases = [(torch.special.zeta, (y, x[:7])), (torch.igamma, (y, x)), (torch.igammac, (y, x))]
    ends = torch.cat([x, -x[-2:]])
    cases += [(torch.polygamma, (n, ends)) for n in (0, 1, 2, 4)]
    cases += [(torch.mvlgamma, (x[3:6], 2)), (torch.special.xlog1py, (x, y))]
    check_many(cases, rtol=1e-7, atol=1e-9)


def test_gradients() -> None:
    x = torch.linspace(0.1, 0.9, 9, dtype=F64)
    functions = (torch.special.i0, torch.special.i0e, torch.special.i1, torch.special.i1e)
    functions += (torch.special.entr, torch.special.erfcx, torch.special.ndtri, torch.sinc)
    functions += (torch.special.log_ndtr, torch.angle, torch.lgamma, torch.digamma, torch.logit)
    cases = [(f, (x,)) for f in functions]
    cases += [(torch.polar, (x, x)), (torch.complex, (x, x)), (torch.special.xlog1py, (x, x))]
    cases += [(lambda a: torch.igamma(torch.full_like(a.detach(), 2.0), a), (x,))]
    check_many(cases, grad=True)


def test_parts() -> None:
    z = rand(7, dtype=C64)
    half = special().to(torch.bfloat16)
    tiny = torch.tensor([1e-310, -5e-324, 0.0, -0.0, 1e300, INF, NAN], dtype=F64)
    cases = [(torch.frexp, (x,)) for x in (special(), special(F64), half, tiny)]
    cases += [(torch.signbit, (x,)) for x in (special(), special(F64), half, special(I32))]
    cases += [(torch.signbit, (special(U8),)), (torch.angle, (z,)), (torch.angle, (special(),))]
    cases += [(torch.angle, (special(I64),)), (torch.sgn, (z,))]
    cases += [(torch.ldexp, (special(), special(I32)))]
    check_many(cases)


def test_ldexp_where_the_power_alone_is_out_of_range() -> None:
    x = torch.tensor([1e-30, 1e30, 1e30, 1.5, 0.0, -0.0, INF, -INF, NAN, 1.0, 1.0, 2e-38])
    n = torch.tensor([150, -150, -220, 7, 400, 2**31 - 1, -400, -(2**31), 3, 127, 128, 250])
    wide = torch.tensor([1e-300, 1e300, 1e300, 0.0, INF], dtype=F64)
    far = torch.tensor([1500, -1500, -2000, 1 << 30, -(1 << 30)])
    halves = torch.tensor([6e-5, 6e4, 1.0, -3.0]), torch.tensor([30, -30, 15, 14])
    small = torch.tensor([1.0, 3.0, -5.0]), torch.tensor([100, 5, 127])
    cases = [(torch.ldexp, (x, n.to(dtype))) for dtype in (I32, I64)]
    cases += [(torch.ldexp, (wide, far.to(dtype))) for dtype in (I32, I64)]
    cases += [(torch.ldexp, (halves[0].to(d), halves[1])) for d in (BF16, torch.float16)]
    cases += [(torch.ldexp, (small[0], small[1].to(d))) for d in (U8, torch.int8, torch.int16)]
    cases += [(torch.ldexp, args) for args in ((x[:, None], n[:3]), (x[0], n), (x, n[0]))]
    cases += [(lambda x, n: x.clone().ldexp_(n), (x, n))]
    cases += [(lambda x: torch.ldexp(x, torch.full((), 150, device=x.device)), (x,))]
    # What is no float by an integer is PyTorch's product with a power.
    cases += [(torch.ldexp, (x[3:4].to(a), n[3:4].to(b))) for a, b in ((I64, I64), (F32, F32))]
    for a, b in ((F32, C64), (C64, I64), (F64, F32), (I32, torch.bool)):
        cases.append((torch.ldexp, (rand(3, dtype=a), rand(3, dtype=b))))
    check_many(cases)
    check_many([(torch.ldexp, (x[3:6], n[3:6] % 8)), (torch.ldexp, (x[3:4], x[3:4]))], grad=True)


def test_integers() -> None:
    cases = []
    for dtype in (U8, I32, I64):
        a, b = rand(20, dtype=dtype), rand(20, dtype=dtype, seed=1)
        a = torch.cat([a * 6, torch.zeros(2, dtype=dtype)])
        b = torch.cat([b * 4, torch.tensor([0, 5], dtype=dtype)])
        cases += [(torch.gcd, (a, b)), (torch.lcm, (a, b)), (torch.gcd, (a, b[:1]))]
    check_many(cases)


def test_fake_quantization() -> None:
    x = rand(3, 4) * 3
    x[1, 2] = NAN  # the lowest level
    scale, zero = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 3, -2], dtype=I32)
    cases = [
        (torch.fake_quantize_per_tensor_affine, (x, 0.1, 2, -8, 7)),
        (torch.fake_quantize_per_channel_affine, (x, scale, zero, 0, -8, 7)),
    ]
    check_many(cases)

    def tensor_qparams(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)

    check_many([(tensor_qparams, (x, scale[:1], zero[:1]))])


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


def test_zeta_at_infinity() -> None:
    x = torch.tensor([1.0, 2.0, INF, NAN, 0.0, 60.0])
    check(torch.special.zeta, x.reshape(-1, 1), torch.tensor([0.0, 1.0, 2.0, INF, NAN, 1e30]))
