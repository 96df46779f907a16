"""Sorting and what is found by it, searching, counting (lowering/order.cpp,
aten/histogram_ops.cpp)."""

import pytest
import torch
from testing.ops import BF16, F64, I32, I64, INF, NAN, U8, check, check_many, rand, special

import torch_xla.core.xla_model as xm

TIES = rand(6, 9, dtype=I64) // 4
HOLES = torch.where(rand(4, 7) > 0.6, NAN, rand(4, 7, seed=1))


def test_sort():
    cases = []
    for x in (
        rand(5, 6),
        rand(5, 6, dtype=F64),
        TIES,
        special(),
        special(F64),
        rand(7, dtype=BF16),
    ):
        for descending in (False, True):
            cases.append((torch.sort, (x,), {"dim": 0, "descending": descending, "stable": True}))
    cases += [
        (lambda x: x.argsort(dim=1, stable=True), (TIES,)),
        (torch.msort, (rand(5, 3),)),
        (torch.sort, (torch.tensor(3.0),)),
        (torch.sort, (torch.zeros(0, 3),)),
    ]
    check_many(cases)


def test_median():
    cases = []
    for f in (torch.median, torch.nanmedian):
        for x in (rand(4, 7), rand(4, 6), HOLES, rand(5, dtype=F64), torch.tensor(2.0)):
            cases.append((f, (x,)))
            cases.append((lambda x, f=f: f(x, -1)[0], (x,)))
            cases.append((lambda x, f=f: f(x, 0, True)[0], (x,)))
        cases.append((f, (torch.zeros(0),)))
        cases.append((f, (rand(9, dtype=I64),)))
        cases.append((f, (torch.randperm(9), 0)))
        cases.append((f, (torch.full((3,), NAN),)))
    check_many(cases)
    check(lambda x: torch.median(x, 1)[0], rand(4, 7), grad=True)
    check(lambda x: torch.nanmedian(x, 1)[0], rand(4, 7), grad=True)


def test_kthvalue():
    cases = [(torch.kthvalue, (rand(4, 7), k, d)) for k, d in ((1, 0), (4, 0), (7, 1), (3, -1))]
    cases += [
        (torch.kthvalue, (rand(4, 7), 2, 1, True)),
        (torch.kthvalue, (torch.randperm(9), 4)),
        (torch.kthvalue, (torch.tensor(1.5), 1)),
        (lambda x: torch.kthvalue(x, 7, 1)[0], (HOLES,)),
    ]
    check_many(cases)
    check(lambda x: torch.kthvalue(x, 3, 1)[0], rand(4, 7), grad=True)


def test_mode():
    cases = [(torch.mode, (TIES, d, keep)) for d in (0, -1) for keep in (False, True)]
    cases += [
        (torch.mode, (rand(3, 5),)),
        (torch.mode, (torch.tensor(4),)),
        (torch.mode, (TIES.float(), 0)),
        (torch.mode, (TIES.bool(), 0)),
    ]
    check_many(cases)


BOUNDS = torch.tensor([-2.0, -0.5, 0.0, 0.0, 1.0, 3.0])


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right):
    rows = rand(3, 5).sort(-1)[0]
    long = rand(200).sort()[0]
    values = torch.cat([special(), BOUNDS, rand(4)])
    cases = [
        (torch.searchsorted, (BOUNDS, values), {"right": right}),
        (torch.searchsorted, (BOUNDS, values), {"right": right, "out_int32": True}),
        (torch.searchsorted, (long, values), {"side": "right" if right else "left"}),
        (torch.searchsorted, (rows, rand(3, 4)), {"right": right}),
        (torch.searchsorted, (rand(3, 100).sort(-1)[0], rand(3, 4)), {"right": right}),
        (torch.searchsorted, (BOUNDS, 0.0), {"right": right}),
        (torch.searchsorted, (BOUNDS, torch.tensor(0.0)), {"right": right}),
        (torch.searchsorted, (torch.zeros(0), values), {"right": right}),
        (torch.searchsorted, (BOUNDS, torch.zeros(0)), {"right": right}),
        (torch.bucketize, (values, BOUNDS), {"right": right}),
        (torch.bucketize, (values.view(5, 5), long), {"right": right}),
        (torch.bucketize, (1, BOUNDS), {"right": right}),
        (torch.bucketize, (TIES, torch.arange(-2, 3)), {"right": right}),
    ]
    unsorted = rand(8)
    sorter = unsorted.argsort()
    cases.append((lambda b, v, s: torch.searchsorted(b, v, sorter=s), (unsorted, rand(5), sorter)))
    check_many(cases)


def test_isin():
    check_many([(torch.isin, (TIES, torch.tensor([1, -2]))), (torch.isin, (TIES, 1)),
                (torch.isin, (torch.arange(40), torch.arange(3, 90, 7)))])  # fmt: skip


def test_histc():
    x = torch.cat([rand(40), torch.tensor([NAN, -1.0, 1.0, 5.0])])
    check_many(
        [
            (torch.histc, (x, 10, -1, 1)),
            (torch.histc, (rand(40), 5)),
            (torch.histc, (rand(40, dtype=F64), 100, -3, 3)),
            (torch.histc, (torch.ones(3), 4)),
            (torch.histc, (torch.zeros(0), 4, 0, 2)),
        ]
    )


def test_histogram():
    x, w = rand(60), rand(60).abs()
    edges = torch.tensor([-2.0, -0.5, 0.0, 1.0, 1.5])
    points = rand(50, 2)
    check_many(
        [
            (lambda x: tuple(torch.histogram(x, 7)), (x,)),
            (lambda x: tuple(torch.histogram(x, 7, range=(-1.0, 1.0), density=True)), (x,)),
            (lambda x, w: tuple(torch.histogram(x, 5, weight=w)), (x, w)),
            (lambda x, e: tuple(torch.histogram(x, e)), (x, edges)),
            (lambda x, e, w: tuple(torch.histogram(x, e, weight=w, density=True)), (x, edges, w)),
            (lambda x: torch.histogramdd(x, [3, 4]).hist, (points,)),
            (lambda x: torch.histogramdd(x, [3, 4], density=True).bin_edges, (points,)),
            (lambda x, e: torch.histogramdd(x, [e, e]).hist, (points, edges)),
        ],
        rtol=1e-5,
        atol=1e-5,
    )


def test_bincount():
    # How long the result is, the data tell: the host looks at them.
    x = torch.tensor([3, 0, 3, 5])
    for args, kwargs in (
        ((x,), {}),
        ((x, rand(4)), {}),
        ((x.to(U8), rand(4, dtype=I32)), {}),
        ((x,), {"minlength": 9}),
        ((x[:0],), {"minlength": 2}),
    ):
        check(torch.bincount, *args, kwargs=kwargs, fallback_ok=True)
    for bad in (torch.tensor([-1]), torch.tensor([1.0]), x.view(2, 2)):
        refused = "not implemented" if bad.is_floating_point() else "1-d non-negative"
        with pytest.raises(RuntimeError, match=refused):
            torch.bincount(bad.to(xm.xla_device()))


def test_quantile():
    q = torch.tensor([0.0, 0.3, 1.0])
    check_many(
        [
            (torch.quantile, (rand(4, 7), q, 1)),
            (torch.quantile, (rand(4, 7), 0.25)),
            (torch.nanquantile, (HOLES, q, 1)),
            (torch.quantile, (HOLES, q, 1)),
            (torch.quantile, (rand(9, dtype=F64), 0.6), {"interpolation": "nearest"}),
        ]
    )


def test_unique():
    # Data-dependent sizes: these run on the host.
    x = TIES.to(xm.xla_device())
    for kwargs in ({}, {"return_inverse": True, "return_counts": True}, {"dim": 0}):
        actual, expected = torch.unique(x, **kwargs), torch.unique(TIES, **kwargs)
        for a, e in zip(
            *([y] if isinstance(y, torch.Tensor) else y for y in (actual, expected)), strict=True
        ):
            assert torch.equal(a.cpu(), e)
    assert torch.equal(torch.unique_consecutive(x).cpu(), torch.unique_consecutive(TIES))


def test_extremes_of_order_statistics():
    check_many(
        [
            (torch.topk, (torch.tensor([1.0, NAN, -INF, INF, 0.5]), 3), {"largest": big})
            for big in (True, False)
        ]
    )


def test_searching_what_has_nan() -> None:
    sequence = torch.tensor([-1.0, 0, 2, INF, NAN])
    long = torch.cat([torch.linspace(-3, 3, 90), torch.full((9,), NAN)])
    values = torch.tensor([-2.0, -1, 0, 1, 2, 5, INF, NAN, -INF])
    rows = torch.stack([sequence, torch.tensor([NAN] * 5), torch.arange(5.0)])
    cases = []
    for right in (False, True):
        kwargs = {"right": right}
        for x in (sequence, sequence.double(), sequence.half(), long):
            cases.append((torch.searchsorted, (x, values.to(x.dtype)), kwargs))
            cases.append((torch.bucketize, (values.to(x.dtype), x), kwargs))
        cases.append((torch.searchsorted, (rows, values.expand(3, 9).contiguous()), kwargs))
        cases.append((torch.searchsorted, (sequence, 0.5), kwargs))
    check_many(cases)


def test_histograms_of_halves_in_a_range() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([1, 2, 0, 1, 2.5, 7], dtype=dtype)
        check(lambda x: torch.histogram(x, 3, range=(0.0, 3.0)), x)
        check(lambda x: torch.histogram(x, x[:3].sort().values), x)
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.histogram(x.to("xla"), 3)
