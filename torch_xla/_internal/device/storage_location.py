"""``torch.load(map_location="xla")``, files that say so themselves, and what processes exchange.

A storage of the file becomes one of the device: the tensors that are made of it share its memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import torch

from torch_xla import _XLAC
from torch_xla._internal.device.memory import device_name

# Comes before the CPU's function, which accepts every storage on the host.
_PRIORITY = 9


def _location(storage: Any) -> str | None:
    storage = getattr(storage, "_untyped_storage", storage)
    return str(storage.device) if storage.device.type == "xla" else None


def _restore(storage: Any, location: str) -> torch.UntypedStorage | None:
    if not location.startswith("xla"):
        return None
    device = torch.device(device_name(location))
    count = torch.xla.device_count()  # type: ignore[attr-defined]
    if device.index >= count:
        raise RuntimeError(
            f"Attempting to deserialize an object on XLA device {device.index}, but this process "
            f"has {count} of them: use torch.load with map_location to load it onto an existing "
            "device"
        )
    host = getattr(storage, "_untyped_storage", storage)
    return cast(torch.UntypedStorage, _XLAC._xla_storage_from_host(host, str(device)))


def register() -> None:
    """Registers the location ``xla``, once."""
    if not any(entry[2] is _restore for entry in torch.serialization._package_registry):
        torch.serialization.register_package(_PRIORITY, _location, _restore)


def load(content: bytes, location: str) -> torch.UntypedStorage:
    """Returns the storage on the device ``location`` with the bytes that another process sent."""
    host = torch.UntypedStorage(len(content))
    ctypes.memmove(host.data_ptr(), content, len(content))
    return cast(torch.UntypedStorage, _restore(host, location))


def sent_by_value(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Sends a storage by ``multiprocessing``; PyTorch's own way would share host memory.

    The bytes are in the message, so that the process that has sent them may end.
    """

    def reduce(storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "xla":
            return original(storage)
        host = storage.cpu()
        return load, (ctypes.string_at(host.data_ptr(), host.nbytes()), str(storage.device))

    return reduce
