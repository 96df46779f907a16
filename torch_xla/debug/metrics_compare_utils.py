"""Comparing reports of metrics: whether a run behaves as earlier ones did."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "B": 1.0,
    "KB": 2.0**10,
    "MB": 2.0**20,
    "GB": 2.0**30,
    "TB": 2.0**40,
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-zA-Z]*)")
_FUNCTIONS = {"abs": abs, "max": max, "min": min, "round": round}


def _dehumanize(text: str) -> float:
    """Returns ``"01m02s003ms"`` in seconds, ``"1.5MB"`` in bytes, other numbers as they are."""
    return sum(float(number) * _UNITS.get(unit, 1.0) for number, unit in _NUMBER.findall(text))


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, dict[str, Any]]:
    """Reads a report of :func:`torch_xla.debug.metrics.metrics_report`.

    Args:
        report: Its text.
        dehumanize: Whether times become seconds and sizes bytes, or stay text.

    Returns:
        For each metric and counter its fields by name: ``TotalSamples``, ``Accumulator``,
        ``Value``, and the percentiles as ``Percentile_50``.
    """
    found: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    for line in report.splitlines():
        name, _, text = line.strip().partition(": ")
        if name in ("Metric", "Counter"):
            fields = found.setdefault(text, {})
        elif name == "Percentiles":
            for part in text.split("; "):
                percent, _, value = part.partition("=")
                key = f"Percentile_{percent.strip().rstrip('%')}"
                fields[key] = _dehumanize(value) if dehumanize else value
        elif text:
            value = text.partition(" ")[0]  # A rate's unit follows a blank: "3 / second".
            if name == "TotalSamples":
                fields[name] = int(value)
            elif name == "Value":
                fields[name] = int(value) if value.isdigit() else value
            else:
                fields[name] = _dehumanize(value) if dehumanize else value
    return found


def get_data_points_from_metrics_reports(metrics_reports: Iterable[str]) -> dict[str, list[Any]]:
    """Returns the numbers of several reports, for :func:`compare_metrics`.

    Returns:
        For each field, named ``"CompileTime__TotalSamples"``, its values in order.
    """
    points: dict[str, list[Any]] = {}
    for report in metrics_reports:
        for metric, fields in parse_metrics_report(report).items():
            for field, value in fields.items():
                points.setdefault(f"{metric}__{field}", []).append(value)
    return points


def compare_metrics(
    data_points: Mapping[str, Sequence[float]],
    metrics_report: str,
    config: Mapping[str, Any] = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"},  # noqa: B006
) -> str:
    """Says which numbers of a report are out of the range of earlier reports.

    Args:
        data_points: Of :func:`get_data_points_from_metrics_reports`.
        metrics_report: The report to look at.
        config: ``base_expression``: a Python expression that is true of a good value, with ``v``
            (the value), ``v_mean``, ``v_stddev``, ``v_min`` and ``v_max``. ``<field>_expression``,
            such as ``CompileTime__TotalSamples_expression``: the same for one field.
            ``aggressive`` (false): whether to tell of fields that are new, too.

    Returns:
        A line for each bad field; empty when all is well.
    """
    lines = []
    for metric, fields in parse_metrics_report(metrics_report).items():
        for field, value in fields.items():
            name = f"{metric}__{field}"
            expression = config.get(f"{name}_expression", config.get("base_expression"))
            if expression is None:
                continue
            known = data_points.get(name)
            if not known:
                if config.get("aggressive", False):
                    lines.append(f"Found new metric: {name}. Was this expected?")
                continue
            names = {
                "v": value,
                "v_mean": statistics.fmean(known),
                "v_stddev": statistics.pstdev(known),
                "v_min": min(known),
                "v_max": max(known),
            }
            if not eval(expression, {"__builtins__": _FUNCTIONS}, names):
                lines.append(
                    f"{name} failed its assertion: {expression} with "
                    + ", ".join(f"{key}={number:g}" for key, number in names.items())
                )
    return "\n".join(lines)
