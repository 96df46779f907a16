"""Unpickling files that strangers may have written: data, and nothing that runs code.

``torch.load(weights_only=True)`` does so for tensors; this module covers other data.
"""

from __future__ import annotations

import importlib
import io
import pickle
from typing import Any

import torch

# All classes that these modules define are allowed: they are plain data.
_DATA_MODULES = frozenset({"torch.distributed.checkpoint.metadata"})
_DATA_CLASSES = frozenset(
    {
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
        ("torch.serialization", "_get_layout"),
    }
)


class _MetadataUnpickler(pickle.Unpickler):
    """Admits what PyTorch writes as the metadata of a distributed checkpoint."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DATA_CLASSES:
            return super().find_class(module, name)
        if module in _DATA_MODULES:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:
                return found
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(
            f"the metadata of the checkpoint holds {module}.{name}, which PyTorch's own does not: "
            "it is not from torch.distributed.checkpoint, or is to run code"
        )


def check_metadata(content: bytes) -> None:
    """Raises pickle.UnpicklingError unless the data is a distributed checkpoint's metadata."""
    _MetadataUnpickler(io.BytesIO(content)).load()


def admit_numpy() -> None:
    """Lets ``torch.load(weights_only=True)`` load bytes and NumPy's arrays and numbers: data."""
    import numpy as np

    internals: Any = np
    core = (internals._core if hasattr(np, "_core") else internals.core).multiarray
    dtypes = {type(np.dtype(code)) for code in np.typecodes["All"]}
    torch.serialization.add_safe_globals(
        [bytes, np.ndarray, np.dtype, core._reconstruct, core.scalar, *dtypes]
    )
