"""The generator: what a table may say, what it refuses, and what older sections mean."""

import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "codegen"))

from gen import outputs  # noqa: E402
from ops_yaml import HAND, Lowering, load_ops  # noqa: E402

TABLE = ROOT / "codegen" / "xla_native_functions.yaml"


@pytest.fixture
def load(tmp_path):
    def load(text: str):
        path = tmp_path / "table.yaml"
        path.write_text(text)
        return {op.schema_name: op for op in load_ops(path)}

    return load


@pytest.fixture
def generate(tmp_path):
    def generate(text: str) -> dict[str, str]:
        path = tmp_path / "table.yaml"
        path.write_text(text)
        return outputs(path)

    return generate


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("sin: {unry: Sine}", r"sin: unknown keys \['unry'\]"),
        ("view: {hand: because}", "hand: because: one of factory"),
        ("sinus", "PyTorch has no operator 'sinus'"),
        ("sin: {lower: sin}", "need not be named"),
        ("sin: Sine", "'Sine' are no options"),
        ("pow.Tensor_Scalar: {constants: [base]}", "no argument named"),
        ("_standard_gamma_grad: {like: input}", "like: no argument named input"),
        ("linalg_qr: {lower: kernel, cpu: kernel}", "a choice beside another lowering"),
        ("sin: {schema: '(Tensor x) -> Tensor'}", "that PyTorch does not have"),
        ("xla::thing: {hand: random}", "that PyTorch does not have"),
        ("_foreach_sin: {foreach: sin, lower: Sin}", "`foreach` says it all"),
        ("matmul", "CompositeImplicitAutograd"),
        ("uniform_", "has no place in an IR node"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(load, entry, message):
    with pytest.raises(ValueError, match=message):
        load(f"ops:\n  - {entry}\n")


def test_nothing_stands_twice(load):
    with pytest.raises(ValueError, match="'sin' stands twice"):
        load("ops:\n  - sin\n  - sin: {lower: 'stablehlo::Sine'}\n")
    with pytest.raises(ValueError, match="unknown sections"):
        load("operators:\n  - sin\n")


@pytest.mark.parametrize(
    ("excused", "not_excused"),
    [("since: '99.0'", "since: '2.0'"), ("until: '2.0'", "until: '99.0'")],
)
def test_versions_excuse_others_alone(load, excused, not_excused):
    assert not load(f"ops:\n  - sinus: {{{excused}}}\n")
    with pytest.raises(ValueError, match="no operator"):
        load(f"ops:\n  - sinus: {{{not_excused}}}\n")


@pytest.mark.parametrize(
    ("text", "lowering"),
    [
        ("stablehlo::Sine", Lowering("stablehlo", "Sine")),
        ("stablehlo::Compare(kLt)", Lowering("compare", "kLt")),
        ("AveragePool(2)", Lowering("function", "AveragePool", ("2",))),
        ("Resize(Mode::kCubic, true)", Lowering("function", "Resize", ("Mode::kCubic", "true"))),
        ("self * Logistic(self)", Lowering("formula", "self * Logistic(self)")),
        ("Tanh(self)", Lowering("formula", "Tanh(self)")),
        ("kernel if IsReal", Lowering("kernel", condition="IsReal")),
    ],
)
def test_forms_of_lower(text, lowering):
    assert Lowering.parse(text) == lowering


def test_one_kernel_for_both_keys(generate, load):
    table = "ops:\n  - gru.input: {hand: composed, autograd: both}\n"
    files = generate(table)
    registered = "".join(text for name, text in files.items() if name.startswith("RegisterXLA"))
    assert '{"gru.input", &counted_gru_input}' in registered
    assert "return autograd::gru_input(" in registered
    header, autograd = files["XLANativeFunctions.h"].split("namespace autograd {")
    assert "gru_input" in autograd and "gru_input" not in header
    assert "TORCH_FN(autograd::gru_input)" in files["RegisterAutogradXLA.cpp"]
    with pytest.raises(ValueError, match="true or both"):
        load(table.replace("both", "some"))


def test_sections_of_older_tables_mean_what_they_meant(load, generate):
    old = """
full_codegen:
  - sin
ir_gen:
  - index_put
supported:
  - index_put
  - view
symint:
  - view
autograd:
  - view
"""
    ops = load(old)
    assert ops["sin"].generates_kernels and ops["sin"].has_ir
    assert ops["index_put"].by_hand and ops["index_put"].lowering.text == "index_put"
    assert ops["view"].by_hand and not ops["view"].has_ir
    files = generate(old)
    # The kernel that takes SymInts, declared for the backend and for autograd.
    header = files["XLANativeFunctions.h"]
    assert len(re.findall(r"at::Tensor view\([^)]*SymInt", header)) == 2
    assert 'm.impl("view", TORCH_FN(autograd::view))' in files["RegisterAutogradXLA.cpp"]
    registered = "".join(text for name, text in files.items() if name.startswith("RegisterXLA"))
    assert registered.count('{"index_put_", &counted_index_put_}') == 1
    assert "Value sin(LoweringContext& cx, Value self);" in files["XLALowerings.h"]


def test_kernels_count_calls(generate):
    files = generate("ops:\n  - sin\n  - nonzero: {hand: host}\n  - clone: {hand: copy}\n")
    everything = "".join(files.values())
    assert everything.count("ir::ops::sin.counter->Add();") == 3  # sin, sin_, sin.out
    assert 'counter_nonzero = debug::GetCounter("aten::nonzero")' in everything
    assert 'counter_clone = debug::GetCounter("xla::clone")' in everything


def test_an_in_place_overload_comes_free_unless_it_is_listed(generate):
    registered = "".join(generate("ops:\n  - abs\n").values())
    assert '{"abs_"' in registered and '{"abs.out"' in registered
    registered = "".join(generate("ops:\n  - abs\n  - abs_: {hand: composed}\n").values())
    assert registered.count('{"abs_"') == 1


def test_the_table_itself():
    ops = load_ops(TABLE)
    assert len(ops) > 550
    assert {op.options["hand"] for op in ops if op.by_hand} == set(HAND)
    # One list: no section of old.
    assert list(yaml.safe_load(TABLE.read_text())) == ["ops"]
