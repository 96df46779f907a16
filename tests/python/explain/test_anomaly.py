"""torch.autograd.set_detect_anomaly: no wait for each node of a backward pass."""

import pytest
import torch
from testing.processes import python_output
from torch.utils.checkpoint import checkpoint

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental.scan import scan


class _Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


def _in_scan(x):
    return scan(lambda carry, part: (carry + part.sqrt(), part), x.sum() * 0, x)[0]


# A forward pass whose gradient has a NaN at 0, and the function that the error names.
_PROGRAMS = {
    "sqrt": (lambda x: (x - 1).sqrt().sum(), "SqrtBackward0"),
    "function": (lambda x: _Bad.apply(x).sum(), "_BadBackward"),
    "checkpoint": (
        lambda x: checkpoint(lambda y: (y - 1).sqrt(), x * 1, use_reentrant=True).sum(),
        "SqrtBackward0",
    ),
    "recomputed": (
        lambda x: checkpoint(lambda y: (y - 1).sqrt(), x * 1, use_reentrant=False).sum(),
        "SqrtBackward0",
    ),
    "scan": (lambda x: _in_scan(x) * x.sum(), ""),
}


@pytest.mark.parametrize("program", _PROGRAMS)
def test_the_next_sync_names_the_backward_function_and_the_line(program):
    forward, name = _PROGRAMS[program]
    parameter = torch.full((3,), 4.0, device="xla", requires_grad=True)
    line = forward.__code__.co_firstlineno
    torch_xla.sync(wait=True)
    metrics.clear_all()

    def step(value):
        with torch.no_grad():
            parameter.fill_(value)
        parameter.grad = None
        forward(parameter * 1).backward()

    with torch.autograd.set_detect_anomaly(True):
        for _ in range(3 if program != "function" else 0):
            metrics.clear_all()
            step(4.0)
            torch_xla.sync(wait=True)
        assert metrics.counter_value("UncachedCompile") is None
        assert metrics.counter_value("aten::_local_scalar_dense") is None
        bad = -1.0 if program == "scan" else 0.0
        step(bad)
        text = f"Function '{name}.*' returned nan values in its gradients; in the forward pass: "
        with pytest.raises(RuntimeError, match=text) as error:
            torch_xla.sync(wait=True)
    if program in ("sqrt", "function"):
        assert f'{__file__}", line {line}' in str(error.value)
    torch_xla.sync(wait=True)  # One error for one backward pass.
    assert parameter.grad.isnan().any()  # Nothing is lost.


def test_gradients_of_gradients_and_what_the_mode_leaves_alone():
    x = torch.zeros(2, device="xla", requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        (x - 1).sqrt().sum().backward()
    torch_xla.sync(wait=True)
    seen = []
    with torch.autograd.set_detect_anomaly(True):
        handle = x.register_hook(lambda grad: seen.append(grad.isnan().any().item()))
        (gradient,) = torch.autograd.grad((x + 1).pow(1.5).sum(), x, create_graph=True)
        handle.remove()
        assert seen == [False]
        ((gradient - 1.5).sqrt() * 0).sum().backward()  # 0 times infinity
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
            torch_xla.sync(wait=True)
    assert torch._is_any_true(torch.tensor([False, True], device="xla")).item()
    y = torch.zeros(2, device="xla", requires_grad=True)
    loss = (y - 1).sqrt().sum()
    with torch.autograd.set_detect_anomaly(True):
        loss.backward()
        with pytest.raises(RuntimeError, match="its forward pass ran without the mode"):
            torch_xla.sync(wait=True)


def test_under_spmd_the_flags_are_read_after_the_step():
    out = python_output(
        """
import torch, torch_xla
import torch_xla.runtime as xr
xr.use_spmd()
x = torch.zeros(2, device="xla", requires_grad=True)
with torch.autograd.set_detect_anomaly(True):
    (x - 1).sqrt().sum().backward()
    try:
        for _ in range(2):
            torch_xla.sync(wait=True)
            torch_xla.debug.flush()
    except RuntimeError as error:
        print(error)
""",
        CPU_NUM_DEVICES="2",
    )
    assert "Function 'SqrtBackward0' returned nan values" in out
