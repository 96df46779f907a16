"""What variables of the environment ask of each sync: graphs and metrics to files, and waiting."""

from __future__ import annotations

import os
import sys

from torch_xla import _XLAC
from torch_xla._internal import variables

_VARIABLES = ("XLA_SAVE_TENSORS_FILE", "XLA_METRICS_FILE", "XLA_EMIT_STEPLOG", "XLA_SYNC_WAIT")


def any_set() -> bool:
    """Returns whether there is anything to do."""
    return any(name in os.environ for name in _VARIABLES)


def before_sync() -> None:
    """Appends the graph that is about to be cut to ``XLA_SAVE_TENSORS_FILE``.

    ``XLA_SAVE_TENSORS_FMT`` says how: ``text`` (the default), ``hlo`` (StableHLO), ``dot``.
    """
    path = variables.ALL["XLA_SAVE_TENSORS_FILE"].value()
    if not path:
        return
    text = _XLAC._xla_pending_text("")
    if "(" not in text:  # Nothing is pending.
        return
    form = variables.ALL["XLA_SAVE_TENSORS_FMT"].value()
    if form == "hlo":
        text = _XLAC._xla_stablehlo_of([])
    elif form == "dot":
        text = _XLAC._xla_pending_dot("")
    if len(_XLAC._xla_get_devices()) > 1 or "RANK" in os.environ:
        path = f"{path}.{os.environ.get('RANK', '0')}"
    with open(path, "a") as file:
        file.write(f"[ScheduleSyncTensorsGraph]\n\n## BEGIN_GRAPH\n{text}\n## END_GRAPH\n\n")


def after_sync() -> None:
    """Appends the metrics to ``XLA_METRICS_FILE``, and tells of the step (``XLA_EMIT_STEPLOG``)."""
    if variables.is_on("XLA_EMIT_STEPLOG"):
        print("torch_xla.torch_xla::sync", file=sys.stderr, flush=True)
    if os.environ.get("XLA_METRICS_FILE"):
        from torch_xla.debug import metrics_saver

        metrics_saver.save_metrics()
