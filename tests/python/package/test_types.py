"""What a type checker sees: the extension's stub, which the build writes, and py.typed."""

import ast
import typing
from pathlib import Path

import pytest
import torch

from torch_xla import _XLAC
from torch_xla.library import hlo, stablehlo

STUBS = Path(_XLAC.__file__).parent / "_XLAC"


def _definitions(path: Path) -> dict[str, ast.AST]:
    nodes = ast.parse(path.read_text()).body
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize(
    ("module", "file"), [(_XLAC, "__init__.pyi"), (_XLAC.hlo, "hlo.pyi")], ids=["_XLAC", "hlo"]
)
def test_the_stub_has_what_the_extension_has(module, file):
    # Methods of the module alone: the package adds a __getattr__, others may add names.
    names = {
        name
        for name, value in vars(module).items()
        if type(value).__name__ == "builtin_function_or_method" or isinstance(value, type)
    }
    assert len(names) > 50
    assert names - set(_definitions(STUBS / file)) - {"__loader__"} == set()


def test_every_type_has_a_name_in_python():
    # `...` stands for a C++ type without one.
    for path in STUBS.glob("*.pyi"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                types = [a.annotation for a in node.args.args] + [node.returns]
                alternatives = [t for t in types if t is not None]
                for found in alternatives:
                    if isinstance(found, ast.BinOp):
                        alternatives += [found.left, found.right]
                    assert ast.unparse(found) != "...", (path.name, node.name)


def test_what_may_be_none_says_so():
    functions = _definitions(STUBS / "__init__.pyi")
    for name in ("_xla_sharding", "_xla_marked_sharding", "_xla_get_layout", "_xla_metric_data"):
        assert ast.unparse(functions[name].returns).endswith("| None"), name


def test_the_package_is_typed():
    import torch_xla

    assert (Path(torch_xla.__file__).parent / "py.typed").is_file()


def test_complex_numbers_are_operands():
    # The signature said that there was no conversion, and there was none: a TypeError.
    x = torch.randn(3, dtype=torch.complex64)
    turned = stablehlo(lambda a: hlo.add(a * 2j, 1 - 1j), x.to("xla"))
    torch.testing.assert_close(turned.cpu(), x * 2j + (1 - 1j))


def test_annotations_of_cache_entries_are_types():
    # A field named `bytes` stood for the type in the annotation of the one behind it.
    from torch_xla import cache

    assert typing.get_type_hints(cache.Entry)["key"] is bytes
