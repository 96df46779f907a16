"""Runs the OpInfos of PyTorch's own operator database on the xla device against the CPU.

``check_op`` makes the cases of one operator in one dtype (forward, non-contiguous and empty
inputs, out= and in-place variants, view aliasing, bad input, gradients), traces all of them,
syncs once, so that XLA compiles once, and returns a ``Report``: what differs, and by what means
the operator ran. tests/python/ops/test_opinfo.py and tests/python/conformance.py ask the questions.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import OpInfo

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from testing.opinfo_cases import (
    BATCH,
    CHECKS,
    Case,
    Failure,
    Report,
    _attempt,
    _forward,
    _on_every_device,
    _run_wide,
    _text,
    describe,
    dtype_name,
    make_cases,
    op_name,
)
from testing.opinfo_exceptions import EXCEPTIONS, RANDOM, SOMETIMES_RANDOM, UNINITIALIZED
from testing.ops import no_worse


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def _tolerances(op: OpInfo, dtype: torch.dtype) -> tuple[float, float] | None:
    """PyTorch's toleranceOverride of the op for a dtype, the widest of its tests'."""
    rtol = atol = 0.0
    for info in op.decorators:
        for decorator in getattr(info, "decorators", [info]):
            if not isinstance(decorator, toleranceOverride) or dtype not in decorator.d:
                continue
            if getattr(info, "device_type", None) not in (None, "cpu"):
                continue
            atol = max(atol, decorator.d[dtype].atol)
            rtol = max(rtol, decorator.d[dtype].rtol)
    return (rtol, atol) if rtol or atol else None


def _rtol(dtype: torch.dtype) -> float:
    """assert_close's own."""
    return {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7}.get(dtype, 1.3e-6)


def _atol(dtype: torch.dtype) -> float:
    return 1e-7 if dtype == torch.float64 else 1e-5


def _compare_tensors(
    actual: Any, expected: torch.Tensor, override: tuple[float, float] | None
) -> str | None:
    if actual.device.type != "xla":
        return f"a result on {actual.device}"
    expected = expected.detach()
    actual = actual.detach().cpu()
    rtol = atol = None
    if override and (expected.is_floating_point() or expected.is_complex()):
        rtol, atol = (
            max(override[0], _rtol(expected.dtype)),
            max(override[1], _atol(expected.dtype)),
        )
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


def _compare_random(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """The means, where there are enough numbers."""
    if expected.numel() < 64 or expected.dtype.is_complex:
        return None
    a, e = actual.detach().cpu().double(), expected.detach().double()
    if not (a.isfinite().all() and e.isfinite().all()):
        return None
    spread = max(a.std().item(), e.std().item(), 1e-6)
    error = 6 * spread * (2 / a.numel()) ** 0.5
    if abs(a.mean().item() - e.mean().item()) > error:
        return f"mean {a.mean().item():.4g}, on CPU {e.mean().item():.4g}"
    return None


def _judge(
    op: OpInfo, case: Case, actual: Any, expected: Any, tolerances: tuple[float, float] | None
) -> Failure | None:
    """What is wrong with a case, or None."""

    def failure(kind: str, message: str) -> Failure:
        return Failure(case.check, kind, case.sample[:300], message)

    if isinstance(expected, Exception):
        # What MKL fails at is no contract.
        missing = "MKL FFT error" in str(expected)
        if case.check == "empty" and re.search(
            "out of (bounds|range)|dim should be|not in the valid range", str(expected)
        ):
            return None  # Indices into what was cut away: values, which are not looked at.
        if isinstance(actual, Exception):
            wanted = (type(expected), case.must_raise or type(expected))
            if missing or isinstance(actual, wanted):
                return None
            return failure("raised", f"{_one_line(actual)}; on CPU {_one_line(expected)}")
        # Copies on the device share no memory with each other.
        missing |= case.check == "error" and "to a single memory location" in str(expected)
        return None if missing else failure("silent", f"on CPU {_one_line(expected)}")
    if case.must_raise and isinstance(actual, case.must_raise):
        return None
    if isinstance(actual, Exception):
        return failure("raised", _one_line(actual))
    if case.must_raise:
        return None  # The database means another device: the CPU takes it too.
    if len(actual) != len(expected):
        return failure("wrong", f"{len(actual)} results, on CPU {len(expected)}")
    for a, e in zip(actual, expected, strict=True):
        if message := _difference(op_name(op), a, e, tolerances, case.random):
            return failure("wrong", message)
    return None


def _difference(
    name: str, actual: Any, expected: Any, tolerances: tuple[float, float] | None, random: bool
) -> str | None:
    if not isinstance(expected, torch.Tensor):
        if random or actual == expected or (actual != actual and expected != expected):
            return None
        if isinstance(actual, (float, complex)) and isinstance(expected, (float, complex)):
            rtol, atol = tolerances or (1.3e-6, 1e-5)
            if abs(actual - expected) <= atol + rtol * abs(expected):
                return None
        return f"{_text(actual)}, on CPU {_text(expected)}"
    if not isinstance(actual, torch.Tensor) or (
        (actual.dtype, actual.shape) != (expected.dtype, expected.shape)
    ):
        return f"{_text(actual)}, on CPU {_text(expected)}"
    if name in UNINITIALIZED:
        return None
    if random:
        return _compare_random(actual, expected)
    return _compare_tensors(actual, expected, tolerances)


def _counters() -> dict[str, int]:
    read = "aten::_local_scalar_dense"  # is no fallback
    return {name: met.counter_value(name) or 0 for name in met.counter_names() if name != read}


def _moved(before: dict[str, int], prefix: str) -> list[str]:
    after = _counters()
    return sorted(
        name.removeprefix(prefix)
        for name, count in after.items()
        if name.startswith(prefix) and count != before.get(name, 0)
    )


def dtype_difference(op: OpInfo, dtype: torch.dtype) -> str | None:
    """How the device differs from the CPU in taking or refusing a sample of this dtype, if it does.
    Results are not looked at."""
    torch.manual_seed(0)
    try:
        sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))
        run = _forward(op, _on_every_device(op, [sample])[0])
    except Exception:  # noqa: BLE001 - the database has no samples of such a dtype
        return None
    expected = _attempt(run, torch.device("cpu"))
    actual = _attempt(run, torch.device(xm.xla_device()))
    if isinstance(expected, Exception):
        if isinstance(actual, type(expected)):
            return None
        what = _one_line(actual) if isinstance(actual, Exception) else "is accepted"
        return f"{describe(sample)} {what}, on CPU {_one_line(expected)}"
    if isinstance(actual, Exception):
        return f"{describe(sample)} {_one_line(actual)}, on CPU {_text(expected)}"
    if [_text(x) for x in actual] != [_text(x) for x in expected] and all(
        isinstance(x, torch.Tensor) for x in expected
    ):
        return f"{describe(sample)} {_text(actual)}, on CPU {_text(expected)}"
    return None


def _expected(name: str, case: Case) -> Any:
    cpu = torch.device("cpu")
    if "_scaled_mm" not in name:
        return _attempt(case.run, cpu)
    # oneDNN has products of float8 on some CPUs alone, and rounds them otherwise.
    with torch.backends.mkldnn.flags(enabled=False):
        return _attempt(case.run, cpu)


def check_op(
    op: OpInfo, dtype: torch.dtype, checks: Iterable[str] = CHECKS, limit: int | None = None
) -> Report:
    """Runs the named checks of one op in one dtype.

    Args:
        op: An entry of op_db.
        dtype: One that the op has on the CPU.
        checks: Names out of CHECKS.
        limit: How many samples for a check; all with None.
    """
    name = op_name(op)
    report = Report(name, dtype_name(dtype))
    device = torch.device(xm.xla_device())
    pending: list[tuple[Case, Any, Any]] = []

    def judge(case: Case, actual: Any, expected: Any) -> None:
        try:
            failure = _judge(op, case, actual, expected, _tolerances(op, dtype))
            if failure and failure.kind == "wrong" and dtype in (torch.bfloat16, torch.float16):
                # The CPU rounds to half precision in between, XLA does not.
                default = (_rtol(dtype), _atol(dtype))
                if no_worse(actual, expected, _run_wide(case), _tolerances(op, dtype) or default):
                    failure = None
            for i, excuse in enumerate(EXCEPTIONS.get(name, ())):
                if not failure or failure.kind != "wrong" or not excuse.widens:
                    continue
                if not excuse.covers(case.check, report.dtype, failure.message):
                    continue
                wide = (excuse.rtol, excuse.atol)
                if excuse.precise:
                    wide = _tolerances(op, dtype) or (_rtol(dtype), _atol(dtype))
                    if no_worse(actual, expected, _run_wide(case), wide):
                        failure = None
                else:
                    failure = _judge(op, case, actual, expected, wide)
                if failure is None and i not in report.tolerances_used:
                    report.tolerances_used.append(i)
        except Exception as error:  # noqa: BLE001 - reading the result back failed
            failure = Failure(case.check, "raised", case.sample, _one_line(error))
        if failure:
            report.failures.append(failure)

    def flush() -> None:
        try:
            torch_xla.sync(wait=True)
        except Exception:  # noqa: BLE001 - each is run again, alone, to find the culprit
            for i, (case, _, expected) in enumerate(pending):
                actual = _attempt(case.run, device)
                try:
                    torch_xla.sync(wait=True)
                except Exception as error:  # noqa: BLE001
                    actual = error
                pending[i] = (case, actual, expected)
        for case, actual, expected in pending:
            judge(case, actual, expected)
        pending.clear()

    for check in checks:
        try:
            cases = list(make_cases(op, dtype, check, limit))
        except Exception as error:  # noqa: BLE001 - the database's own sample may not work
            if check == "dtype":
                continue  # There are no samples of such a dtype.
            report.failures.append(Failure(check, "raised", "making samples", _one_line(error)))
            continue
        report.cases[check] = len(cases)
        for case in cases:
            case.random = name in RANDOM or any(
                text in case.sample for text in SOMETIMES_RANDOM.get(name, ())
            )
        before = _counters()
        for case in cases:
            expected = _expected(name, case)
            pending.append((case, _attempt(case.run, device), expected))
            if len(pending) >= BATCH:
                flush()
        if check == "forward":
            report.lowered = [x for x in _moved(before, "xla::") if "::" not in x]
            report.decompositions = _moved(before, "xla::decomp::")
            report.fallbacks = _moved(before, "aten::")
        elif check == "grad":
            report.grad_fallbacks = _moved(before, "aten::")
    flush()
    return report
