"""A cache of compiled programs in a remote folder (``gs://``, ``s3://``, …), through fsspec.

The process works with a local mirror. What the remote folder has is copied to it when the process
starts and every few seconds, and what the process compiled goes the other way then and at its end:
the first host of a cluster compiles for all. Entries never change: their names are hashes of what
they were made of.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal.files.atomic_file import atomic_write

_NAME = re.compile(r"[0-9a-f]{32}\.(program|record)")
_MAGIC = b"XLAprog1"  # The bytes that an entry begins with; see csrc/exec/disk_cache.cpp.
_SECONDS = 5.0


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL of an fsspec file system."""
    return "://" in path


class Mirror:
    """A remote folder and its local mirror."""

    def __init__(self, url: str, read_only: bool) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                f"compiled programs in {url}: pip install fsspec, and its package for that place"
            ) from error
        self._files: Any
        self._files, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
        self.url, self._read_only = url, read_only
        name = f"remote-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        # Without a home folder each process has its own mirror.
        self.folder = Path(_XLAC._xla_user_cache_folder() or tempfile.mkdtemp()) / name
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._there: set[str] = set()  # in the remote folder, as far as is known
        self._lock = threading.Lock()
        self._told = False

    def _local(self) -> set[str]:
        return set(filter(_NAME.fullmatch, os.listdir(self.folder)))

    def _pull(self) -> None:
        self._files.invalidate_cache()
        found = self._files.ls(self._root, detail=False) if self._files.exists(self._root) else []
        self._there = set(filter(_NAME.fullmatch, map(os.path.basename, found)))
        for name in sorted(self._there - self._local()):
            data = self._files.cat_file(f"{self._root}/{name}")
            with atomic_write(self.folder / name, sync=False) as file:
                file.write(data)

    def _push(self) -> None:
        missing = sorted(self._local() - self._there)
        if missing:
            self._files.makedirs(self._root, exist_ok=True)
        for name in missing:
            try:
                data = (self.folder / name).read_bytes()
            except FileNotFoundError:  # The cache has evicted it meanwhile.
                continue
            # An object store shows a file only when it is whole. Elsewhere use another name until
            # then.
            temporary = f"{self._root}/{name}.{os.getpid()}.tmp"
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, f"{self._root}/{name}")
            self._there.add(name)

    def exchange(self) -> None:
        """Copies the entries that either side lacks; warns once if that fails."""
        with self._lock:
            try:
                self._pull()
                if not self._read_only:
                    self._push()
            except Exception as error:  # A failure of the network must not end a training.
                if not self._told:
                    self._told = True
                    print(f"torch_xla: compiled programs in {self.url}: {error}", file=sys.stderr)

    def clear(self) -> int:
        """Removes the entries of both folders; returns how many the local one had."""
        with self._lock:
            self._pull()
            for name in sorted(self._there):
                path = f"{self._root}/{name}"
                if self._files.cat_file(path, start=0, end=len(_MAGIC)) == _MAGIC:
                    self._files.rm_file(path)
            self._there = set()
            return _XLAC._xla_clear_cache_folder(str(self.folder))


_mirror: Mirror | None = None
_stop = threading.Event()


def _keep_exchanging() -> None:
    while not _stop.wait(_SECONDS):
        if _mirror is not None:
            _mirror.exchange()


def _finish() -> None:
    _stop.set()
    if _mirror is not None:
        if _XLAC._xla_is_initialized():
            _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
            _XLAC._xla_flush_cache()
        _mirror.exchange()


def attach(url: str, read_only: bool) -> str:
    """Begins to use a remote folder; returns its local mirror for the runtime.

    Raises:
        ImportError: fsspec, or its package for that kind of place, is not installed.
    """
    global _mirror
    first = _mirror is None
    _mirror = Mirror(url, read_only)
    _mirror.exchange()
    if first:
        atexit.register(_finish)
        threading.Thread(target=_keep_exchanging, name="torch_xla programs", daemon=True).start()
    return str(_mirror.folder)


def url_of(folder: str) -> str | None:
    """Returns the remote folder that a local one mirrors; None if it mirrors none."""
    return _mirror.url if _mirror is not None and str(_mirror.folder) == folder else None


def clear() -> int:
    """Removes the programs of the remote folder that this process uses; returns their number.

    Raises:
        OSError: The folder cannot be written or reached.
    """
    return _mirror.clear() if _mirror is not None else 0


def register() -> None:
    """Attaches, at import, a remote folder that ``XLA_PERSISTENT_CACHE_PATH`` names."""
    from torch_xla._internal import variables

    path = variables.ALL["XLA_PERSISTENT_CACHE_PATH"].value()
    if is_remote(path):
        read_only = variables.is_on("XLA_PERSISTENT_CACHE_READ_ONLY")
        _XLAC._xla_initialize_cache(attach(path, read_only), read_only)
