"""Seeing what torch_xla does."""

from torch_xla._internal.insight.explain import explain, memory_report, on_recompile
from torch_xla._internal.insight.host_calls import callback, find_nan, flush, print

__all__ = ["callback", "explain", "find_nan", "flush", "memory_report", "on_recompile", "print"]
