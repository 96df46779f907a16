"""Normalization of layers, groups and batches, which calls kernels of the table on the CPU."""

import os

import pytest
import torch
import torch.nn.functional as F
from testing.kernels import CALLS, chosen, needs_calls
from testing.ops import INF, NAN, check_many, rand
from testing.processes import python_output, run_tests


@pytest.mark.parametrize(
    "capability", ["avx2", pytest.param("default", marks=pytest.mark.conformance)]
)
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


@needs_calls
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
