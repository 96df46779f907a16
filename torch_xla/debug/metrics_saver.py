"""The report of the metrics to a file."""

from __future__ import annotations

import itertools

from torch_xla._internal import variables
from torch_xla.debug import metrics

_steps = itertools.count()


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
        file.write(f"[MetricsData; step={next(_steps)}]\n{metrics.metrics_report()}\n")
