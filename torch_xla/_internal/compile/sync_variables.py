"""Environment variables that act at each sync: they write metrics to a file and report steps."""

from __future__ import annotations

import itertools
import os
import sys

from torch_xla import _XLAC
from torch_xla._internal import variables

_VARIABLES = ("XLA_METRICS_FILE", "XLA_EMIT_STEPLOG", "XLA_SYNC_WAIT")
_steps = itertools.count()


def any_set() -> bool:
    """Returns whether there is anything to do."""
    return any(name in os.environ for name in _VARIABLES)


def after_sync() -> None:
    """Appends the metrics to ``XLA_METRICS_FILE``, and tells of the step (``XLA_EMIT_STEPLOG``)."""
    if variables.is_on("XLA_EMIT_STEPLOG"):
        print("torch_xla.torch_xla::sync", file=sys.stderr, flush=True)
    if os.environ.get("XLA_METRICS_FILE"):
        save_metrics()


def save_metrics(metrics_file: str | None = None) -> None:
    """Appends the report of all metrics to a file.

    Args:
        metrics_file: The file; ``XLA_METRICS_FILE`` of the environment when None. With neither
            nothing is written. Where that variable is set, every
            :func:`torch_xla.sync` does this.
    """
    path = metrics_file or variables.ALL["XLA_METRICS_FILE"].value()
    if not path:
        return
    with open(path, "a") as file:
        file.write(f"[MetricsData; step={next(_steps)}]\n{_XLAC._xla_metrics_report()}\n")
