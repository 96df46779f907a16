"""Nested data: walking through it, and generating it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
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

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._sample_count):
            yield self._data

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


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], data: Any) -> Any:
    """Returns ``data`` with ``function`` applied to every tensor in it.

    Goes into mappings, lists, tuples, named tuples, sets, dataclass instances, packed
    sequences, :class:`DataWrapper` objects and whatever is registered with PyTorch's pytrees;
    the types are kept. All else passes through as it is. A tensor that occurs twice is mapped
    once.

    Args:
        function: Called once for each different tensor object.
        data: Any nested data; it is not changed.
    """
    done: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = function(tensor)
        return done[id(tensor)]

    def walk(node: Any) -> Any:
        if isinstance(node, torch.Tensor):
            return once(node)
        if isinstance(node, (str, bytes, int, float, type(None))):
            return node
        if isinstance(node, DataWrapper):
            return node.from_tensors([once(tensor) for tensor in node.get_tensors()])
        if isinstance(node, PackedSequence):  # Its batch sizes belong on the CPU.
            return PackedSequence(
                once(node.data),
                node.batch_sizes,
                walk(node.sorted_indices),
                walk(node.unsorted_indices),
            )
        if isinstance(node, MutableMapping):
            result = copy.copy(node)  # Keeps a default factory, or a subclass's attributes.
            for key, value in node.items():
                result[key] = walk(value)
            return result
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*map(walk, node))
        if isinstance(node, (list, tuple, set, frozenset)):
            return type(node)(map(walk, node))
        if type(node) in _pytree.SUPPORTED_NODES:
            children, spec = _pytree.tree_flatten(node, is_leaf=lambda child: child is not node)
            return _pytree.tree_unflatten([walk(child) for child in children], spec)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            result = copy.copy(node)
            for field in dataclasses.fields(node):
                if hasattr(node, field.name):
                    # Also where the class is frozen.
                    object.__setattr__(result, field.name, walk(getattr(node, field.name)))
            return result
        return node

    return walk(data)
