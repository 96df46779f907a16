"""The public names: tests/python/interface.txt says which there are, with their parameters.

A line is ``module.name(parameters)``, as programs written for torch_xla 2.9 call it. ``*`` begins
those that are passed by name. Ours may take more, behind them or by name.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla import _XLAC

LINES = (Path(__file__).parents[1] / "interface.txt").read_text().splitlines()


def find(path: str):
    """Returns the object of a dotted path."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AttributeError(path)


def expected_parameters(text: str) -> list[ast.arg]:
    return ast.parse(f"def f({text}): pass").body[0].args


def check_parameters(found, text: str) -> None:
    """Calls with the expected arguments, in place and by name, must reach the same parameters."""
    expected = expected_parameters(text)
    parameters = list(inspect.signature(found).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    by_name = {p.name: p for p in parameters}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    takes_more = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    defaults = [None] * (len(expected.args) - len(expected.defaults)) + expected.defaults
    pairs = [*zip(expected.args, defaults, strict=True)]
    for place, (arg, _) in enumerate(pairs):
        at = parameters[place] if place < len(parameters) else None
        in_place = at is not None and at.name == arg.arg
        assert in_place or takes_more, f"`{arg.arg}` is not at place {place}"
    for arg, default in [*pairs, *zip(expected.kwonlyargs, expected.kw_defaults, strict=True)]:
        own = by_name.get(arg.arg)
        assert own is not None or takes_any, f"`{arg.arg}` is missing"
        if default is None or own is None:
            continue
        assert own.default is not own.empty, f"`{arg.arg}` has no default"
        try:
            value = ast.literal_eval(default)
        except ValueError:
            continue  # An object of some module.
        if isinstance(value, (bool, int, float, str)):
            assert own.default == value, f"`{arg.arg}` is {own.default!r}, not {value!r}"


@pytest.mark.parametrize("line", LINES)
def test_name(line):
    path, parameters = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", line).groups()
    found = find(path)
    if parameters is not None:
        check_parameters(found, parameters)


class TestTable:
    def test_is_sorted_and_without_repeats(self):
        assert sorted(set(LINES)) == LINES and len(LINES) > 300

    def test_finds_what_differs(self):
        def ours(a, b=1, *, c=None): ...

        check_parameters(ours, "a, b=1, *, c=None")
        for other in ("b, a", "a, b=2", "a, b=1, d=None", "a=0", "a, *, d=None"):
            with pytest.raises(AssertionError):
                check_parameters(ours, other)


class TestAbsentNames:
    @pytest.mark.parametrize(
        "module, name, instead",
        [
            (xm, "DeviceContext", "belongs to its device"),
            (xr, "requires_pjrt", "leave it out"),
            (torch_xla.experimental, "pytreeify", "register_pytree_node"),
            (_XLAC, "_run_cached_graph", "openxla"),
            (_XLAC, "_xla_op_add", "torch_xla.library"),
        ],
    )
    def test_say_what_to_use(self, module, name, instead):
        with pytest.raises(AttributeError, match=instead) as info:
            getattr(module, name)
        assert "docs/migration.md" in str(info.value)
        assert not hasattr(module, name)

    @pytest.mark.parametrize("module", [torch_xla, xm, xr, torch_xla.experimental, _XLAC])
    def test_others_are_plain_errors(self, module):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018

    def test_extension_at_the_top(self):
        import _XLAC as top

        assert top is _XLAC

    @pytest.mark.parametrize(
        ("statement", "instead"),
        [
            ("import torch_xla.experimental.callback", "add_step_closure"),
            ("from torch_xla.experimental import splash_attention", "flash_attention"),
            ("from torch_xla.experimental.pallas_kernels import x", "call_jax"),
            ("import torch_xla.distributed.xla_dist as xd", "--worker=all"),
        ],
    )
    def test_absent_modules_say_what_to_use(self, statement, instead):
        with pytest.raises(ImportError, match=instead):
            exec(statement, {})

    def test_other_modules_are_not_found(self):
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch_xla\.nonsense'"):
            importlib.import_module("torch_xla.nonsense")
