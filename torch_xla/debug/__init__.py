"""Seeing what torch_xla does."""

from torch_xla._internal.insight.explain import explain, memory_report, on_recompile

__all__ = ["explain", "memory_report", "on_recompile"]
