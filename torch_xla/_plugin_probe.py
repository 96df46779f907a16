"""The child process of torch_xla.plugin_check: uses a plugin and tells of each call of it.

The functions of the plugin's own table are replaced, before the runtime reads it, by ones that
pass the call on and write a line where a function is called for the first time (``B name``),
succeeds (``E name``) or fails (``F name message``). A crash thus leaves the name behind. Of what
was tried it writes ``T ok name`` or ``T failed name: message``, and behind all of it ``D``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from torch_xla._internal.plugins import platform_choice
from torch_xla._internal.plugins.functions import FUNCTIONS

_TABLE = 40  # bytes in front of the first function: sizes, extensions, version
_PROT_READ_WRITE = 3


class _ErrorMessage(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_size_t),
    ]


class _Extension(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
    ]


_CALL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

# Keeps the functions alive that the plugin's table now points to.
_kept: list[Any] = []


def _say(*words: str) -> None:
    os.write(1, (" ".join(words).replace("\n", " ") + "\n").encode())


def _watch(library: str) -> None:
    get_api = ctypes.CDLL(library).GetPjrtApi
    get_api.restype = ctypes.c_void_p
    start = get_api()
    size = ctypes.c_size_t.from_address(start).value
    version = (ctypes.c_int * 2).from_address(start + 32)
    _say("V", f"{version[0]}.{version[1]}")
    extension = ctypes.c_void_p.from_address(start + 8).value
    while extension:
        found = _Extension.from_address(extension)
        _say("X", str(found.type))
        extension = found.next

    # The table may be constant data, so make its pages writable.
    page = os.sysconf("SC_PAGE_SIZE")
    first = start // page * page
    ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(first), ctypes.c_size_t(start + size - first), _PROT_READ_WRITE
    )

    def address(slot: int) -> int:
        offset = _TABLE + 8 * slot
        return ctypes.c_void_p.from_address(start + offset).value or 0 if offset < size else 0

    message_of = _CALL(address(1)) if address(1) else None

    def text(error: int) -> str:
        if message_of is None:
            return "an error without a message"
        arguments = _ErrorMessage(ctypes.sizeof(_ErrorMessage), None, error)
        message_of(ctypes.addressof(arguments))
        return ctypes.string_at(arguments.message, arguments.message_size).decode(errors="replace")

    def watched(name: str, function: int, returns_error: bool) -> Any:
        call = _CALL(function)
        told = {"B": False, "E": False, "F": False}

        def tell(kind: str, *words: str) -> None:
            if not told[kind]:
                told[kind] = True
                _say(kind, name, *words)

        def passed_on(arguments: int | None) -> int | None:
            tell("B")
            error: int | None = call(arguments)
            if returns_error and error:
                tell("F", text(error))
                return error
            tell("E")
            return None

        return _CALL(passed_on)

    for slot, name, _ in FUNCTIONS:
        if not (function := address(slot)):
            _say("M", name)
            continue
        callback = watched(name, function, slot > 1)
        _kept.append(callback)
        pointer = ctypes.cast(callback, ctypes.c_void_p)
        ctypes.c_void_p.from_address(start + _TABLE + 8 * slot).value = pointer.value


def _tries() -> dict[str, Callable[[], None]]:
    """The things to try, in this order."""
    import torch

    import torch_xla
    from torch_xla import _XLAC
    from torch_xla.core import xla_model as xm
    from torch_xla.library import stablehlo

    host = torch.arange(12, dtype=torch.float32).reshape(3, 4)

    def same(got: torch.Tensor, expected: torch.Tensor) -> None:
        if not torch.equal(got.cpu(), expected):
            raise RuntimeError(f"expected {expected.tolist()}, got {got.cpu().tolist()}")

    def client() -> None:
        if not torch_xla.device_count():
            raise RuntimeError("it has no device")

    def arrays() -> None:
        for dtype in (torch.float32, torch.int32, torch.bool, torch.bfloat16, torch.uint8):
            same(host.to(dtype).to("xla"), host.to(dtype))
        same(host.t().to("xla"), host.t())

    def program() -> None:
        x = host.to("xla")
        same((x @ x.t() + 1).sum(), (host @ host.t() + 1).sum())
        torch_xla.sync(wait=True)

    def in_place() -> None:
        x = host.to("xla")
        torch_xla.sync(wait=True)
        for _ in range(3):
            x.add_(1)
            torch_xla.sync()
        same(x, host + 3)

    def copies() -> None:
        x = host.to("xla")
        torch_xla.sync(wait=True)
        y = x.clone()
        x.add_(1)
        torch_xla.sync(wait=True)
        same(y, host)
        if torch_xla.device_count() > 1:
            same(x.to("xla:1"), host + 1)

    def refused() -> None:
        x = host.to("xla")
        wrong = "func.func @f(%x: tensor<3x4xf32>) -> tensor<3x4xf32> { return %nothing : nothing }"
        try:
            stablehlo(wrong, x)
            torch_xla.sync(wait=True)
        except (ValueError, RuntimeError):
            return
        raise RuntimeError("it compiled a program that is none")

    def memory() -> None:
        xm.get_memory_info("xla:0")

    def insight() -> None:
        for compiled in _XLAC._xla_compiled_programs():
            for ask in (compiled.memory, compiled.costs, compiled.optimized, compiled.serialized):
                ask()

    def shared() -> None:
        x = host.to("xla")
        torch_xla.sync(wait=True)
        same(torch.utils.dlpack.from_dlpack(x), host)
        same(torch_xla.utils.dlpack.from_dlpack(host.clone()), host)

    return {
        "a client with devices": client,
        "arrays there and back": arrays,
        "a program": program,
        "programs that overwrite their inputs": in_place,
        "copies": copies,
        "a refused program": refused,
        "figures of device memory": memory,
        "figures of programs": insight,
        "arrays shared by DLPack": shared,
    }


def main() -> None:
    """Its arguments: the library, and the options of its client as JSON."""
    library, options = sys.argv[1], json.loads(sys.argv[2])
    _watch(library)
    import torch_xla  # noqa: F401
    from torch_xla import _XLAC

    _XLAC._xla_add_plugin(platform_choice.platform(), library, options)
    for name, attempt in _tries().items():
        _say("S", name)
        try:
            attempt()
        except Exception as error:
            _say("T", "failed", name + ":", f"{error}" or type(error).__name__)
            if name == "a client with devices":
                break
        else:
            _say("T", "ok", name)
    _say("D")
    # The functions in the plugin's table end with the interpreter, so exit at once.
    os._exit(0)


if __name__ == "__main__":
    main()
