"""``Tensor.__dlpack__``, and PyTorch's functions around it, for xla tensors.

PyTorch's own refuse them, but for those of a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.dlpack


def register() -> None:
    """Wraps them, once."""
    original = torch.Tensor.__dlpack__
    if hasattr(original, "_exports_xla"):
        return
    original_device = torch.Tensor.__dlpack_device__
    original_function = torch.utils.dlpack.to_dlpack

    @functools.wraps(original)
    def dlpack(
        self: torch.Tensor,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.device.type != "xla":
            return original(
                self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
            )
        from torch_xla.utils import dlpack as xla_dlpack

        return xla_dlpack._protocol_export(self, stream, max_version, dl_device, copy)

    @functools.wraps(original_device)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != "xla":
            return original_device(self)
        from torch_xla.utils import dlpack as xla_dlpack

        return xla_dlpack._protocol_device(self)

    @functools.wraps(original_function)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "xla":
            return original_function(tensor)
        from torch_xla.utils import dlpack as xla_dlpack

        return xla_dlpack.to_dlpack(tensor)

    dlpack._exports_xla = True
    torch.Tensor.__dlpack__ = dlpack
    torch.Tensor.__dlpack_device__ = dlpack_device
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack
