"""``torch.utils.data`` datasets over TFRecord files."""

from __future__ import annotations

import bisect
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torch_xla import _XLAC
from torch_xla._internal.replicas import replication
from torch_xla.utils import gcsfs
from torch_xla.utils.tf_record_reader import TfRecordReader, Transforms, parse_example

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_HEADER, _FOOTER = 12, 4


def _find_files(paths: Paths) -> list[str]:
    """Returns the files that ``paths`` names, patterns expanded, in order."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files: list[str] = []
    for path in (os.fspath(path) for path in paths):
        if any(character in path for character in "*?["):
            found = [blob.path for blob in gcsfs.list(path)]
            if not found:
                raise FileNotFoundError(f"no file matches the pattern {path}")
            files += found
        else:
            files.append(path)
    if not files:
        raise ValueError("expected at least one path")
    return files


class TfRecordDataset(IterableDataset[Any]):
    """Streams the records of sharded TFRecord files.

    Replicas, and the workers of a ``DataLoader``, share the records among them: whole files where
    there are at least as many files as readers, else every n-th record. The latter costs each
    reader the reading of all.

    With a shuffle buffer, the order of the files and of the records changes from epoch to epoch,
    and is the same again for the same seed and epoch. Call :meth:`set_epoch` before each pass.

    Args:
        paths: A path, a pattern (``gs://bucket/train-*.tfrecord``), or several of them.
        compression: The empty string for none, ``"ZLIB"`` or ``"GZIP"``.
        transforms: As for :class:`~torch_xla.utils.tf_record_reader.TfRecordReader`.
        decode: Whether a sample is a decoded ``tf.train.Example``, a ``dict``, or the ``bytes`` of
            a record.
        shuffle_buffer: How many records wait to be drawn from at random; 0 keeps the order.
        seed: Of the shuffling.
        num_replicas: How many replicas there are; those of this run when None.
        replica: Which one this is.
        buffer_size: How much is read ahead of each file, in bytes.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: ``replica`` is not below ``num_replicas``, or ``shuffle_buffer`` is negative.
    """

    def __init__(
        self,
        paths: Paths,
        compression: str = "",
        transforms: Transforms | None = None,
        decode: bool = True,
        shuffle_buffer: int = 0,
        seed: int = 0,
        num_replicas: int | None = None,
        replica: int | None = None,
        buffer_size: int = 1024 * 1024,
    ) -> None:
        if shuffle_buffer < 0:
            raise ValueError(
                f"TfRecordDataset: expected `shuffle_buffer` of at least 0, got {shuffle_buffer}"
            )
        self.files = _find_files(paths)
        self._compression = compression
        self._transforms = transforms
        self._decode = decode
        self._shuffle_buffer = shuffle_buffer
        self._seed = seed
        place = replication.topology()
        self._replicas = place.world_size if num_replicas is None else num_replicas
        self._replica = place.rank if replica is None else replica
        if not 0 <= self._replica < self._replicas:
            raise ValueError(
                f"TfRecordDataset: expected `replica` from 0 to {self._replicas - 1}, got "
                f"{self._replica}"
            )
        self._buffer_size = buffer_size
        # Shared, since persistent workers have copies of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the pass, which decides its order."""
        self._epoch.fill_(epoch)

    def _read(self, path: str) -> Iterator[Any]:
        with TfRecordReader(path, self._compression, self._buffer_size, self._transforms) as reader:
            yield from iter(reader.read_example if self._decode else reader.read_record, None)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        parts, part = self._replicas * workers, self._replica * workers + worker
        files, epoch = list(self.files), int(self._epoch)
        if self._shuffle_buffer:
            random.Random(f"{self._seed} {epoch}").shuffle(files)
        if len(files) >= parts:
            samples: Iterator[Any] = itertools.chain.from_iterable(
                map(self._read, files[part::parts])
            )
        else:
            every = itertools.chain.from_iterable(map(self._read, files))
            samples = itertools.islice(every, part, None, parts)
        if self._shuffle_buffer:
            return self._shuffled(samples, random.Random(f"{self._seed} {epoch} {part}"))
        return samples

    def _shuffled(self, samples: Iterator[Any], generator: random.Random) -> Iterator[Any]:
        waiting = list(itertools.islice(samples, self._shuffle_buffer))
        for sample in samples:
            drawn = generator.randrange(len(waiting))
            waiting[drawn], sample = sample, waiting[drawn]
            yield sample
        generator.shuffle(waiting)
        yield from waiting


class IndexedTfRecordDataset(Dataset[Any]):
    """Uncompressed TFRecord files as a dataset with random access.

    It can be shuffled whole by a sampler, and its order resumed at any sample. Making it reads
    the 12 bytes before each record. Samples are verified when they are read.

    Args:
        paths: A local path, a pattern, or several of them.
        transforms: As for :class:`~torch_xla.utils.tf_record_reader.TfRecordReader`.
        decode: Whether a sample is a decoded ``tf.train.Example``, a ``dict``, or the ``bytes`` of
            a record.

    Raises:
        FileNotFoundError: There is no such file, or a pattern matches nothing.
        ValueError: A path is not local.
        RuntimeError: A file is corrupted, truncated, or no uncompressed TFRecord file.
    """

    def __init__(
        self, paths: Paths, transforms: Transforms | None = None, decode: bool = True
    ) -> None:
        self.files = _find_files(paths)
        self._transforms = transforms
        self._decode = decode
        self._offsets = [self._index(path) for path in self.files]
        self._ends = [*itertools.accumulate(len(offsets) - 1 for offsets in self._offsets)]

    @staticmethod
    def _index(path: str) -> torch.Tensor:
        """Returns where the records of a file begin, and where the last one ends."""
        if gcsfs._is_url(path):
            raise ValueError(
                f"IndexedTfRecordDataset: expected a local path, got {path}: TfRecordDataset reads "
                "remote files"
            )
        offsets = [0]
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while offsets[-1] < size:
                file.seek(offsets[-1])
                header = file.read(_HEADER)
                if len(header) < _HEADER or header[8:] != _XLAC._tf_masked_crc(header[:8]):
                    raise RuntimeError(
                        f"{path}: record {len(offsets) - 1} at offset {offsets[-1]}: expected the "
                        f"length of a record and its CRC, got {header!r}: the file is corrupted, "
                        "truncated, or no uncompressed TFRecord file"
                    )
                length = int.from_bytes(header[:8], "little")
                offsets.append(offsets[-1] + _HEADER + length + _FOOTER)
        if offsets[-1] > size:
            raise RuntimeError(
                f"{path}: record {len(offsets) - 2} at offset {offsets[-2]}: expected it to end "
                f"at {offsets[-1]}, but the file has {size} bytes: it is truncated"
            )
        return torch.tensor(offsets)  # Workers share a tensor, unlike a list.

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected an index below {len(self)}, got {index}")
        index %= len(self)
        file = bisect.bisect_right(self._ends, index)
        position = index - (self._ends[file - 1] if file else 0)
        start, end = self._offsets[file][position : position + 2].tolist()
        path = self.files[file]
        with open(path, "rb", 0) as opened:
            framed = os.pread(opened.fileno(), end - start, start)
        record = framed[_HEADER:-_FOOTER]
        if framed[-_FOOTER:] != _XLAC._tf_masked_crc(record):
            raise RuntimeError(
                f"{path}: record {position} at offset {start}: its bytes are corrupted: expected "
                f"CRC {framed[-_FOOTER:].hex()}, got {_XLAC._tf_masked_crc(record).hex()}"
            )
        if not self._decode:
            return record
        try:
            return parse_example(record, self._transforms)
        except RuntimeError as error:
            raise RuntimeError(
                f"{path}: record {position} at offset {start}: no valid tf.train.Example: {error}"
            ) from error
