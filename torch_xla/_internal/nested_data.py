"""Tensors within nested data: finding them, and putting others in their places."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree


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
    """Whether it is an object that holds its content in attributes."""
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
    """The direct children of nested data."""
    if isinstance(node, (str, bytes, int, float, type(None))):
        return ()
    if isinstance(node, DataWrapper):
        return node.get_tensors()
    if isinstance(node, PackedSequence):  # Its batch sizes stay on the CPU.
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
    """All objects in nested data that ``select`` accepts, each once, in the order of _Rewriting."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # The reference keeps the id from being reused.
    if select(value):
        yield value
        return
    for child in _children(value, objects):
        yield from _instances(child, select, objects, seen)


class _Rewriting:
    """One pass through nested data that replaces what ``select`` accepts by ``function`` of it."""

    def __init__(
        self, select: Callable[[Any], bool], function: Callable[[Any], Any], objects: bool
    ) -> None:
        self._select = select
        self._function = function
        self._objects = objects
        self._done: dict[int, tuple[Any, Any]] = {}  # By id: the original and its result.
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
            # A copy keeps a default factory and a subclass's attributes.
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
                # Works even if the class is frozen, or intercepts assignments.
                if name in getattr(result, "__dict__", ()):
                    result.__dict__[name] = self.of(value)
                else:
                    object.__setattr__(result, name, self.of(value))
            return result
        return node


def for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> None:
    """Calls ``fn`` with all objects in nested data that ``select_fn`` accepts.

    Goes into mappings, lists, tuples, sets and the attributes of objects, each once.

    Args:
        value: The data.
        select_fn: Returns whether to call ``fn`` with an object, whose content is then skipped.
        fn: Called with each.
    """

    for found in _instances(value, select_fn, True, {}):
        fn(found)


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> Any:
    """Returns nested data in which ``fn`` has replaced all objects that ``select_fn`` accepts.

    Containers are made anew; an object that has one of them in it is copied.

    Args:
        value: The data.
        select_fn: See :func:`for_each_instance`.
        fn: Returns what takes an object's place.
    """
    return _Rewriting(select_fn, fn, True).of(value)


class ToXlaTensorArena:
    """Replaces tensors in nested data by what one call makes of all of them.

    Args:
        convert_fn: Called once with the list of the tensors; returns as many.
        select_fn: Says of an object in the data whether it is one of them.
    """

    def __init__(
        self,
        convert_fn: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        select_fn: Callable[[Any], bool],
    ) -> None:
        self._convert_fn = convert_fn
        self._select_fn = select_fn

    def transform(self, inputs: Any) -> Any:
        """Returns the data with its tensors replaced; it is not changed."""
        tensors: list[torch.Tensor] = []
        for_each_instance(inputs, self._select_fn, tensors.append)
        converted = iter(self._convert_fn(tensors))
        return for_each_instance_rewrite(inputs, self._select_fn, lambda _: next(converted))
