"""Ops without a lowering: PyTorch's decompositions first, the CPU last."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from testing.ops import check, rand

import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

F = torch.nn.functional


@pytest.fixture
def no_decomposition(monkeypatch) -> None:
    """Leaves renorm, which is not lowered, to the CPU."""

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    table = torch._decomp.decomposition_table
    monkeypatch.setitem(table, torch.ops.aten.renorm.default, fails)


def moved(call: Callable[[], Any]) -> dict[str, int]:
    """The counters of ops that ``call`` moved, and by how much."""
    before = {name: met.counter_value(name) or 0 for name in met.counter_names()}
    call()
    after = {name: met.counter_value(name) or 0 for name in met.counter_names()}
    return {
        name: count - before.get(name, 0)
        for name, count in after.items()
        if "::" in name and count != before.get(name, 0)
    }


def on_cpu(counters: dict[str, int]) -> list[str]:
    return [name for name in counters if name.startswith("aten::")]


# ------------------------------------------------------------------ the order


def test_lowered_op_takes_no_detour(device):
    a = rand(3).to(device)
    counters = moved(lambda: a + a)
    assert counters == {"xla::add": 1}


def test_composite_op_is_taken_apart_by_the_dispatcher(device):
    a = rand(3, 4).to(device)
    counters = moved(lambda: torch.linalg.multi_dot([a, a.t(), a]))
    assert counters.get("xla::mm") == 2
    assert not on_cpu(counters)
    assert not any(name.startswith("xla::decomp::") for name in counters)


def test_decomposition_is_traced_and_counted(device):
    a = rand(3, 4).to(device)
    counters = moved(lambda: torch.renorm(a, 2, 0, 1.0))
    assert counters.get("xla::decomp::renorm") == 1
    assert not on_cpu(counters)
    # Into the graph: nothing ran.
    assert not [name for name in counters if "Compile" in name]


def test_cpu_is_last_and_counted(device, no_decomposition):
    a = rand(3, 3).to(device)
    counters = moved(lambda: torch.renorm(a, 2, 0, 1.0))
    assert counters.get("aten::renorm") == 1


def test_result_of_the_cpu_goes_on_in_the_graph(device, no_decomposition):
    a = rand(3, 3)
    x = torch.renorm(a.to(device) + 1, 2, 0, 1.0) * 2
    assert x.device.type == "xla"
    torch.testing.assert_close(x.cpu(), torch.renorm(a + 1, 2, 0, 1.0) * 2)


# ------------------------------------------------------------------ variants


def test_in_place_variant_of_a_decomposed_op(device):
    cpu = rand(3, 4)
    x = cpu.to(device)
    view = x[1]
    counters = moved(lambda: x.lerp_(x * 2, 0.3).logit_(0.1).sinc_())
    expected = cpu.clone().lerp_(cpu * 2, 0.3).logit_(0.1).sinc_()
    torch.testing.assert_close(x.cpu(), expected)
    torch.testing.assert_close(view.cpu(), expected[1])
    assert not on_cpu(counters)


def test_in_place_variant_of_a_cpu_op(device, no_decomposition):
    cpu = rand(3, 4)
    x = cpu.to(device)
    view = x[1]
    counters = moved(lambda: x.renorm_(2, 0, 1.0))
    expected = cpu.clone().renorm_(2, 0, 1.0)
    torch.testing.assert_close(x.cpu(), expected)
    torch.testing.assert_close(view.cpu(), expected[1])
    assert on_cpu(counters) in (["aten::renorm"], ["aten::renorm_"])


def test_in_place_on_a_view_writes_its_base(device, no_decomposition):
    cpu = rand(4, 5)
    x = cpu.to(device)
    x.t()[1:3].renorm_(2, 0, 1.0)
    cpu.t()[1:3].renorm_(2, 0, 1.0)
    torch.testing.assert_close(x.cpu(), cpu)


@pytest.mark.parametrize("size", [(3, 4), (0,), (7,)], ids=["right", "empty", "wrong"])
@pytest.mark.parametrize("op", [torch.sinc, torch.special.entr, torch.special.i0e])
def test_out_variant_resizes(device, op, size):
    cpu = rand(3, 4)
    out = torch.empty(size, device=device)
    with pytest.warns(UserWarning, match="resized") if size == (7,) else no_warning():
        result = op(cpu.to(device), out=out)
    assert result is out
    torch.testing.assert_close(out.cpu(), op(cpu), equal_nan=True)


class no_warning:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...


def test_out_variants_with_several_results(device):
    cpu = rand(4, 5)
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64).to(device)
    torch.kthvalue(cpu.to(device), 2, dim=1, out=(values, indices))
    expected = torch.kthvalue(cpu, 2, dim=1)
    torch.testing.assert_close(values.cpu(), expected.values)
    assert torch.equal(indices.cpu(), expected.indices)


def test_out_variant_of_another_dtype(device):
    cpu = torch.arange(1, 7)
    out = torch.empty(6, dtype=torch.float64, device=device)
    torch.special.entr(cpu.to(device), out=out)
    torch.testing.assert_close(out.cpu(), torch.special.entr(cpu).double())
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.special.entr(cpu.to(device), out=torch.empty(6, dtype=torch.int64, device=device))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x.equal(x + 0), (rand(3),)),
        (lambda x: torch.allclose(x, x + 1e-9), (rand(3),)),
        (lambda x: x.is_nonzero(), (torch.tensor([2.0]),)),
        (lambda x: list(torch.split(x, 2)), (rand(5, 2),)),
        (lambda x: list(torch.unbind(x, 1)), (rand(5, 2),)),
        (lambda x: list(torch.tensor_split(x, 3)), (rand(7),)),
        (lambda x: list(torch.meshgrid(x, x + 1, indexing="ij")), (rand(3),)),
        (lambda x: torch.unique(x, return_inverse=True, return_counts=True), (rand(9).round(),)),
        (lambda x: torch.mode(x, 1), (rand(3, 5).round(),)),
        (lambda x: torch.frexp(x), (rand(5),)),
        (lambda x: list(torch.histogram(x, bins=4, range=(-2.0, 2.0))), (rand(20),)),
        (lambda x: torch.nonzero(x > 0, as_tuple=True), (rand(4, 4),)),
        (lambda x: list(torch._foreach_add([x, x + 1], 2)), (rand(3),)),
        (lambda x: torch.broadcast_tensors(x, x[:, None]), (rand(3),)),
        (lambda x: torch.linalg.slogdet(x), (rand(3, 3),)),
    ],
    ids=lambda value: "",
)
def test_results_that_are_no_single_tensor(fn, args):
    check(fn, *args, fallback_ok=True)


def test_list_arguments(device):
    tensors = [rand(2, 3), rand(4, 3)]
    check(lambda a, b: torch.block_diag(a, b), *tensors, fallback_ok=True)
    check(lambda a, b: torch.cartesian_prod(a[0], b[0]), *tensors, fallback_ok=True)
    check(lambda a, b: torch.nn.utils.rnn.pad_sequence([a, b]), *tensors, fallback_ok=True)


# ------------------------------------------------------------------ custom ops


@torch.library.custom_op("torch_xla_test::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.sin(x) * scale


@torch.library.custom_op("torch_xla_test::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


LIBRARY = torch.library.Library("torch_xla_test", "FRAGMENT")
LIBRARY.define("implicit(Tensor x, int n, str mode='sum') -> Tensor[]")
LIBRARY.impl(
    "implicit",
    lambda x, n, mode="sum": [x * k if mode == "sum" else x - k for k in range(n)],
    "CompositeImplicitAutograd",
)
LIBRARY.define("cpu_only(Tensor x, float y) -> (Tensor, Tensor)")
LIBRARY.impl("cpu_only", lambda x, y: (x + y, x * y), "CPU")


def test_custom_op_with_a_composite_kernel(device):
    cpu = rand(3)
    x = cpu.to(device).requires_grad_()
    results = torch.ops.torch_xla_test.implicit(x, 3)
    sum(result.sum() for result in results).backward()
    assert x.grad.tolist() == [3, 3, 3]
    counters = moved(lambda: torch.ops.torch_xla_test.implicit(x, 2, mode="sub"))
    assert counters.get("xla::sub") == 2
    assert not on_cpu(counters)


def test_custom_op_of_python(device):
    cpu = rand(3)
    torch.testing.assert_close(
        torch.ops.torch_xla_test.scaled_sin(cpu.to(device), 2.0).cpu(), cpu.sin() * 2
    )
    x = cpu.to(device)
    torch.ops.torch_xla_test.add_one_(x)
    torch.testing.assert_close(x.cpu(), cpu + 1)


def test_custom_op_with_a_cpu_kernel_only(device):
    cpu = rand(3)
    results: list[torch.Tensor] = []
    counters = moved(lambda: results.extend(torch.ops.torch_xla_test.cpu_only(cpu.to(device), 2.0)))
    assert counters.get("torch_xla_test::cpu_only") == 1
    assert [r.device.type for r in results] == ["xla", "xla"]
    torch.testing.assert_close(results[1].cpu(), cpu * 2)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def test_custom_autograd_function(device):
    x = torch.tensor([1.0, 2.0]).to(device).requires_grad_()
    Cube.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 12]


def test_custom_autograd_function_twice(device):
    x = rand(3).to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    gradient.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 6 * rand(3))


# ------------------------------------------------------------------ decompositions that fail


@pytest.mark.parametrize(
    "failure",
    [
        NotImplementedError("not for these arguments"),
        RuntimeError("decomposition assumes a fake tensor"),
        TypeError("unexpected argument"),
        AssertionError("only under tracing"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_failing_decomposition_falls_to_the_cpu(device, monkeypatch, failure):
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise failure

    op = torch.ops.aten.renorm.default
    monkeypatch.setitem(torch._decomp.decomposition_table, op, fails)
    cpu = rand(4, 2)
    results = []
    counters = moved(lambda: results.append(torch.renorm(cpu.to(device), 2, 0, 1.0)))
    assert counters.get("aten::renorm") == 1
    torch.testing.assert_close(results[0].cpu(), torch.renorm(cpu, 2, 0, 1.0))


def test_declining_decomposition_falls_to_the_cpu(device, monkeypatch):
    op = torch.ops.aten.special_entr.default
    monkeypatch.setitem(torch._decomp.decomposition_table, op, lambda x: NotImplemented)
    cpu = rand(4).abs()
    torch.testing.assert_close(torch.special.entr(cpu.to(device)).cpu(), torch.special.entr(cpu))


def test_errors_about_arguments_are_pytorchs(device):
    with pytest.raises(RuntimeError, match="square"):
        torch.linalg.cholesky(rand(2, 3).to(device))
    with pytest.raises(RuntimeError, match="(?i)selected number k"):
        torch.kthvalue(rand(3).to(device), 9)
    assert (torch.ones(2).to(device) + 1).tolist() == [2, 2]


# ------------------------------------------------------------------ values and gradients


def spd(n: int) -> torch.Tensor:
    a = rand(n, n)
    return a @ a.t() + n * torch.eye(n)


# name: (function, arguments); float arguments get gradients too.
DIFFERENTIABLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.mT + 4 * torch.eye(4).to(a)), (rand(4, 4),)),
    "inv": (torch.linalg.inv, (spd(3),)),
    "solve": (torch.linalg.solve, (spd(3), rand(3, 2))),
    "triangular_solve": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        (torch.linalg.cholesky(spd(3)), rand(3, 2)),
    ),
    "det": (torch.linalg.det, (spd(3),)),
    "svdvals": (torch.linalg.svdvals, (rand(3, 4),)),
    "eigvalsh": (torch.linalg.eigvalsh, (spd(3),)),
    "matrix_exp": (torch.linalg.matrix_exp, (rand(3, 3) / 4,)),
    "pinv": (torch.linalg.pinv, (rand(4, 3),)),
    "matrix_norm": (lambda a: torch.linalg.matrix_norm(a, 2), (rand(3, 4),)),
    "cross": (torch.linalg.cross, (rand(4, 3), rand(4, 3, seed=1))),
    "fft": (lambda x: torch.view_as_real(torch.fft.fft(x)), (rand(2, 8),)),
    "rfft": (lambda x: torch.fft.rfft(x).abs(), (rand(2, 8),)),
    "irfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2), (rand(4, 6),)),
    "stft": (
        lambda x: torch.stft(
            x, 16, window=torch.ones(16, device=x.device), return_complex=True
        ).abs(),
        (rand(64),),
    ),
    "i0": (torch.special.i0, (rand(6),)),
    "i1e": (torch.special.i1e, (rand(6),)),
    "ndtri": (lambda x: torch.special.ndtri(x.sigmoid()), (rand(6),)),
    "log_ndtr": (torch.special.log_ndtr, (rand(6),)),
    "polygamma": (lambda x: torch.polygamma(1, x.abs() + 1), (rand(6),)),
    "mvlgamma": (lambda x: torch.mvlgamma(x.abs() + 2, 2), (rand(6),)),
    "sinc": (torch.sinc, (rand(6),)),
    "xlog1py": (lambda x: torch.special.xlog1py(x, x.abs()), (rand(6),)),
    "erfcx": (torch.special.erfcx, (rand(6),)),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        (rand(1, 2, 5, 5), rand(1, 3, 3, 2)),
    ),
    "affine_grid": (lambda t: F.affine_grid(t, [1, 2, 3, 3], align_corners=True), (rand(1, 2, 3),)),
    "upsample_bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (rand(1, 2, 3, 4),),
    ),
    "upsample_nearest": (lambda x: F.interpolate(x, size=(5, 7)), (rand(1, 2, 3, 4),)),
    "upsample_bicubic": (
        lambda x: F.interpolate(x, size=(5, 6), mode="bicubic"),
        (rand(1, 1, 3, 4),),
    ),
    "area": (lambda x: F.interpolate(x, size=(2, 2), mode="area"), (rand(1, 2, 4, 6),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (rand(1, 8, 3, 3),)),
    "fold": (lambda x: F.fold(x, (4, 4), 2, stride=2), (rand(1, 8, 4),)),
    "unfold": (lambda x: F.unfold(x, 2), (rand(1, 2, 4, 4),)),
    "reflection_pad": (lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), (rand(1, 2, 4, 4),)),
    "replication_pad": (lambda x: F.pad(x, (2, 1), mode="replicate"), (rand(2, 3, 4),)),
    "circular_pad": (lambda x: F.pad(x, (2, 1), mode="circular"), (rand(2, 3, 4),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (rand(2, 3, 8),)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), (rand(1, 2, 5, 5),)),
    "lp_pool": (lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), (rand(1, 2, 4, 4),)),
    "ctc_loss": (
        lambda x: F.ctc_loss(
            x.log_softmax(2),
            torch.tensor([[1, 2, 1], [3, 1, 2]]).to(x.device),
            torch.tensor([8, 7]),
            torch.tensor([3, 2]),
        ),
        (rand(8, 2, 5),),
    ),
    "kl_div": (lambda x, y: F.kl_div(x, y.softmax(-1)), (rand(3, 4), rand(3, 4, seed=1))),
    "multi_margin": (
        lambda x: F.multi_margin_loss(x, torch.tensor([0, 2, 1]).to(x.device)),
        (rand(3, 4),),
    ),
    "cosine_embedding": (
        lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1]).to(x.device)),
        (rand(3, 4), rand(3, 4, seed=1)),
    ),
    "triplet": (F.triplet_margin_loss, (rand(3, 4), rand(3, 4, seed=1), rand(3, 4, seed=2))),
    "cdist": (torch.cdist, (rand(4, 3), rand(5, 3))),
    "pdist": (F.pdist, (rand(4, 3),)),
    "cumprod": (lambda x: x.cumprod(1), (rand(3, 4),)),
    "cummax": (lambda x: x.cummax(1).values, (rand(3, 4),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (rand(3, 4),)),
    "median": (lambda x: x.median(1).values, (rand(3, 5),)),
    "nanmedian": (lambda x: x.nanmedian(), (rand(9),)),
    "kthvalue": (lambda x: x.kthvalue(2, 1).values, (rand(3, 5),)),
    "quantile": (lambda x: x.quantile(0.3, 1), (rand(3, 5),)),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), (rand(3, 5),)),
    "trace": (torch.trace, (rand(4, 4),)),
    "kron": (torch.kron, (rand(2, 2), rand(2, 3))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bk", a, b), (rand(2, 3, 4), rand(2, 4, 5))),
    "put": (lambda x, v: x.put(torch.tensor([1, 5]).to(x.device), v), (rand(3, 4), rand(2))),
    "take_along_dim": (
        lambda x: torch.take_along_dim(x, torch.tensor([[0, 2]]).to(x.device), 1),
        (rand(3, 4),),
    ),
    "masked_scatter": (
        lambda x, y: x.masked_scatter(x.detach() > 0, y),
        (rand(3, 4), rand(12, seed=3)),
    ),
    "embedding_bag": (
        lambda w: F.embedding_bag(
            torch.tensor([0, 2, 1, 3]).to(w.device), w, torch.tensor([0, 2]).to(w.device)
        ),
        (rand(5, 3),),
    ),
    "lstm": (
        lambda x, w, h: torch.lstm(
            x, (h, h), [w, w, w[:, 0], w[:, 0]], True, 1, 0.0, True, False, False
        )[0],
        (rand(4, 2, 3), rand(12, 3), rand(1, 2, 3)),
    ),
    "gru_cell": (lambda x, w: torch.gru_cell(x, x, w, w), (rand(2, 3), rand(9, 3))),
    "rrelu": (lambda x: F.rrelu(x, training=False), (rand(6),)),
    "celu": (F.celu, (rand(6),)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), (rand(1, 4, 3, 3),)),
    "cosine_similarity": (F.cosine_similarity, (rand(3, 4), rand(3, 4, seed=1))),
    "attention": (
        F.scaled_dot_product_attention,
        (rand(1, 2, 4, 8), rand(1, 2, 4, 8, seed=1), rand(1, 2, 4, 8, seed=2)),
    ),
    "bilinear": (F.bilinear, (rand(3, 2), rand(3, 4), rand(5, 2, 4))),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients(name):
    fn, args = DIFFERENTIABLE[name]
    check(fn, *args, grad=True, fallback_ok=True, rtol=2e-4, atol=2e-5)


OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unique": (lambda x: x.unique(), (rand(20).round(),)),
    "unique_consecutive": (lambda x: x.unique_consecutive(), (rand(20).round(),)),
    "histc": (lambda x: x.histc(5, -2, 2), (rand(30),)),
    "bincount": (lambda x: x.bincount(minlength=4), (torch.tensor([1, 1, 5, 0]),)),
    "bucketize": (lambda x, b: torch.bucketize(x, b.sort().values), (rand(6), rand(4))),
    "searchsorted": (lambda b, x: torch.searchsorted(b.sort().values, x), (rand(4), rand(6))),
    "isin": (torch.isin, (torch.arange(6), torch.tensor([1, 4]))),
    "gcd": (torch.gcd, (torch.tensor([12, 9]), torch.tensor([8, 6]))),
    "lcm": (torch.lcm, (torch.tensor([12, 9]), torch.tensor([8, 6]))),
    "tril_indices": (lambda x: torch.tril_indices(3, 4, device=x.device), (rand(1),)),
    "hann_window": (lambda x: torch.hann_window(8, device=x.device), (rand(1),)),
    "kaiser_window": (
        lambda x: [
            torch.kaiser_window(8, *a, device=x.device) for a in ((), (False,), (True, 3.0))
        ],
        (rand(1),),
    ),
    "linspace": (lambda x: torch.linspace(0, 1, 7, device=x.device), (rand(1),)),
    "logspace": (lambda x: torch.logspace(0, 2, 5, device=x.device), (rand(1),)),
    "vander": (torch.vander, (rand(4),)),
    "combinations": (lambda x: torch.combinations(x), (rand(4),)),
    "nextafter": (lambda x: torch.nextafter(x, x + 1), (rand(4),)),
    "ldexp": (lambda x: torch.ldexp(x, torch.tensor([1, 2, 3]).to(x.device)), (rand(3),)),
    "zeta": (lambda x: torch.special.zeta(x.abs() + 2, x.abs() + 1), (rand(4),)),
    "bessel_j0": (torch.special.bessel_j0, (rand(5),)),
    "argwhere": (lambda x: torch.argwhere(x > 0), (rand(3, 3),)),
    "one_hot": (lambda x: F.one_hot(x, 5), (torch.tensor([1, 4, 0]),)),
    "qr": (lambda x: [abs(v) for v in torch.linalg.qr(x)], (rand(4, 3),)),
    "lu_factor": (lambda x: torch.linalg.lu_factor(x)[0], (spd(3),)),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, (rand(5, 3), rand(5, 2))),
    "matrix_rank": (torch.linalg.matrix_rank, (spd(3),)),
    "bitwise_count": (lambda x: x.bitwise_left_shift(1), (torch.arange(5),)),
    "complex polar": (lambda x: torch.view_as_real(torch.polar(x.abs(), x)), (rand(4),)),
    "var_mean": (lambda x: torch.var_mean(x, dim=1, correction=2), (rand(3, 5),)),
    "cov": (torch.cov, (rand(3, 6),)),
    "trapezoid": (lambda x: torch.trapezoid(x, dim=1), (rand(3, 5),)),
    "diff": (lambda x: x.diff(n=2), (rand(3, 5),)),
    "rot90": (lambda x: x.rot90(), (rand(3, 5),)),
    "count_nonzero": (lambda x: x.count_nonzero(1), (rand(3, 5).round(),)),
    "aminmax": (lambda x: x.aminmax(dim=1), (rand(3, 5),)),
    "msort": (lambda x: x.msort(), (rand(3, 5),)),
    "dist": (torch.dist, (rand(5), rand(5, seed=1))),
    "float_power": (lambda x: x.abs().float_power(2.5), (rand(5),)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_values(name):
    fn, args = OTHERS[name]
    check(fn, *args, fallback_ok=True, rtol=2e-4, atol=2e-5)


def test_dropout_inside_a_fallback_uses_the_device(device):
    # LSTM dropout decomposes: its random numbers come from the device's state.
    lstm = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5).to(device)
    x = rand(5, 2, 3).to(device)
    xm.set_rng_state(3)
    first = lstm(x)[0].detach().cpu()
    xm.set_rng_state(3)
    assert torch.equal(lstm(x)[0].detach().cpu(), first)
    assert not torch.equal(lstm(x)[0].detach().cpu(), first)


def test_fallback_within_no_grad_and_inference_mode(device):
    cpu = rand(3).abs()
    with torch.no_grad():
        torch.testing.assert_close(
            torch.igamma(cpu.to(device), cpu.to(device)).cpu(), torch.igamma(cpu, cpu)
        )
    with torch.inference_mode():
        torch.testing.assert_close(
            torch.sinc(cpu.to(device)).cpu(), torch.sinc(cpu), equal_nan=True
        )


def test_quantized_tensors_are_refused(device):
    x = rand(4).to(device)
    with pytest.raises(NotImplementedError, match="no tensors of QUInt8.*quantized_decomposed"):
        torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    with pytest.raises(NotImplementedError, match="no tensors of QInt8"):
        scales = torch.full((4,), 0.1, device=device)
        torch.quantize_per_channel(x, scales, torch.zeros_like(scales).long(), 0, torch.qint8)
    quantized = torch.quantize_per_tensor(x.cpu(), 0.1, 10, torch.quint8)
    for use in (
        lambda: quantized.to(device),  # PyTorch left it on the CPU.
        lambda: torch.empty_like(quantized, device=device),
        lambda: x + quantized,
        lambda: torch.empty(3, dtype=torch.qint8, device=device),
    ):
        with pytest.raises(NotImplementedError, match="no quantized tensors.*int_repr"):
            use()
    assert torch.equal(quantized.to("cpu", copy=True).int_repr(), quantized.int_repr())


@pytest.mark.parametrize("dtype", [torch.uint4, torch.int2, torch.bits8, torch.float4_e2m1fn_x2])
def test_dtypes_that_xla_lacks(device, dtype):
    """The error names the dtype; it is not the host's memory that is short."""
    for make in (torch.zeros, torch.empty):
        with pytest.raises(NotImplementedError, match=f"(?i)no tensors of dtype {str(dtype)[6:]}"):
            make(4, dtype=dtype, device=device).cpu()


def test_quantization_parameters(device):
    x = rand(12) - 0.5
    expected = torch.choose_qparams_optimized(x, 12, 200, 0.16, 8)
    torch.testing.assert_close(
        tuple(t.cpu() for t in torch.choose_qparams_optimized(x.to(device), 12, 200, 0.16, 8)),
        expected,
    )
