"""PyTorch's operator database on xla against CPU: two float32 samples of each operator.

`make conformance` runs the rest: every dtype, every sample, every check. Here an operator runs
forward, with its gradient, and is called once in each dtype, to see that the device takes the same
ones as the CPU; what opinfo_exceptions.py excuses is excused here too.
"""

import pytest
from testing.opinfo import check_op, dtype_difference
from testing.opinfo_cases import ALL_DTYPES, OPS, dtype_name, dtypes_of
from testing.opinfo_exceptions import EXCEPTIONS, FALLBACK_REASONS, Excuse

SAMPLES = 2


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.dtypes])
def test_op(name: str) -> None:
    op = OPS[name]
    report = check_op(op, dtypes_of(op)[0], ("forward", "grad"), SAMPLES)
    excuses = [e for e in EXCEPTIONS.get(report.op, ()) if not e.widens]
    failures = [
        f"{report.dtype} {failure}"
        for failure in report.failures
        if not any(e.covers(failure.check, report.dtype, failure.message) for e in excuses)
    ]
    assert not failures, "\n".join(failures)
    cpu = set(report.fallbacks + report.grad_fallbacks)
    assert cpu <= set(FALLBACK_REASONS), "runs on the CPU, for no reason given"


@pytest.mark.parametrize("name", OPS)
def test_dtypes(name: str) -> None:
    excuses = EXCEPTIONS.get(name, ())
    found = {dtype: dtype_difference(OPS[name], dtype) for dtype in ALL_DTYPES}
    differences = [
        f"{dtype_name(dtype)} {difference}"
        for dtype, difference in found.items()
        if difference and not any(e.covers("dtype", dtype_name(dtype), difference) for e in excuses)
    ]
    assert not differences, "\n".join(differences)


def test_excuses_of_some_cpus_are_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # the import sets it
    from conformance import judge

    everywhere, on_some = Excuse("everywhere"), Excuse("on some", some_cpus=True)
    monkeypatch.setitem(EXCEPTIONS, "op", [everywhere, on_some])
    report = {"dtype": "float32", "tolerances_used": [], "failures": []}
    assert judge("op", [report], complete=True).stale == [everywhere]
    assert judge("op", [report], complete=False).stale == []
