"""Names that torch_xla 2.9 has and this package has not: what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PAGE = "docs/migration.md"


def getter(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a module, which says of absent names what to use instead.

    Args:
        module: The module's name.
        instead: What to use, by the absent name.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in instead:
            raise AttributeError(
                f"{module}.{name} of torch_xla 2.9 is not in this package: {instead[name]} "
                f"(see {PAGE})"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
