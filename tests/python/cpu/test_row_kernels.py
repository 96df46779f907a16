"""Reductions, softmax and normalization of rows, which call kernels of the table on the CPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from testing.ops import BF16, INF, NAN, check_many, rand
from testing.processes import python_output, run_tests

from torch_xla import _XLAC
from torch_xla.stablehlo import exported_program_to_stablehlo

CALLS = os.environ.get("XLA_CPU_KERNELS") != "0"


def chosen(operation: str) -> set[str]:
    return {
        kind
        for name, kind, kernel in _XLAC._kernel_choices()
        if (name, kernel) == (operation, "library")
    }


def test_safe_softmax() -> None:
    """Rows of nothing but -inf are zeros; those with a NaN, or infinity, are not."""
    safe = torch.ops.aten._safe_softmax
    cases: list[tuple] = []
    for x in (rand(3, 5), rand(40, 300), rand(16, 16, 64), rand(300, 200).to(BF16)):
        x[1], x[2], x[0, ..., :2] = -INF, -INF, -INF
        x[2, ..., 1] = NAN
        cases += [(safe, (x, dim)) for dim in (-1, 0)]
    cases.append((safe, (rand(3, 5), -1, torch.float64)))
    cases.append((safe, (rand(0, 5), -1)))
    cases.append((safe, (torch.tensor([INF, 1.0, -INF]), 0)))
    check_many(cases, grad=True)


def test_without_calls() -> None:
    run_tests(__file__, "-k", "in_parts or no_numbers", XLA_CPU_KERNELS="0", timeout=600)


@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_normalization_with_fewer_instructions(capability) -> None:
    if "ATEN_CPU_CAPABILITY" in os.environ:
        pytest.skip("this run is that")
    run_tests(__file__, "-k", "norm_in_parts", ATEN_CPU_CAPABILITY=capability)


def test_layer_norm_in_parts() -> None:
    """Rows that end within a vector, of one element, longer than what one sum takes."""

    def normalize(x, weight, bias, shape, eps=1e-5):
        return F.layer_norm(x, shape, weight, bias, eps)

    cases = [
        (normalize, (rand(300, 37), rand(37), rand(37), (37,))),
        (normalize, (rand(2, 300, 129), rand(129), None, (129,))),
        (normalize, (rand(300, 64), None, None, (64,))),
        (normalize, (rand(7, 5, 9, 77), rand(5, 9, 77), rand(5, 9, 77), (5, 9, 77), 0.5)),
        (normalize, (rand(5000, 1), None, None, (1,))),
        (normalize, (rand(3, 70001), rand(70001), rand(70001), (70001,))),
        (normalize, (rand(300, 37).double(), rand(37).double(), None, (37,))),
    ]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    # A mean that is large for the deviation, which mean(x^2) - mean(x)^2 would cancel.
    check_many([(normalize, (rand(64, 512) + 1000, None, None, (512,)))], rtol=1e-3, atol=1e-3)
    if CALLS:
        assert chosen("layer_norm")


def test_group_norm_in_parts() -> None:
    cases = [
        (F.group_norm, (rand(8, 12, 9, 7), 4, rand(12), rand(12))),
        (F.group_norm, (rand(1, 8, 33, 65), 2, rand(8), rand(8), 0.1)),
        (F.group_norm, (rand(6, 10, 91), 10, rand(10), rand(10))),  # instance norm
        (F.group_norm, (rand(600, 12), 3, rand(12), rand(12))),  # no pixels
        (F.group_norm, (rand(3, 6, 4, 80), 1)),
        (F.group_norm, (rand(2, 4, 9, 67).double(), 2, rand(4).double(), rand(4).double())),
    ]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    if CALLS:
        assert chosen("group_norm")


def test_batch_norm_in_parts() -> None:
    """Long channels and short ones, some of which are taken together; many rows."""

    def normalize(x, weight=None, bias=None, eps=1e-5):
        return F.batch_norm(x, None, None, weight, bias, True, 0.1, eps)

    cases = [
        (normalize, (rand(4, 20, 9, 7), rand(20), rand(20))),
        (normalize, (rand(3, 5, 33, 41), rand(5), None, 0.1)),
        (normalize, (rand(2, 3, 40, 41))),
        (normalize, (rand(1, 40, 130), None, rand(40))),
        (normalize, (rand(16, 70, 2, 2), rand(70), rand(70))),
        (normalize, (rand(5, 300, 5), rand(300), rand(300))),
        (normalize, (rand(700, 300), rand(300), rand(300))),
        (normalize, (rand(150, 3, 31), rand(3))),
        (normalize, (rand(5000, 1))),
        (normalize, (rand(2, 40, 3, 4, 5), rand(40))),
        (normalize, (rand(4, 20, 9, 7).double(), rand(20).double())),
        (normalize, (rand(4, 20, 9, 7).bfloat16(), rand(20), rand(20))),
    ]
    cases = [(f, args if isinstance(args, tuple) else (args,)) for f, args in cases]
    check_many(cases[:-1], rtol=1e-4, atol=1e-4, grad=True)
    check_many(cases[-1:], rtol=0.02, atol=0.02)
    far = [rand(n, 40, length) + 1000 for n, length in ((64, 40), (600, 4))]
    check_many([(normalize, (x,)) for x in far], rtol=1e-3, atol=2e-3)
    if CALLS:
        assert chosen("batch_norm")


def test_relu_of_a_batch_norm() -> None:
    """Part of its call where nothing else reads what is between."""

    def normalize(x):
        return F.batch_norm(x, None, None, None, None, True)

    def residual(x, y, alpha=1.0):
        return torch.add(normalize(x), y, alpha=alpha).relu()

    def other_way(x, y):
        return (y + normalize(x)).relu_()

    def both(x, y):
        return (normalize(x) + normalize(y.sin())).relu() * 2

    def itself(x, y):
        z = normalize(x)
        return (z + z).relu() * y

    def read(x, y):
        z = normalize(x)
        return z.relu() + z * y, (normalize(y) + x).relu().sin() * (normalize(x) + x)

    def stacked(x, y):
        z = normalize(x).relu()
        for _ in range(2):
            z = (normalize(normalize(z.sin()).relu() * 1.5) + z).relu()
        return z.sum() + y.sum()

    functions = (lambda x, _: normalize(x).relu()), residual, other_way, both, itself, read, stacked
    shapes = (8, 30, 7, 7), (8, 30, 3, 3), (2, 3, 40, 41), (200, 30)
    pairs = [(rand(*shape), rand(*shape)) for shape in shapes]
    cases = [(f, pair) for f in functions for pair in pairs]
    cases += [(residual, (*pairs[0], 0.5)), (residual, (pairs[0][0], rand(30, 1, 1)))]
    cases += [(residual, (pairs[0][0], pairs[0][1].double()))]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    halves = [[x.bfloat16() for x in pair] for pair in pairs[:2]]
    for f in functions[:3]:
        check_many([(f, pair) for pair in halves], rtol=0.02, atol=0.05, grad=True)
    strange = pairs[0][0].clone()
    strange[0, :3, 0, 0] = torch.tensor([NAN, INF, -INF])
    check_many([(f, (strange, pairs[0][1])) for f in functions[:3]], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not CALLS, reason="there are no calls")
@pytest.mark.parametrize("result, fused", [("z.relu()", True), ("z.relu() + z", False)])
def test_relu_of_a_batch_norm_is_no_kernel(result: str, fused: bool, tmp_path) -> None:
    python_output(
        f"""
        import torch, torch_xla
        from torch.nn.functional import batch_norm
        def rectified(x):
            z = batch_norm(x, None, None, None, None, True)
            return {result}
        x = torch.randn(8, 30, 7, 7, device="xla", requires_grad=True)
        torch_xla.sync()
        torch.autograd.grad(rectified(x), [x], torch.ones_like(x))[0].cpu()
        """,
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        XLA_PERSISTENT_CACHE_PATH="",
    )
    texts = [path.read_text() for path in tmp_path.glob("*after_optimizations.txt")]
    (text,) = [text for text in texts if "torch_xla.cpu_normalization_backward" in text]
    assert ("compare" not in text) == fused


def test_norms_of_bfloat16_in_parts() -> None:
    """In float from one end to the other: as far from double precision as rounding the result."""

    def halves(*shapes):
        return [rand(*shape).bfloat16() for shape in shapes]

    def layer(x, weight, bias):
        return F.layer_norm(x, weight.shape, weight, bias)

    def group(x, weight, bias):
        return F.group_norm(x, 4, weight, bias)

    def batch(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, True)

    cases = [(layer, halves((300, n), (n,), (n,))) for n in (37, 64, 129)]
    cases += [(layer, [*halves((300, 37)), rand(37), rand(37)])]  # parameters of float
    cases += [(group, halves((8, 12, 9, 7), (12,), (12,)))]
    cases += [(batch, halves(shape, (30,), (30,))) for shape in ((8, 30, 7, 7), (900, 30))]
    strange = rand(70, 64).bfloat16()
    strange[0, 0], strange[1, 3], strange[2, 63] = NAN, INF, -INF
    check_many([*cases, (layer, [strange, *halves((64,), (64,))])], rtol=0.02, atol=0.02)
    for function, args in cases:
        check_many([(function, args)], rtol=0.02, atol=0.05, grad=True)

    def train(x, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        return F.batch_norm(x, mean, variance, None, None, True, 0.3), mean, variance

    check_many([(train, halves((8, 30, 7, 7), (30,), (30,)))], rtol=0.02, atol=0.02)


def test_running_statistics_of_a_batch_norm_in_parts() -> None:
    def train(x, mean, variance, weight):
        mean, variance = mean.detach().clone(), variance.detach().clone()
        y = F.batch_norm(x, mean, variance, weight, None, True, 0.3)
        return y, mean, variance, F.batch_norm(x, mean, variance, weight, None, False)

    shapes = (8, 30, 7, 7), (8, 30, 3, 3), (900, 30)
    cases = [(train, (rand(*shape), rand(30), rand(30).abs(), rand(30))) for shape in shapes]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)


def test_only_some_gradients_of_a_norm_in_parts() -> None:
    def gradients(x, weight, bias, wanted):
        x, weight, bias = (
            t.detach().requires_grad_(i in wanted) for i, t in enumerate((x, weight, bias))
        )
        layer = F.layer_norm(x, (80,), weight, bias)
        group = F.group_norm(x.view(10, 20, 40), 4, weight[:20], bias[:20])
        batch = F.batch_norm(x.view(20, 80, 5), None, None, weight, bias, True)
        y = layer.sin().sum() + group.sin().sum() + batch.sin().sum()
        return torch.autograd.grad(y, [(x, weight, bias)[i] for i in wanted])

    args = rand(100, 80), rand(80), rand(80)
    cases = [(gradients, (*args, wanted)) for wanted in ((0,), (1,), (2,), (1, 2), (0, 2))]
    check_many(cases, rtol=1e-4, atol=1e-4)


def test_norms_of_values_that_are_no_numbers() -> None:
    x = rand(128, 64)
    x[1, 3], x[5, 60], x[9, 0], x[20] = NAN, INF, -INF, 3.0
    shapes = (128, 64), (32, 64, 4), (4, 32, 64)
    check_many(
        [
            (F.layer_norm, (x, (64,), rand(64), rand(64))),
            (F.layer_norm, (x, (64,), None, None, 0.0)),
            (F.group_norm, (x.view(16, 8, 64), 4)),
            *((F.batch_norm, (x.view(shape), None, None, None, None, True)) for shape in shapes),
            (F.layer_norm, (torch.full((64, 64), 1e-30), (64,), None, None, 0.0)),
        ],
        rtol=1e-4,
        atol=1e-4,
    )


def test_softmax_in_parts() -> None:
    cases = [
        (torch.softmax, (x * scale, -1))
        for scale in (1, 50)
        for x in (rand(129, 70), rand(3, 5, 600), rand(1, 9001), rand(9000, 1), rand(4, 3000) - 500)
    ]
    check_many([*cases, (torch.softmax, (rand(70, 129), 0))], rtol=1e-4, atol=1e-6, grad=True)
    half = [(f, (x.bfloat16(), dim)) for f, (x, dim) in cases]
    check_many(half, rtol=0.02, atol=1e-3, grad=True)
    if CALLS:
        assert chosen("softmax") == {
            f"{dtype} {length} some" for dtype in ("f32", "bf16") for length in ("short", "long")
        }


def test_softmax_of_values_that_are_no_numbers() -> None:
    x = rand(129, 70)
    x[1, 3], x[5, 60], x[9, 0], x[20], x[30, 1:] = NAN, INF, -INF, -INF, -INF
    check_many([(torch.softmax, (x, -1))], rtol=1e-4, atol=1e-6)


def test_reductions_in_parts() -> None:
    """Of all, and of rows, of which there are more and fewer than threads."""

    def reductions(x, dim):
        return x.sum(dim), x.mean(dim, keepdim=True), x.amax(dim), x.amin(dim)

    shapes = (((1_100_003,), 0), ((2, 3, 200_000), (1, 2)), ((1030, 1030), -1), ((1, 2**20), 1))
    cases = [(reductions, (rand(*shape), dim)) for shape, dim in shapes]
    cases += [(torch.max, (rand(2**20),)), (F.mse_loss, (rand(2**20), rand(2**20)))]
    cases += [(torch.sum, (rand(1030, 1030).double(),))]
    check_many(cases, rtol=1e-4, atol=1e-3, grad=True)
    if CALLS:
        assert chosen("sum") == {"last long large"}
        assert "last long large" in chosen("extreme")


def test_column_sums_in_parts() -> None:
    """Of what others read as well: by columns, by rows, over views, not finite."""

    def sums(x, dims, view=None):
        y = x.abs()
        z = y if view is None else view(y)
        return z.sum(dims), z.mean(dims, keepdim=True), y * 2

    cases: list[tuple] = [
        (sums, (rand(*shape), dims))
        for shape, dims in (
            ((1000, 257), 0),
            ((7, 90, 2, 40), (0, 1)),
            ((3, 3001), 0),
            ((9000, 5), (0,)),
            ((65, 64, 1), (1, 0)),
            ((1, 5000), 0),
        )
    ]
    flat = [(sums, (rand(4, 300, 64), 0, lambda y: y.view(-1, 64)))]
    flat += [(sums, (rand(4, 8, 50, 16), 0, lambda y: y.transpose(1, 2).reshape(-1, 128)))]
    cases += flat + [(sums, (rand(400, 3), (0, 1), lambda y: y[:, :, None].expand(-1, -1, 32)))]
    check_many(cases, rtol=2e-6, atol=0)
    check_many([(f, (x.bfloat16(), *rest)) for f, (x, *rest) in cases], rtol=0.008, atol=0)
    check_many(flat, grad=True)
    strange = rand(70, 100)
    strange[3, 0], strange[69, 1], strange[:, 99] = NAN, INF, -INF
    check_many([(sums, (strange, 0)), (sums, (rand(3, 2000).double() * 1e300, 0))])


@pytest.mark.skipif(not CALLS, reason="there are no calls")
def test_column_sums_are_calls_of_what_is_in_memory(tmp_path) -> None:
    python_output(
        """
        import torch, torch_xla
        x, weight = torch.rand(100, 64).to("xla"), torch.rand(64, 64).to("xla")
        torch_xla.sync()
        def run(function):
            values = function(x.exp())
            torch_xla.sync(wait=True)
        run(lambda y: ((y * 2).sum(0), (y * 3).view(10, 10, 64).sum((0, 1))))
        run(lambda y: (y.view(10, 10, 64).sum((0, 1)), y.mm(weight), x.sum(0), y.mean(0)))
        run(lambda y: (y.sum(1), y.sum(), y.t().sum(0), y))
        run(lambda y: x.sum(0))
        """,
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        XLA_PERSISTENT_CACHE_PATH="",
    )
    texts = [path.read_text() for path in sorted(tmp_path.glob("*before_optimizations.txt"))]
    assert [text.count("torch_xla.cpu_column_sums") for text in texts[-4:]] == [0, 3, 0, 1]


def test_products_in_parts() -> None:
    """Of all, and of one dimension; the CPU's call takes the last alone."""
    near_one = 1 + rand(40, 3, 700) * 1e-3
    cases = [(torch.prod, (near_one, dim)) for dim in (0, 1, -1)]
    cases += [(torch.prod, (x,)) for x in (near_one, near_one.double(), near_one.bfloat16())]
    check_many(cases, rtol=1e-4, atol=1e-5)
    x = 1 + rand(300, 90) * 1e-3
    x[0, 3], x[1, 4], x[2, 5], x[2, 6], x[3, 7] = NAN, INF, INF, 0, 0
    check_many([(torch.prod, (x, -1)), (torch.prod, (torch.arange(1, 20001) % 3 + 1,))], 1e-4)
    if CALLS:
        assert chosen("product") == {"last long large"}


SPECIAL_SHAPES = [(1100, 100), (32, 40, 64), (2, 3, 1, 9000)]


@pytest.mark.parametrize("shape", SPECIAL_SHAPES, ids=str)
def test_extremes_of_values_that_are_no_numbers(shape) -> None:
    """XLA:CPU's library drops a NaN from 32,768 elements on."""
    cases = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = rand(*shape, dtype=dtype)
        flat = x.view(-1)
        flat[7], flat[flat.numel() // 2], flat[-9], flat[-1] = NAN, INF, -INF, NAN
        for dim in range(x.dim()):
            cases += [(getattr(torch, name), (x, dim)) for name in ("amax", "amin", "max", "min")]
            cases += [(getattr(torch, name), (x, dim)) for name in ("argmax", "argmin")]
            cases += [(torch.aminmax, (x,), {"dim": dim})]
        cases += [
            (getattr(torch, name), (x,)) for name in ("amax", "amin", "max", "min", "aminmax")
        ]
        cases += [(torch.linalg.vector_norm, (x, p)) for p in (INF, -INF)]
        cases += [(torch.amax, (x, (0, -1))), (torch.amin, (x[:, 1:],)), (torch.argmax, (x,))]
    check_many(cases)


def test_sums_of_values_that_are_no_numbers() -> None:
    x = rand(1100, 1000)
    x[1, 3], x[5, 60], x[9, 0], x[20] = NAN, INF, -INF, -INF
    check_many([(torch.sum, (x, -1)), (torch.mean, (x, -1)), (torch.sum, (x[2:],))], 1e-4, 1e-3)


@pytest.mark.parametrize("dim", [(0, 2), 1, (1, 3), (0, 1, 2, 3)], ids=str)
def test_extremes_over_any_dimensions_in_parts(dim) -> None:
    cases = [
        (getattr(torch, name), (x, dim, keepdim))
        for name, keepdim in (("amax", True), ("amin", False))
        for x in (rand(40, 3, 50, 17), rand(1, 700, 1, 90), rand(2, 2, 2, 9001).bfloat16())
    ]
    check_many(cases)


def test_products_of_vectors_in_parts() -> None:
    cases = [(torch.dot, (rand(n), rand(n))) for n in (1, 4095, 4096, 70001, 300000)]
    cases += [(torch.dot, (rand(9000).double(), rand(9000).double()))]
    cases += [(torch.dot, (rand(20000)[::2], rand(2, 10000)[1])), (torch.vdot, (rand(5000),) * 2)]
    check_many(cases, rtol=1e-4, atol=1e-3, grad=True)
    check_many([(torch.dot, (torch.arange(5000), torch.arange(5000)))])
    if CALLS:
        assert chosen("dot") == {"large"}


def test_norms_in_parts() -> None:
    norm = torch.linalg.vector_norm
    cases = [
        (norm, (x,), {"ord": p, "keepdim": keepdim})
        for x in (rand(91, 103), rand(2, 3, 70001), rand(400_003).double())
        for p, keepdim in ((1, False), (2, True), (3.5, False), (INF, True), (-INF, False))
    ]
    cases += [(norm, (rand(9000),), {"ord": 2, "dtype": torch.float64})]
    cases += [(norm, (rand(9000) * 1e30,), {"ord": 2}), (norm, (rand(9000).bfloat16(),), {})]
    for special in (NAN, INF):
        x = rand(9000)
        x[8000] = special
        cases += [(norm, (x,), {"ord": p}) for p in (2, INF)]
    check_many(cases, rtol=1e-4, atol=0)
    if os.environ.get("XLA_CPU_KERNELS") != "0":
        assert ("norm", "last long large", "library") in _XLAC._kernel_choices()
    rows = [
        (norm, (x,), {"ord": p, "dim": dim, "keepdim": p == 2})
        for x, dim in ((rand(600, 130), -1), (rand(3, 5, 70, 80), (3, 2)), (rand(1, 9000), (0, 1)))
        for p in (1, 2, INF)
    ]
    check_many([*rows, (norm, (rand(130, 600),), {"dim": 0})], rtol=1e-5, grad=True)
    check_many([(norm, (rand(91, 103),), {"ord": p}) for p in (1, 2)], rtol=1e-5, grad=True)


LONG_ROWS = ((1049, 1000), (3, 7, 60013), (1, 1 << 20))


@pytest.mark.parametrize("shape", LONG_ROWS, ids=str)
def test_log_softmax_of_long_rows_in_parts(shape) -> None:
    check_many([(F.log_softmax, (rand(*shape) * 20 + 1000, -1))], rtol=1e-5, atol=1e-4, grad=True)


def test_log_softmax_of_values_that_are_no_numbers() -> None:
    x = rand(1049, 1000)
    x[0, 3], x[1, 2], x[2, 5] = NAN, INF, -INF
    x[3] = -INF
    check_many([(F.log_softmax, (x, -1))], rtol=1e-5, atol=1e-5)


def test_log_softmax_calls_the_library_where_the_program_runs_here() -> None:
    if os.environ.get("XLA_CPU_KERNELS") == "0":
        pytest.skip("calls are switched off")
    rows = rand(1049, 1000)
    y = F.log_softmax(rows.to("xla"), -1)
    assert "torch_xla.cpu_row_sums" not in _XLAC._get_xla_tensors_hlo([y])
    first = y.cpu()
    assert ("log_softmax", "f32 long many", "library") in _XLAC._kernel_choices()
    assert torch.equal(first, F.log_softmax(rows.to("xla"), -1).cpu())
    program = exported_program_to_stablehlo(torch.export.export(torch.nn.LogSoftmax(-1), (rows,)))
    assert "torch_xla.cpu_row_sums" not in program.get_stablehlo_text()
    torch.testing.assert_close(program(rows).cpu(), first)


def test_cross_entropy_of_long_rows() -> None:
    """Logits with the bias of their product, and without; read by something else, too."""
    columns = 3003
    rows = rand(6, 60, 16) * 3
    weight, bias, target = rand(columns, 16), rand(columns), torch.arange(360) * 8
    ignored = torch.where(target % 3 == 0, target, -100)

    def loss(x, weight, bias, target, weighted=False, **options):
        logits = F.linear(x, weight, bias).view(-1, columns)
        weights = torch.linspace(0.5, 2, columns, device=x.device) if weighted else None
        return F.cross_entropy(logits, target, weights, **options)

    def read_twice(x, weight, bias, target):
        logits = F.linear(x, weight, bias)
        return logits.amax(-1), F.cross_entropy(logits.flatten(0, 1), target)

    masked = rand(360, columns)
    masked[:, 40:] = -INF
    cases = [
        (loss, (rows, weight, bias, target), {}),
        (loss, (rows, weight, None, target), {"reduction": "sum"}),
        (loss, (rows, weight, bias, ignored), {"reduction": "none"}),
        (loss, (rows, weight, bias, ignored), {"weighted": True}),
        (loss, (rows, weight, bias, ignored), {"label_smoothing": 0.1}),
        (loss, (rows[0], weight, bias, target[:60]), {"ignore_index": 80}),
        (read_twice, (rows, weight, bias, ignored)),
        (F.cross_entropy, (masked, target % 40)),
        (F.cross_entropy, (rand(400, columns, 3), torch.arange(1200).view(400, 3))),
    ]
    check_many(cases, rtol=1e-4, atol=1e-5, grad=True)
    if os.environ.get("XLA_CPU_KERNELS") != "0":
        assert ("log_softmax", "f32 long many", "library") in _XLAC._kernel_choices()


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_cross_entropy_of_what_is_not_finite(value) -> None:
    bias = rand(3000)
    bias[7] = value
    x, weight, target = rand(400, 8), rand(3000, 8), torch.arange(400) * 7
    target[::2] = -100

    def loss(x, weight, bias):
        return F.cross_entropy(F.linear(x, weight, bias), target.to(x.device))

    check_many([(loss, (x, weight, bias))], rtol=1e-4, atol=1e-5, grad=True)


def test_sums_of_bfloat16_in_parts() -> None:
    """One rounding, at the end: the CPU's are the judge, and the same in float."""
    cases: list[tuple] = []
    for shape, dims in (
        ((300, 100), -1),
        ((3, 70000), 1),
        ((1, 40001), None),
        ((7, 5, 999), (1, 2)),
        ((5, 6, 1, 4000), (3,)),
        ((33, 4096), 0),  # not the last
    ):
        x = rand(*shape).abs().bfloat16()
        for function in (torch.sum, torch.mean):
            for dtype in (None, torch.float32, torch.float64):
                cases.append((function, (x, dims), {"dtype": dtype}))
    check_many(cases[0::3], rtol=0.008, atol=0)
    check_many(cases[1::3] + cases[2::3], rtol=2e-6, atol=0)
    strange = rand(4, 5000).bfloat16()
    strange[0, 4999], strange[1, 7], strange[2, :2] = NAN, INF, torch.tensor([INF, -INF])
    check_many([(torch.sum, (strange, -1))])


def test_norms_of_lists_in_parts() -> None:
    sizes = ((3,), (64, 64), (), (5, 1, 7), (1000, 77), (1,), (200000,))

    def norms(*arrays, ord=2):
        return tuple(torch._foreach_norm(list(arrays), ord))

    for dtype in (torch.float32, torch.float64, torch.float16, BF16):
        arrays = [rand(*size).to(dtype) for size in sizes]
        tolerance = 0.01 if dtype in (torch.float16, BF16) else 1e-4
        check_many([(norms, arrays)], rtol=tolerance, atol=0)
    small = [rand(*size) for size in sizes[:4]]
    check_many([(norms, small)], grad=True)
    cases = [(norms, small, {"ord": p}) for p in (1, INF, 3)]
    cases += [(norms, [torch.tensor([1, NAN]), torch.tensor([3e30, 4e30]), torch.zeros(2, 0)])]
    cases += [(norms, [torch.tensor([1, NAN]), torch.tensor([INF, 1]), torch.tensor([-INF])])]
    cases += [(norms, [rand(4), rand(4).double()])]
    check_many(cases)
    if CALLS:
        assert "" in chosen("norms")
