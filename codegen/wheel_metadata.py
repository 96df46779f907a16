"""The run-time requirements of a build: torch in the minor version that it was compiled against.

The build backend calls it (``[[tool.dynamic-metadata]]`` in pyproject.toml, which has the other
dependencies). libtorch's C++ interface changes with each minor version, so a wheel would not load
if pip chose any of the versions that the sources can be built with.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

_state = "wheel"


def build_state(state: str) -> None:
    """Receives what is being built, before the metadata is requested."""
    global _state
    _state = state


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ``[project]`` that depend on the build."""
    torch = settings["torch"]
    if _state != "sdist":
        torch = f"=={'.'.join(version('torch').split('.')[:2])}.*"
    return {"dependencies": [f"torch{torch}", *settings["dependencies"]]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the fields in which a wheel may differ from the sdist that it is built from."""
    return {"dependencies": True}
