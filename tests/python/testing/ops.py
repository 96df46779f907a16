"""Runs functions on CPU tensors and on copies of them on the xla device, and compares.

``check`` does one call; ``check_many`` traces any number of them into one graph, so that
XLA compiles once. Both fail when an op took the CPU fallback (an ``aten::`` counter moved),
unless ``fallback_ok`` says that it may.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

BOOL, U8, I8, I16, I32, I64 = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
C64, C128 = torch.complex64, torch.complex128

# What the CPU's own rounding is judged by.
WIDE = {F32: F64, F16: F64, BF16: F64, C64: C128}

NAN, INF = float("nan"), float("inf")
# What breaks formulas: signed zeros, halves, both sides of usual thresholds, no numbers.
SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 3.0, -3.0, 20.5, -30.0, INF, -INF, NAN)


def special(dtype: torch.dtype = F32) -> torch.Tensor:
    """The values in SPECIAL, or integers about zero."""
    if dtype == BOOL:
        return torch.tensor([True, False, True])
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=dtype)
    return torch.arange(0 if dtype == U8 else -7, 8).to(dtype)


def rand(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    """Reproducible numbers: normal for floats, -9 … 9 (0 … 9 unsigned) for integers."""
    generator = torch.Generator().manual_seed(seed + 7 * sum(shape) + len(shape))
    if dtype == BOOL:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point or dtype.is_complex:
        wide = C128 if dtype.is_complex else F64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0 if dtype == U8 else -9, 10, shape, generator=generator).to(dtype)


def fallbacks() -> dict[str, int]:
    """The ops that ran on the CPU so far, and how often."""
    return {name: met.counter_value(name) or 0 for name in met.executed_fallback_ops()}


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _copy(tree: Any, device: torch.device | str, grad: bool, wide: bool) -> Any:
    """Copies of all tensors on ``device``; with ``grad``, float ones require gradients, with
    ``wide`` they are in double precision."""

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        y = x.detach().clone().to(device)
        y = y.to(WIDE.get(y.dtype, y.dtype)) if wide else y
        return y.requires_grad_() if grad and _is_float(x) else y

    return tree_map(copy, tree)


def _gradients(outputs: Any, inputs: Any, device: torch.device | str) -> list[Any]:
    """Gradients of all float inputs from a cotangent that is the same on each device."""
    outs = [x for x in tree_leaves(outputs) if _is_float(x) and x.requires_grad]
    leaves = [x for x in tree_leaves(inputs) if _is_float(x)]
    cotangents = [
        rand(*out.shape, dtype=out.dtype, seed=i + 1).to(device) for i, out in enumerate(outs)
    ]
    return list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True))


def _run(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: Any,
    grad: bool,
    wide: bool = False,
) -> list[Any]:
    """The results (and gradients) of a call on ``device``, flattened."""
    args, kwargs = _copy((list(args), kwargs), device, grad, wide)
    results = fn(*args, **kwargs)
    gradients = _gradients(results, (args, kwargs), device) if grad else []
    # The arguments too: fn may have changed them in place.
    return tree_leaves(results) + gradients + tree_leaves((args, kwargs))


def _describe(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    def text(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        return repr(x)

    words = [text(x) for x in tree_leaves(list(args))]
    words += [f"{name}={text(x)}" for name, x in kwargs.items()]
    return f"{getattr(fn, '__name__', fn)}({', '.join(words)})"


def _compare(
    actual: list[Any], expected: list[Any], rtol: float | None, atol: float | None
) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    if rtol is not None or atol is not None:
        rtol, atol = rtol or 0.0, atol or 0.0  # one alone: the other is exact
    for a, e in zip(actual, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e or (a != a and e != e), f"{a!r} is not {e!r}"
            continue
        assert a is not None, "no gradient where CPU has one"
        assert a.device.type == "xla", f"a result on {a.device}"
        torch.testing.assert_close(
            a.detach().cpu(), e.detach(), rtol=rtol, atol=atol, equal_nan=True
        )


def no_worse(actual: Any, expected: Any, precise: Any, tolerances: tuple[float, float]) -> bool:
    """Whether xla's error against the result in double precision is within the tolerances, or at
    most twice the CPU's own: the criterion of PyTorch's tests of its decompositions."""
    if isinstance(actual, Exception) or isinstance(precise, Exception):
        return False
    if not len(actual) == len(expected) == len(precise):
        return False
    for a, e, p in zip(actual, expected, precise, strict=True):
        if not isinstance(e, torch.Tensor):
            if a != e and not isinstance(e, (float, complex)):
                return False
            continue
        if not isinstance(a, torch.Tensor) or (a.dtype, a.shape) != (e.dtype, e.shape):
            return False
        a, e = a.detach().cpu(), e.detach()
        if e.dtype not in WIDE:
            if not torch.equal(a, e):
                return False
            continue
        p = p.detach().to(WIDE[e.dtype])
        a, e = a.to(p.dtype), e.to(p.dtype)
        finite = e.isfinite() & p.isfinite() & a.isfinite()
        # What is no number, or out of the dtype's range, is so on both.
        same = (a == e) | ((a != a) & (e != e))
        if not (finite | same).all():
            return False
        if not finite.any():
            continue
        a, e, p = a[finite], e[finite], p[finite]
        rtol, atol = tolerances
        bound = torch.clamp(atol + rtol * p.abs(), min=2 * (e - p).abs().max().item())
        if not ((a - p).abs() <= bound).all():
            return False
    return True


def _is_half(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (F16, BF16)


def _judge(
    actual: list[Any],
    expected: list[Any],
    rtol: float | None,
    atol: float | None,
    precise: Callable[[], list[Any]],
) -> None:
    """Compares with the CPU. Half precision may differ from it: how often a kernel rounds depends
    on the processor. It must be as close to the result in double precision."""
    try:
        _compare(actual, expected, rtol, atol)
    except AssertionError:
        if not any(map(_is_half, expected)):
            raise
        half = (1.6e-2, 1e-5) if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
        if not no_worse(actual, expected, precise(), half):
            raise


def check_many(
    cases: Iterable[Sequence[Any]],
    rtol: float | None = None,
    atol: float | None = None,
    grad: bool = False,
    fallback_ok: bool = False,
) -> None:
    """Checks all cases ``(fn, args)`` or ``(fn, args, kwargs)`` in one graph.

    Args:
        cases: What to call; ``args`` is a tuple or list of arguments.
        rtol, atol: As torch.testing.assert_close has them (None: by dtype).
        grad: Also compare first-order gradients of all float inputs.
        fallback_ok: Ops may run on the CPU.
    """
    device = xm.xla_device()
    before = fallbacks()
    pending, failures = [], []
    for fn, args, *rest in cases:
        kwargs = rest[0] if rest else {}
        name = _describe(fn, args, kwargs)
        expected = _run(fn, args, kwargs, "cpu", grad)
        try:
            actual = _run(fn, args, kwargs, device, grad)
        except Exception as error:  # noqa: BLE001 - all failures are reported together
            failures.append(f"{name}: raised {error}")
            continue
        precise = partial(_run, fn, args, kwargs, "cpu", grad, wide=True)
        pending.append((name, actual, expected, precise))
    torch_xla.sync()
    for name, actual, expected, precise in pending:
        try:
            _judge(actual, expected, rtol, atol, precise)
        except Exception as error:  # noqa: BLE001
            failures.append(f"{name}: {error}")
    moved = [name for name, count in fallbacks().items() if count != before.get(name, 0)]
    if moved and not fallback_ok:
        failures.append(f"ran on the CPU: {', '.join(moved)}")
    assert not failures, "\n".join(failures)


def check_groups(cases: Iterable[Sequence[Any]], size: int = 8, **options: Any) -> None:
    """check_many in groups: XLA's compile time is worse than linear in the number of ops."""
    cases = list(cases)
    for i in range(0, len(cases), size):
        check_many(cases[i : i + size], **options)


def check(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: dict[str, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad: bool = False,
    fallback_ok: bool = False,
) -> None:
    """Checks ``fn(*args, **kwargs)``: values, dtypes and shapes against the CPU's."""
    check_many([(fn, args, kwargs or {})], rtol, atol, grad, fallback_ok)
