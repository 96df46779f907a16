"""Interpolation, padding by copies, sampling at a grid, pooling by other windows, distances."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from testing.ops import BF16, F16, F64, I64, INF, NAN, U8, check, check_groups, check_many, rand

aten = torch.ops.aten


# ---- Interpolation ----------------------------------------------------------------------

SHAPES = {1: (2, 3, 7), 2: (2, 3, 5, 6), 3: (1, 2, 4, 3, 5)}
SIZES = {1: [(3,), (7,), (21,)], 2: [(3, 4), (10, 12), (7, 5)], 3: [(2, 6, 5), (8, 6, 10)]}


def resized(mode, rank):
    x = rand(*SHAPES[rank])
    corners = [None] if "nearest" in mode or mode == "area" else [False, True]
    for align, size in itertools.product(corners, SIZES[rank]):
        yield F.interpolate, (x,), {"size": size, "mode": mode, "align_corners": align}
    for scale in (0.6, 1.7, 2.0):
        yield (
            F.interpolate,
            (x,),
            {"scale_factor": scale, "mode": mode, "align_corners": corners[0]},
        )


MODES = [
    *itertools.product(["nearest", "nearest-exact", "area"], [1, 2, 3]),
    ("linear", 1),
    ("bilinear", 2),
    ("trilinear", 3),
    ("bicubic", 2),
]


@pytest.mark.parametrize(("mode", "rank"), MODES)
def test_interpolate(mode, rank):
    check_many(resized(mode, rank), grad=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolate_antialiased(mode):
    x = rand(2, 3, 9, 8)
    check_many(
        [
            (
                F.interpolate,
                (x,),
                {"size": size, "mode": mode, "align_corners": align, "antialias": True},
            )
            for size in [(4, 3), (12, 8), (1, 20)]
            for align in (False, True)
        ],
        grad=True,
        rtol=1e-4,
        atol=1e-5,
    )


def test_interpolate_dtypes():
    modes = ["nearest", "nearest-exact", "bilinear", "bicubic"]
    cases = []
    for dtype, mode in itertools.product((F64, F16, BF16), modes):
        cases.append(
            (F.interpolate, (rand(1, 2, 5, 4, dtype=dtype),), {"size": (8, 3), "mode": mode})
        )
    check_groups(cases, rtol=1e-2, atol=1e-2)
    picture = torch.arange(60, dtype=U8).reshape(1, 3, 4, 5) * 4
    check_many(
        [
            (F.interpolate, (picture,), {"size": (8, 10), "mode": "nearest"}),
            (F.interpolate, (picture,), {"size": (3, 9), "mode": "nearest-exact"}),
        ]
    )
    check_many(
        [
            (F.interpolate, (picture,), {"size": (7, 9), "mode": mode})
            for mode in ("bilinear", "bicubic")
        ],
        atol=1,
    )


def test_interpolate_reads_its_neighbours_alone():
    x = rand(1, 1, 4, 4)
    x[0, 0, 1, 2], x[0, 0, 3, 0] = INF, NAN
    check_many(
        [
            (F.interpolate, (x,), {"size": (7, 9), "mode": mode})
            for mode in ("nearest", "bilinear", "bicubic")
        ]
        + [(F.interpolate, (x,), {"size": (2, 3), "mode": "bilinear", "antialias": True})],
        rtol=1e-4,
    )


def test_nearest_rounds_as_aten():
    x = torch.arange(300.0).reshape(1, 1, 300)
    check_many(
        [
            (F.interpolate, (x[..., :n],), {"size": m, "mode": mode})
            for n, m in [(300, 100), (299, 7), (49, 300), (128, 129)]
            for mode in ("nearest", "nearest-exact")
        ]
        + [(F.interpolate, (x.double(),), {"scale_factor": 1 / 3})]
    )


# ---- Padding by copies ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad(mode):
    cases = [
        (F.pad, (rand(2, 5), (2, 1))),
        (F.pad, (rand(2, 3, 5), (0, 4))),
        (F.pad, (rand(3, 4, 5), (2, 1, 3, 0))),
        (F.pad, (rand(2, 3, 4, 5), (1, 2, 0, 3))),
        (F.pad, (rand(2, 3, 4, 5), (-1, 2, 1, -2))),
        (F.pad, (rand(2, 4, 3, 5), (1, 2, 0, 2, 3, 1))),
        (F.pad, (rand(1, 2, 4, 3, 5), (1, 0, 0, 2, 3, 1))),
        (F.pad, (rand(2, 3, 5, dtype=torch.complex64), (2, 1))),
    ]
    check_many([(f, args, {"mode": mode}) for f, args in cases], grad=True)
    check_many(
        [
            (F.pad, (rand(2, 3, 5, dtype=dtype), (2, 1)), {"mode": mode})
            for dtype in (F64, F16, BF16, I64)
        ]
    )


def test_replicate_pad_by_more_than_the_size():
    check(F.pad, rand(2, 3, 2), (5, 7), kwargs={"mode": "replicate"}, grad=True)


def test_reflect_pad_refuses_more_than_the_size():
    x = rand(2, 3, 2).to("xla")
    with pytest.raises(RuntimeError, match="less than"):
        F.pad(x, (2, 0), mode="reflect")


# ---- Sampling at a grid -----------------------------------------------------------------


def grid(*shape):
    """Inside, outside and on the borders of [-1, 1]."""
    places = rand(*shape, seed=3) * 1.2
    places.flatten()[:6] = torch.tensor([-1.0, 1.0, 0.0, 1.0, -1.0, -1.0])
    return places


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(padding):
    cases = []
    for mode, align in itertools.product(["bilinear", "nearest", "bicubic"], [False, True]):
        options = {"mode": mode, "padding_mode": padding, "align_corners": align}
        cases.append((F.grid_sample, (rand(2, 3, 5, 6), grid(2, 4, 3, 2)), options))
        if mode != "bicubic":
            cases.append((F.grid_sample, (rand(2, 2, 4, 3, 5), grid(2, 3, 2, 4, 3)), options))
    check_groups(cases, 5, grad=True, rtol=1e-4, atol=1e-4)


def test_grid_sample_at_no_number():
    def gradients(x, places, **options):
        x, places = x.detach().requires_grad_(), places.detach().requires_grad_()
        F.grid_sample(x, places, align_corners=True, **options).sum().backward()
        return x.grad, places.grad

    paddings = ["zeros", "border", "reflection"]
    for rank, dtype in ((2, torch.float32), (2, F64), (3, torch.float32)):
        places = torch.zeros(1, *[1] * (rank - 1), 5, rank, dtype=dtype)
        places.view(5, rank)[:, 0] = torch.tensor([NAN, INF, -INF, 1e30, -1e30])
        x = rand(1, 2, *(3, 4, 5)[-rank:], dtype=dtype)
        modes = ["bilinear", "nearest", "bicubic"][: 5 - rank]
        cases = []
        for mode, padding in itertools.product(modes, paddings):
            options = {"mode": mode, "padding_mode": padding}
            cases.append((F.grid_sample, (x, places), options | {"align_corners": True}))
            # The CPU's kernel ends the process there.
            if (rank, mode) != (2, "bilinear") or padding == "zeros":
                cases.append((gradients, (x, places), options))
        check_groups(cases, 6, rtol=1e-4, atol=1e-5)


def test_grid_sample_of_one_gradient_and_nothing():
    x, places = rand(1, 2, 3, 4), grid(1, 5, 2, 2)

    def of(which):
        def sample(x, places):
            tensors = [x.detach(), places.detach()]
            tensors[which].requires_grad_()
            return torch.autograd.grad(
                F.grid_sample(*tensors, align_corners=False).sum(), tensors[which]
            )

        return sample

    check_many([(of(0), (x, places)), (of(1), (x, places))], rtol=1e-4, atol=1e-5)
    check(F.grid_sample, x, torch.zeros(1, 0, 2, 2), kwargs={"align_corners": True})


def test_affine_grid():
    check_many(
        [
            (F.affine_grid, (rand(2, 2, 3), (2, 3, 4, 5)), {"align_corners": False}),
            (F.affine_grid, (rand(2, 3, 4), (2, 3, 4, 5, 3)), {"align_corners": True}),
        ],
        grad=True,
    )


# ---- Pooling ----------------------------------------------------------------------------


def test_adaptive_max_pool():
    cases = [
        (F.adaptive_max_pool1d, (rand(2, 3, 7), 3)),
        (F.adaptive_max_pool2d, (rand(2, 3, 8, 9), (4, 3))),
        (F.adaptive_max_pool2d, (rand(3, 7, 5), (3, 4))),
        (F.adaptive_max_pool2d, (rand(2, 3, 7, 5), 1)),
        (F.adaptive_max_pool2d, (rand(2, 3, 3, 2), (5, 7))),
        (F.adaptive_max_pool3d, (rand(2, 2, 5, 6, 7), (2, 3, 4))),
        (F.adaptive_max_pool3d, (rand(2, 2, 5, 6, 7, dtype=F64), (2, 6, 4))),
    ]
    check_many(cases, grad=True)
    check_many([(f, args, {"return_indices": True}) for f, args in cases])


def test_adaptive_max_pool_ties_and_nan():
    x = torch.zeros(1, 1, 7, 5)
    x[0, 0, 2, 1] = x[0, 0, 3, 3] = x[0, 0, 0, 0] = NAN
    y = torch.full((1, 1, 7, 5), -INF)
    cases = [(F.adaptive_max_pool2d, (t, (3, 2)), {"return_indices": True}) for t in (x, y)]
    check_many(cases)


def test_fractional_max_pool():
    u2, u3 = torch.rand(2, 3, 2), torch.rand(2, 3, 3)
    cases = [
        (aten.fractional_max_pool2d, (rand(2, 3, 9, 8), (2, 3), (4, 5), u2)),
        (aten.fractional_max_pool2d, (rand(3, 9, 8), (2, 2), (1, 5), u2[:1])),
        (aten.fractional_max_pool3d, (rand(2, 3, 6, 7, 8), (2, 3, 2), (4, 3, 1), u3)),
        # One image, and samples for two: the first are taken.
        (aten.fractional_max_pool3d, (rand(3, 6, 7, 8), (2, 3, 2), (4, 3, 1), u3)),
    ]
    check_many(cases)

    def values(f, *sizes, u):
        return lambda x: f(x, *sizes, u.to(x.device))[0]

    check_many([(values(f, *args[1:3], u=args[3]), args[:1]) for f, args in cases], grad=True)


def test_unpool():
    x = rand(2, 3, 6, 8)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    z, places = F.max_pool3d(x[None], 2, stride=2, return_indices=True)
    check_many(
        [
            (lambda y: F.max_unpool2d(y, indices.to(y.device), 2), (y,)),
            (lambda z: F.max_unpool3d(z, places.to(z.device), 2, output_size=(3, 6, 8)), (z,)),
        ],
        grad=True,
    )


def test_lp_pool():
    x = rand(2, 3, 7, 8).abs()
    check_many(
        [
            (F.lp_pool1d, (x[0], 2.0, 3)),
            (F.lp_pool2d, (x, 3.0, 2), {"stride": 3, "ceil_mode": True}),
            (F.lp_pool3d, (x, 2.0, (1, 2, 3))),
        ],
        grad=True,
        rtol=1e-4,
        atol=1e-5,
    )


# ---- Windows as columns -----------------------------------------------------------------


def test_unfold_and_fold():
    options = [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "padding": (1, 2), "stride": (2, 1)},
        {"kernel_size": 2, "dilation": (2, 3), "stride": 3},
    ]
    x = rand(2, 3, 8, 9)
    cases = [(F.unfold, (x,), o) for o in options]
    cases += [(F.fold, (F.unfold(x, **o), (8, 9)), o) for o in options]
    cases += [(F.unfold, (x[0],), options[1]), (F.fold, (F.unfold(x[0], 3), (8, 9), 3))]
    cases.append((F.unfold, (rand(2, 3, 5, 5, dtype=torch.complex64), 2)))
    check_many(cases, grad=True)
    check(F.unfold, rand(2, 3, 5, 5, dtype=BF16), 3)
    check(F.unfold, rand(0, 3, 5, 5), 3)


# ---- Distances and forms ----------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_pdist(p):
    x = rand(6, 4)
    x[3] = x[1]
    check_many(
        [(F.pdist, (x, p)), (F.pdist, (rand(2, 3), p)), (F.pdist, (rand(11, 2, dtype=F64), p))],
        grad=True,
        rtol=1e-4,
        atol=1e-5,
    )


def test_pdist_of_many_and_nothing():
    check_many([(F.pdist, (rand(501, 2),)), (F.pdist, (rand(1, 3),)), (F.pdist, (rand(4, 0),))])


def test_bilinear():
    check_many(
        [
            (F.bilinear, (rand(5, 3), rand(5, 4), rand(2, 3, 4), rand(2))),
            (F.bilinear, (rand(2, 5, 3), rand(2, 5, 4), rand(2, 3, 4))),
        ],
        grad=True,
    )


def test_channel_shuffle():
    check_many(
        [
            (F.channel_shuffle, (rand(2, 6, 3, 2), 3)),
            (F.channel_shuffle, (rand(2, 4, 3), 2)),
            (F.channel_shuffle, (rand(0, 4, 3, 2), 2)),
        ]
    )


def test_weight_norm():
    check_many(
        [
            (lambda v, g: torch._weight_norm(v, g, 0), (rand(4, 3, 2), rand(4, 1, 1))),
            (lambda v, g: torch._weight_norm(v, g, 2), (rand(4, 3, 2), rand(1, 1, 2))),
        ],
        grad=True,
    )


def test_rrelu():
    x = torch.cat([rand(200), torch.tensor([0.0, NAN, -INF, INF])])
    check(F.rrelu, x, grad=True)
    y = x.to("xla").requires_grad_()
    out = F.rrelu(y, 0.2, 0.4, training=True)
    out.nan_to_num(0, 0, 0).sum().backward()
    slopes, slope = (out / y).detach().cpu(), y.grad.cpu()
    negative = x < 0
    assert (slopes[negative & x.isfinite()] >= 0.2).all()
    assert (slopes[negative & x.isfinite()] <= 0.4).all()
    assert slopes[negative & x.isfinite()].unique().numel() > 20
    torch.testing.assert_close(out.detach().cpu()[x > 0], x[x > 0])
    finite = x.isfinite() & (x != 0)
    torch.testing.assert_close(slope[finite], slopes[finite])
    z = rand(50).to("xla")
    F.rrelu_(z, training=True)
    assert (z.cpu()[rand(50) > 0] == rand(50)[rand(50) > 0]).all()


# ---- Numbers at equal distances ---------------------------------------------------------


def test_linspace():
    dtypes = (torch.float32, F64, F16, BF16, I64, U8, torch.int32, torch.complex64)
    for f in (torch.linspace, torch.logspace):
        cases = []
        for dtype in dtypes:
            ranges = [(0, 2, 5), (1, 3, 1), (2.3, 3, 1), (2.3, 0.5, 8), (2, 2, 3), (0, 1, 0)]
            for start, end, steps in ranges:
                cases.append((start, end, steps, dtype))
        for start, end, steps, dtype in cases:
            a = f(start, end, steps, dtype=dtype, device="xla")
            b = f(start, end, steps, dtype=dtype)
            torch.testing.assert_close(a.cpu(), b)
    assert torch.linspace(0, 1, 50, device="xla")[-1].item() == 1
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.linspace(0, 1, -1, device="xla")


def test_as_strided_scatter():
    check(torch.as_strided_scatter, rand(4, 5), rand(2, 3), (2, 3), (5, 2), 1)


# ---- Batch norm -------------------------------------------------------------------------


def test_batch_norm_operators():
    x, weight, bias = rand(4, 3, 5), rand(3), rand(3, seed=1)

    def run(op, *args):
        return lambda x, weight, bias: op(
            x, weight, bias, rand(3).to(x.device), rand(3).abs().to(x.device), *args
        )

    cases = [run(aten._batch_norm_with_update, 0.1, 1e-5)]
    for op in (aten.native_batch_norm, aten._native_batch_norm_legit):
        cases += [run(op, training, 0.1, 1e-5) for training in (True, False)]
    check_many([(f, (x, weight, bias)) for f in cases], rtol=1e-4, atol=1e-5)
    first = [lambda x, weight, bias, f=f: f(x, weight, bias)[0] for f in cases]
    check_many([(f, (x, weight, bias)) for f in first], grad=True, rtol=1e-4, atol=1e-5)
