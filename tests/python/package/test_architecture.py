"""The layers of docs/architecture.md, held to by reading every include and import."""

import ast
import re
import runpy
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_CSRC = _ROOT / "torch_xla" / "csrc"
# Each layer, and those whose headers it may include beside its own.
_BELOW = {
    "debug": set(),
    "runtime": {"debug"},
    "cpu": {"debug", "runtime"},
    "stablehlo": {"runtime"},
    "data": set(),
    "ir": {"debug"},
}
_BELOW["lowering"] = set(_BELOW) - {"data"}
_BELOW["rules"] = _BELOW["lowering"] | {"lowering"}
_BELOW["tensor"] = _BELOW["rules"] | {"rules"}
_BELOW["distributed"] = _BELOW["tensor"] | {"tensor"}
_BELOW["sizes"] = _BELOW["distributed"] | {"distributed"}
_BELOW["exec"] = _BELOW["sizes"] | {"sizes"}
_BELOW["explain"] = _BELOW["exec"] | {"exec"}
_BELOW["aten"] = _BELOW["explain"] | {"explain"}
_BELOW["ops"] = _BELOW["aten"] | {"aten"}
_BELOW["python"] = _BELOW["ops"] | {"ops", "data"}
_BELOW["replay"] = _BELOW["python"] - {"data"} | {"python"}
# Namespaces of torch_xla that a layer has beside its own; "" is torch_xla itself.
_NAMESPACES = {
    "aten": {"", "autograd"},
    "distributed": {"lowering"},
    "ops": {"", "aten", "lowering"},
    "replay": {"python"},
    "rules": {""},
    "tensor": {"distributed"},
}
# The rooms of the package from the lowest floor to the highest. Above them are the package itself,
# which gathers names of all others, and modules that none names.
_FLOORS = [
    {"_internal.names", "_internal.nested_data", "_internal.tensors", "_internal.variables"},
    {"_internal.files", "_internal.plugins"},
    {"_internal.replicas"},
    {"_internal.compile"},
    {"_internal.replay"},
    {"_internal.insight"},
    {"_internal.device"},
    {"_internal.patches", "_internal"},
    {"amp", "backends", "config", "utils"},
    {"runtime"},
    {"core", "debug"},
    {"cache"},
    {"distributed"},
    {"experimental"},
]
# Units of a layer that include each other, modules that import each other. The lists only shrink.
_KNOTS = {
    "runtime": [
        "client client_impl compile_only compile_options errors plugin plugin_library",
    ],
    "stablehlo": ["builder function_text text"],
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


def test_a_layer_has_its_namespace():
    forward = re.compile(r"namespace [\w:]+ \{\n(?:(?:class|struct|enum class) \w+;\n)+\}")
    found = set()
    for path, source in _sources():
        layer = path.parts[0]
        namespaces = re.findall(
            r"^namespace torch_xla(?:::(\w+))?", forward.sub("", source), re.MULTILINE
        )
        for name in set(namespaces) - {layer} - _NAMESPACES.get(layer, set()):
            found.add(f"{path} is in torch_xla::{name}")
    assert not found


def test_codes_of_pjrt_are_compared_and_thrown_by_their_names():
    number = re.compile(r"\bError\(\d|\bcode(?:_|\(\))? *[!=]= *\d")
    found = [f"{path}: {text}" for path, source in _sources() for text in number.findall(source)]
    assert not found


def test_platforms_are_compared_by_name_in_one_file():
    compared = re.compile(r'[!=]= *"(?:CPU|CUDA|ROCM|TPU)"')
    assert {str(path) for path, source in _sources() if compared.search(source)} == {
        "runtime/platform.h"
    }


def test_handlers_of_calls_are_in_one_room():
    """Elsewhere are those alone that need more than it may see."""
    frames = {str(path) for path, source in _sources() if "XLA_FFI_CallFrame" in source}
    assert {path for path in frames if not path.startswith(("cpu/", "runtime/"))} == {
        "aten/cpu_kernel.cpp",
        "distributed/collective_node.cpp",
    }
    targets = [
        re.findall(r'Target =\s+"(torch_xla\.[\w.]+)"', source)
        for path, source in _sources()
        if path.parts[0] == "cpu"
    ]
    table = (_CSRC / "cpu" / "table.cpp").read_text()
    assert sum(map(len, targets)) == len(re.findall(r"\{k\w+Target, Handler<", table))


def _knots(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: Tarjan's algorithm, SIAM J. Comput. 1(2), 1972."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    knots = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        path.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
            if target in path:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == index[node]:
            knot = path[path.index(node) :]
            del path[path.index(node) :]
            if len(knot) > 1:
                knots.append(sorted(knot))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(knots)


@pytest.mark.parametrize("layer", _BELOW)
def test_units_of_a_layer_do_not_include_each_other(layer):
    edges: dict[str, set[str]] = {}
    for path in sorted((_CSRC / layer).iterdir()):
        included = re.findall(rf'#include "{layer}/(\w+)\.h"', path.read_text())
        edges.setdefault(path.stem, set()).update(set(included) - {path.stem})
    knots = [" ".join(knot) for knot in _knots(edges)]
    assert knots == _KNOTS.get(layer, []), "untie the units, or take an untied one off the list"


def _modules() -> dict[str, Path]:
    files = {}
    for path in sorted((_ROOT / "torch_xla").rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    return files


def _edges() -> dict[str, set[str]]:
    """Modules of the package that each of them imports anywhere, in functions too."""
    files = _modules()
    edges = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if name != "torch_xla._XLAC":
                        names.add(name if name in files else node.module)
        edges[module] = (names & files.keys()) - {module}
    return edges


def _floor(module: str) -> int:
    folder, _, rest = module.removeprefix("torch_xla.").partition(".")
    inner = f"{folder}.{rest.partition('.')[0]}"
    floors = {room: floor for floor, rooms in enumerate(_FLOORS) for room in rooms}
    return floors.get(inner, floors.get(folder, len(_FLOORS)))


def test_the_package_imports_downwards_only():
    upward = [
        f"{name} imports {imported}"
        for name, imports in _edges().items()
        for imported in sorted(imports)
        if _floor(imported) > _floor(name)
    ]
    assert not upward


def test_modules_do_not_import_each_other():
    edges = _edges()
    del edges["torch_xla"]
    assert not _knots(edges)


def test_names_of_test_files_are_unique():
    """pytest imports them by their names alone."""
    names = [path.name for path in (_ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_folders_keep_to_their_budgets():
    """Of files and lines: benchmarks/line_budgets.json, which `make lint` prints."""
    if not (_ROOT / ".git").exists():
        pytest.skip("lines of tracked files are counted")
    lines = runpy.run_path(str(_ROOT / "benchmarks" / "lines.py"))
    assert lines["over_budget"](lines["count"]()) == []
