"""``torch.load(map_location="xla")``, and files that say so themselves.

A storage of the file becomes one of the device: the tensors that are made of it share its memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from torch_xla import _XLAC

# Before the CPU's, which takes every storage of the host for its own.
_PRIORITY = 9

_LOCATION = "_xla_location"


def tag(host: torch.UntypedStorage, device: torch.device) -> None:
    """Notes that ``host`` is the copy of a storage on ``device``, for when it is saved."""
    setattr(host, _LOCATION, str(device))


def _location(storage: Any) -> str | None:
    storage = getattr(storage, "_untyped_storage", storage)
    return (
        str(storage.device) if storage.device.type == "xla" else getattr(storage, _LOCATION, None)
    )


def _restore(storage: Any, location: str) -> torch.UntypedStorage | None:
    if not location.startswith("xla"):
        return None
    from torch_xla.core import xla_model

    device = torch.device(xla_model._device_name(location))
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
