"""Regions of code that trace into graphs of their own: torch_xla.compile and torch_xla.step."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal.compile import eager, step

# The maximal number of lines that show the difference between two graphs.
_MAX_LINES = 12


def as_options(options: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Returns compile options as the runtime takes them.

    Raises:
        TypeError: A name or a value has a type that no compiler knows.
    """
    pairs = []
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            raise TypeError(
                "compile options: expected names with text, numbers or bools, got "
                f"{name!r}: {value!r}"
            )
        pairs.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs


class Region(contextlib.ContextDecorator):
    """A region of code that traces into graphs of its own: one graph if it reads no tensor.

    Args:
        full_graph: Whether a cut of the graph within the region raises.
        name: The name of its programs.
        max_different_graphs: How many graphs it may trace.
        options: Options of the compiler for its programs.
    """

    def __init__(
        self,
        full_graph: bool = False,
        name: str | None = None,
        max_different_graphs: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if max_different_graphs is not None and max_different_graphs < 1:
            raise ValueError(
                "compile(): expected `max_different_graphs` of at least 1, got "
                f"{max_different_graphs}"
            )
        self._full_graph = full_graph
        self._name = name
        self._max_different_graphs = max_different_graphs
        self._options = as_options(options)
        self._has_settings = bool(name) or bool(options)
        self._graphs: dict[tuple[int, int], str] = {}
        self._before: list[tuple[Any, ...]] = []

    def again(self) -> Region:
        """Returns a copy for one call, since calls may nest and may be on several threads."""
        region = object.__new__(Region)
        region.__dict__.update(self.__dict__, _before=[])
        return region

    _recreate_cm = again  # The method that ContextDecorator calls.

    def _title(self) -> str:
        return f"torch_xla.compile({self._name or ''})"

    def __enter__(self) -> Region:
        step.cut()
        settings = cuts = None
        if self._has_settings:
            own = _XLAC._xla_compile_settings(self._options, self._name or "")
            settings = _XLAC._xla_set_thread_settings(own)
        if self._full_graph:
            cuts = _XLAC._xla_forbid_cuts(f"{self._title()} with full_graph=True")
        is_eager = eager.is_enabled()
        if is_eager:
            eager.set_enabled(False)
        _XLAC._xla_hold_steps(True)
        self._before.append((settings, cuts, is_eager))
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        settings, cuts, is_eager = self._before.pop()
        if self._full_graph:
            _XLAC._xla_forbid_cuts(cuts)
        _XLAC._xla_hold_steps(False)
        try:
            # After an error, traced operations run when a result is read, or at the next sync.
            if exc_type is None:
                if self._max_different_graphs is not None:
                    self._count_graph()
                step.cut()
        finally:
            if self._has_settings:
                _XLAC._xla_set_thread_settings(settings)
            if is_eager:
                eager.set_enabled(True)

    def _count_graph(self) -> None:
        found = _XLAC._xla_pending_hash("")
        if found in self._graphs:
            return
        text = _XLAC._xla_pending_text("")
        most = self._max_different_graphs
        if most is not None and len(self._graphs) >= most:
            last = list(self._graphs.values())[-1]
            raise RuntimeError(
                f"{self._title()}: expected at most {most} different graphs, "
                f" and this is another one. It differs from the last one in\n"
                + _difference(last, text)
            )
        self._graphs[found] = text


def _difference(before: str, after: str) -> str:
    lines = [
        line
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    if not lines:
        return "how values are shared, or a constant"
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES} lines more"]
    return "\n".join(lines)
