"""Bad arguments raise at the call, not at the sync, and raise what they raise on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import _XLAC

F32, F64, I64 = torch.float32, torch.float64, torch.int64
Device = torch.device | str


def ones(device: Device, *shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.ones(*shape, device=device).to(dtype)


# What no Meta kernel refuses, or not with the CPU's class of error.
CALLS: dict[str, Callable[[Device], Any]] = {
    "mm of two dtypes": lambda d: torch.mm(ones(d, 2, 2), ones(d, 2, 2, dtype=F64)),
    "bmm of two dtypes": lambda d: torch.bmm(ones(d, 1, 2, 2), ones(d, 1, 2, 2, dtype=F64)),
    "mv of two dtypes": lambda d: torch.mv(ones(d, 2, 2), ones(d, 2, dtype=F64)),
    "addmm of two dtypes": lambda d: torch.addmm(
        ones(d, 2, 2), ones(d, 2, 2), ones(d, 2, 2, dtype=F64)
    ),
    "convolution of two dtypes": lambda d: torch.conv2d(
        ones(d, 1, 1, 4, 4), ones(d, 1, 1, 2, 2, dtype=F64)
    ),
    "max of nothing": lambda d: ones(d, 0).max(),
    "argmax of nothing": lambda d: ones(d, 0).argmax(),
    "amax of an empty dimension": lambda d: ones(d, 2, 0).amax(1),
    "and of floats": lambda d: ones(d, 2) & ones(d, 2),
    "or of floats": lambda d: ones(d, 2) | 1,
    "not of floats": lambda d: ~ones(d, 2),
    "softmax of integers": lambda d: ones(d, 2, dtype=I64).softmax(0),
    "std of integers": lambda d: ones(d, 2, dtype=I64).std(),
    "negative integer power": lambda d: ones(d, 2, dtype=I64) ** -1,
    "squeeze of a dimension twice": lambda d: ones(d, 1, 2, 1).squeeze((-1, 2)),
    # These ended the process: a division by zero.
    "convolution without a stride": lambda d: torch.conv2d(
        ones(d, 1, 1, 3, 3), ones(d, 1, 1, 2, 2), stride=0
    ),
    "backward pass of a convolution without groups": lambda d: torch.ops.aten.convolution_backward(
        *(ones(d, 1, 1, 3, 3),) * 3, None, [1], [0], [1], False, [0], 0, [True] * 3
    ),
    "zero-dim cat": lambda d: torch.cat([ones(d), ones(d)]),
    "out of another dtype": lambda d: torch.gather(
        ones(d, 2), 0, ones(d, 2, dtype=I64) - 1, out=ones(d, 2, dtype=F64)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_raise_at_the_call(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as on_cpu:
        CALLS[name]("cpu")
    with pytest.raises(on_cpu.type) as on_xla:
        CALLS[name](xm.xla_device())
    assert on_xla.type is on_cpu.type
    # Nothing broken was left in the graph.
    torch_xla.sync(wait=True)


def test_message_is_the_cpus() -> None:
    device = xm.xla_device()
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        torch.mm(ones(device, 2, 2), ones(device, 2, 2, dtype=F64))


def test_an_error_leaves_the_inputs_alone() -> None:
    device = xm.xla_device()
    a = ones(device, 2)
    with pytest.raises(NotImplementedError):
        a.bitwise_and_(a)
    assert (a + 1).tolist() == [2, 2]


def test_a_failure_that_is_read_hides_no_other() -> None:
    def failing(count: int) -> torch.Tensor:
        small = torch.ones(count, device=xm.xla_device()) * 2
        huge = small.repeat(2**58, 1)  # No allocator has that.
        _XLAC._xla_sync_multi([small, huge], [], False)
        return small

    torch_xla.sync(wait=True)
    first, second = failing(2), failing(3)
    with pytest.raises(RuntimeError):
        second.cpu()
    with pytest.raises(RuntimeError):
        torch_xla.sync(wait=True)  # The first one's.
    torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError):
        first.cpu()
    torch_xla.sync(wait=True)


def test_a_dtype_that_is_not_there_is_named(device: torch.device) -> None:
    # Python would say "unsupported operand type(s)" for a TypeError.
    with pytest.raises(NotImplementedError, match="no tensors of dtype ComplexHalf"):
        torch.ones(2, dtype=torch.float16, device=device) * 1j
