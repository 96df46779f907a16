"""Reading TFRecord files, without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import torch

from torch_xla import _XLAC
from torch_xla.utils import gcsfs


class _StringConversion:
    """The type of :data:`STR`."""

    def __repr__(self) -> str:
        return "STR"

    def __reduce__(self) -> str:
        return "STR"  # Pickled by name, since it is a singleton.


# A reader's transform that decodes a bytes feature to ``str``.
STR: Final = _StringConversion()

Transforms = Mapping[str, Callable[[Any], Any] | _StringConversion | Literal["STR"]]


class _Decoder:
    """The transforms, sorted by whether the C++ reader or Python applies them."""

    def __init__(self, transforms: Transforms | None) -> None:
        self.texts: set[str] = set()
        self._functions: dict[str, Callable[[Any], Any]] = {}
        for name, transform in (transforms or {}).items():
            if transform is STR or (isinstance(transform, str) and transform == "STR"):
                self.texts.add(name)
            elif callable(transform):
                self._functions[name] = transform
            else:
                raise TypeError(
                    f"expected the transform of {name!r} to be a callable or STR, got {transform!r}"
                )

    def apply(self, example: dict[str, Any]) -> dict[str, Any]:
        for name, function in self._functions.items():
            if name in example:
                example[name] = function(example[name])
        for name in self.texts & example.keys():
            if isinstance(example[name], torch.Tensor):
                raise TypeError(
                    f"STR is for features of bytes, but {name!r} has {example[name].dtype} values"
                )
        return example


def parse_example(record: bytes, transforms: Transforms | None = None) -> dict[str, Any]:
    """Decodes a serialized ``tf.train.Example``.

    Args:
        record: The bytes of a record.
        transforms: As for :class:`TfRecordReader`.

    Returns:
        The features by label: see :meth:`TfRecordReader.read_example`.

    Raises:
        RuntimeError: The bytes are no ``tf.train.Example``.
        TypeError: STR is asked for where the feature has numbers.
    """
    decoder = _Decoder(transforms)
    return decoder.apply(_XLAC._tf_parse_example(record, decoder.texts))


class TfRecordReader:
    """Reads TfRecords or TfExamples.

    Records are read as a stream: the file may be larger than the memory. Every record's checksum
    is verified. Iterating gives the records that are left. Threads may share a reader: each
    record goes to one of them.

    Example::

        reader = TfRecordReader("train.tfrecord", compression="GZIP", transforms={"name": STR})
        while (example := reader.read_example()) is not None:
            print(example["name"], example["image"].shape)

    Args:
        path: The file: a local path, or an URL of any file system that fsspec knows.
        compression: The empty string for none, ``"ZLIB"`` or ``"GZIP"``.
        buffer_size: How much is read ahead at most, in bytes. A longer record is read all the
            same.
        transforms: By label of a TfExample, what is done to its value: a callable is called with
            the value and returns another, :data:`STR` (or the string ``"STR"``) makes a ``str``
            of bytes in UTF-8.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: ``compression`` is another one, or ``buffer_size`` is below 1.
        TypeError: A transform is neither a callable nor STR.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: str = "",
        buffer_size: int = 16 * 1024 * 1024,
        transforms: Transforms | None = None,
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"TfRecordReader: expected `buffer_size` above 0, got {buffer_size}")
        path = os.fspath(path)
        self._decoder = _Decoder(transforms)
        # The reader has a buffer of its own, so a local file needs none.
        self._file = gcsfs.open(path, "rb") if gcsfs._is_url(path) else open(path, "rb", 0)
        try:
            self._reader = _XLAC._TfRecordReader(self._file, path, compression, buffer_size)
        except BaseException:
            self._file.close()
            raise

    def read_record(self) -> bytes | None:
        """Returns the next record's bytes; None at the end of the file.

        Raises:
            RuntimeError: The file is corrupted or truncated; the text names it, the record and
                its offset in the (decompressed) file, in bytes. Later calls raise the same.
        """
        return self._reader.read_record()

    def read_example(self) -> dict[str, Any] | None:
        """Returns the next record as a ``tf.train.Example``; None at the end of the file.

        Returns:
            The features by label, transformed. A list of floats is a tensor of shape ``[n]`` and
            dtype float32, one of integers of dtype int64; a value of bytes is a tensor of shape
            ``[length]`` and dtype uint8. A feature that has several values of bytes, or none,
            is a list of such tensors (of ``str`` with STR). A feature without a kind is None.

        Raises:
            RuntimeError: As :meth:`read_record`; or the record is no ``tf.train.Example``, or
                text is not UTF-8.
            TypeError: STR is asked for where the feature has numbers.
        """
        example = self._reader.read_example(self._decoder.texts)
        return None if example is None else self._decoder.apply(example)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._reader.read_record, None)

    def close(self) -> None:
        """Closes the file; so does the end of the object's life."""
        self._file.close()

    def __enter__(self) -> TfRecordReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
