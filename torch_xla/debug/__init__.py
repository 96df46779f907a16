"""Seeing what torch_xla does."""

import importlib
from types import ModuleType

from torch_xla._internal.insight.explain import explain, memory_report, on_recompile
from torch_xla._internal.insight.host_calls import (
    breakpoint_if,
    callback,
    find_nan,
    flush,
    print,
)
from torch_xla._internal.insight.watch import watch

__all__ = [
    "breakpoint_if",
    "callback",
    "explain",
    "find_nan",
    "flush",
    "memory_report",
    "on_recompile",
    "print",
    "watch",
]


def __getattr__(name: str) -> ModuleType:
    if name in ("graph", "metrics", "profiler"):  # Imported when somebody asks.
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
