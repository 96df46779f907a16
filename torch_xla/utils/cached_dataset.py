"""A dataset whose samples are computed once and then read from files."""

from __future__ import annotations

import io
import json
import os
import pickle
import zlib
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset

from torch_xla._internal.files import restricted_pickle
from torch_xla._internal.files.atomic_file import atomic_write
from torch_xla.utils import gcsfs

_METADATA = "metadata.json"
_VERSION = 1
# An entry: the magic, the CRC-32 of the rest (4 bytes, little-endian), the content.
_MAGIC = b"XLACACHE"
_HEADER = len(_MAGIC) + 4


def _encode(sample: Any, compress: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(sample, buffer)
    content = zlib.compress(buffer.getvalue(), 1) if compress else buffer.getvalue()
    return _MAGIC + zlib.crc32(content).to_bytes(4, "little") + content


def _decode(entry: bytes, compress: bool, weights_only: bool) -> Any:
    """Raises ValueError where ``entry`` is corrupted."""
    content = memoryview(entry)[_HEADER:]
    if entry[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"expected it to begin with {_MAGIC!r}, got {entry[: len(_MAGIC)]!r}")
    stored = int.from_bytes(entry[len(_MAGIC) : _HEADER], "little")
    if stored != (found := zlib.crc32(content)):
        raise ValueError(f"expected CRC {stored:#010x}, got {found:#010x}")
    raw = zlib.decompress(content) if compress else bytes(content)
    return torch.load(io.BytesIO(raw), weights_only=weights_only)


class _Sized(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class CachedDataset(Dataset[Any]):
    """Wraps an existing ``torch.utils.data.Dataset`` by providing file caching.

    It trades the CPU time and the memory that making a sample takes for storage: each sample is
    made once, when it is first asked for, and stored in a file of its own. :meth:`warmup` stores
    them all. From then on the original dataset is not needed any more: the folder can be moved,
    packed for other machines, or used from many of them where it is on GCS::

        CachedDataset(train_dataset, "gs://bucket/train").warmup(num_workers=8)
        train_dataset = CachedDataset(None, "gs://bucket/train")

    Any number of processes may use one folder: a file appears whole or not at all. A file that is
    corrupted is made anew.

    Args:
        data_set: The dataset, with a length; None where all samples are in ``path``.
        path: The folder: a local path, or an URL of any file system that fsspec knows
            (``gs://...``). It must be writable unless all samples are there.
        max_files_per_folder: How many files a folder gets at most. Where the folder was made
            before, its own number counts.
        compress: Whether samples are compressed (zlib): less storage, more CPU time. Where the
            folder was made before, its own choice counts.
        weights_only: Whether samples hold tensors, NumPy arrays and plain Python objects alone.
            With False they may hold anything that can be pickled: for folders of your own, since
            unpickling runs the code that a stranger put there.

    Raises:
        FileNotFoundError: ``data_set`` is None and there is no cached dataset at ``path``.
        ValueError: The folder is that of a dataset of another length, ``max_files_per_folder`` is
            below 1, or the folder's metadata is corrupted.
    """

    def __init__(
        self,
        data_set: _Sized | None,
        path: str | os.PathLike[str],
        max_files_per_folder: int = 1000,
        compress: bool = True,
        weights_only: bool = True,
    ) -> None:
        if max_files_per_folder < 1:
            raise ValueError(
                "CachedDataset: expected `max_files_per_folder` of at least 1, got "
                f"{max_files_per_folder}"
            )
        self._data_set = data_set
        self._weights_only = weights_only
        self._checked = not weights_only
        if weights_only:
            restricted_pickle.admit_numpy()
        self._path = os.fspath(path).rstrip("/")
        found = self._read_metadata()
        if found is None:
            if data_set is None:
                raise FileNotFoundError(
                    f"CachedDataset: there is no cached dataset at {self._path} (no {_METADATA}), "
                    "and `data_set` is None"
                )
            found = {
                "version": _VERSION,
                "size": len(data_set),
                "max_files_per_folder": max_files_per_folder,
                "compress": compress,
            }
            self._store(f"{self._path}/{_METADATA}", json.dumps(found).encode())
        if data_set is not None and len(data_set) != found["size"]:
            raise ValueError(
                f"CachedDataset: expected a dataset of {found['size']} samples, as the one cached "
                f"at {self._path} is, got one of {len(data_set)}"
            )
        self._size: int = found["size"]
        self._files_per_folder = found["max_files_per_folder"]
        self._compress = found["compress"]

    def _read_metadata(self) -> dict[str, Any] | None:
        try:
            content = gcsfs.read(f"{self._path}/{_METADATA}")
        except FileNotFoundError:
            return None
        try:
            metadata = json.loads(content)
            if metadata["version"] != _VERSION:
                raise ValueError(f"expected version {_VERSION}, got {metadata['version']}")
            for name, kind in (("size", int), ("max_files_per_folder", int), ("compress", bool)):
                if not isinstance(metadata[name], kind):
                    raise ValueError(f"expected `{name}` of type {kind.__name__}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"CachedDataset: {self._path}/{_METADATA} is corrupted or of another version: "
                f"{error!r}"
            ) from error
        return cast(dict[str, Any], metadata)

    def _store(self, path: str, content: bytes) -> None:
        if gcsfs._is_url(path):
            gcsfs.generic_write(content, path, makedirs=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # No sync: the checksum detects an entry that a crash of the machine left incomplete.
        with atomic_write(path, sync=False) as file:
            file.write(content)

    def _entry_path(self, index: int) -> str:
        folder, number = divmod(index, self._files_per_folder)
        return f"{self._path}/{folder:06d}/{number:06d}.pt"

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        if not -self._size <= index < self._size:
            raise IndexError(f"expected an index below {self._size}, got {index}")
        return self._load(index % self._size)

    def _load(self, index: int) -> Any:
        path = self._entry_path(index)
        try:
            return _decode(gcsfs.read(path), self._compress, self._weights_only)
        except FileNotFoundError as error:
            if self._data_set is None:
                raise FileNotFoundError(
                    f"CachedDataset: sample {index} is not cached ({path} is not there), and "
                    "there is no original dataset: run warmup() with one"
                ) from error
        except pickle.UnpicklingError as error:
            raise self._refused(index, error) from error
        except (ValueError, zlib.error, EOFError) as error:
            if self._data_set is None:
                raise RuntimeError(
                    f"CachedDataset: sample {index} is corrupted ({path}), and there is no "
                    f"original dataset to make it from: {error}"
                ) from error
        sample = self._data_set[index]
        entry = _encode(sample, self._compress)
        if not self._checked:  # The first one fails early if samples cannot be stored.
            try:
                _decode(entry, self._compress, True)
            except pickle.UnpicklingError as error:
                raise self._refused(index, error) from error
            self._checked = True
        self._store(path, entry)
        return sample

    def _refused(self, index: int, error: Exception) -> RuntimeError:
        return RuntimeError(
            f"CachedDataset: sample {index} ({self._entry_path(index)}) holds other objects than "
            "tensors, NumPy arrays and plain Python ones; give weights_only=False for a folder of "
            f"your own: {error}"
        )

    def missing(self) -> list[int]:
        """Returns the indices of the samples that are not cached, in order."""
        present = {blob.path.split("://")[-1] for blob in gcsfs.list(self._path)}
        if not gcsfs._is_url(self._path):
            root = os.path.abspath(self._path)
            present = {os.path.relpath(path, root) for path in present}
        else:
            root = self._path.split("://")[-1].strip("/") + "/"
            present = {path.strip("/").removeprefix(root) for path in present}
        prefix = len(self._path) + 1
        return [i for i in range(self._size) if self._entry_path(i)[prefix:] not in present]

    def warmup(self, num_workers: int = 0, verify: bool = False, progress: bool = True) -> None:
        """Stores every sample that is not yet there.

        Interrupted, it goes on where it was the next time.

        Args:
            num_workers: How many processes make samples; 0 makes them in this one.
            verify: Whether to read the samples that are there, too, and make corrupted ones anew.
            progress: Whether to show a progress bar.

        Raises:
            FileNotFoundError: Samples are missing and there is no original dataset.
            Exception: What making a sample raised.
        """
        from tqdm import tqdm  # type: ignore[import-untyped]

        todo = list(range(self._size)) if verify else self.missing()
        loader = DataLoader(_Warmup(self, todo), batch_size=None, num_workers=num_workers)
        with tqdm(
            desc=f"Caching to {self._path}",
            total=self._size,
            initial=self._size - len(todo),
            disable=not progress,
            unit="samples",
        ) as bar:
            for _ in loader:
                bar.update()


class _Warmup(Dataset[int]):
    """Makes the samples of a cached dataset, and returns nothing of them."""

    def __init__(self, cached: CachedDataset, indices: list[int]) -> None:
        self._cached = cached
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> int:
        self._cached[self._indices[position]]
        return 0
