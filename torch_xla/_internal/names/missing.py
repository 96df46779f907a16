"""Names that torch_xla 2.9 has and this package has not: what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PAGE = "docs/migration.md"

# The message for each missing name.
_hints: dict[str, str] = {}


class _Finder:
    """The last import finder: an absent module raises the same message as an absent attribute."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if name in _hints:
            # Not a ModuleNotFoundError, which ``from package import module`` would hide.
            raise ImportError(_hints[name], name=name)


sys.meta_path.append(_Finder)


def getter(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a module, which says of absent names what to use instead.

    Importing one as a module says the same.

    Args:
        module: The module's name.
        instead: What to use, by the absent name.
    """
    for name, text in instead.items():
        full = f"{module}.{name}"
        _hints[full] = f"{full} of torch_xla 2.9 is not in this package: {text} (see {PAGE})"

    def __getattr__(name: str) -> Any:  # noqa: N807
        hint = _hints.get(f"{module}.{name}")
        raise AttributeError(hint or f"module {module!r} has no attribute {name!r}")

    return __getattr__
