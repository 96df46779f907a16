"""What holds the arrays in device memory: parameters, gradients, optimizers, autograd, the program.

The search goes through all objects of the interpreter; nothing is recorded beforehand.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

from torch_xla import _XLAC
from torch_xla._internal.tensors import plain

KINDS = (
    "parameter",
    "gradient",
    "optimizer state",
    "module buffer",
    "user",
    "pending",
    "autograd",
    "runtime",
)


_ATTEMPTS = 4


class Holder(NamedTuple):
    """Who holds an array.

    Attributes:
        kind: One of ``KINDS``. ``pending``: only operations that have not run yet. ``autograd``: no
            tensor of Python's, but a backward pass that is to come. ``runtime``: none of them.
        name: ``Net.fc.weight``; empty where it has none.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)


def _roots(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def _frames() -> Iterator[FrameType]:
    """Yields the frames of all threads, without this module's innermost ones."""
    at: types.FrameType | None
    for at in sys._current_frames().values():
        while at is not None:
            if at.f_code not in (_frames.__code__, _held_by_python.__code__):
                yield at
            at = at.f_back


def _held_by_python(tensors: list[torch.Tensor]) -> set[int]:
    """Returns the ids of ``tensors`` that Python objects and running functions hold.

    Only C++ holds the others: a tensor that Python has seen keeps its Python object for as long
    as autograd holds the tensor.
    """
    held = _XLAC._ids_held_by_objects(tensors)
    # A frame that its own variable keeps would stay alive, with all its objects.
    for at in _frames():
        if at.f_code is not _find.__code__:
            held.update(map(id, at.f_locals.values()))
    del at
    return held


def find() -> dict[int, Holder]:
    """Returns the holder of each array in device memory, by the array's id."""
    with torch._C.DisableTorchFunctionSubclass():
        for _ in range(_ATTEMPTS):
            # Another thread may change a module or an optimizer meanwhile.
            with contextlib.suppress(RuntimeError, AttributeError, KeyError):
                return _find()
        return _find()


def _find() -> dict[int, Holder]:
    tensors, modules, optimizers = _XLAC._objects_of_types(
        [torch.Tensor, torch.nn.Module, torch.optim.Optimizer]
    )
    # Keep no other list of the tensors: it would look like a list of the program.
    tensors = [tensor for tensor in tensors if tensor.device.type == "xla"]
    # Leave out objects whose constructor has not run yet.
    modules = [module for module in modules if "_modules" in module.__dict__]
    optimizers = [optimizer for optimizer in optimizers if "state" in optimizer.__dict__]
    named: list[tuple[torch.Tensor, Holder]] = []
    for root in _roots(modules):
        prefix = type(root).__name__
        for name, parameter in root.named_parameters():
            named.append((parameter, Holder("parameter", f"{prefix}.{name}")))
        for name, buffer in root.named_buffers():
            named.append((buffer, Holder("module buffer", f"{prefix}.{name}")))
    names = {id(tensor): holder.name for tensor, holder in named}
    named += [(x, Holder("parameter", "")) for x in tensors if isinstance(x, torch.nn.Parameter)]
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for name, value in list(state.items()) if isinstance(state, dict) else ():
                of = f"{type(optimizer).__name__}.{name} of {names.get(id(parameter), '?')}"
                named += [(x, Holder("optimizer state", of)) for x in _tensors_in(value)]
    # Reading `grad` of a tensor that is not a leaf warns.
    gradients = [(x.grad, names.get(id(x), "")) for x in tensors if x.is_leaf]
    named += [
        (x, Holder("gradient", f"of {name}".strip())) for x, name in gradients if x is not None
    ]
    held = _held_by_python(tensors)
    named += [(x, Holder("user", "")) for x in tensors if id(x) in held]
    named = [(x, holder) for tensor, holder in named for x in plain(tensor)]
    # The first entry for an array counts: a parameter is also a tensor of the user.
    found: dict[int, Holder] = {}
    for number, (_, holder) in zip(_XLAC._array_ids([x for x, _ in named]), named, strict=True):
        if number is not None:
            found.setdefault(number, holder)
    for number in _XLAC._pending_array_ids():
        found.setdefault(number, Holder("pending", ""))
    # Autograd keeps saved tensors in C++. There is no graph without a result that has a grad_fn.
    rest = Holder("autograd" if any(x.grad_fn is not None for x in tensors) else "runtime", "")
    for array in _XLAC._live_arrays():
        found.setdefault(array["id"], rest)
    return found


def describe(array: dict[str, Any], holder: Holder) -> str:
    """Returns a line of an array."""
    size = _XLAC._bytes_text(array["bytes"])
    return f"{size}: {array['shape']}, {holder}, made at {array['line']}"


def text(then: list[dict[str, Any]] | None = None, count: int = 3) -> str:
    """Returns what holds the memory: kinds by size, and the largest arrays, three by default.

    Args:
        then: The arrays that were in memory when it ran out; those that are by default. What has
            gone since was held by the runtime, for the operations that ran.
        count: How many of the largest arrays.
    """
    holders = find()
    arrays = sorted(
        _XLAC._live_arrays() if then is None else then, key=lambda array: -array["bytes"]
    )
    if then is None:
        arrays = [array for array in arrays if array["id"] in holders]
    if not arrays:
        return ""
    gone = Holder("runtime", "")
    holders.update({array["id"]: gone for array in arrays if array["id"] not in holders})
    sums: dict[str, list[int]] = {}
    for array in arrays:
        one = sums.setdefault(holders[array["id"]].kind, [0, 0])
        one[0] += array["bytes"]
        one[1] += 1
    lines = ["held by:"]
    for kind, (size, number) in sorted(sums.items(), key=lambda item: -item[1][0]):
        lines.append(
            f"  {_XLAC._bytes_text(size)}: {kind}, {number} array{'s' if number > 1 else ''}"
        )
    largest = [f"  {describe(array, holders[array['id']])}" for array in arrays[:count]]
    lines += ["the largest:", *largest] if largest else []
    return "\n".join(lines) + "\n"
