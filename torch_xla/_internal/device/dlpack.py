"""DLPack: tensors handed to other libraries, and arrays taken from them, without a copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from torch_xla import _XLAC
from torch_xla._internal.device.memory import device_name


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """Returns a DLPack capsule of a tensor, which must be consumed once.

    The capsule is the device's memory with the value that the tensor has now; it stays as it is
    when the tensor gets another value, and must not be written to: other tensors may share it.
    Libraries that know the ``__dlpack__`` protocol take the tensor itself, and learn there that
    it is read-only: ``numpy.from_dlpack(tensor)``, ``jax.dlpack.from_dlpack(tensor)``,
    ``torch.from_dlpack(tensor)``. A view is first made an array of its own. The call waits until
    the value is there, so that it can be read on any stream of a GPU; who reads it there waits for
    that before letting go of the capsule's memory.

    Args:
        xla_tensor: An XLA tensor of any shape and dtype, on a CPU, CUDA or ROCm device.

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

    Where the array is on the XLA device already (on the host for CPU devices, on the same GPU for
    CUDA and ROCm), contiguous and aligned to 64 bytes (128 on a GPU), as the arrays of PyTorch and
    JAX are, the tensor is the array's own memory; else a copy. Who writes to that memory later
    changes the tensor (a value that was computed from it stays); operations on the tensor, also
    those in place, never write to it.

    Args:
        ext_tensor: An object with ``__dlpack__`` (an array of NumPy, JAX, ...), or a capsule, of
            any shape.
        device: The XLA device; when None the one that the array is on, else the default one.

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
    default = device_name(device)
    names = [default] if device is not None else [default, *_XLAC._xla_get_devices()]
    tensor = _view(ext_tensor, names)
    if tensor is None:
        tensor = torch.utils.dlpack.from_dlpack(ext_tensor).detach().cpu().to(default)
    return tensor


def _view(ext_tensor: Any, names: list[str]) -> torch.Tensor | None:
    """The tensor on the array's first device; None if there is none or the array must move.

    A capsule that it is not made of stays whole.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        if torch.cuda.is_available():  # No test covers this: it needs a GPU.
            torch.cuda.synchronize()  # A capsule does not tell the stream that writes its content.
        views = (_XLAC._xla_from_dlpack(ext_tensor, name, 0) for name in names)
        return next((view for view in views if view is not None), None)
    place = _place(ext_tensor.__dlpack_device__())
    name = next((name for name in names if _device(name) == place), None)
    if name is None:
        return None
    arguments = {}
    if place[0] != _HOST[0]:
        stream = _XLAC._xla_external_stream(name)
        if stream is None:
            return None  # XLA could not wait for the content.
        arguments["stream"] = stream
    try:
        capsule = ext_tensor.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # The producer is older than DLPack 1.0.
        capsule = ext_tensor.__dlpack__(**arguments)
    return _XLAC._xla_from_dlpack(capsule, name, arguments.get("stream", 0))


_HOST = (int(torch.utils.dlpack.DLDeviceType.kDLCPU), 0)


def _place(dl_device: tuple[Any, int]) -> tuple[int, int]:
    return int(dl_device[0]), int(dl_device[1])


def _device(name: str) -> tuple[int, int] | None:
    try:
        return _XLAC._xla_dlpack_device(name)
    except BufferError:
        return None


def _protocol_device(tensor: torch.Tensor) -> tuple[Any, int]:
    kind, index = _XLAC._xla_dlpack_device(str(tensor.device))
    return torch.utils.dlpack.DLDeviceType(kind), index


def _protocol_export(
    tensor: torch.Tensor,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[Any, int] | None,
    copy: bool | None,
) -> Any:
    """``Tensor.__dlpack__`` of an XLA tensor; the arguments are the array API standard's.

    The content is waited for on the host, so that any `stream` of a GPU will do.
    """
    own = _place(_protocol_device(tensor))
    asked = own if dl_device is None else _place(dl_device)
    if own == _HOST and stream is not None and stream != -1:
        raise BufferError(f"__dlpack__: expected `stream` to be None on a CPU, got {stream}")
    if asked not in (own, _HOST):
        raise BufferError(
            f"__dlpack__: expected `dl_device` {own}, where the tensor is, or {_HOST}, got {asked}"
        )
    if copy is False and asked != own:
        raise BufferError(f"__dlpack__: from {own} to {asked} is a copy; `copy` is False")
    if copy and asked == own != _HOST:
        tensor = tensor.clone()
    elif copy or asked != own:
        return tensor.detach().cpu().__dlpack__(max_version=max_version)
    return _export(tensor, versioned=max_version is not None and max_version[0] >= 1)
