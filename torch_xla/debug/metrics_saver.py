"""The report of the metrics to a file."""

from torch_xla._internal.compile.sync_variables import save_metrics

__all__ = ["save_metrics"]
