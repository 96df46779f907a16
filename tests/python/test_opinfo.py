"""PyTorch's operator database on xla against CPU, a few samples of each operator.

`make conformance` runs the rest: every dtype, every sample. Here an operator runs forward in
float32 and one integer dtype, with its gradient, variants, views and bad input, a few samples of
each. What opinfo_exceptions.py excuses is excused here too.
"""

from __future__ import annotations

import pytest
from opinfo_exceptions import EXCEPTIONS, FALLBACK_REASONS
from opinfo_testing import CHECKS, OPS, Report, check_op, plan

pytestmark = pytest.mark.conformance

SAMPLES = 3


def _failures(report: Report) -> list[str]:
    excuses = [e for e in EXCEPTIONS.get(report.op, ()) if not e.widens]
    return [
        f"{report.dtype} {failure}"
        for failure in report.failures
        if not any(e.covers(failure.check, report.dtype, failure.message) for e in excuses)
    ]


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.dtypes])
def test_op(name: str) -> None:
    op, reports = OPS[name], []
    full = [dtype for dtype, checks in plan(op).items() if checks == CHECKS]
    for i, dtype in enumerate(full):
        reports.append(check_op(op, dtype, CHECKS if i == 0 else ("forward",), SAMPLES))
    failures = [text for report in reports for text in _failures(report)]
    assert not failures, "\n".join(failures)
    cpu = {f for report in reports for f in report.fallbacks + report.grad_fallbacks}
    assert cpu <= set(FALLBACK_REASONS), "runs on the CPU, for no reason given"
