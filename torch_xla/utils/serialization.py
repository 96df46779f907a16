"""Checkpoints that are written and read one tensor at a time.

The file is PyTorch's own format: ``torch.load`` reads it too. The other common one is in
:mod:`torch_xla.utils.safetensors`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import IO, Any

import torch
from torch.utils.serialization import config

from torch_xla import _XLAC
from torch_xla._internal.files.atomic_file import atomic_write
from torch_xla._internal.nested_data import for_each_instance_rewrite
from torch_xla._internal.replicas import replication
from torch_xla._internal.tensors import is_xla, unlazy
from torch_xla.utils import gcsfs

_PROTOCOL = 2  # What torch.save writes, and the restricted unpickler of torch.load reads.
_ZIP_MAGIC = b"PK\x03\x04"


class TensorReference:
    """Stands for tensor ``tid`` of a checkpoint whose tensors are in files of their own.

    torch_xla 2.9 writes such checkpoints, and frameworks after it: :func:`_get_tensors_folder`,
    :func:`_get_tensor_file`. :func:`load` reads them.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid


def _get_tensors_folder(path: str) -> str:
    return path + ".tensors"


def _get_tensor_file(folder: str, tid: int) -> str:
    if not isinstance(tid, int):  # A file may contain anything; text could be any path.
        raise ValueError(f"expected the number of a tensor as its name in {folder}, got {tid!r}")
    return os.path.join(folder, f"tensor_{tid}.pt")


class _Storage:
    """A storage of the file that is being written; pickled as a reference to its record."""

    def __init__(
        self, key: int, dtype: torch.dtype, numel: int, source: torch.Tensor | torch.UntypedStorage
    ) -> None:
        self.key = str(key)
        self.dtype = dtype
        self.numel = numel
        self.source = source  # An xla tensor, or a storage of another device.

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def reference(self) -> tuple[str, type, str, str, int]:
        storage_type: Any = torch.UntypedStorage
        if self.dtype not in torch.storage._new_dtypes():
            name = torch.storage._dtype_to_storage_type_map()[self.dtype]
            storage_type = getattr(torch, name)
            return ("storage", storage_type, self.key, "cpu", self.numel)
        return ("storage", storage_type, self.key, "cpu", self.nbytes)


class _Staging:
    """Host memory through which xla tensors are copied one after the other.

    Allocated once: blocks that are freed and allocated in turns leave holes which the next, by a
    few bytes, does not fit into.
    """

    def __init__(self, nbytes: int) -> None:
        self._bytes = torch.empty(nbytes, dtype=torch.uint8)

    @staticmethod
    def for_tensors(tensors: Iterable[Any]) -> _Staging:
        sizes = (t.nbytes for t in tensors if isinstance(t, torch.Tensor) and is_xla(t))
        return _Staging(max(sizes, default=0))

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor's bytes, shape ``[nbytes]`` and dtype uint8, until the next call."""
        content = self._bytes[: tensor.nbytes]
        if tensor.numel():
            content.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        return content


class _Pickler(pickle.Pickler):
    """Pickles xla tensors as views of storages, which it numbers and does not read.

    The first pass only notes which tensors there are: how a storage is written depends on all
    the tensors that share it.
    """

    def __init__(self, file: IO[bytes], layouts: _Layouts | None) -> None:
        super().__init__(file, _PROTOCOL)
        self._layouts = layouts
        self.tensors: list[torch.Tensor] = []
        self.storages: list[_Storage] = []
        self._by_key: dict[Any, _Storage] = {}
        self._host_dtypes: dict[int, torch.dtype] = {}

    def _storage(
        self,
        key: Any,
        dtype: torch.dtype,
        numel: int,
        source: torch.Tensor | torch.UntypedStorage,
    ) -> _Storage:
        if key not in self._by_key:
            self._by_key[key] = _Storage(len(self.storages), dtype, numel, source)
            self.storages.append(self._by_key[key])
        return self._by_key[key]

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return obj.reference()
        if isinstance(obj, torch.storage.TypedStorage):
            storage, dtype = obj._untyped_storage, obj.dtype
        elif isinstance(obj, torch.UntypedStorage):
            storage, dtype = obj, torch.uint8
        else:
            return None
        address = storage.data_ptr()
        if address and self._host_dtypes.setdefault(address, dtype) != dtype:
            raise RuntimeError(
                "serialization.save(): expected tensors that share memory to have one dtype, got "
                f"{self._host_dtypes[address]} and {dtype}"
            )
        numel = storage.nbytes() // dtype.itemsize
        found = self._storage(storage._cdata, dtype, numel, storage)
        if isinstance(obj, torch.UntypedStorage):
            return ("storage", torch.UntypedStorage, found.key, "cpu", storage.nbytes())
        return found.reference()

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor) or obj.device.type != "xla":
            return NotImplemented
        if isinstance(obj, torch.nn.Parameter):
            return NotImplemented  # Pickled as its data, which comes here again.
        self.tensors.append(obj)
        if self._layouts is None:
            return (list, ())
        key, base, strides, offset = self._layouts.place(obj)
        storage = self._storage(key, base.dtype, base.numel(), base)
        no_hooks: OrderedDict[str, Any] = OrderedDict()
        look = (storage, offset, tuple(obj.size()), strides, obj.requires_grad, no_hooks)
        function: Any = torch._utils._rebuild_tensor_v2
        arguments: tuple[Any, ...] = look
        if obj.dtype in torch.storage._new_dtypes():
            function, arguments = torch._utils._rebuild_tensor_v3, (*look, obj.dtype)
        state = torch._utils._get_obj_state(obj)
        if type(obj) is torch.Tensor and not state:
            return function, arguments
        return torch._tensor._rebuild_from_type_v2, (function, type(obj), arguments, state)


class _Layouts:
    """Decides, for tensors that share memory, what of it is written.

    If all of them are the same view, only that view is written. If they differ, the whole memory
    is, so that they share it again once loaded.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._looks: dict[int, set[Any]] = {}
        for tensor in tensors:
            self._looks.setdefault(_XLAC._xla_get_tensor_id(tensor), set()).add(self._look(tensor))

    @staticmethod
    def _look(tensor: torch.Tensor) -> Any:
        layout = _XLAC._xla_get_layout(tensor)
        if layout is None or _XLAC._xla_get_storage_tensor(tensor).dtype != tensor.dtype:
            # The tensor itself: strides do not identify its content, or a file's storage, which
            # has one dtype, cannot have it.
            return id(tensor)
        strides, offset = layout
        return (tensor.dtype, tuple(tensor.size()), tuple(strides), offset)

    def place(self, tensor: torch.Tensor) -> tuple[Any, torch.Tensor, tuple[int, ...], int]:
        """Returns the storage's key, the tensor to write for it, and the strides and offset."""
        root, look = _XLAC._xla_get_tensor_id(tensor), self._look(tensor)
        # An object that is made anew for each pickling was not in the first pass.
        if isinstance(look, int) or len(self._looks.get(root, ())) <= 1:
            return (root, look), tensor, tensor.stride(), 0
        _, _, strides, offset = look
        return root, _XLAC._xla_get_storage_tensor(tensor), strides, offset


def _write(data: Any, tensors: list[torch.Tensor], file: IO[bytes]) -> None:
    pickled = io.BytesIO()
    pickler = _Pickler(pickled, _Layouts(tensors))
    pickler.dump(data)
    writer = torch._C.PyTorchFileWriter(
        file, torch.serialization.get_crc32_options(), config.save.storage_alignment
    )
    try:
        _write_records(writer, pickled.getvalue(), pickler.storages)
    except BaseException:
        # The writer fails again at its end. Unless called, that would abort the process.
        with contextlib.suppress(Exception):
            writer.write_end_of_file()
        raise
    writer.write_end_of_file()


def _write_records(writer: Any, pickled: bytes, storages: list[_Storage]) -> None:
    records = {
        "data.pkl": pickled,
        ".format_version": b"1",
        ".storage_alignment": str(config.save.storage_alignment).encode(),
        "byteorder": sys.byteorder.encode(),
    }
    for name, content in records.items():
        writer.write_record(name, content, len(content))
    staging = _Staging.for_tensors(storage.source for storage in storages)
    for storage in storages:
        if isinstance(storage.source, torch.Tensor):
            host = staging.fill(storage.source).untyped_storage()
        else:
            host = storage.source.cpu()
        writer.write_record(f"data/{storage.key}", host, storage.nbytes)
        del host


def _is_master(master_only: bool, global_master: bool) -> bool:
    place = replication.topology()
    return not master_only or (place.rank if global_master else place.local_rank) == 0


def _replacing(path: str | os.PathLike[str]) -> AbstractContextManager[IO[bytes]]:
    """Returns a file that appears under its name when it is whole."""
    path = os.fspath(path)
    # An object store does that by itself.
    return gcsfs.generic_open(path, "wb") if gcsfs._is_url(path) else atomic_write(path)


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Saves data, copying its XLA tensors to the host one at a time.

    The host needs memory for the largest tensor, not for all of them. Tensors that share memory
    are written once and share it again when loaded; a view without its base is written alone.
    All tensors are saved as CPU tensors, of any shape and dtype, in the format of ``torch.save``.

    The file takes the place of an older one when it is whole and on the disk: a process that is
    killed leaves one of the two. Every replica makes the call, and none waits for another to have
    written: :func:`torch_xla.core.xla_model.rendezvous` does, before others load the file.

    Args:
        data: Any nested combination of Python objects and tensors that can be pickled.
        path: A local path, or an URL of any file system that fsspec knows (``gs://...``). It
            must differ from replica to replica when ``master_only`` is False.
        master_only: Whether only the replica with ordinal 0 saves.
        global_master: Whether ``master_only`` means the global master, or each host's.

    Raises:
        OSError: The file cannot be written. What was there stays.
        RuntimeError: CPU tensors share memory under different dtypes.
        pickle.PicklingError: An object in ``data`` cannot be pickled.
    """
    first_pass = _Pickler(io.BytesIO(), None)
    first_pass.dump(data)
    if first_pass.tensors:
        unlazy(first_pass.tensors)  # On every replica, since the execution may need all.
    if _is_master(master_only, global_master):
        with _replacing(path) as file:
            _write(data, first_pass.tensors, file)


def _check_format(path: str, file: IO[bytes]) -> None:
    start = file.read(len(_ZIP_MAGIC))
    file.seek(0)
    if start != _ZIP_MAGIC:
        raise RuntimeError(
            f"serialization.load(): {path} is no checkpoint: expected a file that "
            f"serialization.save() or torch.save() wrote, which begins with {_ZIP_MAGIC!r}, got "
            + (f"{start!r}" if start else "an empty file")
        )


def _load_parts(path: str, map_location: Any, weights_only: bool) -> Any:
    """Loads a checkpoint whose tensors are in files of their own."""
    with torch.serialization.safe_globals([TensorReference]):
        data = torch.load(path, weights_only=weights_only)

    def read(reference: TensorReference) -> Any:
        file = _get_tensor_file(_get_tensors_folder(path), reference.tid)
        return torch.load(file, map_location=map_location, weights_only=weights_only)

    return for_each_instance_rewrite(data, lambda x: isinstance(x, TensorReference), read)


def load(
    path: str | os.PathLike[str],
    map_location: torch.device | str | dict[str, str] | Callable[..., Any] | None = None,
    mmap: bool = True,
    weights_only: bool = True,
) -> Any:
    """Loads what :func:`save` (or ``torch.save``) has written.

    Args:
        path: The path or URL given to :func:`save`.
        map_location: Where the tensors go, as for ``torch.load``: ``"xla"`` loads them onto the
            default XLA device one at a time. They are CPU tensors by default.
        mmap: Whether tensors on the CPU are the file's pages, read when they are used; writing
            to them does not change the file. Needs a local file, and is ignored for others.
        weights_only: Whether only tensors and plain Python objects are loaded. With False, any
            object is, and a file from a stranger may run any code.

    Returns:
        The data, with its tensors' shapes and dtypes as they were saved.

    Raises:
        FileNotFoundError: There is no such file.
        RuntimeError: The file is truncated or no checkpoint, or ``map_location`` is a device
            that does not exist.
        pickle.UnpicklingError: The file has other objects than ``weights_only`` admits.
    """
    path = os.fspath(path)
    remote = gcsfs._is_url(path)
    if not remote and os.path.isdir(_get_tensors_folder(path)):
        return _load_parts(path, map_location, weights_only)
    with gcsfs.generic_open(path, "rb") as file:
        _check_format(path, file)
        try:
            return torch.load(
                file if remote else path,
                map_location=map_location,
                mmap=mmap and not remote,
                weights_only=weights_only,
            )
        except (RuntimeError, OSError) as error:
            # If the file is very short, the reader seeks to a negative offset.
            before = isinstance(error, OSError) and error.errno == errno.EINVAL
            if not before and "PytorchStreamReader" not in str(error):
                raise
            raise RuntimeError(
                f"serialization.load(): {path} is truncated or damaged: expected a whole "
                f"checkpoint, got {file.seek(0, os.SEEK_END)} bytes ({error})"
            ) from error
