"""``torch.load(map_location="xla")``: what was saved from the CPU is loaded onto the device.

PyTorch restores storages and makes tensors of them. Xla tensors have no such storage, so the
storage of the file is marked with its device instead, and the tensors that are made of it become
looks at one xla tensor: those that shared memory share it again.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

# After those of PyTorch, which answer in no time that a location is not theirs.
_PRIORITY = 40

_DEVICE = "_xla_device"
_BASE = "_xla_base"


def _tag(storage: Any) -> str | None:
    return None  # No xla storage is ever saved.


def _mark(storage: Any, location: str) -> Any:
    if not location.startswith("xla"):
        return None
    from torch_xla.core import xla_model

    device = torch.device(xla_model._device_name(location))
    count = torch.xla.device_count()
    if device.index >= count:
        raise RuntimeError(
            f"Attempting to deserialize an object on XLA device {device.index}, but this process "
            f"has {count} of them: use torch.load with map_location to load it onto an existing "
            "device"
        )
    untyped = storage._untyped_storage if hasattr(storage, "_untyped_storage") else storage
    setattr(untyped, _DEVICE, device)
    return storage


def _look(cpu: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns what is to ``storage``'s xla tensor as the tensor ``cpu`` is to ``storage``."""
    base = getattr(storage, _BASE, None)
    if base is None:
        elements = storage.nbytes() // cpu.element_size()
        if cpu.numel() != elements or not cpu.is_contiguous():
            whole = torch.empty((0,), dtype=cpu.dtype).set_(storage, 0, (elements,), (1,))
        else:
            whole = cpu
        base = whole.to(getattr(storage, _DEVICE))
        setattr(storage, _BASE, base)
        if whole is cpu:
            return base
    if base.dtype != cpu.dtype:
        base = base.view(-1).view(cpu.dtype)
    return torch.as_strided(base, cpu.size(), cpu.stride(), cpu.storage_offset())


def register() -> None:
    """Registers the location ``xla``, once."""
    original = torch._utils._rebuild_tensor
    if hasattr(original, "_makes_xla_tensors"):
        return
    original_v3 = torch._utils._rebuild_tensor_v3

    @functools.wraps(original)
    def rebuild(storage: Any, *args: Any) -> torch.Tensor:
        cpu = original(storage, *args)
        untyped = storage._untyped_storage
        return _look(cpu, untyped) if hasattr(untyped, _DEVICE) else cpu

    @functools.wraps(original_v3)
    def rebuild_v3(
        storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, *args: Any
    ) -> torch.Tensor:
        untyped = storage._untyped_storage
        if not hasattr(untyped, _DEVICE):
            return original_v3(storage, offset, size, stride, requires_grad, *args)
        tensor = original_v3(storage, offset, size, stride, False, *args)
        return _look(tensor, untyped).requires_grad_(requires_grad)

    rebuild._makes_xla_tensors = True
    torch._utils._rebuild_tensor = rebuild
    torch._utils._rebuild_tensor_v3 = rebuild_v3
    # Where a file was loaded before this import, it remembers the old function.
    allowed = torch._weights_only_unpickler._get_allowed_globals
    if hasattr(allowed, "cache_clear"):
        allowed.cache_clear()
    torch.serialization.register_package(_PRIORITY, _tag, _mark)
