"""Files in Google Cloud Storage, on local disks, and wherever fsspec reaches.

Every function takes a ``gs://BUCKET_NAME/PATH`` URL, a local path, or an URL of another file
system that fsspec knows (``s3://``, ``memory://``, ...). Credentials, retries and caches are those
of the fsspec implementation: for ``gs://`` that is the package gcsfs, which tries again when a
connection breaks or the server is busy.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import io
import os
import re
from collections.abc import Iterator
from typing import IO, Any, cast

import fsspec  # type: ignore[import-untyped]
import fsspec.core  # type: ignore[import-untyped]

from torch_xla._internal.files.atomic_file import atomic_write

_GCS_PREFIX = "gs://"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "abfs": "adlfs", "az": "adlfs"}


@dataclasses.dataclass(frozen=True)
class GcsBlob:
    """A file.

    Attributes:
        path: Its URL, or its local path.
        size: Its size in bytes.
        mtime_ns: When it was last written, in nanoseconds since 1970 (UTC); None where the file
            system does not tell.
        isdir: Whether it is a folder.
    """

    path: str
    size: int
    mtime_ns: int | None = None
    isdir: bool = False


def is_gcs_path(path: str | os.PathLike[str]) -> bool:
    """Returns whether ``path`` is one in Google Cloud Storage: whether it begins with ``gs://``."""
    return os.fspath(path).startswith(_GCS_PREFIX)


def _is_url(path: str) -> bool:
    return _URL.match(path) is not None


def _file_system(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Returns the file system of ``path`` and its path there."""
    url = os.fspath(path)
    if is_gcs_path(url) and not url.removeprefix(_GCS_PREFIX).split("/")[0]:
        raise ValueError(f'expected a path "gs://BUCKET_NAME/PATH", got "{url}"')
    try:
        fs, name = fsspec.core.url_to_fs(url)
        return fs, name
    except ImportError as error:
        scheme = url.split("://")[0]
        package = _PACKAGES.get(scheme, f"the fsspec implementation of {scheme}://")
        raise ImportError(
            f'the path "{url}" needs the package {package}: pip install {package}'
            if scheme in _PACKAGES
            else f'the path "{url}" needs {package}: {error}'
        ) from error


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Makes a FileNotFoundError name the path that the user knows."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename == os.fspath(path):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from error


def _blob(fs: Any, path: str, info: dict[str, Any]) -> GcsBlob:
    mtime: Any = info.get("mtime") or info.get("updated") or info.get("LastModified")
    if isinstance(mtime, str):
        import datetime

        mtime = datetime.datetime.fromisoformat(mtime)
    if hasattr(mtime, "timestamp"):
        mtime = mtime.timestamp()
    return GcsBlob(
        path=fs.unstrip_protocol(info["name"]) if _is_url(path) else info["name"],
        size=info["size"] or 0,
        mtime_ns=None if mtime is None else int(mtime * 1e9),
        isdir=info["type"] == "directory",
    )


class _Writer:
    """A remote file being written, which does not come to be where its ``with`` block raises.

    The files of fsspec send what they have in that case, too.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._discarded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        return len(data) if self._discarded else self._file.write(data)

    def close(self) -> None:
        if not self._discarded:
            self._file.close()

    def discard(self) -> None:
        self._discarded = True
        self._file.closed = True  # Keeps the finalizer from sending it.
        if hasattr(self._file, "discard"):
            self._file.discard()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.discard()


class _TextWriter(io.TextIOWrapper):
    buffer: _Writer

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            self.buffer.discard()
        self.close()


def open(path: str | os.PathLike[str], mode: str = "r", encoding: str | None = None) -> IO[Any]:
    """Opens a file for reading or writing.

    What is written to an object store appears there, whole, when the file is closed; when a
    ``with`` block raises, nothing does.

    Args:
        path: The path.
        mode: As for the built-in ``open``: ``"r"``, ``"rb"``, ``"w"``, ...
        encoding: How text is encoded in text modes; UTF-8 when None.

    Raises:
        FileNotFoundError: The file, or its bucket, does not exist.
    """
    fs, name = _file_system(path)
    if "b" in mode:
        if not _is_url(os.fspath(path)):
            return builtins.open(name, mode)
        with _naming(path):
            file = fs.open(name, mode)
            return cast(IO[Any], _Writer(file) if "w" in mode else file)
    raw = open(path, mode.replace("t", "") + "b")
    kind = _TextWriter if isinstance(raw, _Writer) else io.TextIOWrapper
    return kind(raw, encoding=encoding or "utf-8")


def list(path: str | os.PathLike[str]) -> builtins.list[GcsBlob]:
    """Lists the files at a path, at any depth.

    Args:
        path: A bucket, a folder, a file, or a pattern with ``*``, ``?`` or ``**``.

    Returns:
        The files (no folders), in the order of their paths; none where nothing is there.
    """
    fs, name = _file_system(path)
    fs.invalidate_cache()
    if fsspec.core.has_magic(name):
        found = fs.glob(name, detail=True)
    else:
        try:
            found = fs.find(name, detail=True)
        except FileNotFoundError:
            found = {}
    files = [info for _, info in sorted(found.items()) if info["type"] != "directory"]
    return [_blob(fs, os.fspath(path), info) for info in files]


def stat(path: str | os.PathLike[str]) -> GcsBlob:
    """Returns what is known of a file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    fs, name = _file_system(path)
    fs.invalidate_cache()
    with _naming(path):
        return _blob(fs, os.fspath(path), fs.info(name))


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    fs, name = _file_system(path)
    with _naming(path):
        fs.rm_file(name)


def rmtree(path: str | os.PathLike[str]) -> None:
    """Removes all files of a folder, or those that match a pattern; none is no error.

    Args:
        path: A folder, a file, or a pattern with ``*``, ``?`` or ``**``.
    """
    fs, name = _file_system(path)
    fs.invalidate_cache()
    pattern = fsspec.core.has_magic(name)
    for target in fs.glob(name) if pattern else [name] if fs.exists(name) else []:
        fs.rm(target, recursive=True)


def read(path: str | os.PathLike[str]) -> bytes:
    """Returns the whole content of a file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    with open(path, "rb") as file:
        return cast(bytes, file.read())


def write(path: str | os.PathLike[str], content: str | bytes | IO[Any]) -> None:
    """Writes a file. What was there stays unless all of it is written.

    Args:
        path: The path.
        content: Text (written as UTF-8), bytes, or a file object that is read to its end.

    Raises:
        OSError: The file cannot be written, for one because its folder (or bucket) is missing.
        TypeError: ``content`` is nothing of that.
    """
    # An object store already does what atomic_write does for local files.
    is_url = _is_url(os.fspath(path))
    with open(path, "wb") if is_url else atomic_write(path, sync=False) as file:
        if hasattr(content, "read"):
            while chunk := content.read(1 << 20):
                file.write(chunk.encode() if isinstance(chunk, str) else chunk)
        elif isinstance(content, str):
            file.write(content.encode())
        elif isinstance(content, (bytes, bytearray, memoryview)):
            file.write(content)
        else:
            raise TypeError(
                "gcsfs.write(): expected `content` to be a str, bytes or a file object, got "
                f"{type(content).__name__}"
            )


def generic_open(
    path: str | os.PathLike[str], mode: str = "r", encoding: str | None = None
) -> IO[Any]:
    """Opens a file, in Google Cloud Storage or not: see :func:`open`, which does the same.

    Args, Returns and Raises are those of :func:`open`.
    """
    return open(path, mode, encoding)


def generic_read(path: str | os.PathLike[str]) -> bytes:
    """Returns the whole content of a file, in Google Cloud Storage or not: see :func:`read`.

    Args, Returns and Raises are those of :func:`read`.
    """
    return read(path)


def generic_write(
    output_string: str | bytes | IO[Any], path: str | os.PathLike[str], makedirs: bool = False
) -> None:
    """Writes a file, in Google Cloud Storage or not.

    Args:
        output_string: What is written, as for :func:`write`.
        path: The path.
        makedirs: Whether to make the folders above it where they are missing.

    Raises:
        OSError, TypeError: As :func:`write`.
    """
    if makedirs:
        fs, name = _file_system(path)
        parent = fs._parent(name)
        if parent and not is_gcs_path(path):  # Google Cloud Storage has no folders.
            fs.makedirs(parent, exist_ok=True)
    write(path, output_string)
