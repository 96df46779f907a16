"""Reductions of rows and columns, which call kernels of the table on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from testing.kernels import CALLS, chosen, needs_calls
from testing.ops import BF16, INF, NAN, check_many, rand
from testing.processes import python_output


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


@needs_calls
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
    if CALLS:
        assert "last long large" in chosen("norm")
    rows = [
        (norm, (x,), {"ord": p, "dim": dim, "keepdim": p == 2})
        for x, dim in ((rand(600, 130), -1), (rand(3, 5, 70, 80), (3, 2)), (rand(1, 9000), (0, 1)))
        for p in (1, 2, INF)
    ]
    check_many([*rows, (norm, (rand(130, 600),), {"dim": 0})], rtol=1e-5, grad=True)
    check_many([(norm, (rand(91, 103),), {"ord": p}) for p in (1, 2)], rtol=1e-5, grad=True)


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
