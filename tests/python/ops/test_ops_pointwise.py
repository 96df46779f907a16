"""Elementwise ops and activation functions against CPU PyTorch."""

import operator

import pytest
import torch
import torch.nn.functional as F
from testing.ops import (
    BF16,
    BOOL,
    C64,
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
    special,
)

aten = torch.ops.aten

FLOATS = (F32, F64, F16, BF16)
# Results of half types are computed in float on both sides, but rounded at other places.
HALF = {"rtol": 1e-2, "atol": 1e-2}


def tolerance(dtype):
    return HALF if dtype in (F16, BF16) else {}


# ---- One operand

FLOAT_UNARY = [
    torch.acos,
    torch.asin,
    torch.asinh,
    torch.atan,
    torch.ceil,
    torch.cos,
    torch.digamma,
    torch.erf,
    torch.erfc,
    torch.exp,
    torch.exp2,
    torch.expm1,
    torch.floor,
    torch.frac,
    torch.log,
    torch.log10,
    torch.log1p,
    torch.log2,
    torch.reciprocal,
    torch.round,
    torch.rsqrt,
    torch.sigmoid,
    torch.sin,
    torch.sinh,
    torch.sqrt,
    torch.tan,
    torch.tanh,
    torch.trunc,
    torch.abs,
    torch.neg,
    torch.sign,
    torch.sgn,
    torch.isinf,
    torch.isnan,
    torch.isposinf,
    torch.isneginf,
    torch.logical_not,
    torch.square,
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_floats(dtype):
    # Compiling these takes long; a sample shows how half types convert.
    functions = FLOAT_UNARY[:: 3 if dtype in (F16, BF16) else 1]
    check_many([(fn, (rand(4, 5, dtype=dtype),)) for fn in functions], **tolerance(dtype))


def test_unary_special_values():
    check_many([(fn, (special(),)) for fn in FLOAT_UNARY], rtol=1e-5, atol=1e-5)


def test_unary_of_integers():
    to_float = [torch.exp, torch.sqrt, torch.sigmoid, torch.log2, torch.exp2, torch.reciprocal]
    keep = [torch.ceil, torch.floor, torch.trunc, torch.round, torch.sign, torch.sgn, torch.square]
    to_bool = [torch.isnan, torch.isinf, torch.isposinf, torch.isneginf, torch.logical_not]
    cases = [
        (fn, (rand(6, dtype=dtype),))
        for dtype in (I64, I32, I8, U8)
        for fn in (*to_float, *keep, *to_bool)
    ]
    cases += [(fn, (rand(6, dtype=I64),)) for fn in (torch.abs, torch.neg, torch.bitwise_not)]
    cases += [(torch.abs, (rand(6, dtype=U8),)), (torch.neg, (rand(6, dtype=U8),))]
    cases += [(fn, (special(BOOL),)) for fn in (*to_float, *to_bool, torch.bitwise_not)]
    check_many(cases)


def test_unary_in_a_domain():
    above_one = rand(7).abs() + 1.0
    inside = torch.linspace(-0.9, 0.9, 7)
    check_many(
        [
            (torch.acosh, (above_one,)),
            (torch.atanh, (inside,)),
            (torch.erfinv, (inside,)),
            (torch.lgamma, (above_one,)),
            (torch.cosh, (inside,)),
            (torch.acosh, (inside,)),  # NaN
            (torch.log2, (torch.tensor([1.0, 2, 4, 8, 1024, 2.0**-20]),)),
            (torch.log10, (torch.tensor([1.0, 10, 100, 1e6, 1e-6]),)),
            (torch.exp2, (torch.arange(-20.0, 20.0),)),
        ],
        rtol=2e-6,
        atol=2e-6,
    )


def test_rounding():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 1e9, 123.456, -0.1235])
    cases = [(torch.round, (x,), {"decimals": d}) for d in (-2, -1, 0, 1, 3)]
    check_many(cases)


def test_unary_of_complex():
    z = rand(3, 4, dtype=C64)
    z[0, 0] = 0
    functions = [torch.abs, torch.exp, torch.log, torch.sin, torch.cos, torch.tanh, torch.sqrt]
    functions += [torch.sgn, torch.neg, torch.reciprocal, torch.sigmoid, torch.isnan, torch.isinf]
    functions += [torch.conj_physical, torch.log2, torch.log10]
    cases = [(fn, (z,)) for fn in functions] + [(torch.logaddexp, (z, z.t().reshape(3, 4)))]
    check_many(cases, rtol=1e-5, atol=1e-5)
    w = torch.tensor([complex(NAN, 1), complex(1, INF), complex(-INF, NAN), 1 + 1j], dtype=C64)
    check_many([(torch.isnan, (w,)), (torch.isinf, (w,))])


def test_unary_shapes():
    inputs = [rand(), rand(0), rand(2, 0, 3)]
    check_many([(fn, (x,)) for fn in FLOAT_UNARY for x in inputs], rtol=1e-5, atol=1e-5)


def test_unary_gradients():
    functions = [
        torch.exp, torch.log1p, torch.sin, torch.tanh, torch.sigmoid, torch.sqrt, torch.rsqrt,
        torch.abs, torch.reciprocal, torch.exp2, torch.log2, torch.erf, torch.atan, torch.frac,
    ]  # fmt: skip
    check_many([(fn, (rand(3, 4).abs() + 0.1,)) for fn in functions], grad=True)


# ---- Two operands and more

ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum]


def test_arithmetic_broadcasts():
    shapes = [
        ((3, 4), (3, 4)),
        ((3, 1), (4,)),
        ((), (2, 3)),
        ((2, 3), ()),
        ((), ()),
        ((0, 3), (3,)),
    ]
    check_many(
        [(fn, (rand(*a), rand(*b, seed=1))) for fn in ARITHMETIC for a, b in shapes], grad=True
    )


@pytest.mark.parametrize("dtype", [F64, F16, BF16, I64, I32, I16, I8, U8, C64], ids=str)
def test_arithmetic_dtypes(dtype):
    functions = ARITHMETIC[:4] if dtype.is_complex else ARITHMETIC
    a, b = rand(3, 4, dtype=dtype), rand(3, 4, dtype=dtype, seed=1)
    b[b == 0] = 1
    check_many([(fn, (a, b)) for fn in functions], **tolerance(dtype))


def test_type_promotion():
    tensors = [
        rand(3, dtype=F32), rand(3, dtype=F16), rand(3, dtype=I64), rand(3, dtype=U8),
        rand(3, dtype=BOOL), torch.tensor(2.5, dtype=F64), torch.tensor(3),
    ]  # fmt: skip
    others = [*tensors, 2, 2.5, True]
    cases = [(fn, (a, b)) for fn in (torch.mul, torch.lt) for a in tensors for b in others]
    check_many(cases, **HALF)


def test_scaled_sums():
    a, b = rand(3, 4), rand(4, seed=1)
    i, j = rand(5, dtype=I64), rand(5, dtype=I64, seed=1)
    t, f = special(BOOL), torch.tensor([False, True, True])
    check_many(
        [
            (torch.add, (a, b), {"alpha": 2.5}),
            (torch.sub, (a, b), {"alpha": 0.25}),
            (torch.add, (i, j), {"alpha": 3}),
            (torch.sub, (i, j), {"alpha": -2}),
            (torch.add, (a, 3), {"alpha": 2}),
            (torch.rsub, (a, b), {"alpha": 2}),
            (torch.rsub, (a, 1.5)),
            (torch.add, (t, f)),
            (torch.add, (t, f), {"alpha": False}),
            (torch.add, (i, 1.5)),
            (lambda x: 3 - x, (a,)),
            (lambda x: 3 / x, (i + 20,)),
            (torch.addcmul, (a, rand(3, 4, seed=2), b), {"value": 0.5}),
            (torch.addcdiv, (a, rand(3, 4, seed=2), b), {"value": -2}),
            (torch.addcmul, (i, j, j), {"value": 2}),
            (torch.addcmul, (a.half(), a.half(), b.half()), {"value": 0.5}),
            (torch.addcdiv, (a, b, torch.zeros(4))),
        ],
        rtol=1e-3,
        atol=1e-3,
    )


DIVIDENDS = torch.tensor([7.0, -7, 6, -6, 0.0, -0.0, 1e30, INF, -INF, NAN, 5.5, -5.5])
DIVISORS = torch.tensor([2.0, -2, 3, -3, INF, -INF, 0.0, 0.7])


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_division_of_floats(dtype):
    a, b = DIVIDENDS.to(dtype)[:, None], DIVISORS.to(dtype)
    cases = [(torch.div, (a, b), {"rounding_mode": mode}) for mode in (None, "floor", "trunc")]
    cases += [(fn, (a, b)) for fn in (torch.floor_divide, torch.remainder, torch.fmod)]
    cases += [(fn, (a, -2.5)) for fn in (torch.floor_divide, torch.remainder, torch.fmod)]
    cases += [(torch.remainder, (-7.5, b))]
    check_many(cases)


@pytest.mark.parametrize("dtype", [I64, I32, I8, U8], ids=str)
def test_division_of_integers(dtype):
    a = torch.arange(0 if dtype == U8 else -12, 13).to(dtype)[:, None]
    b = torch.tensor([1, 2, 3, 5] if dtype == U8 else [1, 2, -2, 3, -3, 5, -1]).to(dtype)
    cases = [(torch.div, (a, b), {"rounding_mode": mode}) for mode in (None, "floor", "trunc")]
    cases += [(fn, (a, b)) for fn in (torch.floor_divide, torch.remainder, torch.fmod)]
    cases += [(fn, (a, 4)) for fn in (torch.floor_divide, torch.remainder, torch.fmod)]
    cases += [(torch.remainder, (7, b)), (torch.remainder, (a, 2.5)), (torch.fmod, (a, 2.5))]
    check_many(cases)


def test_integer_division_by_zero_does_not_crash():
    x = torch.arange(3, device="xla")
    for fn in (torch.floor_divide, torch.remainder, torch.fmod):
        assert fn(x, x * 0).cpu().shape == (3,)
    smallest = torch.tensor([torch.iinfo(I64).min], device="xla")
    assert (smallest // torch.tensor([-1], device="xla")).cpu().shape == (1,)


def test_integers_wrap_around():
    top = torch.tensor([torch.iinfo(I32).max], dtype=I32)
    check_many([(torch.add, (top, 1)), (torch.mul, (top, 3)), (torch.neg, (-top - 1,))])


def test_comparisons():
    functions = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
    a, i = special(), rand(6, dtype=I64)
    cases = [
        (fn, pair) for fn in functions for pair in ((a[:, None], a), (a, 1.0), (i, 2), (i, 1.5))
    ]
    cases += [(fn, (i, rand(6, seed=3))) for fn in functions]
    cases += [(fn, (special(BOOL), special(BOOL).flip(0))) for fn in functions]
    cases += [(fn, (rand(3, dtype=C64), 1 + 2j)) for fn in functions[:2]]
    check_many(cases)


def test_extremes_and_nan():
    a, b = special()[:, None], special()
    functions = [torch.maximum, torch.minimum, torch.fmax, torch.fmin]
    cases = [(fn, (a, b)) for fn in functions]
    cases += [(fn, (rand(5, dtype=I64), rand(5, dtype=I64, seed=1))) for fn in functions]
    cases += [(fn, (special(BOOL), special(BOOL).flip(0))) for fn in functions[:2]]
    check_many(cases)


def test_clamp():
    x, i = special(), rand(9, dtype=I64)
    low, high = torch.full((15,), -1.0), torch.full((15,), 2.0)
    low[3] = NAN
    check_many(
        [
            (torch.clamp, (x, -1.0, 1.5)),
            (torch.clamp, (x, 2, -2)),  # min > max gives max
            (torch.clamp, (x,), {"min": 0.5}),
            (torch.clamp, (x,), {"max": 0.5}),
            (torch.clamp, (x, NAN, 1.0)),
            (torch.clamp, (i, -2, 3)),
            (torch.clamp, (i, -1.5, 2.5)),
            (torch.clamp, (x, low, high)),
            (torch.clamp, (x,), {"min": low}),
            (torch.clamp, (x[:, None],), {"max": high}),
            (torch.clamp_min, (i, 2)),
            (torch.clamp_max, (x, 1)),
            (torch.clamp_min, (x, low)),
            (torch.clamp_max, (x, high)),
        ]
    )
    check(torch.clamp, rand(4, 5), -0.5, 0.7, grad=True)


def test_bits():
    amounts = torch.tensor([0, 1, 5, 31, 63, 64, 70, -1, -9])
    cases = []
    for dtype in (I64, I32, I8, U8):
        a = rand(9, dtype=dtype)
        b = amounts if dtype != U8 else amounts.abs()
        cases += [
            (fn, (a[:, None], b.to(dtype)))
            for fn in (torch.bitwise_left_shift, torch.bitwise_right_shift)
        ]
        cases += [
            (fn, (a, a.flip(0))) for fn in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)
        ]
        cases += [(torch.bitwise_and, (a, 6)), (torch.bitwise_left_shift, (a, 2))]
    cases += [(torch.bitwise_xor, (special(BOOL), special(BOOL).flip(0)))]
    check_many(cases)  # fmt: skip


def test_shift_operators():
    a, b = rand(9, dtype=I64), torch.arange(9)
    shifts = [operator.lshift, operator.rshift, operator.ilshift, operator.irshift]
    functions = [lambda x, y, f=f: f(x.clone(), y) for f in shifts]
    check_many([(fn, (a, other)) for fn in functions for other in (2, b)])
    check(lambda x: 2 << x, b)


def test_logic():
    functions = [torch.logical_and, torch.logical_or, torch.logical_xor]
    operands = [special(), rand(15, dtype=I64), rand(15, dtype=BOOL)]
    check_many([(fn, (a, b)) for fn in functions for a in operands for b in operands])


def test_binary_functions():
    a, b = special()[:, None], special()
    functions = [torch.atan2, torch.copysign, torch.heaviside, torch.hypot, torch.logaddexp]
    functions += [torch.logaddexp2, torch.xlogy]
    check_many([(fn, (a, b)) for fn in functions], rtol=1e-5, atol=1e-6)
    x, y = rand(3, 4), rand(3, 4, seed=1)
    check_many([(torch.nextafter, (x, y)), (torch.copysign, (x, -2)), (torch.copysign, (x, -0.0))])
    smooth = [torch.atan2, torch.hypot, torch.logaddexp, torch.logaddexp2]
    check_many([(fn, (x, y)) for fn in smooth], grad=True, rtol=1e-5, atol=1e-5)
    check_many(
        [(torch.hypot, (torch.tensor([3e30, 1e-30]), torch.tensor([4e30, 1e-30])))], rtol=1e-5
    )
    halves = x.half(), y.half()
    check_many([(fn, halves) for fn in (torch.copysign, torch.hypot, torch.heaviside)], **HALF)


def test_pow():
    x = torch.tensor([0.0, -0.0, 0.5, 2, -2, -0.5, INF, -INF, NAN, 10])
    exponents = [0, 1, 2, 3, 4, 7, -1, -2, -3, 0.5, -0.5, 1.5, 2.0, 3.0]
    cases = [(torch.pow, (x, e)) for e in exponents]
    cases += [(torch.pow, (x[:, None], x))]
    cases += [(torch.pow, (base, x)) for base in (2.0, 0.0, 1.0, -2, 10)]
    i = torch.arange(-4, 5)
    cases += [(torch.pow, (i, e)) for e in (0, 1, 2, 3, 5, 2.0, 0.5)]
    cases += [(torch.pow, (i[:, None], torch.arange(0, 6)))]
    cases += [(torch.pow, (i[:, None], torch.arange(-3, 4)))]
    cases += [(torch.pow, (2, torch.arange(0, 10))), (torch.pow, (i.to(I8), 9))]
    cases += [(torch.pow, (rand(5).abs().half(), e)) for e in (2, 3, 0.5, 1.5)]
    cases += [(torch.pow, (special(BOOL), 2))]
    check_many(cases, rtol=2e-5, atol=1e-5)
    gradients = [(torch.pow, (rand(5).abs() + 0.5, e)) for e in (2, 3, 0.5, -1, 1, 0, 2.3)]
    check_many(gradients, grad=True)
    check(torch.pow, rand(5).abs() + 0.1, rand(5, seed=1), grad=True)


def test_where_and_masks():
    mask = rand(3, 4, dtype=BOOL)
    a, b = rand(3, 4), rand(4, seed=1)
    check_many([(torch.where, (mask, a, b)), (torch.lerp, (a, b, 0.3))], grad=True)
    check_many(
        [
            (torch.where, (mask, a, 2)),
            (torch.where, (mask[0], 1.5, a)),
            (torch.where, (mask, a, b.double())),
            (torch.where, (mask, rand(3, 4, dtype=I64), a)),
            (torch.where, (mask, a, torch.tensor(NAN))),
            (torch.masked_fill, (a, mask, -INF)),
            (torch.masked_fill, (b, mask, 2)),
            (torch.masked_fill, (a, mask[0], torch.tensor(7.0))),
            (torch.masked_fill, (rand(3, 4, dtype=I32), mask, 5)),
            (torch.masked_fill, (a.half(), mask, 1.5)),
        ]
    )


def test_lerp():
    a, b = rand(3, 4), rand(3, 4, seed=1)
    weights = torch.tensor([0.0, 0.3, 0.7, 1.0])
    cases = [(torch.lerp, (a, b, w)) for w in (0.0, 0.25, 0.5, 1.0, -1, 2)]
    cases += [(torch.lerp, (a, b, weights)), (torch.lerp, (a.half(), b.half(), 0.3))]
    check_many(cases, rtol=1e-3, atol=1e-4)


def test_in_place_and_out():
    def in_place(x, y):
        x = x.clone()
        x.add_(y, alpha=2).mul_(3).clamp_(-2, 2).sub_(1).div_(2)
        x.addcmul_(y, y, value=0.5).lerp_(y, 0.25).pow_(2)
        return x

    def out(x, y):
        result = torch.empty_like(x)
        torch.add(x, y, out=result)
        return torch.mul(result, y, out=torch.empty_like(result))

    check_many([(in_place, (rand(3, 4), rand(4, seed=1))), (out, (rand(3), rand(3, seed=1)))])


# ---- Activation functions

ACTIVATIONS = [
    (F.relu, {}),
    (F.elu, {}),
    (F.elu, {"alpha": 0.5}),
    (F.selu, {}),
    (F.celu, {"alpha": 2.0}),
    (F.gelu, {}),
    (F.gelu, {"approximate": "tanh"}),
    (F.hardshrink, {}),
    (F.hardshrink, {"lambd": 1.0}),
    (F.hardsigmoid, {}),
    (F.hardswish, {}),
    (F.hardtanh, {}),
    (F.hardtanh, {"min_val": -0.5, "max_val": 2.0}),
    (F.relu6, {}),
    (F.leaky_relu, {}),
    (F.leaky_relu, {"negative_slope": 0.3}),
    (F.logsigmoid, {}),
    (F.mish, {}),
    (F.sigmoid, {}),
    (F.silu, {}),
    (F.softplus, {}),
    (F.softplus, {"beta": 2.0, "threshold": 3.0}),
    (F.softshrink, {}),
    (F.softsign, {}),
    (F.tanh, {}),
    (F.tanhshrink, {}),
    (F.threshold, {"threshold": 0.5, "value": 3.0}),
]


def test_activation_gradients():
    # Also on the boundaries of the pieces.
    x = torch.cat([rand(20) * 3, torch.tensor([0.0, 0.5, -0.5, 1, -1, 3, -3, 2, 6])])
    check_many([(fn, (x,), kw) for fn, kw in ACTIVATIONS], grad=True, rtol=1e-5, atol=1e-6)


def test_activation_special_values():
    # PyTorch's vector code makes NaN of gelu(inf), where inf is right.
    finite = special()[special() != INF]
    cases = [(fn, (finite if fn is F.gelu else special(),), kw) for fn, kw in ACTIVATIONS]
    check_many(cases, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [F64, F16, BF16], ids=str)
def test_activation_dtypes(dtype):
    x = rand(3, 4, dtype=dtype)
    cases = [(fn, (x,), kw) for fn, kw in ACTIVATIONS]
    check_many(cases, grad=dtype == F64, **tolerance(dtype))


def test_activation_shapes():
    check_many([(fn, (x,), kw) for fn, kw in ACTIVATIONS for x in (rand(), rand(0, 3))])


def test_activations_of_integers():
    i = rand(8, dtype=I64)
    check_many([(F.relu, (i,)), (F.hardtanh, (i,), {"min_val": -2, "max_val": 3})])


def test_backward_special_values():
    grad, x = torch.ones(15), special()
    check_many(
        [
            (aten.threshold_backward, (grad, x, 0.5)),
            (aten.hardtanh_backward, (grad, x, -1, 1)),
            (aten.hardshrink_backward, (grad, x, 0.5)),
            (aten.softshrink_backward, (grad, x, 0.5)),
            (aten.hardsigmoid_backward, (grad, x)),
            (aten.hardswish_backward, (grad, x)),
            (aten.leaky_relu_backward, (grad, x, 0.1, False)),
            (aten.elu_backward, (grad, 1.5, 2.0, 0.5, False, x)),
            (aten.elu_backward, (grad, 1.5, 2.0, 0.5, True, x)),
            (aten.logit_backward, (grad, x)),
            (aten.logit_backward, (grad, x, 0.1)),
            (aten.softplus_backward, (grad, x, 1, 20)),
        ],
        rtol=1e-5,
        atol=1e-6,
    )


def test_gated_and_learned():
    x, weight = rand(3, 6, 4), torch.tensor([0.1, 0.2, -0.3, 0.4, 0.5, -0.6])
    check_many(
        [
            (F.glu, (x,)),
            (F.glu, (x,), {"dim": 1}),
            (F.prelu, (x, weight)),
            (F.prelu, (x, torch.tensor([0.25]))),
            (torch.logit, (torch.rand(5),), {"eps": 0.1}),
            (torch.logit, (torch.rand(5) * 0.8 + 0.1,)),
        ],
        grad=True,
        rtol=1e-5,
        atol=1e-5,
    )
    dx, grad, dgrad = rand(3, 6, 4, seed=1), rand(3, 3, 4, seed=2), rand(3, 3, 4, seed=3)
    check_many(
        [
            (aten.glu_jvp, (F.glu(x, -2), x, dx, -2)),
            (aten.glu_backward_jvp, (x, grad, x, dgrad, dx, 1)),
        ],
        rtol=1e-5,
        atol=1e-5,
    )
    check_many([(F.glu, (x.half(),)), (torch.logit, (special(),)), (torch.logit, (special(), 0.2))],
               **HALF)  # fmt: skip


def test_nan_to_num():
    cases = [(torch.nan_to_num, (special(dtype),)) for dtype in (F32, F64, F16, BF16, I64)]
    cases += [(torch.nan_to_num, (special(), 1.0, 2.0, -3.0))]
    check_many(cases)


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


def test_where_of_a_complex_and_a_bool() -> None:
    mask = torch.tensor([True, False])
    c = torch.tensor([1j, 2j])
    check_many([(torch.where, (mask, c, mask)), (torch.where, (mask, mask, c))])
    check(torch.where, mask, c, rand(2, dtype=F64))


def test_what_xla_would_simplify() -> None:
    """Its algebra holds for finite, or for positive, numbers alone."""
    x = torch.tensor([-2.0, -0.5, 0, 0.5, 3, 1000, -1000, INF, NAN])
    y = torch.tensor([3.0, 2, 0, -1, 0.5, 2, 3, 0.5, 0])
    turns = torch.complex(torch.zeros(4), torch.tensor([1.0, 4, -5, 9]))
    check_many(
        [
            (lambda x, y: torch.log(x**y), (x, y)),
            (lambda x: torch.log(x**2.5), (x,)),
            (lambda x: torch.log2(2**x), (x,)),
            (lambda x: torch.log(torch.exp(x)), (x,)),
            (lambda x: torch.log(torch.exp(x)), (turns,)),
            (lambda x: (x > 0) * x, (x,)),
            (lambda x: (x > 0).double() * x.double(), (x,)),
            (lambda x: (x > 0) / 0, (x,)),
            (lambda x: torch.div(x, 0), (torch.tensor(False),)),
        ],
        rtol=1e-5,
        atol=1e-6,
    )


def test_exp_overflows_within_sums() -> None:
    # XLA:CPU fused the last product of exp with the sum: exp(100) - 3e38 was finite.
    for dtype in (F32, F64, torch.bfloat16):
        edge = 709.78271 if dtype == F64 else 88.722831
        x = torch.tensor([INF, edge - 1, edge + 0.5, 1.1 * edge, -INF, NAN, 5], dtype=dtype)
        large = 0.9 * torch.finfo(dtype).max
        check(lambda x, y: x.exp() - y, x, torch.full_like(x, large), rtol=2e-2)
        check(lambda x: x.exp() - x * x, x, rtol=2e-2)


def test_powers_of_bools_to_bools() -> None:
    bools = torch.tensor([True, False])
    check_many([(torch.pow, (bools, y)) for y in (True, False, 0, 1, 2, 2.5)])


def test_numbers_at_the_edge_of_a_dtype() -> None:
    """One number may become infinite; a complex one without imaginary part may fill real ones."""
    cases = []
    for dtype in (torch.float16, torch.bfloat16, F64):
        x = torch.tensor([0.0, 1.0, 3.0], dtype=dtype)
        for number in (1e300, -1e300, 1e40, 70000.0, INF, NAN, 2**40, True):
            cases.append((torch.where, (x > 0, x, number), {}))
            cases.append((torch.where, (x > 0, number, x), {}))
            cases.append((lambda x, n=number: _set_first(x.clone(), n), (x,), {}))
    for dtype in (torch.bool, U8, I8, I16, I32, I64, torch.float16, torch.bfloat16, F32, F64, C64):
        x = torch.tensor([0, 1, 3]).to(dtype)
        cases.append((lambda x: x.masked_fill(x != 0, 2 + 0j), (x,), {}))
        cases.append((lambda x: x.clone().masked_fill_(x == 0, 2 + 0j), (x,), {}))
    cases.append((lambda x: x.masked_fill(x > 0, 1e300 + 0j), (torch.ones(2, dtype=F64),), {}))
    check_many(cases)


def _set_first(x: torch.Tensor, number: float) -> torch.Tensor:
    x[0] = number
    return x


def test_numbers_that_do_not_fit_are_refused(device: torch.device) -> None:
    def refused(f, *args) -> None:
        for on in ("cpu", device):
            with pytest.raises((RuntimeError, TypeError)):
                f(*(x.to(on) for x in args)).cpu()

    x = torch.tensor([1.0, 2.0])
    refused(lambda x: x.masked_fill(x > 0, 2 + 1j), x)
    refused(lambda x: x.half().masked_fill(x > 0, 1e300), x)
    refused(lambda x: x.half().fill_(1e300), x)
    for f in (lambda x: x // 2**40, lambda x: x % 2**40, lambda x: x.masked_fill(x > 0, 2**40)):
        refused(f, x.int())


def test_complex_powers_by_exponents_that_vary(device) -> None:
    """Such an exponent is a parameter of the program. It multiplies, as a constant does."""
    x = torch.tensor([3.5j, 3 + 4j, -2.5j, 1e-3j, -7], dtype=C64)
    for y in (2, 3, -1, 5, 1, -2, 0, 2, 3, -1, 1, -2):
        got, want = (x.to(device) ** y).cpu(), x**y
        torch.testing.assert_close(got, want, rtol=2e-6, atol=0)
        if y != 5:
            same = torch.view_as_real(got) == 0
            torch.testing.assert_close(same, torch.view_as_real(want) == 0)


def test_powers_of_large_exponents() -> None:
    y = torch.tensor([0, 1, 2, 3, 63, 64, 65, 126, 127, 128, 253, 254, 255])
    small, large = y.to(U8), y * 2**50 // 2**49
    signed = small.to(I8)
    pairs = [
        (3, small),
        (small.reshape(-1, 1), small),
        (large.reshape(-1, 1), large),
        (signed.clamp(min=0).reshape(-1, 1), signed),
        (torch.arange(-3, 3).reshape(-1, 1), -large),
        (torch.tensor(7), torch.tensor(66)),
    ]
    check_many([(lambda x, y: x**y, pair) for pair in pairs])
