"""``torch.accelerator`` for programs that use xla.

PyTorch's list of accelerators is in C++ and leaves xla out. Where it finds none, or one that has no
device (a build for CUDA on a machine without a GPU), and the program has asked for xla (by
``PJRT_DEVICE``, by using a device, or by a default process group of the backend ``xla``), xla is
the answer; a program on the CPU gets what it got before the import. What is replaced are the
functions of ``torch._C`` under ``torch.accelerator``, and those of memory, which would ask three of
them each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._dynamo import eval_frame

from torch_xla._internal.device import memory, streams
from torch_xla._internal.device import module as device_module
from torch_xla._internal.plugins import platform_choice

_PREFIX = "_accelerator_"
_torch_finds: Callable[[], torch.device | None] = torch._C._accelerator_getAccelerator
_XLA = torch.device("xla")


def _is_xla() -> bool:
    asked = (
        device_module.is_initialized()
        or bool(platform_choice.platform())
        or (dist.is_available() and dist.is_initialized() and dist.get_backend() == "xla")
    )
    return asked and not _torch_has_one()


@functools.cache
def _torch_has_one() -> bool:
    found = _torch_finds()
    return found is not None and bool(torch.get_device_module(found).is_available())


def _device_capability(index: int) -> dict[str, Any]:
    supported = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    quantized = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    return {"supported_dtypes": supported - quantized}


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "getAccelerator": lambda: _XLA,
    "getDeviceIndex": device_module.current_device,
    "setDeviceIndex": device_module.set_device,
    "getDeviceCapability": _device_capability,
    "getStream": streams.current_stream,
    "setStream": streams.set_stream,
    "synchronizeDevice": device_module.synchronize,
}
# Functions of torch.accelerator.memory. The others there call memory_stats().
_MEMORY: dict[str, Callable[..., Any]] = {
    "empty_cache": memory.empty_cache,
    "empty_host_cache": lambda: None,
    "memory_stats": memory.memory_stats,
    "get_memory_info": memory.mem_get_info,
    "reset_accumulated_memory_stats": memory.reset_accumulated_memory_stats,
    "reset_peak_memory_stats": memory.reset_peak_memory_stats,
}


def replacements() -> dict[str, Callable[..., Any]]:
    """Returns makers of replacements by name in ``torch._C``; each takes the original function."""
    functions = {
        _PREFIX + name: _answered_by(function)
        for name, function in _FUNCTIONS.items()
        if hasattr(torch._C, _PREFIX + name)  # Older releases of torch lack some.
    }
    # torch.distributed asks this function for the backend of a group that names none.
    return {**functions, "_get_accelerator": functions[_PREFIX + "getAccelerator"]}


def memory_replacements() -> dict[str, Callable[..., Any]]:
    """The same for the functions of ``torch.accelerator.memory``."""
    return {
        name: _answered_by(function)
        for name, function in _MEMORY.items()
        if hasattr(torch.accelerator.memory, name)
    }


def make_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the constructor that ``torch.accelerator.Graph`` calls."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if not _is_xla():
            return original(cls, *args, **kwargs)
        from torch_xla._internal.device import graphs  # Few programs have graphs.

        return graphs.Graph(*args, **kwargs)

    return __new__


class _DeviceIndex(torch.accelerator.device_index):
    """A context with another current xla device; ``idx`` may be None."""

    def __enter__(self) -> None:
        if self.idx is not None:
            self.prev_idx = device_module.current_device()
            device_module.set_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        if self.idx is not None:
            device_module.set_device(self.prev_idx)


def make_device_index(_: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the constructor that ``torch.accelerator.device_index`` calls, where it had none."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        ours = cls is torch.accelerator.device_index and _is_xla()
        return object.__new__(_DeviceIndex if ours else cls)

    return __new__


def stream_for_dynamo(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the function by which dynamo gets a device's stream; its own asks PyTorch's list."""

    def get_current_stream(device: torch.device) -> Any:
        if device.type == "xla":
            return streams.current_stream(device)
        return original(device)

    return _untraced(get_current_stream)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo asks for the stream before each program that it compiles. If this function were traced,
    # that would ask again, without end.
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def _answered_by(ours: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            return ours(*args) if _is_xla() else original(*args)

        return _untraced(function)

    return make
