"""Nested data: walking through it, and generating it. And small things for scripts."""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent import futures
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree


class SampleGenerator:
    """Iterable that returns the same data a number of times.

    Stands in for a ``DataLoader`` when real data is not needed.

    Args:
        data: What every step returns, the same object: nested data with tensors of any shape.
        sample_count: How many steps there are; its ``len()``.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    def next(self) -> Any:
        """The same as ``next(self)``."""
        return next(self)

    def __len__(self) -> int:
        return self._sample_count


class DataWrapper:
    """Base of classes with tensors that should go to the device with the rest of a batch.

    A subclass says which tensors it holds, and how to make an object with others.
    """

    def get_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors to send to the device."""
        raise NotImplementedError(f"{type(self).__name__}.get_tensors() is not defined")

    def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """Returns an object like this one with ``tensors``, in the order of get_tensors()."""
        raise NotImplementedError(f"{type(self).__name__}.from_tensors() is not defined")


def map_tensors(
    function: Callable[[torch.Tensor], torch.Tensor], data: Any, objects: bool = True
) -> Any:
    """Returns ``data`` with ``function`` applied to every tensor in it.

    Goes into mappings, lists, tuples, named tuples, sets, packed sequences,
    :class:`DataWrapper` objects, whatever is registered with PyTorch's pytrees, dataclass
    instances, and the attributes of other objects; the types are kept. An object in which there
    is no tensor passes through as it is, as modules do. What occurs twice, also within itself,
    does so in the result.

    Args:
        function: Called once for each different tensor object.
        data: Any nested data; it is not changed.
        objects: Whether to go into objects that are no data of PyTorch's or Python's.
    """
    return _Rewriting(_is_tensor, function, objects).of(data)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_object(value: Any) -> bool:
    """Whether it is an object that has its content in attributes."""
    no_data = (
        type, torch.Tensor, torch.nn.Module, types.ModuleType, types.FunctionType, types.MethodType,
    )  # fmt: skip
    return not isinstance(value, no_data) and hasattr(value, "__dict__")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _attributes(value: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value)] if _is_dataclass(value) else []
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return slots | vars(value) if hasattr(value, "__dict__") else slots


def _children(node: Any, objects: bool) -> Iterable[Any]:
    """What nested data has directly in it."""
    if isinstance(node, (str, bytes, int, float, type(None))):
        return ()
    if isinstance(node, DataWrapper):
        return node.get_tensors()
    if isinstance(node, PackedSequence):  # Its batch sizes belong on the CPU.
        return node.data, node.sorted_indices, node.unsorted_indices
    if isinstance(node, MutableMapping):
        return list(node.values())
    if isinstance(node, (list, tuple, set, frozenset)):
        return node
    if registered := _pytree.SUPPORTED_NODES.get(type(node)):
        return registered.flatten_fn(node)[0]
    if _is_dataclass(node) or (objects and _is_object(node)):
        return list(_attributes(node).values())
    return ()


def _instances(
    value: Any, select: Callable[[Any], bool], objects: bool, seen: MutableMapping[int, Any]
) -> Iterator[Any]:
    """All objects in nested data that ``select`` says, each once, in the order of _Rewriting."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # Holding it keeps its id.
    if select(value):
        yield value
        return
    for child in _children(value, objects):
        yield from _instances(child, select, objects, seen)


class _Rewriting:
    """One pass through nested data that puts ``function`` of what ``select`` says in its place."""

    def __init__(
        self, select: Callable[[Any], bool], function: Callable[[Any], Any], objects: bool
    ) -> None:
        self._select = select
        self._function = function
        self._objects = objects
        self._done: dict[int, tuple[Any, Any]] = {}  # What was made of what, which keeps its id.
        self._untouched: dict[int, Any] = {}

    def of(self, node: Any) -> Any:
        """Returns what takes the place of ``node``."""
        if isinstance(node, (str, bytes, int, float, type(None))) and not self._select(node):
            return node
        if id(node) not in self._done:
            self._note(node, self._made_of(node))
        return self._done[id(node)][1]

    def _note(self, node: Any, result: Any) -> Any:
        self._done[id(node)] = (node, result)
        return result

    def _is_untouched(self, node: Any) -> bool:
        seen = collections.ChainMap({}, self._untouched)
        if any(True for _ in _instances(node, self._select, self._objects, seen)):
            return False
        self._untouched.update(seen.maps[0])
        return True

    def _made_of(self, node: Any) -> Any:
        if self._select(node):
            return self._function(node)
        if isinstance(node, DataWrapper):
            return node.from_tensors([self.of(tensor) for tensor in node.get_tensors()])
        if isinstance(node, PackedSequence):
            first, *indices = (self.of(child) for child in _children(node, self._objects))
            return PackedSequence(first, node.batch_sizes, *indices)
        if isinstance(node, MutableMapping):
            # Keeps a default factory, or a subclass's attributes.
            result = self._note(node, copy.copy(node))
            for key, value in list(node.items()):
                result[key] = self.of(value)
            return result
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*map(self.of, node))
        if type(node) is list:
            result = self._note(node, [])
            result.extend(map(self.of, node))
            return result
        if isinstance(node, (list, tuple, set, frozenset)):
            return type(node)(map(self.of, node))
        if registered := _pytree.SUPPORTED_NODES.get(type(node)):
            children, context = registered.flatten_fn(node)
            return registered.unflatten_fn([self.of(child) for child in children], context)
        if _is_dataclass(node) or (self._objects and _is_object(node)):
            if self._is_untouched(node):
                return node
            result = self._note(node, copy.copy(node))
            for name, value in _attributes(node).items():
                # Also where the class is frozen, or watches what is set.
                if name in getattr(result, "__dict__", ()):
                    result.__dict__[name] = self.of(value)
                else:
                    object.__setattr__(result, name, self.of(value))
            return result
        return node


class FnDataGenerator:
    """Iterable over what a function makes of tensors.

    Args:
        func: Called with ``gen_tensor`` for each batch; gives ``(data, target)`` or one of them.
        batch_size: The size of a batch; the first dimension where ``dims`` are given.
        gen_tensor: Makes a tensor of a shape, for example ``torch.randn``.
        dims: The dimensions behind the first.
        count: How many batches there are.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._shape = (batch_size, *(dims or (1,)))
        self._gen_tensor = gen_tensor
        self._count = count
        self._made = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(
            self._func, self._shape[0], self._gen_tensor, self._shape[1:], self._count
        )

    def __next__(self) -> tuple[torch.Tensor, Any]:
        if self._made >= self._count:
            raise StopIteration
        self._made += 1
        data = self._gen_tensor(*self._shape)
        return data, self._func(data)

    def next(self) -> tuple[torch.Tensor, Any]:
        """The same as ``next(self)``."""
        return next(self)


class Cleaner:
    """Calls a function at the end of a ``with`` block."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    def __enter__(self) -> Cleaner:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.func()


class LazyProperty:
    """A value that is made when it is first asked for."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn = gen_fn

    @property
    def value(self) -> Any:
        """The value."""
        if not hasattr(self, "_value"):
            self._value = self._gen_fn()
        return self._value


class TmpFolder:
    """A folder that is removed at the end of a ``with`` block, which gets its name."""

    def __init__(self) -> None:
        self.name = ""

    def __enter__(self) -> str:
        self.name = tempfile.mkdtemp()
        return self.name

    def __exit__(self, *exc_info: Any) -> None:
        shutil.rmtree(self.name, ignore_errors=True)


class TimedScope:
    """Prints how long a ``with`` block took, and what it raised.

    Args:
        msg: What to print before the time.
        printfn: Prints it; None: nothing is printed.
    """

    def __init__(self, msg: str = "", printfn: Callable[[str], Any] | None = None) -> None:
        self._msg = msg
        self._printfn = eprint if printfn is None and msg else printfn
        self._error: Any = None

    def set_error(self, error: Any) -> None:
        """Has ``error`` printed, too."""
        self._error = error

    def __enter__(self) -> TimedScope:
        self._start = time.monotonic()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if self._printfn is not None:
            error = self._error or exc_info[1]
            passed = f"{self._msg}{time.monotonic() - self._start:.3f}s"
            self._printfn(passed if error is None else f"{passed} (error: {error})")


def as_list(t: Any) -> list[Any]:
    """Returns a list or tuple as a list, anything else as a list of it."""
    return list(t) if isinstance(t, (tuple, list)) else [t]


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Returns an environment variable as a type; ``defval`` where it is not set.

    Args:
        name: The variable.
        type: What to make of its text. A ``bool`` is false for ``0``, ``false`` and nothing.
        defval: What to return without it.
    """
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() not in ("", "0", "false") if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Returns whether an environment variable is one of ``ON``, ``1``, ``YES``, ``TRUE``, ``Y``."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> None:
    """Calls ``fn`` with all objects in nested data that ``select_fn`` says.

    Goes into mappings, lists, tuples, sets and the attributes of objects, each once.

    Args:
        value: The data.
        select_fn: Says whether an object is one of them; it is not gone into then.
        fn: Called with each.
    """

    for found in _instances(value, select_fn, True, {}):
        fn(found)


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> Any:
    """Returns nested data with all objects that ``select_fn`` says replaced by ``fn`` of them.

    Containers are made anew; an object that has one of them in it is copied.

    Args:
        value: The data.
        select_fn: See :func:`for_each_instance`.
        fn: Returns what takes an object's place.
    """
    return _Rewriting(select_fn, fn, True).of(value)


def shape(inputs: Any) -> list[int]:
    """Returns the shape of an array, or of nested lists of one."""
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        inputs = inputs[0]
    return sizes + list(getattr(inputs, "shape", ()))


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """Returns the leaves of nested tuples and lists as one tuple."""
    if not isinstance(inputs, (list, tuple)):
        return (inputs,)
    return tuple(leaf for item in inputs for leaf in flatten_nested_tuple(item))


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """Returns a new list with one item more."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to the standard error."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """Returns :func:`eprint` where ``debug`` (or ``DEBUG`` of the environment), else nothing's."""
    return eprint if (check_env_flag("DEBUG") if debug is None else debug) else null_print


def timed(
    fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], Any] | None = eprint
) -> Any:
    """Returns what ``fn()`` does, and prints how long it took, with ``msg`` before."""
    with TimedScope(msg, printfn):
        return fn()


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Returns numbers of TCP ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for free in sockets:
            free.bind(("", 0))
        return [free.getsockname()[1] for free in sockets]
    finally:
        for free in sockets:
            free.close()


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """Returns ``map(fn, *args)`` as a list, made by threads.

    Raises:
        Exception: The first that ``fn`` raised.
    """
    with futures.ThreadPoolExecutor(max_workers=num_workers) as executor:
        return list(executor.map(fn, *args))
