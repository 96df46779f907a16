"""Calls of the host by running programs: torch_xla.debug.print, callback and flush."""

import collections
import functools
import os
import subprocess
import sys
import threading

import pytest
import torch
from testing.processes import python_output
from testing.replicas import run_replicas
from torch import nn

import torch_xla
from torch_xla import debug
from torch_xla.debug import metrics
from torch_xla.experimental.scan import scan


def _lines(capsys):
    debug.flush()
    return capsys.readouterr().out.splitlines()


def test_lines_come_in_order_and_cut_nothing(capsys):
    x = torch.arange(4.0, device="xla")
    torch_xla.sync(wait=True)
    metrics.clear_all()
    debug.print("sum {:.1f}, step {}, {word}", x.sum(), 3, word="twelve")
    x += 1  # The line has the value before.
    debug.print("{}", x)
    debug.print("{y}", y=(x > 2).any())
    assert capsys.readouterr().out == ""
    assert _lines(capsys) == ["sum 6.0, step 3, twelve", "tensor([1., 2., 3., 4.])", "True"]
    assert metrics.counter_value("UncachedCompile") in (None, 1)
    assert not metrics.executed_fallback_ops()


def test_another_number_or_text_is_no_other_program(capsys):
    def step(i):
        debug.print("step {} loss {}", i, torch.full((), float(i), device="xla") * 2)
        torch_xla.sync()

    for i in (2, 3):
        step(i)
    debug.flush()
    programs = torch_xla._XLAC._xla_num_programs()
    for i in (4, 5):
        step(i)
    debug.print("another {} {}", 7, torch.full((), 7.0, device="xla") * 2)
    torch_xla.sync()
    assert _lines(capsys)[-3:] == ["step 4 loss 8.0", "step 5 loss 10.0", "another 7 14.0"]
    assert torch_xla._XLAC._xla_num_programs() == programs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.int8])
def test_a_function_gets_the_dtypes_of_the_user(dtype):
    x = torch.tensor([[1, 2], [3, 4]], dtype=dtype)
    got = []
    debug.callback(lambda *arrays: got.append(arrays), x.to("xla").t(), x[:0].to("xla"))
    debug.flush()
    ((turned, empty),) = got
    assert turned.dtype == dtype and turned.device.type == "cpu"
    assert torch.equal(turned, x.t()) and empty.shape == (0, 2)


def _in_scan(x):
    def body(carry, element):
        carry = carry + element
        debug.print("in {:.0f}", carry)
        return carry, element * carry

    debug.print("before {:.0f}", x.sum())
    carry, _ = scan(body, torch.zeros((), device=x.device), x)
    debug.print("after {:.0f}", carry)


def _in_while(x):
    def body(n):
        debug.print("in {:.0f}", n)
        return (n + x[1],)

    torch._higher_order_ops.while_loop(lambda n: n < 3, body, (x[0],))


def _in_branches(x):
    def first(v):
        debug.print("first {:.0f}", v.sum())
        return v + 1

    def second(v):
        debug.print("second {:.0f}", v.sum())
        return v - 1

    torch.cond(x.sum() > 3, first, second, (x,))
    torch.cond(x.sum() > 30, first, second, (x,))


_CONTROL = {
    _in_scan: ["before 6", "in 0", "in 1", "in 3", "in 6", "after 6"],
    _in_while: ["in 0", "in 1", "in 2"],
    _in_branches: ["first 6", "second 6"],
}


@pytest.mark.parametrize("program", _CONTROL, ids=lambda program: program.__name__)
def test_control_flow_prints_in_each_turn(program, capsys):
    program(torch.arange(4.0, device="xla"))
    assert _lines(capsys) == _CONTROL[program]


def test_the_backward_pass_of_a_scan_prints_once_more_nothing(capsys):
    weight = torch.ones((), device="xla", requires_grad=True)

    def body(carry, element):
        carry = carry * weight + element
        debug.print("{:.0f}", carry.detach())
        return carry, carry

    carry, _ = scan(body, torch.zeros((), device="xla"), torch.arange(3.0, device="xla"))
    carry.backward()
    assert weight.grad.item() == 1
    assert sorted(_lines(capsys)) == ["0", "1", "3"]


def _plain(step):
    return step


def _compiled(step):
    return torch_xla.compile(step)


def _full_graph(step):
    return torch_xla.compile(step, full_graph=True)


def _replayed(step):
    return torch_xla.compile(step, replay=True)


def _dynamo(step):
    return torch.compile(step, backend="openxla", fullgraph=True)


@pytest.mark.parametrize("surface", [_compiled, _full_graph, _replayed, _dynamo])
def test_each_run_of_a_compiled_function_prints(surface, capsys):
    weight = torch.ones(4, device="xla", requires_grad=True)

    def step(x):
        loss = (x * weight).sum()
        debug.print("loss {:.0f} {} {}", loss, "text", 5)
        debug.print("most {:.0f}", x.max())
        return loss

    run = surface(step)
    for i in range(6):
        run(torch.full((4,), float(i), device="xla"))
    expected = [line for i in range(6) for line in (f"loss {4 * i} text 5", f"most {i}")]
    assert _lines(capsys) == expected
    run(torch.ones(4, device="xla")).backward()
    assert weight.grad.tolist() == [1] * 4


@pytest.mark.parametrize("surface", [_plain, _compiled, _full_graph, _replayed, _dynamo])
def test_assertions_are_raised_by_the_next_sync(surface):
    run = surface(lambda x: (torch._assert_async((x < 5).all(), "five at most"), x * 2)[1])
    torch_xla.sync(wait=True)
    metrics.clear_all()
    for i in range(5):
        run(torch.full((4,), float(i), device="xla"))
        torch_xla.sync(wait=True)
    assert metrics.counter_value("aten::_local_scalar_dense") is None
    kept = []
    text = r"^five at most \(.*_assert_async\(\) at .*\.py:\d+\)$"
    with pytest.raises(RuntimeError, match=text):  # `run` may sync.
        kept.append(run(torch.full((4,), 5.0, device="xla")))
        torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)
    assert all(one.tolist() == [10.0] * 4 for one in kept)  # Nothing is lost.
    assert run(torch.ones(4, device="xla")).tolist() == [2.0] * 4


@pytest.mark.parametrize("surface", [_plain, _compiled, _full_graph, _replayed, _dynamo])
def test_a_read_raises_a_failed_assertion_instead_of_returning(surface):
    run = surface(lambda x: (torch._assert_async((x < 5).all(), "five at most"), x * 2)[1])
    known = torch.arange(2.0, device="xla")
    torch_xla.sync(wait=True)
    for i in (1.0, 2.0, 3.0):
        assert run(torch.full((4,), i, device="xla")).tolist() == [2 * i] * 4
    for read in (lambda y: y.tolist(), lambda y: y[1:].sum().item(), lambda _: known.cpu()):
        with pytest.raises(RuntimeError, match="^five at most"):  # `run` may sync.
            read(run(torch.full((4,), 5.0, device="xla")))
        assert known.sum().item() == 1.0  # It is raised once.
    torch_xla.sync(wait=True)


def test_a_function_that_is_traced_once_says_under_spmd_that_it_cannot_print():
    out = python_output(
        """
import torch, torch_xla
import torch_xla.runtime as xr
from torch_xla.experimental.scan import scan
xr.use_spmd()

def body(carry, x):
    torch_xla.debug.print("{}", carry)
    return carry + x, x

start, xs = torch.zeros((), device="xla"), torch.arange(3.0, device="xla")
try:
    scan(body, start, xs)
except RuntimeError as error:
    print(error)
torch_xla.debug.print("sum {}", xs.sum())
torch_xla.debug.flush()
""",
        CPU_NUM_DEVICES="2",
    )
    assert "scan(): its function prints" in out
    assert "under SPMD" in out


def test_an_assertion_names_its_line_and_holds_in_a_loop():
    def body(carry, x):
        torch._assert_async(x < 2)  # here
        return carry + x, x

    scan(body, torch.zeros((), device="xla"), torch.arange(4.0, device="xla"))
    line = body.__code__.co_firstlineno + 1
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"but got zero .*test_host_calls.py:{line}\\)"):
            torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(torch.ones(2, device="xla"))


@pytest.mark.parametrize("surface", [_plain, _compiled, _full_graph, _replayed, _dynamo])
def test_a_breakpoint_stops_in_the_runs_that_it_is_for(surface, monkeypatch, capsys):
    stops = []

    def hook(*args, **kwargs):
        stops.append((threading.current_thread(), sys._getframe(1).f_globals["x"].tolist()))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    def step(x):
        debug.breakpoint_if((x > 2).any(), x=x, total=x.sum())
        return x * 2

    run = surface(step)
    torch_xla.sync(wait=True)
    metrics.clear_all()
    for i in range(5):
        run(torch.full((2,), float(i), device="xla"))
    debug.flush()
    assert metrics.counter_value("aten::_local_scalar_dense") is None
    assert stops == [(threading.current_thread(), [i, i]) for i in (3.0, 4.0)]
    assert capsys.readouterr().out.count("torch_xla.debug.breakpoint_if() at ") == 2
    with pytest.raises(ValueError, match=r"expected one element, got the shape \[2\]"):
        debug.breakpoint_if(torch.ones(2, device="xla"))


def test_the_print_of_pytorch_is_part_of_the_program(capsys):
    of_pytorch = getattr(torch._higher_order_ops, "print", None)
    if of_pytorch is None:
        pytest.skip("this PyTorch has no torch._higher_order_ops.print")
    metrics.clear_all()
    x = torch.arange(3.0, device="xla", requires_grad=True)
    of_pytorch("sum {:.0f} of {x}", x.sum(), x=x.detach())
    assert capsys.readouterr().out == ""
    assert _lines(capsys) == ["sum 3 of tensor([0., 1., 2.])"]

    def step(x):
        of_pytorch("sum {}", x.sum())
        return x + 1

    compiled = torch.compile(step, backend="openxla", fullgraph=True)
    for i in range(3):
        compiled(torch.full((2,), i + 0.5, device="xla"))
    assert _lines(capsys) == ["sum 1.0", "sum 3.0", "sum 5.0"]


def test_a_checkpointed_block_prints_in_both_passes(capsys):
    layer = nn.Linear(2, 2).to("xla")

    def block(x):
        debug.print("{:.0f}", x.sum())
        return layer(x)

    x = torch.ones(1, 2, device="xla", requires_grad=True)
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
    assert _lines(capsys) == ["2", "2"]


def test_errors_name_what_is_wrong():
    x = torch.ones(2, device="xla")
    with pytest.raises(ValueError, match="Unknown format code 'd'"):
        debug.print("{:d}", x.sum())
    with pytest.raises(IndexError):
        debug.print("{} {}", x)
    with pytest.raises(TypeError, match=r"debug.print\(\): expected a format string, got Tensor"):
        debug.print(x)
    with pytest.raises(TypeError, match=r"debug.callback\(\): expected a function, got str"):
        debug.callback("{}", x)
    with pytest.raises(TypeError, match=r"debug.callback\(\): expected tensors, got int"):
        debug.callback(print, 3)
    debug.callback(lambda _: 1 / 0, x)
    with pytest.raises(ZeroDivisionError):
        debug.flush()
    debug.flush()


class _Log:
    def __init__(self):
        self.got = []

    def add(self, *arrays):
        self.got.append(arrays[-1].tolist())


def test_graphs_of_torch_compile_call_the_function_itself():
    """Dynamo makes copies of lists, to which nothing may be written in silence."""
    log, got = _Log(), []
    x = torch.ones(2, device="xla")

    def keep(*arrays):
        log.add(*arrays)

    def calls(function):
        return torch.compile(
            lambda x: debug.callback(function, x * 2), backend="openxla", fullgraph=True
        )

    for function in (log.add, keep, functools.partial(keep, 3)):
        step = calls(function)
        for _ in range(2):
            step(x)
        debug.flush()
        assert [log.got.pop() for _ in range(2)] == [[2.0, 2.0]] * 2
    deque, table = collections.deque(), {}
    for function in (got.append, functools.partial(got.append), deque.append, table.setdefault):
        with pytest.raises(Exception, match="torch.compile would give the function a copy of a"):
            calls(function)(x)
    inner = torch.compile(
        lambda x: debug.callback(lambda t: got.append(t), x), backend="openxla", fullgraph=True
    )
    with pytest.raises(Exception, match="a copy of a list; define the function"):
        inner(x)
    assert not log.got


def test_under_spmd_the_tensors_are_read_after_the_step():
    out = python_output(
        """
        import numpy as np, torch, torch_xla
        from torch_xla import debug, runtime
        import torch_xla.distributed.spmd as spmd
        runtime.use_spmd()
        mesh = spmd.Mesh(np.arange(2), (2,), ("x",))
        x = torch.arange(4.0, device="xla")
        spmd.mark_sharding(x, mesh, ("x",))
        debug.print("sharded {}", x * 2)
        torch_xla.sync()
        debug.flush()
        debug.callback(lambda t: (debug.flush(), print("flushed")), x)
        debug.flush()
        """,
        CPU_NUM_DEVICES="2",
    )
    assert out.splitlines() == ["sharded tensor([0., 2., 4., 6.])", "flushed"]


def test_calls_of_a_second_device_are_made_by_flush_and_at_the_end():
    out = python_output(
        """
        import torch, torch_xla
        from torch_xla import debug
        for word in ("flushed", "the end of"):
            for device in ("xla:1", "xla:0"):
                debug.print(word + " {:.0f}", torch.ones(3, device=device).sum())
            if word == "flushed":
                debug.flush()
                print("-")
        """,
        CPU_NUM_DEVICES="2",
    )
    assert out.splitlines() == ["flushed 3"] * 2 + ["-"] + ["the end of 3"] * 2


def _replica():
    debug.print("{:.0f}", torch.ones(2, device="xla").sum())
    debug.flush()


def test_replicas_name_themselves(capfd, tmp_path):
    run_replicas(_replica, 2, tmp_path, method="spawn")
    assert sorted(capfd.readouterr().out.splitlines()) == ["[replica 0] 2", "[replica 1] 2"]


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "loss.item(); torch.xla._no_such"])
def test_the_end_of_the_process_loses_no_line(end):
    program = (
        "import torch, torch_xla\n"
        "loss = torch.ones(3, device='xla').sum()\n"
        "torch_xla.debug.print('loss {:.0f}', loss)\n" + end
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=False
    )
    assert run.stdout == "loss 3\n", run.stderr
