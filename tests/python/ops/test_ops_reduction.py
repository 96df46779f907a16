"""Reductions and scans against CPU PyTorch."""

import pytest
import torch
from testing.ops import (
    BF16,
    BOOL,
    C64,
    C128,
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    INF,
    NAN,
    U8,
    check,
    check_many,
    fallbacks,
    rand,
    special,
)

HALF = {"rtol": 1e-2, "atol": 1e-2}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def tolerance(dtype):
    return HALF if dtype in (F16, BF16) else CLOSE


def over(fn, x, dims=(0, -1, (0, 2)), **kwargs):
    """Cases of `fn` over some dimensions, with and without keepdim."""
    return [(fn, (x, d), {"keepdim": k, **kwargs}) for d in dims for k in (False, True)]


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, C64], ids=str)
def test_sums_of_floats(dtype):
    x = rand(3, 4, 5, dtype=dtype)
    cases = [(fn, (x,)) for fn in (torch.sum, torch.mean, torch.prod, torch.var, torch.std)]
    for fn in (torch.sum, torch.mean, torch.var, torch.std):
        cases += over(fn, x)
    cases += over(torch.prod, x, dims=(0, -1))
    cases += [(torch.sum, (x, 1), {"dtype": C128 if dtype.is_complex else F64})]
    check_many(cases, **tolerance(dtype))


def test_sums_of_integers():
    cases = []
    for dtype in (I64, I32, I16, U8, BOOL):
        x = rand(3, 4, dtype=dtype)
        cases += [(fn, (x,)) for fn in (torch.sum, torch.prod, torch.cumsum) if fn != torch.cumsum]
        cases += over(torch.sum, x, dims=(0, (0, 1)))
        cases += [(torch.prod, (x, 1)), (torch.sum, (x,), {"dtype": F32})]
        cases += [(torch.mean, (x,), {"dtype": F32}), (torch.sum, (x, 0), {"dtype": I32})]
        cases += [(torch.prod, (x,), {"dtype": F64})]
    check_many(cases)


def test_gradients():
    x = rand(3, 4, 5)
    cases = [(fn, (x,)) for fn in (torch.sum, torch.mean, torch.var, torch.std)]
    cases += [(torch.max, (x,)), (torch.min, (x,)), (torch.linalg.vector_norm, (x,))]
    for fn in (torch.sum, torch.mean, torch.var, torch.amax, torch.logsumexp):
        cases += over(fn, x, dims=(1, (0, 2)))
    cases += [(torch.cumsum, (x, 1))]
    cases += [(lambda y: torch.var_mean(y, dim=1), (x,)), (lambda y: y.max(dim=1)[0], (x,))]
    check_many(cases, grad=True, **CLOSE)
    # PyTorch's gradients of products look for zeros, whose number only the data tells.
    cases = [(torch.prod, (x,)), (torch.prod, (x, 1)), (torch.cumprod, (x, 1))]
    check_many(cases, grad=True, fallback_ok=True, **CLOSE)


@pytest.mark.parametrize("dtype", [F32, F64, F16, I64, I32, U8, BOOL], ids=str)
def test_extremes(dtype):
    x = rand(3, 4, 5, dtype=dtype)  # with ties
    cases = over(torch.amax, x) + over(torch.amin, x)
    cases += [(fn, (x,)) for fn in (torch.max, torch.min, torch.amax, torch.amin, torch.aminmax)]
    cases += over(torch.max, x, dims=(1, -1)) + over(torch.min, x, dims=(0, 2))
    cases += [(torch.aminmax, (x,), {"dim": 1}), (torch.aminmax, (x,), {"dim": 0, "keepdim": True})]
    if dtype != BOOL:
        cases += [(fn, (x,)) for fn in (torch.argmax, torch.argmin)]
        cases += over(torch.argmax, x, dims=(1, -1)) + over(torch.argmin, x, dims=(0, 2))
    check_many(cases)


def test_extremes_with_nan_and_infinities():
    rows = torch.tensor(
        [
            [1.0, NAN, 3, NAN],
            [NAN, 1, 2, 3],
            [-INF, -INF, -INF, -INF],
            [INF, INF, -INF, 2],
            [5, 1, 5, 1],
            [-0.0, 0.0, -0.0, 0.0],
        ]
    )
    cases = []
    for fn in (torch.argmax, torch.argmin, torch.max, torch.min, torch.amax, torch.amin):
        cases += [(fn, (rows, 1)), (fn, (rows, 0)), (fn, (rows,))]
    for fn in (torch.sum, torch.prod, torch.mean, torch.logsumexp, torch.std):
        cases += [(fn, (rows, 1)), (fn, (rows, 0))]
    cases += [(fn, (rows, 1)) for fn in (torch.cumsum, torch.cumprod)]
    check_many(cases, **CLOSE)


def test_nan_in_long_rows():
    # Long enough for vector code, with the NaN at every place of a vector.
    x = torch.zeros(40, 37)
    x[torch.arange(37), torch.arange(37)] = NAN
    functions = (torch.amax, torch.amin, torch.argmax, torch.argmin)
    check_many([(fn, (x, dim)) for fn in functions for dim in (0, 1)])


def test_all_and_any():
    cases = []
    for x in (special(), rand(15, dtype=BOOL), rand(15, dtype=U8), rand(15, dtype=I64)):
        y = x.reshape(3, -1) if x.numel() % 3 == 0 else x[:14].reshape(2, 7)
        for fn in (torch.all, torch.any):
            cases += [(fn, (y,)), (fn, (y, 0)), (fn, (y, -1), {"keepdim": True}), (fn, (y, (0, 1)))]
    check_many(cases)


def test_var_and_std():
    x = rand(3, 4, 5)
    cases = []
    for fn in (torch.var, torch.std, torch.var_mean, torch.std_mean):
        cases += [(fn, (x,), {"dim": 1, "correction": c}) for c in (0, 1, 2, 2.5, 9)]
        cases += [(fn, (x,), {"dim": (0, 2), "keepdim": True}), (fn, (x,)), (fn, (x, True))]
    cases += [(torch.var, (x[:1],), {"dim": 0}), (torch.var, (x.to(C64) * (1 + 2j),), {"dim": 1})]
    # A mean far from zero: one pass would cancel.
    cases += [(torch.var, (x + 1000,), {"dim": 1})]
    check_many(cases, rtol=1e-4, atol=1e-5)


def test_vector_norm():
    x = rand(3, 4, 5)
    x[0, 0] = 0
    norm = torch.linalg.vector_norm
    orders = (0, 1, 2, 3, 0.5, 2.5, -1, -2.0, INF, -INF)
    cases = [(norm, (x, o), {"dim": d}) for o in orders for d in (None, 1, (0, 2))]
    cases += [(norm, (x.half(), o), {"dim": 1, "keepdim": True}) for o in (1, 2, INF)]
    cases += [(norm, (rand(3, 4, dtype=C64), o), {"dim": 1}) for o in (0, 1, 2, 3, INF)]
    cases += [(norm, (x.half(), 2), {"dtype": F32}), (norm, (x, 2, 0), {"dtype": F64})]
    cases += [(torch.norm, (x,)), (torch.norm, (x, 1, 1)), (lambda y: y.norm(2, 1), (x,))]
    check_many(cases, rtol=1e-3, atol=1e-4)


def test_logsumexp():
    x = rand(3, 4, 5) * 50
    cases = over(torch.logsumexp, x) + [(torch.logsumexp, (rand(4, dtype=I64), 0))]
    cases += [(torch.logsumexp, (torch.tensor([[INF, 1], [-INF, -INF], [NAN, 1]]), 1))]
    cases += [(torch.logsumexp, (x.half() / 50, 1)), (torch.logsumexp, (rand(3, 4, dtype=C64), 1))]
    check_many(cases, **HALF)


@pytest.mark.parametrize("fn", [torch.cumsum, torch.cumprod])
def test_scans(fn):
    cases = [(fn, (rand(3, 4, 5), d)) for d in (0, 1, -1)]
    cases += [(fn, (rand(3, 4, dtype=t), 1)) for t in (F64, F16, BF16, I64, I32, U8, BOOL, C64)]
    cases += [(fn, (rand(4, dtype=I32), 0), {"dtype": F32}), (fn, (rand(3, 1), 1))]
    cases += [(fn, (rand(2, 0, 3), d)) for d in (0, 1)] + [(fn, (rand(), 0)), (fn, (rand(), -1))]
    check_many(cases, **HALF)


def test_long_scans():
    x, i = rand(1000), rand(3, 700, dtype=I64)
    cases = [(torch.cumsum, (x, 0)), (torch.cumsum, (i, 1)), (torch.cumsum, (i.t(), 0))]
    cases += [(torch.cumprod, (1 + x * 1e-3, 0)), (torch.cumsum, (rand(130, 130), 0))]
    check_many(cases, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [torch.cummax, torch.cummin, torch.logcumsumexp])
def test_other_scans(fn):
    ties = rand(5, 40, dtype=I64) // 4
    cases = [(fn, (rand(4, 5, 6), d)) for d in (0, 1, -1)]
    cases += [(fn, (rand(3, 70, dtype=F64), 1)), (fn, (rand(), 0)), (fn, (rand(2, 0, 3), 1))]
    cases += [(fn, (torch.tensor([-INF, -INF, 1.0, INF, 2.0, -INF]), 0))]
    cases += [(fn, (torch.tensor([1.0, NAN, 3.0, NAN, 0.5]), 0))]
    if fn is torch.logcumsumexp:
        cases += [(fn, (rand(4, 3, dtype=C64), 0)), (fn, (rand(20, dtype=BF16), 0))]
    else:
        cases += [(fn, (ties, 1)), (fn, (ties.bool(), 0)), (fn, (rand(30, dtype=BF16), 0))]
    check_many(cases, rtol=1e-2 if fn is torch.logcumsumexp else 0, atol=1e-5)
    first = (lambda x: fn(x, 1)[0]) if fn is not torch.logcumsumexp else (lambda x: fn(x, 1))
    check_many([(first, (rand(3, 9),))], grad=True, **CLOSE)


def test_nan_ignoring_and_counts():
    x = torch.where(rand(4, 6) > 0.5, NAN, rand(4, 6, seed=1))
    cases = [(fn, (x, d)) for fn in (torch.nansum, torch.nanmean) for d in (0, -1)]
    cases += [(torch.nansum, (x,)), (torch.nanmean, (x,)), (torch.nansum, (x.half(), 0))]
    cases += [(torch.count_nonzero, (rand(4, 6).relu(), d)) for d in (None, 0, (0, 1))]
    cases += [(torch.cumulative_trapezoid, (rand(3, 5),)), (torch.trapezoid, (rand(3, 5),))]
    check_many(cases, **CLOSE)


def test_rank_zero():
    x = rand()
    cases = [
        (fn, (x, d))
        for d in (0, -1)
        for fn in (
            torch.sum,
            torch.mean,
            torch.amax,
            torch.argmax,
            torch.argmin,
            torch.max,
            torch.min,
            torch.logsumexp,
            torch.prod,
            torch.any,
            torch.all,
            torch.cumsum,
        )
    ]
    cases += [
        (fn, (x,))
        for fn in (
            torch.sum,
            torch.mean,
            torch.prod,
            torch.max,
            torch.argmax,
            torch.any,
            torch.var,
            torch.linalg.vector_norm,
            torch.aminmax,
        )
    ]
    cases += [(torch.sum, (x, 0), {"keepdim": True}), (torch.sum, (x, ()))]
    check_many(cases)  # fmt: skip


def test_empty():
    x = rand(2, 0, 3)
    functions = (torch.sum, torch.mean, torch.prod, torch.any, torch.all, torch.logsumexp)
    cases = [(fn, (x, d)) for fn in functions for d in (0, 1, 2)]
    cases += [(fn, (x,)) for fn in (torch.sum, torch.mean, torch.prod, torch.any, torch.all)]
    cases += [(fn, (x, 0)) for fn in (torch.amax, torch.argmax, torch.max)]
    cases += [(torch.var, (x, 1)), (torch.std, (x,)), (torch.linalg.vector_norm, (x, 2, 1))]
    cases += [(torch.sum, (x, (0, 1)), {"keepdim": True}), (torch.sum, (rand(3, 2), []))]
    check_many(cases)


def test_errors_are_pytorchs():
    x = torch.ones(2, 0, device="xla")
    with pytest.raises(IndexError):
        torch.argmax(x, dim=1)
    with pytest.raises(RuntimeError, match="Specify the reduction dim"):
        torch.max(x).cpu()  # only the lowering sees it: PyTorch's Meta kernel lets it pass
    with pytest.raises(IndexError):
        torch.sum(x, dim=3)
    with pytest.raises(RuntimeError):
        torch.mean(torch.ones(2, dtype=I64, device="xla"))


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


@pytest.mark.parametrize("fn", [torch.all, torch.any])
def test_logical_reductions_of_no_dimension(fn) -> None:
    cases = [
        (fn, (x,), {"dim": (), "keepdim": keepdim})
        for x in (torch.tensor([[3, 0], [1, 2]], dtype=U8), rand(2, 3) > 0, rand(2), rand())
        for keepdim in (False, True)
    ]
    check_many(cases)


def test_logsumexp_of_no_dimension(device: torch.device) -> None:
    check(torch.logsumexp, rand(), (), False)
    with pytest.raises(RuntimeError):
        torch.logsumexp(rand(2, 2), dim=())
    with pytest.raises(RuntimeError):
        torch.logsumexp(rand(2, 2).to(device), dim=())


def test_logsumexp_of_nothing_over_all() -> None:
    check_many(
        [
            (torch.logsumexp, (torch.zeros(shape), ()), {"keepdim": keepdim})
            for shape in ((0,), (3, 0), (0, 3))
            for keepdim in (False, True)
        ]
    )


def test_variance_of_no_numbers() -> None:
    cases = []
    for correction in (-2, -1, 0, 1, 0.5, NAN):
        for x, dim in ((torch.empty(0), None), (torch.empty(0, 2), 0), (torch.empty(2, 0), 0)):
            kwargs = {"dim": dim, "correction": correction}
            cases += [(fn, (x,), kwargs) for fn in (torch.var, torch.std, torch.var_mean)]
    check_many(cases)


def test_norms_of_large_orders() -> None:
    x = torch.tensor([[2.0, 3.0, 0.0], [1.0, 0.5, 0.25]])
    cases = []
    for order in (3.5, 7.0, 1e4, 1e40, 1e300, INF, -1e40, -INF):  # from the third on a parameter
        for dtype in (F32, F64):
            cases.append((torch.linalg.vector_norm, (x.to(dtype), order), {}))
            cases.append((torch.linalg.vector_norm, (x.to(dtype), order), {"dim": 1}))
    check_many(cases)


def test_an_out_of_a_norm(device: torch.device) -> None:
    x = rand(3, 4)
    for kwargs in (
        {"p": 2, "dim": 1},
        {"p": 1.5, "dim": (0, 1)},
        {"p": "fro"},
        {"p": INF, "dim": 0},
    ):
        expected, out = torch.norm(x, **kwargs), torch.empty(0, device=device)
        before = fallbacks()
        torch.norm(x.to(device), **kwargs, out=out)
        assert fallbacks() == before
        torch.testing.assert_close(out.cpu(), expected)


def test_cumulation_in_place_of_one_bool() -> None:
    check_many(
        [(fn, (torch.tensor(True), 0)) for fn in (torch.Tensor.cumsum_, torch.Tensor.cumprod_)]
    )
