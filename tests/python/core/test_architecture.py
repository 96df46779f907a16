"""The layers of docs/architecture.md, held to by reading every include and import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_CSRC = _ROOT / "torch_xla" / "csrc"
# Each layer, and those whose headers it may include beside its own.
_BELOW = {
    "debug": set(),
    "runtime": {"debug"},
    "stablehlo": {"runtime"},
    "data": set(),
    "ir": {"debug"},
}
_BELOW["lowering"] = set(_BELOW) - {"data"}
_BELOW["distributed"] = _BELOW["lowering"] | {"lowering"}
_BELOW["lazy"] = _BELOW["distributed"] | {"distributed"}
_BELOW["aten"] = _BELOW["lazy"] | {"lazy"}
_BELOW["ops"] = _BELOW["aten"] | {"aten"}
_BELOW["python"] = _BELOW["ops"] | {"ops", "data"}
# Public folders of the package; what is above may import what is below.
_NEVER_IMPORTED_BY = {
    "_internal": ("torch_xla.distributed.fsdp", "torch_xla.distributed.spmd", "torch_xla.amp"),
    "core": ("torch_xla.distributed.fsdp", "torch_xla.amp"),
}


def test_every_folder_is_a_layer():
    folders = {path.name for path in _CSRC.iterdir() if path.is_dir()}
    assert folders == set(_BELOW)


@pytest.mark.parametrize("layer", _BELOW)
def test_layers_include_downwards_only(layer):
    upward = []
    for path in sorted((_CSRC / layer).rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        for included in re.findall(r'#include "(\w+)/[^"]+"', path.read_text()):
            if included in _BELOW and included != layer and included not in _BELOW[layer]:
                upward.append(f"{path.relative_to(_CSRC)} includes {included}/")
    assert not upward


def _sources():
    for path in sorted(_CSRC.rglob("*")):
        if path.suffix in (".h", ".cpp"):
            yield path.relative_to(_CSRC), path.read_text()


def test_codes_of_pjrt_are_compared_and_thrown_by_their_names():
    number = re.compile(r"\bError\(\d|\bcode(?:_|\(\))? *[!=]= *\d")
    found = [f"{path}: {text}" for path, source in _sources() for text in number.findall(source)]
    assert not found


def test_platforms_are_compared_by_name_in_one_file():
    compared = re.compile(r'[!=]= *"(?:CPU|CUDA|ROCM|TPU)"')
    assert {str(path) for path, source in _sources() if compared.search(source)} == {
        "runtime/platform.h"
    }


def _imports(path: Path) -> set[str]:
    """Modules that a file imports at its top, without those of functions."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("folder", _NEVER_IMPORTED_BY)
def test_the_package_imports_downwards_only(folder):
    upward = [
        f"{path.relative_to(_ROOT)} imports {name}"
        for path in sorted((_ROOT / "torch_xla" / folder).rglob("*.py"))
        for name in _imports(path)
        if name.startswith(_NEVER_IMPORTED_BY[folder])
    ]
    assert not upward


def test_names_of_test_files_are_unique():
    """pytest imports them by their names alone."""
    names = [path.name for path in (_ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
