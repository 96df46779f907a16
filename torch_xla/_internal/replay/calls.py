"""The calls of a recorded function: which code runs, and calls that no guard covers.

A clock, a print, a file, another thread: what they give or leave behind is not in the objects that
guards.py looks at, so a call that comes to one of them is traced.
"""

from __future__ import annotations

import dis
import functools
import gc
import io
import logging
import os
import sys
import sysconfig
import types
import weakref
from typing import Any

import torch

# Code of these packages reads no state of its modules except what the guards check elsewhere.
_TRUSTED = ("torch", "torch_xla", "torchgen", "numpy", "typing_extensions")
_STDLIB = tuple(
    {os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib")}
)

# By module: built-in functions that return something else each time, or have side effects.
_UNSEEN = {
    "builtins": {"print", "input", "open", "breakpoint"},
    "_io": {"open", "open_code"},
    "_thread": {"start_new_thread", "start_joinable_thread"},
    "sys": {"settrace", "setprofile"},
    "torch": {"get_num_threads", "get_num_interop_threads"},
    "torch._C": {"_set_multithreading_enabled"},
}
# Modules whose functions all do that, except for the functions here, which only compute.
_OUTSIDE: dict[str, set[str]] = {
    "posix": {"fspath", "cpu_count", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"},
    "time": set(),
    "resource": set(),
    "fcntl": set(),
    "signal": set(),
    "select": set(),
    "syslog": set(),
    "_posixsubprocess": set(),
    "_socket": set(),
    "_uuid": set(),
}
# Methods that observe what others did, or that keep count.
_UNSEEN_METHODS = {"write", "writelines", "read", "readline", "now", "utcnow", "today"}
# Modules of the standard library that work with other threads and processes.
_OF_OTHERS = ("asyncio", "concurrent", "multiprocessing", "subprocess")


_LRU_CACHE = type(functools.lru_cache(len))
# Classes whose methods' code is checked, wherever the code comes from.
_WATCHED = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    logging.Logger,
)


@functools.lru_cache(maxsize=4096)
def file_family(file: str) -> str:
    """Returns ``"user"``, ``"library"`` or ``"trusted"`` for the file of some code."""
    if file.startswith("<frozen"):
        return "trusted"
    path = os.path.realpath(file)
    for package in ("torch", "torch_xla"):
        folder = os.path.dirname(str(sys.modules[package].__file__))
        if path.startswith(os.path.realpath(folder) + os.sep):
            return "trusted"
    position = path.rfind("site-packages" + os.sep)
    if position >= 0:
        package = path[position + len("site-packages" + os.sep) :].split(os.sep)[0]
        return "trusted" if package.removesuffix(".py") in _TRUSTED else "library"
    return "trusted" if path.startswith(_STDLIB) else "user"


def family(code: types.CodeType) -> str:
    """Returns who wrote a piece of code: ``"user"``, ``"library"`` or ``"trusted"``."""
    return file_family(code.co_filename)


@functools.lru_cache(maxsize=4096)
def _place_in_stdlib(file: str) -> str | None:
    """Returns which file of the standard library it is, ``concurrent/futures/thread.py``."""
    if file.startswith("<frozen"):
        return file[len("<frozen ") : -1]
    path = os.path.realpath(file)
    for folder in _STDLIB:
        if path.startswith(folder) and not path.startswith(folder + "site-packages"):
            return path[len(folder) :]
    return None


def _asked_by_pytorch(frame: types.FrameType | None) -> bool:
    """Returns whether code is PyTorch's, or the standard library's and called by PyTorch."""
    while frame is not None and _place_in_stdlib(frame.f_code.co_filename) is not None:
        frame = frame.f_back
    return frame is None or family(frame.f_code) == "trusted"


class Calls:
    """Watches the calls within a block, on this thread.

    Attributes:
        code: All code that ran, with the globals that it sees. Equal code of two modules is two.
        objects: Weak references to modules, optimizers, schedulers and loggers whose methods ran.
        refusal: Why the block cannot be replayed; empty if it can.
        backward: Whether a backward pass ran.
        events: The optimizers and schedulers that stepped, in order.
    """

    def __init__(self) -> None:
        self.code: dict[tuple[types.CodeType, int], dict[str, Any]] = {}
        self.objects: dict[int, weakref.ref[Any]] = {}
        self.events: list[Any] = []
        self._scheduler: types.FrameType | None = None
        self.refusal = ""
        self.backward = False
        self._started: set[int] = set()

    def __enter__(self) -> Calls:
        self._random = self._random_states()
        # Hooks on other threads could not be seen.
        self._has_threads = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        # Finalizers and the collector's callbacks are not calls of the block.
        self._collects = gc.isenabled()
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(self._before)
        torch._C._set_multithreading_enabled(self._has_threads)
        if self._collects:
            gc.enable()
        self.objects = {key: one for key, one in self.objects.items() if one() is not None}
        for name, before, now in zip(
            ("random", "torch's CPU generator", "numpy.random"),
            self._random,
            self._random_states(),
            strict=True,
        ):
            if before != now and not self.refusal:
                self.refusal = f"it draws random numbers from {name}, on the host"

    @staticmethod
    def _random_states() -> list[Any]:
        states: list[Any] = []
        module = sys.modules.get("random")
        states.append(module.getstate() if module else None)
        states.append(torch.default_generator.get_state().numpy().tobytes())
        module = sys.modules.get("numpy.random")
        if module is None:
            states.append(None)
        else:
            state = module.get_state()
            states.append((state[1].tobytes(), *state[2:]))
        return states

    def _event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_flags & 0x2A0:  # Was this generator or coroutine started outside?
                if frame.f_lasti > _first_instructions(code) and id(frame) not in self._started:
                    self._refuse(frame, f"resumes {code.co_name}, which was begun outside of it")
                self._started.add(id(frame))
            if code.co_name == "backward" and code.co_filename.endswith("autograd/__init__.py"):
                self.backward = True
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = frame.f_locals.get("self")
                if isinstance(owner, _WATCHED):
                    self.objects[id(owner)] = weakref.ref(owner)
                    if code.co_name == "step":
                        self._step(frame, owner)
            if (
                key := (code, id(frame.f_globals))
            ) not in self.code and code.co_filename != __file__:
                self.code[key] = frame.f_globals
            place = _place_in_stdlib(code.co_filename)
            if place is not None and (
                place.startswith(_OF_OTHERS) or code.co_name == "import_module"
            ):
                if not _asked_by_pytorch(frame):
                    self._refuse(frame, f"calls {code.co_name}() of {place.split(os.sep)[0]}")
        elif event == "c_call":
            module: Any = getattr(arg, "__module__", None)
            name = getattr(arg, "__name__", "")
            owner = getattr(arg, "__self__", None)
            if name in _UNSEEN.get(module, ()) or name not in _OUTSIDE.get(module, (name,)):
                if name in ("print", "input", "open") or not _asked_by_pytorch(frame):
                    self._refuse(frame, f"calls {name}()")
            elif name in _UNSEEN_METHODS and isinstance(owner, io.IOBase):
                self._refuse(frame, f"calls {type(owner).__name__}.{name}()")
            elif name in _UNSEEN_METHODS and isinstance(owner, type):
                if owner.__module__ == "datetime":
                    self._refuse(frame, f"calls {owner.__name__}.{name}()")
            elif name == "cache_info" and isinstance(owner, _LRU_CACHE):
                self._refuse(frame, "asks a cache how often it was of use")
            elif name == "initial_seed" and isinstance(owner, torch.Generator):
                self._refuse(frame, "asks for the seed of a generator")
        elif event == "return" and frame is self._scheduler:
            self._scheduler = None

    def _step(self, frame: types.FrameType, owner: Any) -> None:
        if isinstance(owner, torch.optim.Optimizer):
            self.events.append(owner)
        elif isinstance(owner, torch.optim.lr_scheduler.LRScheduler) and self._scheduler is None:
            self._scheduler = frame  # Schedulers that it steps itself do not count.
            self.events.append(owner)
            given = [name for name in frame.f_locals if name not in ("self", "__class__")]
            if any(frame.f_locals[name] is not None for name in given):
                self._refuse(frame, "steps a scheduler with an argument")

    def _refuse(self, frame: types.FrameType | None, what: str) -> None:
        if self.refusal:
            return
        while frame is not None and family(frame.f_code) == "trusted":
            frame = frame.f_back
        where = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        self.refusal = f"it {what}{where}"


@functools.lru_cache(maxsize=1024)
def _first_instructions(code: types.CodeType) -> int:
    """Returns the offset up to which a generator has not begun to run."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            return instruction.offset
    return 0
