"""Softmax and cross entropy of rows, which call kernels of the table on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from testing.kernels import CALLS, chosen, needs_calls
from testing.ops import BF16, INF, NAN, check_many, rand

from torch_xla import _XLAC
from torch_xla.stablehlo import exported_program_to_stablehlo


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


LONG_ROWS = ((1049, 1000), (3, 7, 60013), (1, 1 << 20))


@pytest.mark.parametrize("shape", LONG_ROWS, ids=str)
def test_log_softmax_of_long_rows_in_parts(shape) -> None:
    # The CPU's own gradient is wrong by more than 1e-5 on processors without AVX-512.
    check_many([(F.log_softmax, (rand(*shape) * 20 + 1000, -1))], rtol=3e-5, atol=1e-4, grad=True)


def test_log_softmax_of_values_that_are_no_numbers() -> None:
    x = rand(1049, 1000)
    x[0, 3], x[1, 2], x[2, 5] = NAN, INF, -INF
    x[3] = -INF
    check_many([(F.log_softmax, (x, -1))], rtol=1e-5, atol=1e-5)


@needs_calls
def test_log_softmax_calls_the_library_where_the_program_runs_here() -> None:
    rows = rand(1049, 1000)
    y = F.log_softmax(rows.to("xla"), -1)
    assert "torch_xla.cpu_row_sums" not in _XLAC._get_xla_tensors_hlo([y])
    first = y.cpu()
    assert "f32 long many" in chosen("log_softmax")
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
    if CALLS:
        assert "f32 long many" in chosen("log_softmax")


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_cross_entropy_of_what_is_not_finite(value) -> None:
    bias = rand(3000)
    bias[7] = value
    x, weight, target = rand(400, 8), rand(3000, 8), torch.arange(400) * 7
    target[::2] = -100

    def loss(x, weight, bias):
        return F.cross_entropy(F.linear(x, weight, bias), target.to(x.device))

    check_many([(loss, (x, weight, bias))], rtol=1e-4, atol=1e-5, grad=True)
