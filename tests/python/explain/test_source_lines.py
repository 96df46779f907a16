"""Nodes know the line of the user's program that traced them, without any switch."""

import inspect
import re
import threading

import pytest
import torch
from testing.processes import run_python
from torch import nn

from torch_xla import _XLAC


def lines_of(tensor: torch.Tensor, op: str) -> list[str]:
    """Returns what the text of the graph says of where nodes of ``op`` come from."""
    text = _XLAC._get_xla_tensors_text([tensor])
    found = [line for line in text.splitlines() if f" {op}(" in line]
    return [re.search(r"location=(\S+)@(.*?)(?:, ROOT.*)?$", line).group(2) for line in found]


def marked(function, mark: str) -> str:
    """Returns "file:line" of the line of ``function`` that carries the comment ``mark``."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = (i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return f"{inspect.getsourcefile(function)}:{first + offset}"


def test_each_call_has_its_own_line(device):
    def function(a):
        b = a + 2  # ADD
        b = (
            b.exp()  # EXP
            * a.sin()
        )
        return [b.cos() for _ in range(2)][1]  # COS

    result = function(torch.ones(3, device=device))
    for op, mark in (("add", "ADD"), ("exp", "EXP"), ("cos", "COS")):
        assert lines_of(result, f"aten::{op}") == [marked(function, mark)]


def test_calls_that_differ_are_not_confused(device):
    """More instructions than the cache by instruction has places."""
    count = 3000
    body = "".join(f"    x = x + {i}.5\n" for i in range(count))
    scope: dict = {}
    exec(compile(f"def function(x):\n{body}    return x\n", "made.py", "exec"), scope)
    for _ in range(2):
        result = scope["function"](torch.ones(2, device=device))
        expected = [f"made.py:{i + 2}" for i in range(count)]
        assert lines_of(result, "aten::add") == expected


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)  # BODY
        return nn.functional.normalize(x)  # NORMALIZE


def test_functions_of_torch_have_the_callers_line(device):
    model = Scaled().to(device)
    result = model(torch.ones(2, 4, device=device))
    body, normalize = marked(Scaled.forward, "BODY"), marked(Scaled.forward, "NORMALIZE")
    assert lines_of(result, "aten::gelu") == [body]
    assert lines_of(result, "aten::div") == [normalize]
    assert torch.__file__.rpartition("/")[0] not in _XLAC._get_xla_tensors_text([result])


def test_derivatives_have_the_line_of_the_forward_pass(device):
    def function(x):
        y = x.sigmoid()  # SIGMOID
        z = torch.tanh(y)  # TANH
        z.sum().backward()
        return x.grad

    grad = function(torch.ones(3, device=device, requires_grad=True))
    for op, mark in (("sigmoid", "SIGMOID"), ("tanh", "TANH")):
        expected = marked(function, mark) + " (backward)"
        assert lines_of(grad, f"aten::{op}_backward") == [expected]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.neg()  # NEG


def test_a_backward_of_the_users_has_its_own_line(device):
    x = torch.ones(3, device=device, requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert lines_of(x.grad, "aten::neg") == [marked(Doubled.backward, "NEG")]


def test_threads(device):
    a = torch.ones(3, device=device)
    results = []

    def function():
        for _ in range(200):
            results.append(a.exp())  # THREAD

    threads = [threading.Thread(target=function) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 600
    places = {place for result in results for place in lines_of(result, "aten::exp")}
    assert places == {marked(function, "THREAD")}


def test_code_that_is_made_in_a_loop(device):
    """Addresses of functions are used again; lines are not mixed up by it."""
    for i in range(300):
        scope: dict = {}
        padding = "\n" * (i % 7)
        exec(compile(f"{padding}def function(x):\n    return x.exp()", f"f{i}.py", "exec"), scope)
        result = scope["function"](torch.ones(2, device=device))
        assert lines_of(result, "aten::exp") == [f"f{i}.py:{2 + i % 7}"]


def test_generators_and_lambdas(device):
    def function(a):
        made = (x.exp() for x in [a])  # GENERATOR
        return (lambda x: x.cos())(next(made))  # LAMBDA

    result = function(torch.ones(2, device=device))
    assert lines_of(result, "aten::exp") == [marked(function, "GENERATOR")]
    assert lines_of(result, "aten::cos") == [marked(function, "LAMBDA")]


@pytest.mark.parametrize("whole", ["0", "1"])
def test_programs_name_lines_when_asked(tmp_path, whole):
    """By default the text of a program does not change when a line moves."""
    result, _ = run_python(
        """
        def inner(x):
            return x + 2
        def outer(x):
            return inner(x)
        report(text=_XLAC._get_xla_tensors_hlo([outer(torch.ones(3, device=device))]))
        """,
        tmp_path,
        XLA_IR_DEBUG=whole,
    )
    lines = (tmp_path / "script.py").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "x + 2" in text)
    assert (f'script.py":{line}:' in result["text"]) == (whole == "1")
