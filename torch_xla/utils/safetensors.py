"""State dictionaries in the safetensors format, written and read one tensor at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.tensors import is_xla, unlazy
from torch_xla.utils import serialization

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}


def _identity(tensor: torch.Tensor) -> Any:
    """Returns a key that is equal for tensors which are the same view of the same memory."""
    if tensor.device.type == "xla":
        return _XLAC._xla_get_tensor_id(tensor), serialization._Layouts._look(tensor)
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _check(state_dict: Mapping[str, Any]) -> None:
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                "safetensors.save_file(): expected a mapping of names to tensors, got "
                f"{type(tensor).__name__} under {name!r}"
            )
        if tensor.dtype not in _DTYPES:
            raise ValueError(
                f"safetensors.save_file(): the format has no dtype {tensor.dtype} (of {name!r})"
            )


def save_file(
    state_dict: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Writes a state dictionary as a safetensors file.

    XLA tensors are copied to the host one at a time, and the file appears when it is whole, as
    with :func:`torch_xla.utils.serialization.save`. The format knows no shared tensors: one that
    has several names is written under the first; the others are kept in the file's metadata, as
    the safetensors package does it, and :func:`load_file` ties them again.

    Args:
        state_dict: Names and tensors, of any shape and on any device.
        path: A local path, or an URL of any file system that fsspec knows.
        metadata: Texts to keep in the file.
        master_only: Whether only the replica with ordinal 0 saves.
        global_master: Whether ``master_only`` means the global master, or each host's.

    Raises:
        TypeError: ``state_dict`` is nested, or has something else than tensors.
        ValueError: The format has no such dtype.
        OSError: The file cannot be written. What was there stays.
    """
    _check(state_dict)
    if on_device := [t for t in state_dict.values() if is_xla(t)]:
        unlazy(on_device)  # On every replica, since the execution may need all.
    if not serialization._is_master(master_only, global_master):
        return
    texts = dict(metadata or {})
    first: dict[Any, str] = {}
    for name, tensor in state_dict.items():
        if (kept := first.setdefault(_identity(tensor), name)) != name:
            texts[name] = kept
    # The widest first, so that each is aligned to its element size.
    names = sorted(first.values(), key=lambda name: -state_dict[name].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    end = 0
    for name in names:
        tensor = state_dict[name]
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with serialization._replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        staging = serialization._Staging.for_tensors(state_dict.values())
        for name in names:
            tensor = state_dict[name]
            if not is_xla(tensor):
                tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
            else:
                file.write(staging.fill(tensor).numpy().data)


def load_file(
    path: str | os.PathLike[str], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Reads a safetensors file.

    Args:
        path: A local path.
        device: Where the tensors go, one at a time. On the CPU they are the file's pages.

    Returns:
        The tensors by name. Names that :func:`save_file` found to be one tensor are one.

    Raises:
        ImportError: The package safetensors is not installed.
        FileNotFoundError: There is no such file.
        RuntimeError: The file is truncated or no safetensors file.
    """
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "safetensors.load_file() needs the package safetensors: pip install safetensors"
        ) from error
    path = os.fspath(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            loaded = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
            texts = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise RuntimeError(
            f"safetensors.load_file(): {path} is truncated or no safetensors file: {error}"
        ) from error
    for name, kept in texts.items():
        if name not in loaded and kept in loaded:
            loaded[name] = loaded[kept]
    return loaded
