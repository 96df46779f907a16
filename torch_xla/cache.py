"""The cache of compiled programs on disk: ``python -m torch_xla.cache``.

``ls`` lists its entries, ``info`` sums them up, ``verify`` checks all of them, ``clear`` removes
them and nothing else of the folder, and ``warm SCRIPT [ARGS...]`` runs a script so that the next
run finds its programs.
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import shutil
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from torch_xla import _XLAC, runtime
from torch_xla._internal.files import remote_cache
from torch_xla.debug import metrics


class Entry(NamedTuple):
    """A compiled program, the record that tells which one a graph became, or that a plugin takes
    its programs back."""

    path: str
    bytes: int
    last_use: float
    key: builtins.bytes
    content: builtins.bytes  # of records

    @property
    def is_damaged(self) -> bool:
        """Whether the entry is damaged; the next use makes it anew."""
        return not self.key

    @property
    def platform(self) -> str:
        """The platform that the program is for."""
        for line in self.key.split(b"\n"):
            if line.startswith((b"plugin: ", b"platform: ")):
                return line.split(b" ")[1].decode()
        return "?"

    @property
    def program(self) -> builtins.bytes:
        """The hash of a program's text, or of the one that a record names; empty for neither."""
        if self.key.startswith(b"record: "):
            return self.content.split(b"\n")[0]
        first = self.key.split(b"\n")[0]
        return first.removeprefix(b"program: ") if first.startswith(b"program: ") else b""

    @property
    def cause(self) -> str:
        """Where a record's graph was asked for first, "torch_xla.sync() at train.py:12"."""
        return b" ".join(self.content.split(b"\n")[2:]).decode(errors="replace")


def folder() -> str | None:
    """Returns the folder of this process's cache, None if it has none."""
    settings = _XLAC._xla_cache_settings()
    return settings[0] if settings else None


def entries(path: str, check: bool = False) -> list[Entry]:
    """Returns the entries of a folder, those that were not used for the longest time first.

    Args:
        path: The folder.
        check: Whether to read them whole, so that all that are damaged are known.
    """
    if not os.path.isdir(path):
        return []
    return [Entry(*item) for item in _XLAC._xla_cache_entries(path, check)]


def flush() -> None:
    """Waits until all that this process has compiled is in the folder.

    A thread puts it there while programs run. The end of the process waits for it, but not one by
    ``os._exit``.
    """
    _XLAC._xla_flush_cache()


def clear(path: str) -> int:
    """Removes all entries of a folder, and of the remote one that it stands for.

    What a GPU's compiler found out about its kernels goes with them. Files of others stay.
    """
    flush()
    if remote_cache.url_of(path):
        removed = remote_cache.clear()
    else:
        removed = _XLAC._xla_clear_cache_folder(path)
    shutil.rmtree(os.path.join(path, "tunings.XLAprog1"), ignore_errors=True)
    return removed


def _ls(path: str) -> int:
    found = entries(path)
    causes = {entry.program: entry.cause for entry in found if entry.cause}
    for entry in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.last_use))
        kind = "damaged" if entry.is_damaged else entry.platform
        size = _XLAC._bytes_text(entry.bytes)
        cause = causes.get(entry.program, "")
        print(f"{when}  {size:>10}  {kind:8}  {os.path.basename(entry.path)}  {cause}".rstrip())
    return 0


def _info(path: str) -> int:
    found = entries(path)
    settings = _XLAC._xla_cache_settings()
    url = remote_cache.url_of(path)
    print(f"folder:   {path}{f', for {url}' if url else ''}")
    print(f"entries:  {len(found)}")
    print(f"size:     {_XLAC._bytes_text(sum(entry.bytes for entry in found))}")
    if settings and settings[0] == path:
        print(f"at most:  {_XLAC._bytes_text(settings[2])}{', read only' if settings[1] else ''}")
    return 0


def _verify(path: str) -> int:
    found = entries(path, check=True)
    damaged = [entry for entry in found if entry.is_damaged]
    for entry in damaged:
        print(f"damaged: {entry.path}")
    print(f"{len(found) - len(damaged)} of {len(found)} entries are whole")
    return 1 if damaged else 0


def _clear(path: str) -> int:
    print(f"removed {clear(path)} entries")
    return 0


def _warm(command: Sequence[str]) -> int:
    sys.argv = list(command)
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:  # It may end with sys.exit().
        _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
        flush()
        for name in ("PersistentCacheHit", "PersistentCacheMiss", "PersistentCacheWrite"):
            print(f"{name}: {metrics.counter_value(name) or 0}", file=sys.stderr)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_xla.cache", description=__doc__)
    parser.add_argument("--folder", help="instead of this process's own")
    commands = parser.add_subparsers(dest="command", required=True)
    plain = {"ls": _ls, "info": _info, "verify": _verify, "clear": _clear}
    for name in plain:
        commands.add_parser(name, aliases=["list"] if name == "ls" else [])
    plain["list"] = _ls
    warm = commands.add_parser("warm")
    warm.add_argument("script")
    warm.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    is_warm = options.command == "warm"
    if is_warm and not os.path.isfile(options.script):
        parser.error(f"there is no script {options.script}")
    given = os.path.expanduser(options.folder or "")
    if given and (is_warm or remote_cache.is_remote(given)):
        runtime.initialize_cache(given, readonly=not is_warm)
        given = ""  # From here on the folder is this process's, or the copy of a remote one.
    path = given or folder()
    if is_warm:
        if path is None:
            parser.error("there is no cache: XLA_PERSISTENT_CACHE_PATH is empty")
        return _warm([options.script, *options.args])
    if path is None:
        parser.error("there is no cache: XLA_PERSISTENT_CACHE_PATH is empty; --folder names one")
    try:
        status = plain[options.command](path)
        sys.stdout.flush()
    except BrokenPipeError:  # The reader has closed the pipe (`ls | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
