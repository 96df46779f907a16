"""Layers that are alike, as one loop over their stacked parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map

from torch_xla import _XLAC
from torch_xla._internal import tracing
from torch_xla.experimental.scan import scan

_hlo = _XLAC.hlo


def _state(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers by name; in one walk, where there are many layers."""
    state, known = {}, set()
    for prefix, module in layer.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in known:
                known.add(id(tensor))
                state[f"{prefix}.{name}" if prefix else name] = tensor
    return state


def _form(state: dict[str, torch.Tensor]) -> Any:
    return [(name, x.shape, x.dtype, x.requires_grad) for name, x in state.items()]


class _OtherDtypes(Exception):
    """A layer returns other dtypes than it takes."""


class _Stack(torch.autograd.Function):
    """``torch.stack``, whose gradients are arrays of their own: csrc/ops/stack_library.h."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return tracing.build("stack", lambda parts: [_hlo.stack(parts)], tensors)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tracing.build("unbind", lambda x: _hlo.unbind(x[0]), [grad.detach()]))


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
    the first one returns other dtypes (under autocast), it stands before the loop.

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
    states = [_state(layer) for layer in layers]
    form = _form(states[0])
    for number, (layer, state) in enumerate(zip(layers, states, strict=True)):
        if type(layer) is not type(layers[0]) or _form(state) != form:
            raise ValueError(
                f"scan_layers(): expected layers alike, but layer {number} has other parameters "
                f"or another class than layer 0: {type(layer).__name__} {_form(state)}, not "
                f"{type(layers[0]).__name__} {form}"
            )
    try:
        return _scan(layers[0], states, input_data, partition_fn, is_layer_pure)
    except _OtherDtypes:
        results = layers[0](*(input_data if isinstance(input_data, tuple) else (input_data,)))
    if len(layers) == 1:
        return results
    try:
        return _scan(layers[1], states[1:], results, partition_fn, is_layer_pure)
    except _OtherDtypes:
        raise ValueError(
            "scan_layers(): expected layers that return the dtypes that they take, but the second "
            "one returns others, too"
        ) from None


def _scan(
    layer: nn.Module,
    states: list[dict[str, torch.Tensor]],
    input_data: Any,
    partition_fn: Any,
    is_layer_pure: bool,
) -> Any:
    stacked = {
        name: _Stack.apply(*(state[name] for state in states))  # type: ignore[no-untyped-call]
        for name in states[0]
    }
    as_arguments = isinstance(input_data, tuple)

    def one(carry: Any, state: dict[str, torch.Tensor]) -> tuple[Any, None]:
        # What a layer gives back unchanged is a new tensor, which the loop carries.
        result = functional_call(layer, state, carry if as_arguments else (carry,))
        given, returned = tree_flatten(carry), tree_flatten(result)
        if given[1] == returned[1] and any(
            isinstance(now, torch.Tensor)
            and now.shape == before.shape
            and now.dtype != before.dtype
            for before, now in zip(given[0], returned[0], strict=True)
        ):
            raise _OtherDtypes
        return tree_map(lambda x: x, result), None

    if not stacked:  # Layers without parameters: there is something to loop over.
        first = tree_flatten(input_data)[0][0]
        turns = torch.zeros(len(states), dtype=torch.bool, device=first.device)
        return scan(lambda carry, _: one(carry, {}), input_data, turns)[0]
    return scan(one, input_data, stacked, partition_fn, is_layer_pure)[0]


__all__ = ["scan_layers"]
