"""Counters and metrics of the lazy device.

A *counter* is a number of events: ``xla::add`` says how many ``add`` were traced,
``aten::sort`` how often an op without a lowering ran on the CPU (``aten::_local_scalar_dense``
how often ``.item()`` read a value, which is no such op). A *metric* is a stream of
samples, each a time in nanoseconds, a size in bytes or a plain number: ``CompileTime``,
``ExecuteTime``, ``InboundData``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_xla import _XLAC


def metrics_report() -> str:
    """Returns all metrics (samples, sum, rate, percentiles) and counters as text."""
    return _XLAC._xla_metrics_report()


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """Returns a part of :func:`metrics_report`.

    Args:
        counter_names: The counters to include.
        metric_names: The metrics to include. With neither of the two: the important ones,
            and each op that fell back to the CPU.
    """
    return _XLAC._xla_short_metrics_report(list(counter_names or ()), list(metric_names or ()))


def counter_names() -> list[str]:
    """Returns the names of the counters that are not zero."""
    return _XLAC._xla_counter_names()


def counter_value(name: str) -> int | None:
    """Returns the value of a counter, or None when there is none of that name."""
    return _XLAC._xla_counter_value(name)


def metric_names() -> list[str]:
    """Returns the names of the metrics that have samples."""
    return _XLAC._xla_metric_names()


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Returns the content of a metric.

    Returns:
        The number of samples, their sum, and the latest samples as pairs of a time stamp in
        seconds and a value; None when there is no metric of that name. Times are in
        nanoseconds, sizes in bytes.
    """
    return _XLAC._xla_metric_data(name)


def executed_fallback_ops() -> list[str]:
    """Returns the names of the operators that ran on the CPU: ``aten::...``, and custom ones."""
    own = ("xla::", "CompiledGraph::", "ExecutedGraph::", "DynamicSizes::", "aten::_local_scalar")
    return [name for name in counter_names() if "::" in name and not name.startswith(own)]


def clear_counters() -> None:
    """Sets all counters to zero."""
    _XLAC._clear_xla_counters()


def clear_metrics() -> None:
    """Forgets the samples of all metrics."""
    _XLAC._clear_xla_metrics()


def clear_all() -> None:
    """Clears the counters and the metrics."""
    clear_counters()
    clear_metrics()


def metrics_dict() -> dict[str, dict[str, Any]]:
    """Returns all counters and metrics, for programs; :func:`json.dumps` takes it.

    Returns:
        ``counters``: values by name. ``metrics``: by name ``count``, ``sum``, and of the latest
        1,024 samples ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` and ``max``. Times are in
        nanoseconds, sizes in bytes.
    """
    found: dict[str, dict[str, Any]] = {"counters": {}, "metrics": {}}
    for name in counter_names():
        found["counters"][name] = counter_value(name)
    for name in metric_names():
        data = metric_data(name)
        if data is None:  # The metric was cleared meanwhile.
            continue
        values = sorted(value for _, value in data[2])
        found["metrics"][name] = {
            "count": data[0],
            "sum": data[1],
            "mean": sum(values) / len(values),
            **{f"p{p}": values[len(values) * p // 100] for p in (50, 90, 95, 99)},
            "max": values[-1],
        }
    return found
