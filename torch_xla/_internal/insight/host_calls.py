"""Calls of Python functions by running programs, behind :func:`torch_xla.debug.print`.

The program copies the tensors into a queue and goes on; a thread takes them from there. On a
platform whose programs cannot call the host, and under SPMD, the tensors are read after the step
instead.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import functools
import hashlib
import itertools
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
import torch._higher_order_ops
import torch.fx
from torch._library.effects import EffectType

from torch_xla import _XLAC
from torch_xla._internal.compile import step, step_closures, tracing
from torch_xla._internal.insight import nan_search
from torch_xla._internal.replicas import replication, spmd_mode

_HostFunction = Callable[..., Any]
_F = TypeVar("_F", bound=Callable[..., Any])

# By number. A number is part of programs on disk, so no two functions of any processes may share
# it: the number of a text is its hash, and the number of a function is random.
_functions: dict[int, _HostFunction] = {}
_numbers: dict[_HostFunction, int] = {}
_lines: dict[tuple[Any, ...], int] = {}
_lock = threading.Lock()
_thread: threading.Thread | None = None
errors: list[BaseException] = []
_taken = 0
_modules: nan_search.ModuleScopes | None = None  # While programs search for NaN.
_progress = threading.Condition()
# Assertions that were not checked yet, where programs cannot call the host.
_unread: dict[int, tuple[int, list[torch.Tensor]]] = {}
_unread_lock = threading.RLock()  # Held while one is checked.
_of_thread = threading.local()  # Has `reads` while this thread checks an assertion.
_counter = itertools.count(int.from_bytes(os.urandom(7), "little"))


def _work() -> None:
    global _taken
    while (call := _XLAC._xla_next_host_call()) is not None:
        number, arrays = call
        try:
            function = _functions.get(number)
            if function is not None:
                function(*arrays)
            elif (found := _XLAC._xla_nan_of(number, int(arrays[0]))) is not None:
                nan_search.report(found, run=int(arrays[1]))
        except BaseException as error:  # The user's thread raises it.
            errors.append(error)
        finally:
            del call, arrays
            with _progress:
                _taken += 1
                _progress.notify_all()


def _start_thread() -> None:
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():  # A forked process does not have the thread.
            if _thread is None:
                atexit.register(_finish)
            _thread = threading.Thread(target=_work, name="torch_xla host calls", daemon=True)
            _thread.start()


def _constant_in_graphs(fn: _F) -> _F:
    """What torch.compiler.assume_constant_result does, which imports the whole of Dynamo."""
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn


@_constant_in_graphs
def _number_of_function(function: _HostFunction, asked_again: bool = False) -> int:
    with _lock:
        number = _numbers.get(function)
        if number is None:
            if asked_again:
                _refuse_copies(function)
            number = _numbers[function] = next(_counter)
            _functions[number] = function
        return number


@_constant_in_graphs
def _number_of_method(owner: Any, name: str) -> int:
    return _number_of_function(getattr(owner, name))


def _refuse_copies(function: _HostFunction) -> None:
    """Refuses a function that torch.compile makes anew, if it has copies of what it writes to."""
    held: list[Any] = [function]
    if isinstance(function, functools.partial):
        held += [function.func, *function.args, *function.keywords.values()]
    held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    kinds = list, dict, set, collections.deque, bytearray
    for value in held:
        if isinstance(owner := getattr(value, "__self__", value), kinds):
            raise TypeError(
                f"debug.callback(): torch.compile would give the function a copy of a "
                f"{type(owner).__name__}; define the function (def) outside of what is compiled"
            )


def _call(number: int, tensors: Sequence[torch.Tensor]) -> None:
    if torch.compiler.is_compiling():
        torch.ops.torch_xla.host_call(list(tensors), number)
    else:
        run(tensors, number)


def run(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Traces a call of the function of that number."""
    if not any(tensor.device.type == "xla" for tensor in tensors):
        _functions[number](*(tensor.detach() for tensor in tensors))
        return
    _start_thread()
    raise_error()
    if _can_call():
        _XLAC._xla_call_host(tensors, number)
        return
    if (what := tracing.traced()) is not None:
        raise RuntimeError(
            f"{what}: its function prints, asserts or calls back (torch_xla.debug), but programs "
            "under SPMD, and on platforms but the CPU, cannot call the host; return the tensor, "
            "and print it outside"
        )
    copies = [tensor.detach().clone() for tensor in tensors]
    if isinstance(_functions[number], _Assertion):
        _unread[key := next(_counter)] = number, copies
        step_closures.add_step_closure(_read_assertion, (key,), run_async=True)
        return
    step_closures.add_step_closure(_call_after_the_step, (number, copies), run_async=True)


def _read_assertion(key: int) -> None:
    """Checks an assertion, unless that was done: each read and the end of the step do so."""
    with _unread_lock:
        one = _unread.pop(key, None)
        if one is None:
            return
        _of_thread.reads = True
        try:
            _call_after_the_step(*one)
        except RuntimeError as error:
            errors.append(error)
        finally:
            del _of_thread.reads


def _read_assertions() -> None:
    with _unread_lock:
        if tensors := [tensor for _, tensors in _unread.values() for tensor in tensors]:
            _XLAC._xla_sync_multi(tensors, [], False)  # In a single program.
        for key in [*_unread]:
            _read_assertion(key)


def _call_after_the_step(number: int, tensors: Sequence[torch.Tensor]) -> None:
    """Reads the tensors and calls the function: once, or for each device of a manual region."""
    function = _functions[number]
    parts = [_parts(tensor) for tensor in tensors]
    if not any(parts):
        function(*(tensor.cpu() for tensor in tensors))
        return
    for device in range(_XLAC._xla_spmd_devices()):
        values = [
            part[device] if part else tensor.cpu()
            for part, tensor in zip(parts, tensors, strict=True)
        ]
        (function.of_device(device) if isinstance(function, _Line) else function)(*values)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What each device has of a value of a manual region; nothing for one that has a whole."""
    sharding = _XLAC._xla_sharding(tensor) if tensor.device.type == "xla" else None
    return _XLAC._xla_tiles(tensor) if sharding is not None and sharding.is_local else []


# The operator that torch.compile traces.
_library = torch.library.Library("torch_xla", "FRAGMENT")
_library.define("host_call(Tensor[] arrays, int number) -> ()")
_library.impl("host_call", run, "CompositeExplicitAutograd")
torch.library.register_fake("torch_xla::host_call", lambda arrays, number: None, lib=_library)
torch.library._register_effectful_op("torch_xla::host_call", EffectType.ORDERED)
torch.fx.node.has_side_effect(torch.ops.torch_xla.host_call.default)
# Operators in graphs of torch.compile that call the host.
OPERATORS = [
    torch.ops.torch_xla.host_call.default,
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._functional_assert_async.msg,
    *filter(None, [getattr(torch._higher_order_ops, "print", None)]),
]


def _can_call() -> bool:
    return bool(_XLAC._xla_can_call_host()) and not spmd_mode.is_on()


def raise_error(wait: bool = False) -> None:
    """Raises the oldest error of a function that was not raised yet, or stops at a breakpoint.

    Args:
        wait: Whether to wait for the calls of programs that have ended.
    """
    if wait:
        _drain()
        _read_assertions()
    while errors:
        error = errors.pop(0)
        if not isinstance(error, _Hit):
            raise error
        error.stop()


step.after_cut = raise_error


def raise_at_read() -> None:
    """Raises what an assertion raised in the programs that a read waited for, or is read for."""
    if threading.current_thread() is not _thread and not hasattr(_of_thread, "reads"):
        raise_error(wait=True)


def _check(what: str, tensors: Sequence[Any]) -> torch.device | None:
    """Returns the device of the tensors if it is xla, and None if all are elsewhere."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: expected tensors, got {type(tensor).__name__}")
    devices = {tensor.device for tensor in tensors if tensor.device.type == "xla"}
    if len(devices) > 1:
        raise ValueError(
            f"{what}: expected tensors of one xla device, got {sorted(devices, key=str)}"
        )
    return devices.pop() if devices else None


def callback(fn: _HostFunction, *tensors: torch.Tensor) -> None:
    """Calls ``fn`` with the values of tensors when the program that computes them runs.

    The call is part of the program: nothing is read here, and no other program runs. In a function
    that is traced once and runs many times (``scan``, ``torch_xla.compile``, ``torch.compile``)
    each run calls ``fn``. Calls of a device are made in their order, on a thread of their own.

    Pass the same function each time: each function that was passed is kept, with what it refers
    to, until the process ends.

    Args:
        fn: Takes CPU tensors of the values, as many as ``tensors``. Its result is ignored.
        tensors: Tensors of one xla device. If no tensor is on an xla device, ``fn`` is called
            at once.

    Raises:
        TypeError: An argument is no tensor, or ``fn`` cannot be called.
        ValueError: The tensors are on several xla devices.
        Exception: What an earlier call of a function raised.
    """
    if not callable(fn):
        raise TypeError(f"debug.callback(): expected a function, got {type(fn).__name__}")
    if not tensors:
        raise TypeError("debug.callback(): expected a tensor at least")
    if _check("debug.callback()", tensors) is None:
        fn(*(tensor.detach() for tensor in tensors))
        return
    is_compiling = torch.compiler.is_compiling()
    if is_compiling and isinstance(fn, types.MethodType):
        number = _number_of_method(fn.__self__, fn.__name__)
    else:
        number = _number_of_function(fn)
        if is_compiling:
            _number_of_function(fn, asked_again=True)
    _call(number, tensors)


class _Line:
    """A line to print, of which the values of tensors and numbers come later."""

    def __init__(self, text: str, prefix: str, names: Sequence[str | None], values: Sequence[Any]):
        self._text, self._prefix, self._names = text, prefix, names
        self._values = values  # _LATER stands for an array.

    def of_device(self, device: int) -> _Line:
        """The same line, which begins with a device."""
        return _Line(self._text, f"{self._prefix}[device {device}] ", self._names, self._values)

    def of(self, arrays: Sequence[torch.Tensor]) -> str:
        """The line, without the prefix."""
        rest = iter(arrays)
        values = [_number(next(rest)) if value is _LATER else value for value in self._values]
        pairs = list(zip(self._names, values, strict=True))
        return self._text.format(
            *(value for name, value in pairs if name is None),
            **{name: value for name, value in pairs if name is not None},
        )

    def __call__(self, *arrays: torch.Tensor) -> None:
        # A single write, so that the lines of two replicas do not mix.
        builtins.print(self._prefix + self.of(arrays) + "\n", end="", flush=True)


_LATER = object()


def _number(array: torch.Tensor) -> Any:
    return array.item() if array.dim() == 0 else array


def print(text: str, *values: Any, **named: Any) -> None:
    """Prints values of tensors when the program that computes them runs.

    The same as ``print(text.format(*values, **named))``, but the tensors are not read, the graph
    is not cut, and functions that are traced once print in each run (see :func:`callback`). Lines
    come in the order of the calls; :func:`flush` waits for them. A tensor of one element is
    formatted as a number. With several replicas each line begins with its replica.

    Example::

        torch_xla.debug.print("step {}: loss {:.3f}", step, loss)

    Args:
        text: A format string, as of :meth:`str.format`.
        values, named: Tensors of any shape, and other values, which are formatted as they are now.

    Raises:
        TypeError, ValueError, IndexError, KeyError: ``text`` is no format string for the values.
    """
    if not isinstance(text, str):
        raise TypeError(f"debug.print(): expected a format string, got {type(text).__name__}")
    given = [*values, *named.values()]
    arrays = [value for value in given if isinstance(value, torch.Tensor | int | float)]
    _check("debug.print()", [v for v in arrays if isinstance(v, torch.Tensor)])
    kinds = tuple(
        (value.dtype, value.dim())
        if isinstance(value, torch.Tensor)
        else type(value)
        if isinstance(value, int | float)
        else repr(value)
        for value in given
    )
    rest = tuple(
        None if isinstance(value, torch.Tensor | int | float) else value for value in given
    )
    number = _number_of_line(text, len(values), tuple(named), kinds, rest)
    _call(number, [v if isinstance(v, torch.Tensor) else _scalar(v) for v in arrays])


def _scalar(value: float) -> torch.Tensor:
    """A number of Python with all its bits."""
    dtype = torch.bool if isinstance(value, bool) else None
    if dtype is None:
        dtype = torch.int64 if isinstance(value, int) else torch.float64
    return torch.scalar_tensor(value, dtype=dtype)


@_constant_in_graphs
def _number_of_line(
    text: str,
    count: int,
    names: tuple[str, ...],
    kinds: tuple[Any, ...],
    rest: tuple[Any, ...],
) -> int:
    """The number of a line; ``kinds`` are of the tensors and numbers, ``rest`` all else."""
    key = (text, count, names, kinds)
    number = _lines.get(key)
    if number is not None:
        return number
    place = replication.topology()
    prefix = f"[replica {place.rank}] " if place.world_size > 1 else ""
    values = [
        value if isinstance(kind, str) else _LATER for kind, value in zip(kinds, rest, strict=True)
    ]
    line = _Line(text, prefix, [*[None] * count, *names], values)
    # Format once now, so that an error is raised at the user's call.
    line.of(
        [
            torch.zeros([1] * kind[1], dtype=kind[0])
            if isinstance(kind, tuple)
            else _scalar(kind())
            for kind in kinds
            if not isinstance(kind, str)
        ]
    )
    return number_of(key, line)


def number_of(key: tuple[Any, ...], function: _HostFunction) -> int:
    """The number of a function that does what ``key`` says, which follows from it."""
    if (known := _lines.get(key)) is not None:
        return known
    digest = hashlib.sha256(repr(key).encode()).digest()
    number = int.from_bytes(digest[:7], "little") | 1 << 60
    with _lock:
        if key in _lines:
            return _lines[key]
        while number in _functions:
            number += 1
        _functions[number] = function
        _lines[key] = number
    return number


def flush() -> None:
    """Runs what is traced, and waits until all lines are printed and all functions were called.

    This holds for all devices of the process.

    Raises:
        Exception: What a function raised.
    """
    default = _XLAC._xla_get_default_device()
    others = [device for device in _XLAC._xla_get_devices() if device != default]
    if others:
        _XLAC._xla_sync(others, True)
    step.sync(wait=True)
    step_closures.wait_for_asynchronous()
    raise_error()


def _user_line() -> str:
    """The innermost line of the calling thread outside of PyTorch and torch_xla."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN_FOLDERS):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


OWN_FOLDERS = (
    os.path.dirname(str(torch.__file__)) + os.sep,
    # In an editable installation the extension is not beside the package's files.
    os.path.dirname(str(sys.modules["torch_xla"].__file__)) + os.sep,
    "<eval_with_key>",  # A graph of torch.compile.
)


class _Hit(Exception):
    """A run in which the condition of a breakpoint held; no error."""

    def __init__(self, line: str, values: dict[str, Any]) -> None:
        super().__init__(f"torch_xla.debug.breakpoint_if() at {line}")
        self._values = values

    def stop(self) -> None:
        """Has the debugger stop in a frame with the values."""
        builtins.print(self, flush=True)
        exec("breakpoint()", self._values)


class _Breakpoint:
    def __init__(self, line: str, names: tuple[str, ...]) -> None:
        self._line, self._names = line, names

    def __call__(self, holds: torch.Tensor, *values: torch.Tensor) -> None:
        if holds.item():
            raise _Hit(self._line, dict(zip(self._names, values, strict=True)))


def breakpoint_if(condition: torch.Tensor, **values: torch.Tensor) -> None:
    """Stops in the debugger after a run of the program in which ``condition`` held.

    Nothing is read or cut here. The thread that traces stops at its next ``torch_xla.sync()``,
    :func:`flush` or call of ``torch_xla.debug``, in :func:`breakpoint`, which ``PYTHONBREAKPOINT``
    chooses. There the names of ``values`` are CPU tensors of what they were in that run. Each run
    in which the condition holds stops once.

    Example::

        torch_xla.debug.breakpoint_if(loss > 100, loss=loss, x=x)

    Args:
        condition: A tensor of one element.
        values: Tensors of the same device; they are copied in each run.

    Raises:
        TypeError, ValueError: An argument is no tensor, ``condition`` has not one element, or the
            tensors are on several xla devices.
    """
    tensors = [condition, *values.values()]
    _check("debug.breakpoint_if()", tensors)
    if condition.numel() != 1:
        shape = list(condition.shape)
        raise ValueError(f"debug.breakpoint_if(): expected one element, got the shape {shape}")
    _call(_number_of_breakpoint(tuple(values)), tensors)


@_constant_in_graphs
def _number_of_breakpoint(names: tuple[str, ...]) -> int:
    line = _user_line()
    return number_of(("breakpoint", line, names), _Breakpoint(line, names))


class _Assertion:
    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, holds: torch.Tensor) -> None:
        if not holds.item():
            raise RuntimeError(self._text)


def assert_async(tensor: torch.Tensor, message: str = "") -> None:
    """``torch._assert_async`` on the device: the next sync or read raises."""
    if tensor.numel() != 1:
        many = "more than one value" if tensor.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {many} is ambiguous")
    text = message or "Expected Tensor with single nonzero value, but got zero"
    text += f" (torch._assert_async() at {_user_line()})"
    run([tensor], number_of(("assertion", text), _Assertion(text)))
    _XLAC._xla_raise_at_reads(not _can_call())


def functional_assert_async(
    tensor: torch.Tensor, message: str, token: torch.Tensor
) -> torch.Tensor:
    """The same in a graph of ``torch.compile``, whose token orders it."""
    assert_async(tensor, message)
    return token.clone()


class find_nan:  # noqa: N801 (is used as a function)
    """Finds the operation that made a NaN first, while the block runs.

    Programs look at each result on the device and report the first operation that made a NaN of
    operands without any: its name, the user's line and those that called it, whether it is part of
    a backward pass, which run of its program it was, and the replica. Nothing is run one operation
    at a time, and nothing waits. Infinities are no fault here: masks have them.

    ``XLA_FIND_NAN=1`` does the same for the whole process, and writes each report to standard
    error. Both need a platform whose programs can call the host (``CPU``), and do not hold under
    SPMD. Programs are compiled again for the block.

    Example::

        with torch_xla.debug.find_nan():
            train_step(batch)

    Raises:
        RuntimeError: The programs of this platform cannot call the host, or SPMD is on.
        FloatingPointError: At the end of the block: there was a NaN.
    """

    def __enter__(self) -> find_nan:
        if not _can_call():
            raise RuntimeError(
                "debug.find_nan(): needs programs that can call the host: PJRT_DEVICE=CPU, "
                f"without SPMD; got {_XLAC._xla_platform()}"
            )
        flush()
        self._before = _XLAC._xla_finds_nan(), _XLAC._get_ir_debug()
        set_find_nan(True)
        nan_search.open_block()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                flush()
        finally:
            found = nan_search.close_block()
            searches, lines = self._before
            set_find_nan(searches)
            _XLAC._set_ir_debug(lines)
        if found and kind is None:
            raise FloatingPointError("\n".join(found))


def set_find_nan(on: bool) -> None:
    """Whether programs of this process search for NaN; lines and modules are kept for it."""
    global _modules
    _XLAC._xla_set_find_nan(on)
    _XLAC._set_ir_debug(on)
    if on:
        _start_thread()
        _modules = _modules or nan_search.ModuleScopes()
    elif _modules is not None:
        _modules.close()
        _modules = None


def _drain() -> None:
    if threading.current_thread() is _thread:
        return
    target = _XLAC._xla_num_host_calls()
    with _progress:
        _progress.wait_for(lambda: _taken >= target or _thread is None or not _thread.is_alive())


def _finish() -> None:
    """At the end of the process: runs the calls that are traced, and makes them."""
    try:
        devices = _XLAC._xla_get_devices()
        if not _XLAC._xla_replicas_connected():
            pending = [name for name in devices if _XLAC._xla_collective_pending(name)]
            if pending:
                _XLAC._xla_sync(pending, False)
        _XLAC._xla_wait_device_ops(devices)
    except RuntimeError:
        traceback.print_exc()
    _XLAC._xla_stop_host_calls()
    if _thread is not None:
        _thread.join()
    for error in errors:
        if isinstance(error, _Hit):
            builtins.print(error, file=sys.stderr)
            continue
        builtins.print("torch_xla.debug.callback():", file=sys.stderr)
        traceback.print_exception(error)
