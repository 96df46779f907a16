"""Every compilation says why, in the user's own lines; each remedy makes the message go."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import run_python

import torch_xla
from torch_xla.debug import explain, on_recompile


def line(tmp_path: Path, mark: str) -> str:
    """Returns "file:line" of the line of the script that ends with the comment ``mark``."""
    script = tmp_path / "script.py"
    lines = script.read_text().splitlines()
    (number,) = (i for i, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
    return f"{script}:{number}"


PREAMBLE = """
from torch_xla.debug import explain, on_recompile, memory_report
def told(found):
    return [[c.recompilation, c.cause] + [[r.kind, r.text, r.line, r.remedy] for r in c.reasons]
            for c in found.compilations]
"""


def explained(tmp_path: Path, code: str, **environment: str) -> tuple[dict[str, Any], str]:
    """Runs ``code`` after the preamble; returns what it reported and standard error."""
    return run_python(PREAMBLE + textwrap.dedent(code), tmp_path, **environment)


def test_first_program_and_no_compilation(tmp_path):
    result, errors = explained(
        tmp_path,
        """
        x = torch.ones(3, device=device)
        report(none=explain.last() is None)
        def step():
            return (x * 3.5).exp()
        first = explain(step)
        again = explain(step)
        report(first=told(first), again=told(again), text=str(again), number=explain.last().number)
        """,
    )
    assert result["none"] and result["number"] == 1
    ((near, cause, reason),) = result["first"]
    assert not near and cause.startswith("torch_xla.sync() at ") and reason[0] == "new"
    assert result["again"] == [] and "nothing was compiled" in result["text"]
    assert "torch_xla" not in errors


def test_shape_of_an_input(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        w = torch.randn(4, 2).to(device)
        def step(n, size):
            x = torch.ones(size, 4)
            x[n:] = 0
            x = x.to(device)  # INPUT
            return (x @ w).relu()
        explain(step, 3, 3)
        report(changed=told(explain(step, 5, 5)))
        explain(step, 3, 8)
        report(padded=told(explain(step, 5, 8)))
        """,
    )
    ((near, _, (kind, text, where, remedy), *_),) = result["changed"]
    assert near and kind == "shape" and where == line(tmp_path, "INPUT")
    assert text == "input f32[5,4], was input f32[3,4]" and "pad" in remedy
    assert result["padded"] == []


def test_dtype_of_an_input(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        def step(dtype, to=None):
            x = torch.ones(3, dtype=dtype).to(to).to(device)  # INPUT
            return x.exp() + x
        explain(step, torch.float32)
        report(changed=told(explain(step, torch.float64)))
        report(converted=told(explain(step, torch.float64, torch.float32)))
        """,
    )
    ((near, _, (kind, text, where, _), *_),) = result["changed"]
    assert near and kind == "dtype" and where == line(tmp_path, "INPUT")
    assert text == "input f64[3], was input f32[3]"
    assert result["converted"] == []


SPECIAL = """
    x = torch.randn(3).to(device)
    def step(scale):
        return (x * scale).exp().sum()  # SCALE
    explain(step, 0.5)
    report(changed=told(explain(step, 1.0)))
"""


def test_a_number_that_becomes_one(tmp_path):
    result, _ = explained(tmp_path, SPECIAL)
    ((near, _, (kind, text, where, remedy), *_),) = result["changed"]
    assert near and kind == "constant" and where == line(tmp_path, "SCALE")
    assert text == "the constant 1 f64[], was a number f64[]", text
    assert "XLA_NO_SPECIAL_SCALARS=1" in remedy
    result, _ = explained(tmp_path, SPECIAL, XLA_NO_SPECIAL_SCALARS="1")
    assert result["changed"] == []


def test_an_argument(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        x = torch.randn(4, 4).to(device)
        def step(dim):
            return x.exp().sum(dim)  # SUM
        explain(step, 0)
        report(changed=told(explain(step, 1)))
        def row(i):
            return x[i].exp()
        explain(row, 0)
        report(moved=told(explain(row, 1)), again=told(explain(row, 2)))
        """,
    )
    ((near, _, (kind, text, where, _), *_),) = result["changed"]
    assert near and kind == "argument" and where == line(tmp_path, "SUM")
    assert text == "aten::sum: dim=(1), was dim=(0)"
    ((near, _, (kind, text, _, remedy), *_),) = result["moved"]
    assert near and kind == "constant" and "nothing need be done" in remedy
    assert text == "a number became a parameter of the program"
    assert result["again"] == []


def test_an_operation_more_and_one_less(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        x = torch.randn(4).to(device)
        def step(clip):
            y = x.exp()
            if clip:
                y = y.tanh()  # TANH
            return y.sin()
        def branchless(clip):
            y = x.exp()
            clip = torch.tensor(clip).to(device)
            return torch.where(clip, y.tanh(), y).sin()
        explain(step, False)
        report(more=told(explain(step, True)))
        explain(branchless, False)
        report(mended=told(explain(branchless, True)))
        """,
    )
    ((near, _, (kind, text, where, remedy), *_),) = result["more"]
    assert near and kind == "operation" and where == line(tmp_path, "TANH")
    assert text == "aten::tanh is new" and "torch.where" in remedy
    assert result["mended"] == []


def test_outputs_and_donation(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        x = torch.randn(4).to(device)
        kept = []
        def step(keep):
            y = x.exp()  # EXP
            if keep:
                kept.append(y)
            return y.sin()
        explain(step, False)
        report(kept=told(explain(step, True)))

        p = torch.randn(5).to(device)
        def update(keep):
            global old
            old = p.detach().clone() if keep else None
            p.mul_(0.5)
        explain(update, False)
        report(donated=told(explain(update, True)))
        """,
    )
    ((near, _, (kind, text, where, _), *_),) = result["kept"]
    assert near and kind == "outputs" and where == line(tmp_path, "EXP")
    assert text == "the result of aten::exp is kept now, was not"
    ((near, _, reason),) = result["donated"]
    assert near and reason[0] == "donation" and "input 0 is kept" in reason[1]


def test_settings_and_eviction(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        x = torch.randn(4).to(device)
        def step():
            return x.exp()
        def other():
            return x.sin().cos()
        explain(step)
        explain(other)
        report(evicted=told(explain(step)))
        torch_xla.set_custom_compile_options({"xla_cpu_enable_fast_math": "true"})
        report(settings=told(explain(step)))
        """,
        XLA_COMPILATION_CACHE_SIZE="1",
    )
    ((near, _, reason),) = result["evicted"]
    assert near and reason[0] == "evicted" and "XLA_COMPILATION_CACHE_SIZE" in reason[3]
    ((near, _, reason),) = result["settings"]
    assert near and reason[0] == "settings"


def test_causes(tmp_path):
    result, errors = explained(
        tmp_path,
        """
        x = torch.randn(4).to(device)
        (x + x).sum().item()  # ITEM
        print(x * x * x)  # PRINT
        (x - x).cpu()  # READ
        torch_xla.sync()
        y = x.exp()
        torch_xla.sync()  # SYNC
        report(causes=[c.cause for c in explain.all()])
        """,
        PT_XLA_DEBUG="1",
    )
    causes = result["causes"]
    for mark, cause in (
        ("ITEM", ".item()"),
        ("PRINT", "print(tensor)"),
        ("READ", "the value of a tensor"),
        ("SYNC", "torch_xla.sync()"),
    ):
        expected = f"{cause} at {line(tmp_path, mark)}"
        assert expected in causes
        assert f"cause: {expected}" in errors
    assert errors.count("Compilation Analysis: ") == len(causes)
    assert errors.count("Execution Analysis: ") >= len(causes)


def test_levels_and_file(tmp_path):
    log = tmp_path / "log"
    code = """
        x = torch.randn(4).to(device)
        x.exp().sum().item()
        x.exp().sum().item()
    """
    _, errors = explained(
        tmp_path, code, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=str(log), PT_XLA_DEBUG=""
    )
    text = log.read_text()
    assert "Analysis" not in errors
    assert text.count("Compilation Analysis: ") == 1 and "Execution Analysis" not in text


WARNED = """
    w = torch.randn(4).to(device)
    for size in range(2, 9):
        x = torch.ones({size}, 4).to(device)  # INPUT
        y = (x * w).exp()
        torch_xla.sync()
"""


def test_a_warning_without_any_switch(tmp_path):
    # With sizes as arguments the fourth one would have the program of a bucket.
    _, errors = explained(tmp_path, WARNED.replace("{size}", "size"), XLA_DYNAMIC_SIZES="0")
    (told,) = (text for text in errors.splitlines() if text.startswith("torch_xla: "))
    assert told.startswith(
        "torch_xla: 3 programs in a row were compiled for nearly the same graph: "
        f"input f32[5,4], was input f32[4,4] ({line(tmp_path, 'INPUT')}); pad it"
    )
    for code, environment in (
        (WARNED.replace("{size}", "size"), {"XLA_RECOMPILE_WARNING": "0"}),
        (WARNED.replace("{size}", "8"), {}),
    ):
        assert "torch_xla: " not in explained(tmp_path, code, **environment)[1]


def test_a_warning_is_of_what_can_be_helped(tmp_path):
    """A number becomes a parameter by itself; a size that follows from one does not."""
    code = """
    x = torch.ones(6, 4).to(device)
    for number in range(2, 9):
        y = {call}  # CALL
        torch_xla.sync()
    """
    _, errors = explained(tmp_path, code.replace("{call}", "x.roll(number, 0).tril(number)"))
    assert "programs in a row" not in errors
    call = "torch.nn.functional.pad(x, (0, number))"
    _, errors = explained(tmp_path, code.replace("{call}", call))
    told = re.search(r"constant_pad_nd makes f32\[6,\d+\], was f32\[6,\d+\].*; pad it to", errors)
    assert told, errors


def test_other_programs_of_a_few_operations_give_no_warning(tmp_path):
    _, errors = explained(
        tmp_path,
        """
        x = torch.ones(4).to(device)
        results = [
            x.exp().sum().item(),
            x.sin().sum().item(),
            (x > 0).all().item(),
            x.log().max().item(),
            torch.ones(3).to(device).relu().sum().item(),
            torch.arange(5).to(device).float().sum().item(),
            x.cumsum(0)[2].item(),
        ]
        """,
    )
    assert "programs in a row" not in errors


def test_training_gives_no_warning(tmp_path):
    _, errors = explained(
        tmp_path,
        """
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 8).to(device)).square().mean().backward()
            optimizer.step()
            torch_xla.sync()
        """,
    )
    assert "programs in a row" not in errors


def test_recompilations_as_errors(device):
    w = torch.randn(4).to(device)

    def step(size):
        x = torch.ones(size, 4).to(device)
        return (x * w).sigmoid().sin()

    explain(step, 11)
    with on_recompile("error"):
        explain(step, 11)
        result = step(12)
        with pytest.raises(RuntimeError, match=r"shape: input f32\[12,4\], was input f32\[11,4\]"):
            torch_xla.sync()
    # It is still pending.
    expected = (torch.ones(12, 4) * w.cpu()).sigmoid().sin()
    torch.testing.assert_close(result.cpu(), expected)
    with pytest.raises(ValueError, match="on_recompile"), on_recompile("warn"):
        pass


def test_the_variable_makes_errors(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        def step(size):
            x = torch.ones(size, 4).to(device)  # INPUT
            return x.exp().sin()
        explain(step, 2)
        try:
            explain(step, 3)
        except RuntimeError as error:
            report(error=str(error))
        """,
        XLA_ON_RECOMPILE="error",
    )
    assert result["error"].startswith("XLA_ON_RECOMPILE=error: compilation 2, cause: ")
    assert line(tmp_path, "INPUT") in result["error"]


def test_other_programs_of_a_few_operations_are_no_errors(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        x = torch.ones(4).to(device)
        (x * 2).max().item()
        (x * 2).min().item()
        report(found=told(explain(lambda: x.sin() + torch.ones(2, 4).to(device).exp())))
        """,
        XLA_ON_RECOMPILE="error",
    )
    ((near, _, (kind, _, _, remedy), *others),) = result["found"]
    assert not near and kind == "new" and "nothing need be done" in remedy
    # What tells it from the nearest one is said, and is no fault.
    assert others and all(text and not advice for _, text, _, advice in others)


def test_shardings_are_told_as_such(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        import numpy as np
        import torch_xla.distributed.spmd as xs
        torch_xla.runtime.use_spmd()
        mesh = xs.Mesh(np.arange(2), (2,), ("x",))
        def step(*spec):
            x = torch.ones(4, 4).to(device)
            return xs.mark_sharding(x * 2.5, mesh, spec).global_tensor.exp()  # MARK
        explain(step, "x", None)
        report(changed=told(explain(step, None, "x")))
        """,
        CPU_NUM_DEVICES="2",
    )
    ((near, _, (kind, text, where, remedy), *_),) = result["changed"]
    assert near and kind == "sharding" and where == line(tmp_path, "MARK"), result
    assert "tiles=(1, 2), was tiles=(2, 1)" in text and "the same sharding" in remedy


def test_the_line_is_not_of_the_standard_library(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        import functools
        @torch_xla.compile
        def step(x):
            return x.exp()
        step(torch.ones(3).to(device))  # STEP
        report(step=explain.last().line)
        functools.reduce(torch.add, [torch.ones(n).to(device) for n in (3, 1)]).tolist()  # LIST
        report(list=explain.last().line)
        torch_xla.experimental.eager_mode(True)
        torch.ones(5).to(device) * 2.5  # EAGER
        report(eager=explain.last().cause)
        """,
    )
    assert result["step"] == line(tmp_path, "STEP")
    assert result["list"] == line(tmp_path, "LIST")
    assert result["eager"] == f"eager mode at {line(tmp_path, 'EAGER')}"


FREQUENT = """
    for step in range(21):
        x = torch.ones(SIZE, 4).to(device) * 2.5  # INPUT
        if step % STEPS == 0:
            x.sum().item()  # READ
        torch_xla.sync()  # SYNC
"""


def test_what_is_too_frequent_is_told(tmp_path):
    def told(size, steps, **environment):
        code = FREQUENT.replace("SIZE", size).replace("STEPS", steps)
        _, errors = explained(tmp_path, code, **environment)
        return [text for text in errors.splitlines() if "too frequent" in text]

    (read,) = told("3", "1", PT_XLA_DEBUG_LEVEL="1")
    start = "pt-xla-profiler: TransferFromDeviceTime too frequent: 10 counts during 10 steps"
    where = f"most of them by .item() at {line(tmp_path, 'READ')}; keep the values on the device"
    assert read.startswith(f"{start}, {where}")
    (compiled,) = told("3 + step", "5", PT_XLA_DEBUG_LEVEL="1")
    assert compiled.startswith("pt-xla-profiler: CompileTime too frequent: 10 counts during 10")
    assert f"by torch_xla.sync() at {line(tmp_path, 'SYNC')}, because of shape: " in compiled
    assert f"({line(tmp_path, 'INPUT')}); pad it to one of a few sizes" in compiled
    assert told("3", "5", PT_XLA_DEBUG_LEVEL="1") == told("3 + step", "1") == []


def test_records_are_small(tmp_path):
    result, _ = explained(
        tmp_path,
        """
        model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(2, 4, 16).to(device)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
        report(size=_XLAC._graph_record_size())
        """,
    )
    size, nodes = result["size"]
    assert nodes > 200 and size <= 100 * nodes
