"""`_foreach_` operations that follow each other are one call on the CPU: what it computes."""

from __future__ import annotations

import os
from collections.abc import Callable

import op_testing
import process_testing
import pytest
import torch

import torch_xla
from torch_xla import _XLAC

Lists = list[list[torch.Tensor]]
CALLS = os.environ.get("XLA_CPU_KERNELS") != "0"

# Less than a block, some blocks, several chunks; none; a scalar; several dimensions.
SHAPES = [(3,), (), (64,), (2, 0), (7, 11), (600,), (33, 40), (2, 3, 4), (1,), (256,), (17, 16)]


def make_lists(count: int, shapes: list[tuple[int, ...]] = SHAPES) -> Lists:
    return [
        [op_testing.rand(*shape, seed=100 * i + k) for k, shape in enumerate(shapes)]
        for i in range(count)
    ]


def copies(lists: Lists, device: str) -> Lists:
    return [[t.clone().to(device) for t in one] for one in lists]


def check(f: Callable[..., list[torch.Tensor]], lists: Lists, rtol: float = 1e-6) -> None:
    """``f`` changes lists and returns all tensors to look at."""
    expected = f(*copies(lists, "cpu"))
    given = copies(lists, "xla")
    torch_xla.sync()
    actual = f(*given)
    torch_xla.sync()
    if CALLS:
        assert ("foreach", "f32 many", "library") in _XLAC._kernel_choices()
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(
            a.cpu(), e, rtol=rtol, atol=1e-7, equal_nan=True, msg=lambda m, i=i: f"{i}: {m}"
        )


def test_every_operation() -> None:
    def f(a, b, c):
        numbers = [0.25 * i - 1 for i in range(len(a))]
        x = torch._foreach_add(a, b)
        torch._foreach_add_(x, c, alpha=-0.5)
        torch._foreach_sub_(x, 0.75)
        torch._foreach_sub_(x, numbers)
        torch._foreach_mul_(x, torch.tensor(1.5, device=x[0].device))
        y = torch._foreach_addcmul(x, a, b, value=0.5)
        torch._foreach_addcdiv_(y, a, torch._foreach_add(torch._foreach_abs(c), 1), numbers)
        torch._foreach_lerp_(y, a, 0.1)
        torch._foreach_lerp_(y, b, 0.9)
        z = torch._foreach_sqrt(torch._foreach_abs(torch._foreach_neg(y)))
        z = torch._foreach_div(torch._foreach_reciprocal(torch._foreach_add(z, 1)), 3)
        torch._foreach_maximum_(z, torch._foreach_minimum(x, y))
        torch._foreach_clamp_max_(z, 0.75)
        torch._foreach_clamp_min_(z, numbers)
        return [*x, *y, *z]

    check(f, make_lists(3), rtol=1e-5)


def test_what_is_no_number_and_what_is_tiny() -> None:
    special = torch.cat([op_testing.special(), torch.tensor([1e-40, -1e-40, 3e38])])
    a = [special.repeat(2, 1) + i * 0 for i in range(9)]
    b = [special.flip(0).repeat(2, 1) for _ in range(9)]

    def f(a, b):
        extremes = torch._foreach_maximum(a, b), torch._foreach_minimum(a, b)
        made = torch._foreach_mul(torch._foreach_abs(a), 0.5)
        return [t for one in (*extremes, made, torch._foreach_lerp(a, b, 0.25)) for t in one]

    check(f, [a, b])
    made = torch._foreach_neg(torch._foreach_abs([torch.zeros(8, device="xla")] * 16))
    assert torch.signbit(made[0].cpu()).all()


def test_more_tensors_than_a_call_takes() -> None:
    def f(a, b):
        torch._foreach_mul_(a, 0.9)
        torch._foreach_add_(a, b)
        return [*a, *b]

    check(f, make_lists(2, [(i % 5 + 1, 3) for i in range(70)]))


def test_what_is_read_between() -> None:
    """Sums of the first chain are numbers of the second; lists in another order are no chain."""

    def f(a, b):
        x = torch._foreach_mul(a, 2)
        torch._foreach_add_(x, b)
        total = sum(t.sum() for t in x)
        torch._foreach_div_(b, total)
        torch._foreach_sub_(b, 1)
        y = torch._foreach_add([x[1], *x[1:]], b)
        torch._foreach_neg_(y)
        return [total, *x, *b, *y]

    check(f, make_lists(2, [(4, 5)] * 10), rtol=1e-5)


def test_lists_that_overlap() -> None:
    """A tensor that is written is read at another place of the list, before and after."""

    def f(a, b):
        torch._foreach_add_(a, [*a[1:], b[0]])
        torch._foreach_mul_(b, 2)
        torch._foreach_add_(b, [*b[1:], a[0]])
        rotated = torch._foreach_sub([a[-1], *a[:-1]], a)
        torch._foreach_mul_(rotated, a)
        return [*a, *b, *rotated]

    check(f, make_lists(2, [(40, 30)] * 17))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_other_dtypes_are_as_before(dtype: torch.dtype) -> None:
    lists = [[(t * 4).to(dtype) for t in one] for one in make_lists(2)]

    def f(a, b):
        torch._foreach_mul_(a, 2)
        torch._foreach_add_(a, b)
        return a

    actual, expected = f(*copies(lists, "xla")), f(*copies(lists, "cpu"))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_parameters_are_updated_in_place() -> None:
    """From the second step on what the step before made is given away."""
    weights = [op_testing.rand(16, 9, seed=i) for i in range(20)]
    results = []
    for device in ("cpu", "xla"):
        parameters = [torch.nn.Parameter(w.clone().to(device)) for w in weights]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, amsgrad=True)
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
            torch_xla.sync()
        results.append([p.detach().cpu() for p in parameters])
    for a, e in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
    if CALLS:
        assert ("foreach", "f32 many", "library") in _XLAC._kernel_choices()


@pytest.mark.skipif(not CALLS, reason="calls are switched off")
def test_without_calls() -> None:
    process_testing.run_tests(__file__, XLA_CPU_KERNELS="0")
