"""Files that appear whole or not at all, whenever the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import tempfile
from collections.abc import Iterator
from typing import IO


def sync_directory(path: str) -> None:
    """Makes the names in directory ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(prefix: str) -> None:
    """Removes what writers that were killed left behind: files that nobody has locked."""
    for path in glob.glob(glob.escape(prefix) + "*.tmp"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], sync: bool = True) -> Iterator[IO[bytes]]:
    """Gives a binary file that takes the place of ``path`` when the block ends.

    Until then the bytes go to a temporary file beside it. A process that is killed leaves the
    old file or the new one; when the block raises, the old one stays. A temporary file that a
    killed process left is removed by the next write to the same path.

    Args:
        path: The local path of the file.
        sync: Whether to wait until the bytes are on the disk, so that the same holds for a
            machine that loses its power.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):  # Such as a pipe or /dev/null.
        with open(path, "wb") as file:
            yield file
        return
    directory, name = os.path.split(path)
    prefix = os.path.join(directory, f".{name}.")
    if sync:  # Thousands of small files are written without sync; do not search for each.
        _remove_leftovers(prefix)
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{name}.", directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(file.fileno(), 0o666 & ~umask)  # mkstemp allows the owner only
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_directory(directory)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes all of a file, by :func:`atomic_write`, without waiting for the disk."""
    with atomic_write(path, sync=False) as file:
        file.write(content.encode() if isinstance(content, str) else content)
