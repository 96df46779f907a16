"""Linear algebra: LAPACK's kernels inside programs, and products of every dtype."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.ops import C64, C128, F32, F64, I8, I32, I64, U8, check, check_many, rand
from testing.processes import python_output, run_python

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


def positive(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    a = rand(*shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


FACTORIZATIONS = (
    torch.linalg.qr,
    torch.linalg.eig,
    torch.linalg.det,
    torch.linalg.slogdet,
    torch.linalg.inv_ex,
    torch.linalg.lu,
    torch.linalg.lu_factor_ex,
    torch.linalg.ldl_factor_ex,
    torch.linalg.matrix_exp,
    torch.geqrf,
    lambda a: torch.linalg.svd(a, full_matrices=False),
    lambda a: torch.linalg.eigh(a + a.mH),
    lambda a: torch.linalg.cholesky_ex(a + a.mH + 9 * torch.eye(4, device=a.device)),
    lambda a: torch.linalg.solve_ex(a, a + 1),
    lambda a: torch.linalg.solve_triangular(a, a + 1, upper=True),
    lambda a: torch.triangular_solve(a, a + 1, transpose=True),
    lambda a: torch.cholesky_solve(a, a + 1),
    lambda a: torch.linalg.householder_product(a, a[..., 0]),
)


@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
def test_factorizations_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    a = rand(2, 4, 4, dtype=dtype)
    check_many([(f, (a,)) for f in FACTORIZATIONS], rtol=0, atol=0)


def test_empty_and_batched() -> None:
    cases = []
    for f in (torch.linalg.qr, torch.linalg.inv_ex, torch.linalg.eigvals, torch.linalg.svdvals):
        cases += [(f, (torch.empty(0, 3, 3),)), (f, (torch.empty(0, 0),)), (f, (rand(2, 3, 5, 5),))]
    check_many(cases, rtol=0, atol=0)


def test_gradients() -> None:
    a = positive(4, 4)
    cases = [
        (torch.linalg.inv, (a,)),
        (torch.linalg.cholesky, (a,)),
        (torch.linalg.solve, (a, rand(4, 2, dtype=F64))),
        (torch.linalg.slogdet, (a,)),
        (lambda x: torch.linalg.eigh(x)[0], (a,)),
        (lambda x: torch.linalg.qr(x), (a,)),
        (lambda x: torch.linalg.svdvals(x), (a,)),
        (torch.linalg.lstsq, (a, rand(4, 2, dtype=F64))),
        (torch.linalg.pinv, (a,)),
    ]
    check_many(cases, grad=True)


def test_out_and_scalar_arguments() -> None:
    a = positive(3, 3)

    def out(x: torch.Tensor) -> torch.Tensor:
        q, r = torch.empty_like(x), torch.empty_like(x)
        torch.linalg.qr(x, out=(q, r))
        return q + r

    check_many([(out, (a,)), (torch.igamma, (rand(5).abs(), rand(5, seed=1).abs()))])


def test_a_singular_matrix_raises_in_the_call() -> None:
    zeros = torch.zeros(3, 3, device=xm.xla_device())
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(zeros)
    assert (zeros + 1).sum().item() == 9


def test_an_error_of_the_kernel_comes_with_the_read() -> None:
    zeros = torch.zeros(3, 3, device=xm.xla_device())
    failed = torch.linalg.eigvalsh(zeros / 0)
    with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):
        failed.cpu()
    # What comes after is not harmed.
    assert (zeros + 1).sum().item() == 9


def test_bad_arguments_raise_in_the_call() -> None:
    a = torch.zeros(3, 4, device=xm.xla_device())
    for call in (torch.linalg.inv, torch.linalg.eigh, lambda x: torch.linalg.qr(x, "foo")):
        with pytest.raises(RuntimeError):
            call(a)


def test_a_program_from_the_disk_cache_finds_the_kernel(tmp_path) -> None:
    code = (
        "import torch, torch_xla, torch_xla.debug.metrics as met\n"
        "q, r = torch.linalg.qr(torch.eye(3).add(1).to('xla'))\n"
        "print((q @ r).cpu().round().tolist(), met.counter_value('PersistentCacheHit'))\n"
    )
    folder = str(tmp_path)
    runs = [python_output(code, XLA_PERSISTENT_CACHE_PATH=folder) for _ in range(2)]
    first, second = (said.rsplit(" ", 1) for said in runs)
    assert first[0] == second[0] == "[[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]"
    assert int(second[1]) > 0


def test_without_cpu_kernels() -> None:
    """What other platforms do: StableHLO where it has the op, else the fallback."""
    code = (
        "import torch, torch_xla, torch_xla.debug.metrics as met\n"
        "torch.manual_seed(0)\n"
        "a = torch.randn(2, 4, 4); a = a @ a.mT + torch.eye(4); b = torch.randn(2, 4, 3)\n"
        "x, y = a.to('xla'), b.to('xla')\n"
        "def close(f): torch.testing.assert_close(f(x, y).cpu(), f(a, b), rtol=1e-4, atol=1e-4)\n"
        "close(lambda a, b: torch.linalg.cholesky(a))\n"
        "close(lambda a, b: torch.linalg.cholesky(a, upper=True))\n"
        "close(lambda a, b: torch.linalg.solve_triangular(a, b, upper=False))\n"
        "close(lambda a, b: torch.linalg.cholesky_ex(a - 100 * torch.eye(4).to(a))[1].sign())\n"
        "assert not [n for n in met.counter_names() if n.startswith('aten::')]\n"
        "close(lambda a, b: torch.linalg.qr(a)[1])\n"
        "assert met.counter_value('aten::linalg_qr')\n"
        "print('ok')"
    )
    assert python_output(code, XLA_CPU_KERNELS="0") == "ok"


def test_one_program_holds_the_kernel_and_what_surrounds_it() -> None:
    device = xm.xla_device()
    torch_xla.sync(wait=True)
    steps = met.metric_data("ExecuteTime")[0]
    a = rand(4, 4).to(device)
    (torch.linalg.qr(a * 2)[0].sum() + 1).cpu()
    xm.wait_device_ops()
    assert met.metric_data("ExecuteTime")[0] == steps + 1


def test_products_of_integers() -> None:
    cases = []
    for dtype in (U8, I8, I32, I64):
        a, b, v = rand(3, 4, dtype=dtype), rand(4, 5, dtype=dtype), rand(4, dtype=dtype)
        c = rand(3, 5, dtype=dtype)
        cases += [
            (torch.mm, (a, b)),
            (torch.mv, (a, v)),
            (torch.dot, (v, v)),
            (torch.addmm, (c, a, b), {"beta": 2, "alpha": 3}),
            (torch.bmm, (rand(2, 3, 4, dtype=dtype), rand(2, 4, 2, dtype=dtype))),
            (torch.einsum, ("ij,jk->ki", a, b)),
            (torch.tensordot, (a, b, 1)),
            (torch.kron, (a, b)),
        ]
    check_many(cases)


def test_int8_products_have_int32_sums() -> None:
    a = torch.full((3, 300), 127, dtype=I8)
    b = torch.randint(-128, 128, (300, 2), dtype=I8)
    check(torch._int_mm, a, b)
    out = torch.empty(3, 2, dtype=I32, device="xla")
    assert torch._int_mm(a.to("xla"), b.to("xla"), out=out) is out
    assert torch.equal(out.cpu(), torch._int_mm(a, b))


# oneDNN has them on CPUs with AMX, takes what is refused elsewhere, and rounds otherwise.
without_onednn = torch.backends.mkldnn.flags(enabled=False)


@pytest.mark.parametrize("second", [torch.float8_e4m3fn, torch.float8_e5m2])
@without_onednn
def test_float8_products(second: torch.dtype) -> None:
    # As float32 outside, where float8 numbers can be compared.
    def of_float8(fn: Any) -> Any:
        def run(a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            return fn(a.to(torch.float8_e4m3fn), b.to(second), *args, **kwargs).float()

        return run

    v1, v2 = of_float8(torch._scaled_mm), of_float8(torch.ops.aten._scaled_mm_v2)
    a, b = rand(5, 32), rand(16, 32, seed=1).t()
    one, half, rows, columns = torch.ones(()), torch.full((1,), 0.5), rand(5, 1), rand(1, 16)
    cases = []
    for out in (None, F32, torch.bfloat16, torch.float16, torch.float8_e5m2):
        for scales in ((one, half), (half, 4000 * half), (half, 1e9 * one), (rows, columns)):
            cases.append((v1, (a, b, *scales), {"out_dtype": out}))
        bias = rand(16).to(torch.float32 if out == F32 else torch.bfloat16)
        cases.append((v1, (a, b, one, half), {"out_dtype": out, "bias": bias}))
    for out in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):  # the last ignores it
        options = {"out_dtype": out, "scale_result": 4 * one, "bias": rand(16).bfloat16()}
        cases.append((v1, (a, b, one, half), options))
    cases += [
        (v1, (a[:0], b, one, half), {"out_dtype": F32}),
        (v2, (a, b, [half], [0], [], [one], [0], [0], rand(16), F32)),
        (v2, (a, b, [rows], [1], [0], [columns], [1], [], None, F32, [1, 0])),
    ]
    check_many(cases, rtol=1e-2, atol=1e-2)


@without_onednn
def test_float8_products_refuse_what_the_cpu_refuses() -> None:
    a = torch.ones(16, 32).to(torch.float8_e4m3fn)
    one, v2 = torch.ones(()), torch.ops.aten._scaled_mm_v2
    for fn, args in [
        (torch._scaled_mm, (a[None], a.t(), one, one)),
        (torch._scaled_mm, (a, a, one, one)),
        (torch._scaled_mm, (a.float(), a.t(), one, one)),
        (torch._scaled_mm, (a, a.t(), one.double(), one)),
        (torch._scaled_mm, (a, a.t(), torch.ones(16), torch.ones(16))),
        (torch._scaled_mm, (a, a.t(), one, one, torch.ones(3))),
        (torch._scaled_mm, (a, a.t(), one, one, None, torch.ones(2))),
        (v2, (a, a.t(), [one], [0], [], [torch.ones(1, 16)], [1], [], None, F32)),
        (v2, (a, a.t(), [one, one], [0, 0], [], [one], [0], [], None, F32)),
        (v2, (a, a.t(), [one], [2], [], [one], [2], [], None, F32)),
        (v2, (a, a.t(), [one], [0], [1], [one], [0], [1], None, F32)),
        (v2, (a, a.t(), [one], [0], [], [one], [0], [], None, F32, [1])),
        (v2, (a, a.t(), [one], [0], [], [one], [0], [], torch.ones(3), F32)),
    ]:
        with pytest.raises(Exception) as on_cpu:
            fn(*args)
        moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("xla"), args)
        with pytest.raises(on_cpu.type, match="_scaled_mm"):
            fn(*moved)


def grouped_mm(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """The definition; rows and columns behind the last end give zeros."""
    bounds = list(zip([0, *ends], ends, strict=False))
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, low:high] @ b[low:high] for low, high in bounds])
    if a.dim() == 2:
        parts = [a[low:high] @ b[i] for i, (low, high) in enumerate(bounds)]
        return F.pad(torch.cat(parts), (0, 0, 0, len(a) - ends[-1]))
    parts = [a[i] @ b[:, low:high] for i, (low, high) in enumerate(bounds)]
    return F.pad(torch.cat(parts, 1), (0, b.shape[1] - ends[-1]))


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["rows", "few rows", "columns", "both"])
def test_products_of_groups(kind: str, dtype: torch.dtype) -> None:
    shapes = {
        "rows": ((9, 4), (3, 4, 5)), "few rows": ((3, 4), (5, 4, 6)),
        "columns": ((3, 5, 4), (4, 9)), "both": ((5, 9), (9, 6)),
    }  # fmt: skip
    ends = [0, 2, 2, 2, 3] if kind == "few rows" else [2, 2, 7]
    a, b = (rand(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes[kind]))
    leaves = [t.clone().requires_grad_() for t in (a, b)]
    expected = grouped_mm(*leaves, ends)
    weight = rand(*expected.shape, dtype=dtype, seed=3)
    (expected * weight).sum().backward()
    ours = [t.to("xla").requires_grad_() for t in (a, b)]
    offs = torch.tensor(ends, dtype=I32).to("xla")
    actual = F.grouped_mm(*ours, offs=offs)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-2, atol=1e-5)
    (actual * weight.to("xla")).sum().backward()
    for a, b in zip(ours, leaves, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-2, atol=1e-5)


def test_an_infinite_expert_is_nothing_to_the_others() -> None:
    a, b = torch.ones(4, 4), torch.ones(2, 4, 8)
    b[1] = torch.inf
    offs = torch.tensor([2, 4], dtype=I32)
    actual = torch._grouped_mm(a.to("xla"), b.to("xla"), offs.to("xla")).cpu()
    torch.testing.assert_close(actual, torch._grouped_mm(a, b, offs))


def test_products_of_groups_refuse_what_the_cpu_refuses() -> None:
    a, b, offs = torch.ones(8, 8), torch.ones(3, 8, 4), torch.tensor([2, 2, 5], dtype=I32)
    for args in [
        (a, b), (b, b.mT, offs), (a, b, offs.long()), (a, b, offs[:2]), (a, b, offs[None]),
        (a, b[:, :4], offs), (a.double(), b.double(), offs), (a[0], b, offs), (a, b, offs, a),
        (a, b, offs, None, torch.bfloat16), (a[:, :4], a, offs),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError):
            torch._grouped_mm(*args)
        moved = [x.to("xla") if isinstance(x, torch.Tensor) else x for x in args]
        with pytest.raises(RuntimeError, match="_grouped_mm"):
            torch._grouped_mm(*moved)


def test_distances() -> None:
    a, b = rand(2, 3, 4, dtype=F64), rand(2, 5, 4, dtype=F64, seed=1)
    cases = []
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")):
        mode = "donot_use_mm_for_euclid_dist"
        cases += [(torch.cdist, (a, b), {"p": p, "compute_mode": mode})]
        cases += [(torch.pdist, (a[0],), {"p": p})]
    check_many(cases, grad=True)
    a[0, 0, 0] = float("nan")
    check_many([(torch.cdist, (a, b), {"p": p}) for p in (0.0, 0.5, 1.0, 2.0)])


def test_wrong_shapes_raise() -> None:
    with pytest.raises(RuntimeError):
        check(torch.mm, rand(2, 3), rand(2, 3))


def test_squares_of_products(tmp_path):
    """XLA:CPU's search for fusions ends the process at these, large as they are here."""
    run_python(
        """
        cpu = torch.rand(1024, 1024) / 512
        a = cpu.to(device)
        for square in (lambda w: w @ w, lambda w: w @ w.T, lambda w: w @ w @ w):
            w = a @ a
            y = square(w).sum(0)
            del w
            torch.testing.assert_close(y.cpu(), square(cpu @ cpu).sum(0), rtol=1e-4, atol=1e-4)
        """,
        tmp_path,
        PJRT_DEVICE="CPU",
    )


def test_linear_of_batches() -> None:
    """Those with a bias are a product of one matrix, as PyTorch has it on the CPU."""
    inputs = (
        rand(2, 5, 4),
        rand(2, 3, 5, 4),
        rand(5, 2, 4).transpose(0, 1),
        rand(2, 5, 8)[..., ::2],
        rand(4).expand(3, 2, 4),
        rand(0, 5, 4),
        rand(2, 5, 0),
    )
    cases = [(F.linear, (x, rand(3, x.shape[-1]), rand(3))) for x in inputs]
    x, weight, bias = rand(2, 5, 4), rand(3, 4), rand(3)
    cases += [(F.linear, (x, rand(4, 3).t(), bias)), (F.linear, (x, rand(0, 4), rand(0)))]
    check_many(cases, grad=True, rtol=1e-5, atol=1e-5)

    def tangent(x, weight, bias):
        return torch.func.jvp(partial(F.linear, x), (weight, bias), (weight + 1, bias * 2))

    halves = [y.bfloat16() for y in (x, weight, bias)]
    check_many(
        [
            (torch.vmap(F.linear, (0, None, None)), (rand(3, 2, 5, 4), weight, bias)),
            (tangent, (x, weight, bias)),
            (F.linear, (x.double(), weight.double(), bias.double())),
            (F.linear, (x.to(C64), weight.to(C64), bias.to(C64))),
            (F.linear, halves),
            (lambda x, *rest: F.linear(x, *rest).add_(1), (x, weight, bias)),
        ],
        rtol=1e-2,
        atol=1e-2,
    )
    with torch.inference_mode():
        check(F.linear, x, weight, bias, rtol=1e-5, atol=1e-5)
