"""DLPack: tensors handed to other libraries, and arrays taken from them, without a copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from torch_xla import _XLAC, runtime
from torch_xla.core import xla_model


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """Returns a DLPack capsule of a tensor, which must be consumed once.

    The capsule is the device's memory with the value that the tensor has now; it stays as it is
    when the tensor gets another value, and must not be written to: other tensors may share it.
    Libraries that know the ``__dlpack__`` protocol take the tensor itself, and learn there that
    it is read-only: ``numpy.from_dlpack(tensor)``, ``jax.dlpack.from_dlpack(tensor)``,
    ``torch.from_dlpack(tensor)``. A view is first made an array of its own.

    Args:
        xla_tensor: An XLA tensor of any shape and dtype, on a CPU device.

    Returns:
        A ``PyCapsule`` named ``"dltensor"``.

    Raises:
        BufferError: The tensor requires gradients, or its memory cannot be shared.
        RuntimeError: It is no XLA tensor, or computing it failed.
    """
    return _export(xla_tensor, versioned=False)


def _export(tensor: torch.Tensor, versioned: bool) -> Any:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    return _XLAC._xla_to_dlpack(tensor, versioned)


def from_dlpack(ext_tensor: Any, device: torch.device | str | None = None) -> torch.Tensor:
    """Makes an XLA tensor of an array of another library.

    On a CPU device the tensor is the array's own memory where that is contiguous and aligned to
    64 bytes, as the arrays of PyTorch and JAX are; else a copy. Who writes to that memory later
    changes the tensor (a value that was computed from it stays); operations on the tensor, also
    those in place, never write to it.

    Args:
        ext_tensor: An object with ``__dlpack__`` (an array of NumPy, JAX, ...), or a capsule, of
            memory on the host, of any shape.
        device: The XLA device; the default one when None.

    Returns:
        A tensor of the array's shape and dtype.

    Raises:
        BufferError: The other library cannot export the array.
        TypeError: ``ext_tensor`` is neither of these.
    """
    if not hasattr(ext_tensor, "__dlpack__") and type(ext_tensor).__name__ != "PyCapsule":
        raise TypeError(
            "from_dlpack(): expected an object with __dlpack__ or a DLPack capsule, got "
            f"{type(ext_tensor).__name__}"
        )
    host = torch.utils.dlpack.from_dlpack(ext_tensor)
    return _XLAC._xla_from_host(host.cpu(), xla_model._device_name(device))


def _protocol_device(tensor: torch.Tensor) -> tuple[Any, int]:
    if runtime.device_type() != "CPU":
        raise BufferError(
            f"__dlpack__: the memory of {tensor.device} ({runtime.device_type()}) cannot be "
            "shared; copy it with .cpu() first"
        )
    return torch.utils.dlpack.DLDeviceType.kDLCPU, 0


def _protocol_export(
    tensor: torch.Tensor,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[Any, int] | None,
    copy: bool | None,
) -> Any:
    """``Tensor.__dlpack__`` of an XLA tensor; the arguments are the array API standard's."""
    if stream is not None and stream != -1:
        raise BufferError(f"__dlpack__: expected `stream` to be None on a CPU, got {stream}")
    own = _protocol_device(tensor)
    if dl_device is not None and tuple(dl_device) != own:
        raise BufferError(
            f"__dlpack__: expected `dl_device` {own}, where the tensor is, got {tuple(dl_device)}"
        )
    if copy:
        return tensor.detach().cpu().__dlpack__(max_version=max_version)
    return _export(tensor, versioned=max_version is not None and max_version[0] >= 1)
