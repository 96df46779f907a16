"""Layers that are alike, as one loop over their stacked parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten

from torch_xla import _XLAC
from torch_xla._internal.compile import tracing
from torch_xla.experimental.scan import scan

_hlo = _XLAC.hlo
_State = dict[str, torch.Tensor]


def _state(layer: nn.Module) -> _State:
    """Returns parameters and buffers by name; in one walk, where there are many layers."""
    state, known = {}, set()
    for prefix, module in layer.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in known:
                known.add(id(tensor))
                state[f"{prefix}.{name}" if prefix else name] = tensor
    return state


def _form(state: _State) -> Any:
    return [(name, x.shape, x.dtype, x.requires_grad) for name, x in state.items()]


def _states(what: str, layers: list[nn.Module]) -> list[_State]:
    """Returns the state of each layer, once it is known that they are alike."""
    states = [_state(layer) for layer in layers]
    form = _form(states[0])
    for number, (layer, state) in enumerate(zip(layers, states, strict=True)):
        if type(layer) is not type(layers[0]) or _form(state) != form:
            raise ValueError(
                f"{what}(): expected layers alike, but layer {number} has other parameters "
                f"or another class than layer 0: {type(layer).__name__} {_form(state)}, not "
                f"{type(layers[0]).__name__} {form}"
            )
    return states


class _OtherDtypes(Exception):
    """A layer returns other dtypes than it takes."""


class _Stack(torch.autograd.Function):
    """``torch.stack``, whose gradients are arrays of their own: csrc/ops/stack.h."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return tracing.build("stack", lambda parts: [_hlo.stack(parts)], tensors)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled():  # The parts of the gradient are differentiated again.
            return grad.unbind()
        return tuple(tracing.build("unbind", lambda x: _hlo.unbind(x[0]), [grad.detach()]))


def _call(layer: nn.Module, state: _State, given: Any) -> Any:
    return functional_call(layer, state, given if isinstance(given, tuple) else (given,))


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """Applies layers one after the other: ``for layer in layers: x = layer(x)``.

    The program has one of them, in a loop, so that it is compiled as fast for many as for few.
    The layers must be alike: of one class, and of parameters of the same names, shapes and dtypes;
    the first one's code is what is run. What a layer returns has the form of what it takes; where
    the first one returns other dtypes (under autocast), it stands before the loop. Each call stacks
    their parameters, and takes gradients apart: :class:`StackedLayers` keeps them stacked.

    Args:
        layers: The layers.
        input_data: What the first is called with: a tensor, or nested data; a tuple is passed as
            several arguments.
        partition_fn: See :func:`torch_xla.experimental.scan.scan`.
        is_layer_pure: The same.

    Returns:
        What the last one returned; ``input_data`` where there is none.

    Raises:
        ValueError: The layers are not alike, or change the form of their input.
    """
    layers = list(layers)
    if not layers:
        return input_data
    states = _states("scan_layers", layers)

    def stacked(first: int) -> _State:
        return {
            name: _Stack.apply(*(state[name] for state in states[first:]))  # type: ignore[no-untyped-call]
            for name in states[0]
        }

    def changed(first: int, buffers: _State) -> None:
        for name, rows in buffers.items():
            for state, row in zip(states[first:], rows.unbind(), strict=True):
                state[name].copy_(row)

    return _run(layers[0], len(layers), lambda: states[0], stacked, changed, input_data)


def _run(
    layer: nn.Module,
    count: int,
    first: Callable[[], _State],
    stacked: Callable[[int], _State],
    changed: Callable[[int, _State], None],
    input_data: Any,
) -> Any:
    """Calls a layer in a loop, the first time before it where dtypes need that.

    Args:
        layer: The layer.
        count: How many times.
        first: Returns its state for the first call.
        stacked: Returns the stacked states from a turn on.
        changed: Writes back buffers that the layer changed in place, from a turn on.
        input_data: The input of the first call.
    """
    try:
        return _loop(layer, count, stacked(0), lambda buffers: changed(0, buffers), input_data)
    except _OtherDtypes:
        results = _call(layer, first(), input_data)
    if count == 1:
        return results
    try:
        return _loop(layer, count - 1, stacked(1), lambda buffers: changed(1, buffers), results)
    except _OtherDtypes:
        raise ValueError(
            "expected layers that return the dtypes that they take, but the second "
            f"{type(layer).__name__} returns others, too"
        ) from None


def _loop(
    layer: nn.Module,
    count: int,
    stacked: _State,
    changed: Callable[[_State], None],
    input_data: Any,
) -> Any:
    def one(carry: Any, state: _State) -> tuple[Any, _State]:
        unchanged = {name: tensor.detach().clone() for name, tensor in state.items()}
        result = _call(layer, state, carry)
        given, returned = tree_flatten(carry), tree_flatten(result)
        if given[1] == returned[1] and any(
            isinstance(now, torch.Tensor)
            and now.shape == before.shape
            and now.dtype != before.dtype
            for before, now in zip(given[0], returned[0], strict=True)
        ):
            raise _OtherDtypes
        same = _XLAC._xla_same_value
        return result, {n: x.detach() for n, x in state.items() if not same(x, unchanged[n])}

    if not stacked:  # Without parameters, loop over a dummy.
        first = tree_flatten(input_data)[0][0]
        turns = torch.zeros(count, dtype=torch.bool, device=first.device)
        return scan(lambda carry, _: one(carry, {}), input_data, turns)[0]
    result, buffers = scan(one, input_data, stacked)
    with torch.no_grad():
        changed(buffers)
    return result


class StackedLayers(nn.Module):
    """Layers that are alike, their parameters kept stacked: ``for layer in layers: x = layer(x)``.

    On an xla device this is the loop of :func:`scan_layers`, without its stacking of parameters
    and taking apart of gradients in each step; an optimizer updates, and a program takes and gives,
    one array where it would be one for each layer. Elsewhere it is a loop of Python.

    ``state_dict()`` has the names and shapes of ``nn.Sequential(*layers)``, and what was saved of
    such is loaded. What tells parameters apart by their shape or by tensors as a whole sees one
    dimension more, and all layers as one: a rule that spares vectors from weight decay, the norms
    of LAMB.

    Args:
        layers: The layers, at least one; their values are copied.

    Attributes:
        layer: A layer of that kind, each parameter and buffer of shape ``[count, ...]``.
        count: How many there are.

    Raises:
        ValueError: There is no layer, or they are not alike.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        layers = list(layers)
        if not layers:
            raise ValueError("StackedLayers(): expected at least one layer")
        states = _states("StackedLayers", layers)
        self.count = len(layers)
        self.layer = copy.deepcopy(layers[0])
        stacks = {}
        for name, tensor in _state(self.layer).items():
            stack = torch.stack([state[name].detach() for state in states])
            if isinstance(tensor, nn.Parameter):
                stack = nn.Parameter(stack, tensor.requires_grad)
            stacks[id(tensor)] = stack
        for module in self.layer.modules():
            kinds: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for tensors in kinds:
                for name, old in tensors.items():
                    if old is not None:  # Under each of its names, if it has several.
                        tensors[name] = stacks[id(old)]
        self.register_state_dict_post_hook(_apart)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_together)  # type: ignore[no-untyped-call]

    def forward(self, input_data: Any) -> Any:
        """Returns what the last layer does; a tuple is passed as several arguments."""
        state = _state(self.layer)
        leaves = tree_flatten(input_data)[0]
        if leaves and isinstance(leaves[0], torch.Tensor) and leaves[0].device.type == "xla":

            def stacked(first: int) -> _State:
                rows = {name: x[first:] if first else x for name, x in state.items()}
                # Buffers may change before autograd reads them.
                return {name: x if x.requires_grad else x.clone() for name, x in rows.items()}

            def changed(first: int, buffers: _State) -> None:
                for name, rows in buffers.items():
                    state[name][first:].copy_(rows)

            return _run(
                self.layer,
                self.count,
                lambda: {name: tensor[0] for name, tensor in state.items()},
                stacked,
                changed,
                input_data,
            )
        for rows in zip(*(tensor.unbind() for tensor in state.values()), strict=True):
            input_data = _call(self.layer, dict(zip(state, rows, strict=True)), input_data)
        return input_data

    def extra_repr(self) -> str:
        return f"count={self.count}"


def _apart(module: StackedLayers, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Names each layer's part of a state as a list of layers does."""
    old = f"{prefix}layer."
    stacks = {name: state.pop(name) for name in list(state) if name.startswith(old)}
    for number in range(module.count):
        for name, stack in stacks.items():
            state[f"{prefix}{number}.{name.removeprefix(old)}"] = stack[number]


def _together(
    module: StackedLayers,
    state: dict[str, Any],
    prefix: str,
    _metadata: Any,
    _strict: bool,
    missing: list[str],
    *_: Any,
) -> None:
    """Stacks what a state has of each layer; what it has not of all is not loaded."""
    for own in module.layer.state_dict():
        names = [f"{prefix}{number}.{own}" for number in range(module.count)]
        absent = [name for name in names if name not in state]
        missing += absent
        if not absent:
            state[f"{prefix}layer.{own}"] = torch.stack([state.pop(name) for name in names])


__all__ = ["StackedLayers", "scan_layers"]
