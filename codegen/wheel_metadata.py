"""What a build requires at run time: of torch, the minor version that it was compiled against.

The build backend asks (``[[tool.dynamic-metadata]]`` in pyproject.toml, which has the other
dependencies). libtorch's C++ interface changes with each minor version, so a wheel that let pip
choose among all that the sources build with would not load.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

_state = "wheel"


def build_state(state: str) -> None:
    """Hears what is being built, before it is asked for it."""
    global _state
    _state = state


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ``[project]`` that depend on the build."""
    torch = settings["torch"]
    if _state != "sdist":
        torch = f"=={'.'.join(version('torch').split('.')[:2])}.*"
    return {"dependencies": [f"torch{torch}", *settings["dependencies"]]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Returns what a wheel may have otherwise than the sdist that it is built from."""
    return {"dependencies": True}
