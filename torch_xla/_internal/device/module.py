"""``torch.xla``: the module that PyTorch looks for behind a device type.

``torch.get_device_module("xla")``, ``torch.random.fork_rng``, ``torch.utils.checkpoint`` and
the frameworks above find the functions that they know from ``torch.cuda`` here. A ``device``
argument may be an ordinal, a string, a ``torch.device``, or ``None`` for the current device.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.device import memory
from torch_xla._internal.device.memory import (  # noqa: F401 - of this module, too
    Device,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from torch_xla._internal.device.streams import (  # noqa: F401
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_xla._internal.plugins import device_counts
from torch_xla._internal.tensors import is_xla

SEED_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # The distance of two random states: NextRngState in tensor/rng.h.

_in_bad_fork = False

# torch.utils.checkpoint asks this for tensors on xla, to decide whether to keep the RNG state. The
# RNG state does not need a client, so the answer is always yes.
_initialized = True


_GRAPHS = (
    "Graph",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
)


def __getattr__(name: str) -> Any:
    if name in _GRAPHS:  # Few programs have graphs.
        from torch_xla._internal.device import graphs

        return getattr(graphs, name)
    if name == "default_generators":
        return tuple(_XLAC._xla_default_generator(index) for index in range(device_count()))
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")


def is_available() -> bool:
    """Returns whether there is a PJRT plugin with a device.

    Before the client is made that is answered from what is installed, without starting it: PyTorch
    asks at the first step of Adam, also of a program that runs on the CPU.
    """
    if not is_initialized():
        return bool(device_counts.startable_platforms())
    return device_count() > 0


def is_initialized() -> bool:
    """Returns whether the PJRT client of this process has been made."""
    return _XLAC._xla_is_initialized()


def init() -> None:
    """Makes the PJRT client now instead of at the first use of a device."""
    _XLAC._xla_platform()


def device_count() -> int:
    """Returns how many devices this process can use: none if it was forked from the client's."""
    if _in_bad_fork:
        return 0
    if not is_initialized() and (count := device_counts.without_client()) is not None:
        return count  # The CPU's are known beforehand.
    return len(_XLAC._xla_get_devices())


def current_device() -> int:
    """Returns the ordinal of the current (default) XLA device."""
    return torch.device(_XLAC._xla_get_default_device()).index


def set_device(device: Device) -> None:
    """Makes ``device`` the current one; an ordinal below 0 or None changes nothing."""
    _XLAC._xla_set_default_device(memory.device_name(device))


class device:  # noqa: N801 - named as in torch.cuda
    """Context manager under which ``device`` is the current one."""

    def __init__(self, device: Device) -> None:
        self._name = memory.device_name(device)

    def __enter__(self) -> None:
        self._previous = _XLAC._xla_set_default_device(self._name)

    def __exit__(self, *exc_info: object) -> None:
        _XLAC._xla_set_default_device(self._previous)


class device_of(device):  # noqa: N801 - named as in torch.cuda
    """Context manager under which the device of a tensor is the current one, if it is on xla."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if is_xla(tensor) else None)


def get_device_name(device: Device = None) -> str:
    """Returns the hardware's own name, for example ``"NVIDIA H100 80GB HBM3"``."""
    return _XLAC._xla_device_kind(memory.device_name(device))


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the major and the minor version of a GPU's compute capability.

    Raises:
        RuntimeError: The device has none, since it is no GPU of NVIDIA's.
    """
    name = memory.device_name(device)
    attributes = _XLAC._xla_device_attributes()[torch.device(name).index][1]
    major, _, minor = str(attributes.get("compute_capability")).partition(".")
    if not minor:
        raise RuntimeError(f"get_device_capability(): {name}, {get_device_name(name)}, has none")
    return int(major), int(minor)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device.

    Attributes:
        name: What :func:`get_device_name` returns.
        total_memory: Of the device, in bytes.
    """

    name: str
    total_memory: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Returns the properties of a device.

    Raises:
        RuntimeError: The plugin does not tell how much memory there is.
    """
    return DeviceProperties(get_device_name(device), mem_get_info(device)[1])


def synchronize(device: Device = None) -> None:
    """Waits until all work launched on ``device`` has finished.

    Operations that are only traced are not launched by this: see :func:`torch_xla.sync`.
    """
    if not is_initialized():
        return
    _XLAC._xla_wait_device_ops([memory.device_name(device)])


def _rng_device(device: Device) -> str:
    name = memory.device_name(device)
    if not is_initialized() and int(name.removeprefix("xla:")) >= device_count():
        init()  # Starts the client, so that its devices are checked.
    return name


def manual_seed(seed: int) -> None:
    """Sets the seed of the current device, an integer of 64 bits."""
    _XLAC._xla_set_rng_seed(int(seed) & SEED_MASK, memory.device_name(None))


def manual_seed_all(seed: int) -> None:
    """Sets the seed of every device; does not start the PJRT client."""
    _XLAC._xla_set_rng_seed(int(seed) & SEED_MASK, "")


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Returns the state of the device's random number generator.

    Returns:
        A CPU tensor of shape ``[16]`` and dtype ``uint8``: a state and a count of draws after it,
        here zero, as little-endian bytes. DTensor adds to the count what the other shards draw.
    """
    state = _XLAC._xla_get_rng_seed(_rng_device(device)) & SEED_MASK
    return torch.tensor(list(state.to_bytes(16, "little")), dtype=torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Sets the state of the device's random number generator.

    Args:
        new_state: What :func:`get_rng_state` returned: shape ``[16]``, dtype ``uint8``; or
            ``[8]``, the state alone.
        device: The device whose state is set.

    Raises:
        ValueError: ``new_state`` has another shape or dtype.
    """
    if new_state.dtype != torch.uint8 or new_state.shape not in ((8,), (16,)):
        raise ValueError(
            "set_rng_state(): expected `new_state` of shape [16] and dtype torch.uint8, got "
            f"{list(new_state.shape)} and {new_state.dtype}"
        )
    data = bytes(new_state.tolist())
    state, draws = (int.from_bytes(part, "little") for part in (data[:8], data[8:]))
    _XLAC._xla_set_rng_seed((state + draws * _STEP) & SEED_MASK, _rng_device(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of the random number generators of all devices."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the random number generators, one for each device in their order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def initial_seed() -> int:
    """Returns the state of the current device's random number generator."""
    return _XLAC._xla_get_rng_seed(memory.device_name(None)) & SEED_MASK


def seed() -> None:
    """Seeds the current device by a number that the system draws."""
    manual_seed(int.from_bytes(os.urandom(8), "little"))


def seed_all() -> None:
    """Seeds every device by one number that the system draws."""
    manual_seed_all(int.from_bytes(os.urandom(8), "little"))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("xla")`` accepts."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Returns True: XLA compiles bfloat16 for every platform."""
    return True


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one with a PJRT client, which cannot be used here."""
    return _in_bad_fork


def _after_fork_in_child() -> None:
    global _in_bad_fork
    _in_bad_fork = _in_bad_fork or is_initialized()


def _register_for_seeds() -> None:
    """Has ``torch.manual_seed`` and ``torch.seed`` seed the xla devices.

    They seed the devices of PyTorch's list, and those of the module of ``PrivateUse1``.
    """
    name = torch._C._get_privateuse1_backend_name()
    if not hasattr(torch, name):  # Else another backend has it.
        module: Any = types.ModuleType(f"torch.{name}", "Seeds the xla devices; has no device.")
        module.is_available = lambda: False
        module.device_count = lambda: 0
        module._is_in_bad_fork = _is_in_bad_fork
        module.manual_seed_all = manual_seed_all
        torch._register_device_module(name, module)


def register() -> None:
    """Installs this module as ``torch.xla`` and hooks fork, once."""
    if hasattr(torch, "xla"):
        return
    torch._register_device_module("xla", sys.modules[__name__])
    # Frameworks find the device of a module by this name.
    sys.modules[__name__].__name__ = "torch.xla"
    sys.modules["torch.xla.memory"] = memory
    _register_for_seeds()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork_in_child)
