"""What variables of the environment ask of each sync: metrics to a file, and waiting."""

from __future__ import annotations

import os
import sys

from torch_xla._internal import variables

_VARIABLES = ("XLA_METRICS_FILE", "XLA_EMIT_STEPLOG", "XLA_SYNC_WAIT")


def any_set() -> bool:
    """Returns whether there is anything to do."""
    return any(name in os.environ for name in _VARIABLES)


def after_sync() -> None:
    """Appends the metrics to ``XLA_METRICS_FILE``, and tells of the step (``XLA_EMIT_STEPLOG``)."""
    if variables.is_on("XLA_EMIT_STEPLOG"):
        print("torch_xla.torch_xla::sync", file=sys.stderr, flush=True)
    if os.environ.get("XLA_METRICS_FILE"):
        from torch_xla.debug import metrics_saver

        metrics_saver.save_metrics()
