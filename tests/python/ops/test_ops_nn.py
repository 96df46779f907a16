"""Matrix products, convolution, pooling and normalization against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from testing.ops import (
    BF16,
    F16,
    F32,
    F64,
    I32,
    I64,
    INF,
    NAN,
    U8,
    check,
    check_groups,
    check_many,
    rand,
)

aten = torch.ops.aten


def large(*shape, dtype=F32):
    """Numbers that sums do not cancel, for half types."""
    return rand(*shape, dtype=dtype).abs()


# ---- Matrix products --------------------------------------------------------------------

PRODUCTS = [
    (torch.mm, (3, 4), (4, 5)),
    (torch.mm, (3, 0), (0, 5)),
    (torch.mm, (0, 4), (4, 5)),
    (torch.mv, (3, 4), (4,)),
    (torch.dot, (7,), (7,)),
    (torch.dot, (0,), (0,)),
    (torch.bmm, (2, 3, 4), (2, 4, 5)),
    (torch.bmm, (0, 3, 4), (0, 4, 5)),
    (torch.bmm, (2, 3, 0), (2, 0, 5)),
    (torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
    (F.linear, (2, 3, 4), (5, 4)),
]


def test_products():
    for dtype in (F32, F64, torch.complex64, I64, I32, U8):
        cases = [(f, (rand(*a, dtype=dtype), rand(*b, dtype=dtype))) for f, a, b in PRODUCTS]
        check_many(cases)


def test_product_gradients():
    check_many([(f, (rand(*a), rand(*b))) for f, a, b in PRODUCTS], grad=True)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_half_products(dtype):
    check_many([(f, (large(*a, dtype=dtype), large(*b, dtype=dtype))) for f, a, b in PRODUCTS])
    # Accumulated in float: 4096 ones are lost one by one in bfloat16.
    check(torch.mm, torch.ones(1, 4096, dtype=dtype), torch.ones(4096, 1, dtype=dtype))


ADDED = [
    (torch.addmm, [(3, 5), (5,), (1,), (3, 1), ()], (3, 4), (4, 5)),
    (torch.addmm, [(3, 5)], (3, 0), (0, 5)),
    (torch.addmv, [(3,), (1,), ()], (3, 4), (4,)),
    (torch.addr, [(3, 4), (4,), (1,), ()], (3,), (4,)),
    (torch.baddbmm, [(2, 3, 5), (5,), (3, 1)], (2, 3, 4), (2, 4, 5)),
    (torch.addbmm, [(3, 5), (5,)], (2, 3, 4), (2, 4, 5)),
]


@pytest.mark.parametrize("dtype", [F32, F64, I64, torch.complex64])
def test_added_products(dtype):
    numbers = [(2, -3), (0, 2), (1, 1)]
    if dtype.is_floating_point:
        numbers[0] = (0.5, 1.25)
    cases = []
    for f, selves, a, b in ADDED:
        for shape in selves if dtype == F32 else selves[:1]:
            args = (rand(*shape, dtype=dtype), rand(*a, dtype=dtype), rand(*b, dtype=dtype))
            cases += [(f, args, {"beta": beta, "alpha": alpha}) for beta, alpha in numbers]
    check_many(cases)


def test_added_product_gradients():
    cases = []
    for f, selves, a, b in ADDED:
        for shape in selves:
            cases.append((f, (rand(*shape), rand(*a), rand(*b)), {"beta": 0.5, "alpha": 2}))
    check_many(cases, grad=True)


def test_zero_beta_ignores_self():
    nan = torch.full((3, 5), NAN)
    args = (nan, rand(3, 4), rand(4, 5))
    check_many(
        [
            (torch.addmm, args, {"beta": 0}),
            (torch.addmm, args, {"beta": 0.0, "alpha": 2.5}),
            (torch.addmm, args, {"beta": 1}),
            (torch.addmm, (torch.full((5,), INF), *args[1:]), {"beta": 0}),
            (torch.baddbmm, (nan, rand(2, 3, 4), rand(2, 4, 5)), {"beta": 0}),
            (torch.addbmm, (nan, rand(2, 3, 4), rand(2, 4, 5)), {"beta": 0}),
            (torch.addmv, (nan[:, 0], rand(3, 4), rand(4)), {"beta": 0}),
            (torch.addr, (nan, rand(3), rand(5)), {"beta": 0}),
        ]
    )


def test_bool_addr():
    t = torch.tensor([True, False, True])
    check(torch.addr, torch.zeros(3, 3, dtype=torch.bool), t, t)


# ---- Convolution ------------------------------------------------------------------------


def conv(transposed=False, stride=1, padding=0, dilation=1, output_padding=0, groups=1):
    def convolution(x, w, b=None):
        n = x.dim() - 2
        lists = [[v] * n if isinstance(v, int) else list(v) for v in (stride, padding, dilation)]
        out = [output_padding] * n if isinstance(output_padding, int) else list(output_padding)
        return torch.convolution(x, w, b, *lists, transposed, out, groups)

    return convolution


# x, w, options. On CPU the form depends on the shapes: rows <= outputs, kernel > map, 1x1,
# depthwise and the rest.
CONVOLUTIONS = [
    ((2, 3, 8, 7), (4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 9, 8), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    ((8, 3, 8, 8), (4, 3, 3, 3), {"stride": 2}),  # the last row and column are not used
    ((2, 3, 9, 9), (4, 3, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    ((2, 3, 9, 9), (4, 3, 3, 3), {"dilation": 2, "stride": 2}),
    ((2, 3, 2, 2), (40, 3, 3, 3), {"padding": 1}),
    ((2, 3, 2, 2), (5, 3, 3, 3), {"padding": 2, "stride": 2}),
    ((4, 6, 4, 4), (16, 6, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 3, 6, 5), (4, 3, 1, 1), {}),
    ((2, 3, 6, 5), (4, 3, 1, 1), {"stride": 2, "padding": 1}),
    ((2, 3, 1, 1), (4, 3, 1, 1), {}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "stride": 2, "dilation": 2, "padding": 2}),
    ((2, 4, 6, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    ((2, 4, 7, 6), (4, 1, 3, 3), {"groups": 4, "padding": (1, 2), "stride": 2}),
    ((2, 4, 9, 9), (4, 1, 3, 2), {"groups": 4, "dilation": 2}),
    ((2, 4, 6, 6), (8, 1, 3, 3), {"groups": 4}),
    ((2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 9), (4, 1, 3), {"groups": 4, "padding": 1}),
    ((2, 3, 5, 6, 4), (4, 3, 3, 2, 1), {"stride": (1, 2, 1), "padding": (1, 0, 0)}),
    ((2, 3, 2, 2, 2), (9, 3, 3, 3, 3), {"padding": 1}),
    ((2, 2, 2, 2), (3, 2, 2, 2), {"padding": 2}),  # more padding than the kernel is wide
]
TRANSPOSED = [
    ((2, 3, 5, 6), (3, 4, 3, 3), {}),
    ((2, 3, 5, 6), (3, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 3, 4, 4), (3, 4, 2, 2), {"stride": 2}),
    ((2, 3, 4, 4), (3, 4, 4, 3), {"stride": (2, 3), "padding": 1, "output_padding": (0, 2)}),
    ((2, 3, 4, 4), (3, 4, 3, 3), {"dilation": 3, "stride": 2, "output_padding": 2}),
    ((2, 4, 4, 4), (4, 3, 3, 3), {"groups": 2, "stride": 2}),
    ((2, 4, 4, 4), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    ((2, 3, 1, 1), (3, 4, 4, 4), {}),
    ((2, 40, 2, 2), (40, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 3, 5), (3, 4, 3), {"stride": 2}),
    ((2, 3, 3, 2, 2), (3, 2, 2, 3, 2), {"stride": 2}),
]


def convolution_cases(dtype=F32, make=rand):
    cases = []
    for shapes, transposed in ((CONVOLUTIONS, False), (TRANSPOSED, True)):
        for i, (x, w, options) in enumerate(shapes):
            args = [make(*x, dtype=dtype), make(*w, dtype=dtype)]
            if i % 2 == 0:
                channels = w[1] * options.get("groups", 1) if transposed else w[0]
                args.append(make(channels, dtype=dtype))
            cases.append((conv(transposed, **options), args))
    return cases


def test_convolution():
    check_groups(convolution_cases(), rtol=1e-4, atol=1e-4, grad=True)


def test_convolution_dtypes():
    check_groups(convolution_cases(F64)[::6], grad=True)
    check_groups(convolution_cases(BF16, large)[1::5], rtol=2e-2, atol=2e-2, grad=True)


def test_convolution_of_nothing():
    x, w = rand(0, 3, 5, 5), rand(4, 3, 3, 3)
    check_many(
        [(F.conv2d, (x, w, rand(4))), (F.conv_transpose2d, (x, rand(3, 4, 3, 3)))], grad=True
    )


def test_convolution_by_names():
    check_many(
        [
            (F.conv1d, (rand(2, 3, 8), rand(4, 3, 3)), {"padding": "same"}),
            (F.conv2d, (rand(3, 8, 8), rand(4, 3, 3, 3)), {"padding": 1}),
            (F.conv2d, (rand(2, 3, 8, 8), rand(4, 3, 3, 3)), {"padding": "valid"}),
            (F.conv3d, (rand(2, 2, 4, 4, 4), rand(4, 2, 3, 3, 3)), {"padding": "same"}),
            (F.conv_transpose1d, (rand(2, 3, 8), rand(3, 4, 3)), {"stride": 2}),
            (F.conv_transpose3d, (rand(1, 2, 3, 3, 3), rand(2, 3, 2, 2, 2)), {}),
        ],
        rtol=1e-4,
        atol=1e-4,
        grad=True,
    )


# ---- Pooling ----------------------------------------------------------------------------

# x, kernel_size, stride, padding, dilation, ceil_mode
MAX_POOLS = [
    ((2, 3, 8, 8), 2, None, 0, 1, False),
    ((2, 3, 9, 8), 3, 2, 1, 1, False),
    ((2, 3, 9, 8), 3, 2, 1, 1, True),
    ((2, 3, 7, 7), 2, None, 0, 1, True),
    ((2, 3, 7, 9), (3, 2), (1, 3), (1, 0), 1, False),
    ((3, 7, 7), 3, 1, 1, 1, False),
    ((2, 3, 9, 9), 3, 2, 1, 2, False),
    ((2, 3, 9, 9), 2, 3, 0, (3, 2), True),
    ((2, 2, 9, 9), 5, 1, 2, 1, False),  # 25 windows per element: scattered
    ((2, 2, 6, 6), 6, None, 0, 1, False),
    ((0, 2, 6, 6), 2, None, 0, 1, False),
]
MAX_POOLS_3D = [
    ((2, 3, 4, 6, 5), 2, None, 0, 1, False),
    ((3, 5, 6, 5), 3, 2, 1, 1, True),
    ((2, 2, 5, 5, 5), 3, 1, 1, 1, False),
    ((1, 2, 6, 7, 6), 2, (2, 1, 3), (1, 0, 1), (2, 1, 1), False),
]


def max_pool(x, kernel_size, stride, padding, dilation, ceil_mode, pool=F.max_pool2d):
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def max_pool_cases(make):
    cases = [(max_pool, (make(*x), *rest)) for x, *rest in MAX_POOLS]
    return cases + [
        (max_pool, (make(*x), *rest), {"pool": F.max_pool3d}) for x, *rest in MAX_POOLS_3D
    ]


def test_max_pool():
    check_groups(max_pool_cases(rand), grad=True)


def test_max_pool_ties_and_specials():
    def ties(*shape):
        return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).float()

    def specials(*shape):
        x, choice = rand(*shape), rand(*shape, seed=3)
        x = torch.where(choice > 1.2, NAN, x)
        return torch.where(choice < -0.3, -INF, x)

    check_groups(max_pool_cases(ties)[:5])
    check_groups(max_pool_cases(specials)[1::2])
    check_groups(max_pool_cases(lambda *shape: torch.full(shape, -INF))[1:10:2])


def test_max_pool_dtypes():
    args = (3, 2, 1, 1, False)
    dtypes = (F64, BF16, F16, I64, I32, U8)
    check_many([(max_pool, (rand(2, 3, 6, 6, dtype=t), *args)) for t in dtypes])
    check(max_pool, large(2, 3, 7, 7, dtype=BF16), 2, None, 0, 1, False, grad=True)
    check_many(
        [(F.max_pool1d, (rand(2, 3, 8), 2)), (F.adaptive_max_pool2d, (rand(2, 3, 8, 8), 4))],
        fallback_ok=True,
        grad=True,
    )


# x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE_POOLS = [
    ((2, 3, 8, 8), 2, None, 0, False, True, None),
    ((2, 3, 9, 8), 3, 2, 1, False, True, None),
    ((2, 3, 9, 8), 3, 2, 1, False, False, None),
    ((2, 3, 8, 8), 3, 2, 1, True, True, None),
    ((2, 3, 8, 8), 3, 2, 1, True, False, None),
    ((2, 3, 7, 8), (3, 2), (1, 2), (1, 0), True, True, 5),
    ((3, 7, 7), 2, None, 0, False, True, None),
    ((3, 7, 7), 2, None, 0, True, True, None),
    ((2, 3, 7, 7), 3, 1, 1, False, True, 7),
    ((2, 3, 9, 9), 2, 3, 0, True, True, None),
    ((0, 3, 6, 6), 2, None, 0, False, True, None),
]
AVERAGE_POOLS_3D = [
    ((2, 3, 4, 6, 4), 2, None, 0, False, True, None),
    ((3, 5, 6, 5), 3, 2, 1, True, False, None),
    ((2, 2, 5, 5, 6), (3, 2, 3), 2, 1, True, True, None),
    ((2, 2, 5, 5, 6), 2, 1, 0, False, True, 3),
]


def average_pool_cases(make):
    cases = [(F.avg_pool2d, (make(*x), *rest)) for x, *rest in AVERAGE_POOLS]
    return cases + [(F.avg_pool3d, (make(*x), *rest)) for x, *rest in AVERAGE_POOLS_3D]


def test_average_pool():
    check_groups(average_pool_cases(rand), grad=True)
    check_groups(average_pool_cases(lambda *shape: rand(*shape, dtype=F64))[::3], grad=True)
    half = average_pool_cases(lambda *shape: large(*shape, dtype=BF16))
    check_many(half[: len(AVERAGE_POOLS) : 3], rtol=2e-2, atol=2e-2, grad=True)

    def specials(*shape):
        x = rand(*shape)
        return torch.where(x > 1.5, INF, torch.where(x < -1.8, NAN, x))

    check_groups(average_pool_cases(specials)[::2])
    check(F.avg_pool2d, rand(2, 3, 6, 6, dtype=I64), 2)
    check(F.avg_pool1d, rand(2, 3, 8), 2, grad=True)


ADAPTIVE = [
    (F.adaptive_avg_pool2d, (2, 3, 8, 6), (4, 3)),
    (F.adaptive_avg_pool2d, (2, 3, 7, 9), (3, 4)),
    (F.adaptive_avg_pool2d, (3, 7, 9), (7, 2)),
    (F.adaptive_avg_pool2d, (2, 3, 3, 4), (5, 8)),
    (F.adaptive_avg_pool2d, (2, 3, 6, 6), (None, 4)),
    (F.adaptive_avg_pool2d, (2, 3, 6, 6), 1),
    (F.adaptive_avg_pool2d, (0, 3, 5, 5), 2),
    (F.adaptive_avg_pool3d, (2, 3, 4, 6, 5), (2, 3, 3)),
    (F.adaptive_avg_pool3d, (3, 4, 6, 5), 3),
    (F.adaptive_avg_pool1d, (2, 3, 7), 3),
]


def test_adaptive_average_pool():
    check_many([(f, (rand(*x), size)) for f, x, size in ADAPTIVE], grad=True)
    half = [(f, (large(*x, dtype=BF16), size)) for f, x, size in ADAPTIVE]
    check_many(half, rtol=2e-2, atol=2e-2)  # CPU's gradients are summed in bfloat16
    x = rand(2, 3, 7, 9)
    x[0, 0, 0, 0], x[1, 1, 3, 3] = INF, NAN
    check(F.adaptive_avg_pool2d, x, (3, 4), grad=True)


# ---- Normalization ----------------------------------------------------------------------


def batch_norm(x, w, b, mean, var, training):
    return aten.native_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5)


def batch_norm_output(*args):  # without moments, which have no elements when not training
    return batch_norm(*args)[0]


def moments(c, dtype=F32):
    return rand(c, dtype=dtype), rand(c, dtype=dtype, seed=2).abs() + 0.5


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (8, 3), (4, 3, 5), (2, 3, 4, 5, 2)])
def test_batch_norm(shape):
    def out(x, w, b, training):
        mean, var = (t.to(x.device) for t in moments(3))
        y = F.batch_norm(x, mean, var, w, b, training, 0.1, 1e-5)
        return y, mean, var

    x, w, b = rand(*shape), rand(3), rand(3, seed=1)
    cases = [(out, args) for args in [(x, w, b, True), (x, w, b, False), (x, None, None, True)]]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    cases = [
        (batch_norm, (x, w, b, *moments(3), True)),
        (batch_norm_output, (x, w, b, *moments(3), False)),
        (batch_norm_output, (x, w, None, *moments(3), False)),
        (batch_norm, (x, None, None, None, None, True)),
    ]
    check_many(cases, rtol=1e-4, atol=1e-4)


def test_batch_norm_backward():
    x, dy, w = rand(4, 3, 5, 6), rand(4, 3, 5, 6, seed=5), rand(3)
    stats, saved = moments(3), moments(3)
    cases = []
    for train in (True, False):
        for mask in ([True] * 3, [True, True, False], [True, False, False]):
            args = (dy, x, w, *stats, *saved, train, 1e-5, mask)
            cases.append((aten.native_batch_norm_backward, args))
    check_many(cases, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [F64, BF16])
def test_batch_norm_dtypes(dtype):
    x = rand(4, 3, 5, 6, dtype=dtype)
    params = [rand(3, dtype=F32 if dtype == BF16 else dtype, seed=s) for s in (1, 2)]
    stats = moments(3, params[0].dtype)

    def train(x, w, b):
        return F.batch_norm(x, None, None, w, b, True)

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == BF16 else {}
    check(train, x, *params, grad=True, **tolerance)
    check(batch_norm_output, x, *params, *stats, False, **tolerance)


def test_batch_norm_is_exact_far_from_zero():
    # mean(x^2) - mean(x)^2 would have lost the variance.
    check(
        F.batch_norm, rand(16, 3, 4, 4) + 1000, None, None, None, None, True, rtol=1e-3, atol=1e-3
    )


LAYER_NORMS = [
    ((4, 5), (5,)),
    ((2, 3, 4, 5), (4, 5)),
    ((3, 4), (3, 4)),
    ((6,), (6,)),
    ((0, 5), (5,)),
]


def layer_norm(x, shape, w, b):
    return aten.native_layer_norm(x, shape, w, b, 1e-5)


def test_layer_norm():
    cases = []
    for x, shape in LAYER_NORMS:
        w, b = rand(*shape), rand(*shape, seed=1)
        for affine in ((w, b), (w, None), (None, None)):
            cases.append((layer_norm, (rand(*x), list(shape), *affine)))
    check_many(cases, rtol=1e-4, atol=1e-4)

    def first(*args):
        return layer_norm(*args)[0]

    check_many([(first, args) for _, args in cases], rtol=1e-4, atol=1e-4, grad=True)


@pytest.mark.parametrize("dtype", [F64, BF16, F16])
def test_layer_norm_dtypes(dtype):
    tolerance = {} if dtype == F64 else {"rtol": 2e-2, "atol": 2e-2}
    for other in {dtype, F64 if dtype == F64 else F32}:
        args = (
            rand(4, 16, dtype=dtype),
            [16],
            rand(16, dtype=other),
            rand(16, dtype=other, seed=1),
        )
        check(F.layer_norm, *args, grad=True, **tolerance)


GROUP_NORMS = [((2, 6, 4, 5), 3), ((2, 6), 2), ((2, 6, 4), 6), ((3, 4, 2, 3, 2), 1)]


def test_group_norm():
    cases = []
    for x, groups in GROUP_NORMS:
        for affine in ((rand(x[1]), rand(x[1], seed=1)), (None, None)):
            cases.append((F.group_norm, (rand(*x), groups, *affine)))
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    x, w, b = rand(2, 6, 4, 5), rand(6), rand(6, seed=1)
    check(aten.native_group_norm, x, w, b, 2, 6, 20, 3, 1e-5, rtol=1e-4, atol=1e-4)
    check(F.instance_norm, rand(2, 3, 4, 5), grad=True, rtol=1e-4, atol=1e-4)
    half = [t.to(BF16) for t in (x, w, b)]
    check(F.group_norm, half[0], 3, *half[1:], rtol=2e-2, atol=2e-2, grad=True)


def test_norms_of_specials():
    x = rand(4, 6, 5)
    x[0, 0, 0], x[1, 2, 3] = INF, NAN
    check_many(
        [
            (F.layer_norm, (x, (5,))),
            (F.group_norm, (x, 3)),
            (F.batch_norm, (x, None, None, None, None, True)),
        ],
        rtol=1e-4,
        atol=1e-4,
    )


def test_steps_of_convolutions(device: torch.device) -> None:
    x, w = torch.ones(1, 1, 5, device=device), torch.ones(1, 1, 3, device=device)
    one = torch.ones(1, 1, 1, device=device)
    with pytest.raises(RuntimeError, match="dilation"):
        torch.conv1d(x, w, dilation=0)
    for large in (2**62, 2**63 - 1):
        with pytest.raises(RuntimeError):
            torch.conv1d(x, w, dilation=large)
        with pytest.raises(RuntimeError):
            torch.conv1d(x, w, padding=large)
        # Nothing is that far apart where there is one place alone.
        assert torch.conv1d(x, w, stride=large).tolist() == [[[3]]]
        assert torch.conv1d(x, one, dilation=large).tolist() == [[[1] * 5]]


def test_windows_of_which_there_is_one() -> None:
    x, y = rand(2, 3, 9), rand(2, 3, 9, 8)
    for strides, grad in (((7, 8), True), ((100, 2**20), False)):  # the CPU's gradient crashes
        cases = []
        for stride in strides:
            for kernel in (3, 5):
                cases += [(F.avg_pool1d, (x, kernel, stride)), (F.max_pool1d, (x, kernel, stride))]
                cases += [(F.avg_pool2d, (y, kernel, stride)), (F.max_pool2d, (y, kernel, stride))]
                cases += [(F.conv1d, (x, rand(2, 3, kernel), None, stride))]
        check_many(cases, rtol=1e-4, atol=1e-5, grad=grad)


def test_a_transposed_view_of_nothing(device: torch.device) -> None:
    x = torch.zeros(0, 2, device=device)
    x[0:] = 0
    assert (x @ x.t()).cpu().shape == (0, 0)
    assert torch.equal((x.t() @ x).cpu(), torch.zeros(2, 2))
