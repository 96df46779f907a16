"""Edge cases in which xla failed, or gave what the CPU does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing.ops import (
    C64,
    C128,
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
    fallbacks,
    rand,
)

import torch_xla
import torch_xla.core.xla_model as xm

BIG = 2**63 + 5


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


def test_where_of_a_complex_and_a_bool() -> None:
    mask = torch.tensor([True, False])
    c = torch.tensor([1j, 2j])
    check_many([(torch.where, (mask, c, mask)), (torch.where, (mask, mask, c))])
    check(torch.where, mask, c, rand(2, dtype=F64))


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


def test_large_unsigned_numbers(device: torch.device) -> None:
    number = torch.tensor(BIG, dtype=torch.uint64)
    for x in (
        torch.zeros(2, dtype=torch.uint64, device=device).copy_(number),
        torch.zeros(2, dtype=torch.uint64, device=device).fill_(BIG),
        torch.full((2,), BIG, dtype=torch.uint64, device=device),
        number.to(device).expand(2),
    ):
        assert x.tolist() == [BIG, BIG]
    # Beside floats it is a positive number, not one that wrapped.
    check_many(
        [(torch.add, (rand(3), BIG)), (torch.lt, (rand(3), BIG)), (torch.mul, (rand(3), BIG))]
    )


@pytest.mark.parametrize("dtype", [torch.bool, C64, I64, F32])
def test_softmax_of_nothing(dtype: torch.dtype) -> None:
    cases = [
        (fn, (torch.zeros(shape, dtype=dtype), dim))
        for fn in (torch.softmax, torch.log_softmax)
        for shape, dim in (((0, 0, 0), 0), ((0, 3), 1), ((3, 0), 1))
    ]
    check_many(cases)


def test_cumulation_in_place_of_one_bool() -> None:
    check_many(
        [(fn, (torch.tensor(True), 0)) for fn in (torch.Tensor.cumsum_, torch.Tensor.cumprod_)]
    )


def test_writes_to_expanded_nothing() -> None:
    def write(x: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        y = x.expand(size)
        y.fill_(1)
        y.add_(1)
        return y.copy_(torch.ones(size, device=x.device))

    check(write, torch.empty(0, 1), (0, 3))
    check(write, torch.empty(1, 0), (3, 0))


def test_writes_to_what_overlaps_are_refused(device: torch.device) -> None:
    x = torch.ones(1, 2, device=device)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(3, 2).add_(1)


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


def test_variance_of_no_numbers() -> None:
    cases = []
    for correction in (-2, -1, 0, 1, 0.5, NAN):
        for x, dim in ((torch.empty(0), None), (torch.empty(0, 2), 0), (torch.empty(2, 0), 0)):
            kwargs = {"dim": dim, "correction": correction}
            cases += [(fn, (x,), kwargs) for fn in (torch.var, torch.std, torch.var_mean)]
    check_many(cases)


def test_sizes_that_overflow(device: torch.device) -> None:
    for make in (
        lambda: torch.empty(2**62, device=device),
        lambda: torch.arange(-(2**63), 2, 2, dtype=F32, device=device),
    ):
        with pytest.raises(RuntimeError, match="overflow"):
            make()
    torch_xla.sync(wait=True)
    assert xm.xla_device() == device


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


def test_sizes_that_only_the_cpu_refused(device: torch.device) -> None:
    x = torch.ones(1, 2, 4, device=device)
    w = torch.ones(2, 2, 3, device=device)
    for call in (
        lambda: F.conv_transpose1d(x, w, output_padding=3),
        lambda: F.conv_transpose1d(x, w, output_padding=-1),
        lambda: F.conv_transpose1d(x, w, groups=0),
        lambda: F.interpolate(x, 0, mode="linear"),
        lambda: F.interpolate(x[:, None], scale_factor=0, mode="bilinear"),
        lambda: F.avg_pool1d(x, 2, 2**31),
        lambda: torch.as_strided_scatter(x, x[0, 0, :1], (0,), (1,)),
    ):
        with pytest.raises(RuntimeError):
            call()


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


def test_numbers_go_into_an_out_of_their_count(device: torch.device) -> None:
    # Its shape stays.
    for function in (
        lambda out: torch.arange(4, out=out),
        lambda out: torch.linspace(0, 1, 4, out=out),
        lambda out: torch.logspace(0, 1, 4, out=out),
    ):
        expected = function(torch.empty(2, 2))
        out = torch.empty(2, 2, device=device)
        torch.testing.assert_close(function(out).cpu(), expected)
        assert out.shape == (2, 2)


def test_eye_out_of_one_size(device: torch.device) -> None:
    before = fallbacks()
    for dtype in (F32, torch.int64, torch.bool):
        out = torch.empty(3, 3, dtype=dtype, device=device)
        assert torch.eye(3, out=out) is out
        torch.testing.assert_close(out.cpu(), torch.eye(3, dtype=dtype))
    with pytest.raises(RuntimeError, match="n must be greater or equal to 0"):
        torch.eye(-1, out=torch.empty(0, device=device))
    assert fallbacks() == before


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


def test_deterministic_memory_is_filled(device: torch.device) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert torch.empty_strided((3,), (1,), device=device).isnan().all()
        assert (torch.empty(3, dtype=I32, device=device) == 2**31 - 1).all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.empty(3, device=device).eq(0).all()


def test_a_dtype_that_is_not_there_is_named(device: torch.device) -> None:
    # Python would say "unsupported operand type(s)" for a TypeError.
    with pytest.raises(NotImplementedError, match="no tensors of dtype ComplexHalf"):
        torch.ones(2, dtype=torch.float16, device=device) * 1j


def test_a_transposed_view_of_nothing(device: torch.device) -> None:
    # Composing the two views divided by the size: the process ended.
    x = torch.zeros(0, 2, device=device)
    x[0:] = 0
    assert (x @ x.t()).cpu().shape == (0, 0)
    assert torch.equal((x.t() @ x).cpu(), torch.zeros(2, 2))


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


def test_powers_of_bools_to_bools() -> None:
    bools = torch.tensor([True, False])
    check_many([(torch.pow, (bools, y)) for y in (True, False, 0, 1, 2, 2.5)])


def test_logsumexp_of_nothing_over_all() -> None:
    check_many(
        [
            (torch.logsumexp, (torch.zeros(shape), ()), {"keepdim": keepdim})
            for shape in ((0,), (3, 0), (0, 3))
            for keepdim in (False, True)
        ]
    )


def test_exp_overflows_within_sums() -> None:
    # XLA:CPU fused the last product of exp with the sum: exp(100) - 3e38 was finite.
    for dtype in (F32, F64, torch.bfloat16):
        edge = 709.78271 if dtype == F64 else 88.722831
        x = torch.tensor([INF, edge - 1, edge + 0.5, 1.1 * edge, -INF, NAN, 5], dtype=dtype)
        large = 0.9 * torch.finfo(dtype).max
        check(lambda x, y: x.exp() - y, x, torch.full_like(x, large), rtol=2e-2)
        check(lambda x: x.exp() - x * x, x, rtol=2e-2)


def test_a_number_of_one_to_complex_powers() -> None:
    exponents = torch.tensor([complex(INF, 0), complex(0, INF), complex(NAN, 1), 2 + 1j, 0])
    check_many(
        [
            (torch.pow, (base, exponents.to(dtype)))
            for base in (1, 1.0, 1 + 0j, 2, 1j)
            for dtype in (C64, C128)
        ]
    )


def test_histograms_of_halves_in_a_range() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([1, 2, 0, 1, 2.5, 7], dtype=dtype)
        check(lambda x: torch.histogram(x, 3, range=(0.0, 3.0)), x)
        check(lambda x: torch.histogram(x, x[:3].sort().values), x)
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.histogram(x.to("xla"), 3)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(U8, -1, 2), (U8, 0, 257), (I8, -129, 3), (torch.bool, -1, 1), (torch.float16, 0, 70000)],
)
def test_random_integers_beyond_the_dtype(dtype: torch.dtype, low: int, high: int) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.zeros(3, dtype=dtype, device=device).random_(low, high)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 4], [0, 2, 4]])
def test_bags_that_begin_out_of_place(offsets: list[int]) -> None:
    for device in ("cpu", "xla"):
        indices = torch.tensor([0, 1, 2], device=device)
        begins = torch.tensor(offsets, device=device)
        with pytest.raises(RuntimeError):
            F.embedding_bag(indices, torch.ones(4, 2, device=device), begins)


def test_bags_that_descend_when_data_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla.config, "check_indices", True)
    weight = torch.ones(4, 2, device="xla")
    indices = torch.tensor([0, 1, 2], device="xla")
    good = F.embedding_bag(indices, weight, torch.tensor([0, 1, 1], device="xla"))
    assert good.sum().item() == 4
    bad = F.embedding_bag(indices, weight, torch.tensor([0, 2, 1], device="xla"))
    with pytest.raises(RuntimeError, match="must begin with 0 and ascend"):
        bad.sum().item()


def test_indices_of_what_has_no_elements() -> None:
    """Nothing is looked up but where the indexed dimension itself is empty."""
    index = torch.tensor([0, 3, 3])
    places = [(index,), (slice(None), index), (slice(None), slice(None), index)]
    for shape in ((4, 2, 0), (4, 0, 2), (0, 2, 4)):
        x = torch.zeros(shape)
        for place in places:
            if shape[len(place) - 1] == 0:
                with pytest.raises(IndexError):
                    x.to("xla")[place]
            else:
                check(lambda x, i, p=place: x[*p[:-1], i], x, index)


def test_results_into_views_without_elements() -> None:
    for look in (torch.imag, torch.view_as_real, lambda x: x.mT.reshape(-1), lambda x: x.real):
        for device in ("cpu", "xla"):
            base = torch.zeros(0, 3, dtype=C64, device=device)
            out = look(base)
            one = torch.ones(2, 2, dtype=out.dtype, device=device)
            torch.add(one, 1, out=out)
            assert out.cpu().equal(torch.full((2, 2), 2, dtype=out.dtype))
            assert base.shape == (0, 3) and base.cpu().numel() == 0


def test_even_spaces_of_bools() -> None:
    for spaced in (torch.linspace, torch.logspace):
        for device in ("cpu", "xla"):
            assert spaced(0, 1, 1, dtype=torch.bool, device=device).tolist() == [
                spaced is torch.logspace
            ]
            with pytest.raises(NotImplementedError, match="'Bool'"):
                spaced(0, 1, 3, dtype=torch.bool, device=device)


def test_nothing_is_drawn_of_any_dtype() -> None:
    draws = ("normal_", "log_normal_", "exponential_")
    for dtype in (I64, torch.bool, C64):
        for device in ("cpu", "xla"):
            x = torch.zeros(0, 3, dtype=dtype, device=device)
            for draw in draws:
                assert getattr(x, draw)() is x
            assert x.geometric_(0.5) is x and x.bernoulli_(0.5) is x
            assert torch.bernoulli(x).dtype == torch.randn_like(x).dtype == dtype
            if dtype != C64:
                with pytest.raises(NotImplementedError):
                    x.uniform_()


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


def test_dropout_that_is_not_told_whether_it_trains(device: torch.device) -> None:
    x = torch.ones(200, device=device)
    drop = torch.ops.aten.native_dropout
    assert drop(x, 1.0, None)[0].sum() == 0
    result, kept = drop(x, 0.5, None)
    assert 0 < int(kept.sum()) < 200
    torch.testing.assert_close(result.cpu(), kept.cpu() * 2.0)
    assert drop(x, 0.5, False)[1].all()
