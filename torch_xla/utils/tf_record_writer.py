"""Writing TFRecord files, without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import torch

from torch_xla import _XLAC
from torch_xla._internal.files.atomic_file import atomic_write
from torch_xla.utils import gcsfs

# zlib's window bits for each compression.
_WINDOW_BITS = {"ZLIB": zlib.MAX_WBITS, "GZIP": zlib.MAX_WBITS + 16}


def _feature(name: str, value: Any) -> list[bytes] | torch.Tensor:
    """Returns ``value`` as what the extension takes."""
    if isinstance(value, str):
        return [value.encode()]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, (list, tuple)) and any(
        isinstance(item, (str, bytes, bytearray, memoryview)) for item in value
    ):
        return [item for part in value for item in _feature(name, part)]
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
        return [value.detach().cpu().contiguous().numpy().tobytes()]
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return [value.tobytes()]
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"write_example(): expected bytes, text or numbers under {name!r}, got "
            f"{type(value).__name__}: {error}"
        ) from error
    if isinstance(value, (list, tuple)) and not value:
        return tensor.to(torch.float32)
    if tensor.is_complex():
        raise TypeError(f"write_example(): {name!r} has complex numbers, which have no feature")
    dtype = torch.float32 if tensor.is_floating_point() else torch.int64
    return tensor.to(dtype).reshape(-1).contiguous()


def serialize_example(example: Mapping[str, Any]) -> bytes:
    """Returns a ``tf.train.Example`` as bytes.

    Args:
        example: Values by label. Text (as UTF-8) and bytes, lists of them, and uint8 tensors and
            arrays (their bytes) make features of bytes; other numbers, lists, tensors and arrays
            of any shape make features of floats or of integers, flattened in row-major order.

    Raises:
        TypeError: A value is nothing of that.
    """
    return _XLAC._tf_serialize_example(
        [(name.encode(), _feature(name, value)) for name, value in example.items()]
    )


class TfRecordWriter:
    """Writes a TFRecord file.

    The file appears under its name when the writer is closed. In a ``with`` block that raises,
    and in a process that is killed, nothing appears, and an older file stays.

    Args:
        path: A local path, or an URL of any file system that fsspec knows.
        compression: The empty string for none, ``"ZLIB"`` or ``"GZIP"``.
        level: zlib's level of compression, from 0 to 9; -1 for its default.

    Raises:
        OSError: The file cannot be made.
        ValueError: ``compression`` is another one.
    """

    def __init__(
        self, path: str | os.PathLike[str], compression: str = "", level: int = -1
    ) -> None:
        if compression not in ("", *_WINDOW_BITS):
            raise ValueError(
                f"expected `compression` to be '', 'ZLIB' or 'GZIP', got {compression!r}"
            )
        self._compressor = None
        if compression:
            bits = _WINDOW_BITS[compression]
            self._compressor = zlib.compressobj(level, zlib.DEFLATED, bits)
        path = os.fspath(path)
        self._stack = contextlib.ExitStack()
        self._file: IO[Any] | None = self._stack.enter_context(
            gcsfs.open(path, "wb") if gcsfs._is_url(path) else atomic_write(path)
        )

    def write(self, record: bytes) -> None:
        """Appends a record.

        Raises:
            TypeError: ``record`` is not bytes.
            ValueError: The writer is closed.
        """
        if self._file is None:
            raise ValueError("TfRecordWriter.write(): the writer is closed")
        if not isinstance(record, bytes):
            raise TypeError(
                f"TfRecordWriter.write(): expected a record of bytes, got {type(record).__name__}"
            )
        header, footer = _XLAC._tf_record_frame(record)
        for part in (header, record, footer):
            self._file.write(self._compressor.compress(part) if self._compressor else part)

    def write_example(self, example: Mapping[str, Any]) -> None:
        """Appends a ``tf.train.Example``: see :func:`serialize_example`."""
        self.write(serialize_example(example))

    def close(self) -> None:
        """Finishes the file. Closing twice is no error."""
        self.__exit__(None, None, None)

    def __enter__(self) -> TfRecordWriter:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if exc_info[0] is None and self._compressor:
            file.write(self._compressor.flush())
        self._stack.__exit__(*exc_info)
