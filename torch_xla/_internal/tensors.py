"""What PyTorch cannot tell about xla tensors: which ones they are, and their memory."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_xla import _XLAC


def is_xla(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on an xla device; a fake one is not."""
    return bool(tensor.is_xla) and not isinstance(tensor, FakeTensor)  # type: ignore[attr-defined]


def plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that a wrapper holds, as a DTensor does, or a tensor itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [x for value in inner if isinstance(value, torch.Tensor) for x in plain(value)]


def memory(tensor: torch.Tensor) -> tuple[torch.Tensor, Sequence[int], int] | None:
    """Returns the whole memory of a tensor as a tensor, and the tensor's strides and offset in it.

    None for a view that strides cannot express; such a view is copied by itself.
    """
    layout = _XLAC._xla_get_layout(tensor)
    if layout is None:
        return None
    return _XLAC._xla_get_storage_tensor(tensor), *layout


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Executes what ``tensors`` depend on, and waits until they have their values.

    Args:
        tensors: XLA tensors of any shape and dtype.
    """
    _XLAC._xla_sync_multi(list(tensors), [], True)


class HostCopies:
    """Copies xla tensors to the CPU; those that share memory on the device share it there.

    Args:
        tensors: All that will be copied. One that shares memory with none of them is copied by
            itself, without what else is in its memory.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._looks = collections.Counter(map(_XLAC._xla_get_tensor_id, tensors))
        self._memory: dict[int, torch.UntypedStorage] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the copy of a tensor; autograd does not know of it."""
        key = _XLAC._xla_get_tensor_id(tensor)
        found = memory(tensor) if self._looks[key] > 1 else None
        if found is None:
            return tensor.detach().cpu()
        whole, strides, offset = found
        if key not in self._memory:
            self._memory[key] = whole.detach().cpu().untyped_storage()
        result = torch.empty(0, dtype=tensor.dtype)
        return result.set_(self._memory[key], offset, tensor.size(), tuple(strides))
