"""Memory for time: what a function computes on the way is computed again when it is needed.

As :mod:`torch.utils.checkpoint`, with a barrier before the second computation: without it XLA sees
that both are equal, and keeps the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointFunction,
    get_device_states,
    set_device_states,
)
from torch.utils.checkpoint import checkpoint as _checkpoint

from torch_xla._internal import barrier
from torch_xla._internal.tensors import is_xla
from torch_xla.utils.utils import map_tensors


class _Barrier(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = barrier.apply_late(tensors[:count], tensors[count:])
        ctx.mark_non_differentiable(
            *(r for r in results if not (r.dtype.is_floating_point or r.dtype.is_complex))
        )
        ctx.rest = len(tensors) - count
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *grads, *[None] * ctx.rest)


class _Mark(torch.autograd.Function):
    """Notes the gradients that come back, before what they need is computed again."""

    @staticmethod
    def forward(ctx: Any, kept: list[torch.Tensor], *tensors: torch.Tensor) -> Any:
        ctx.kept = kept
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.kept[:] = [grad for grad in grads if is_xla(grad)]
        return (None, *grads)


def _together(data: Any, function: Callable[[list[torch.Tensor]], Any], select: Any) -> Any:
    """Returns nested data with the tensors that ``select`` says replaced, all by one call."""
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if select(tensor):
            tensors.append(tensor)
        return tensor

    map_tensors(collect, data)
    if not tensors:
        return data
    replaced = dict(zip(map(id, tensors), function(tensors), strict=True))
    return map_tensors(lambda tensor: replaced.get(id(tensor), tensor), data)


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """Calls ``function(*args)``, and again in the backward pass instead of keeping its results.

    Args:
        function: The function.
        *args: Its arguments: nested data with tensors.
        use_reentrant: See :func:`torch.utils.checkpoint.checkpoint`.
        **kwargs: Those of :func:`torch.utils.checkpoint.checkpoint` (``preserve_rng_state``,
            ``context_fn``, ``determinism_check``, ``debug``); with ``use_reentrant=False`` also of
            ``function``.

    Returns:
        What ``function`` returns.
    """
    grads: list[torch.Tensor] = []
    calls = 0

    def run(*inputs: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1 and torch.is_grad_enabled():
            # Only when the gradients are there; not before, since nothing else is known then.
            late = list(grads)
            inputs = _together(
                inputs,
                lambda found: _Barrier.apply(len(found), *found, *late),  # type: ignore[no-untyped-call]
                is_xla,
            )
        return function(*inputs, **named)

    outputs = _checkpoint(run, *args, use_reentrant=use_reentrant, **kwargs)
    return _together(
        outputs,
        lambda found: _Mark.apply(grads, *found),  # type: ignore[no-untyped-call]
        lambda t: is_xla(t) and t.requires_grad,
    )


__all__ = ["CheckpointFunction", "checkpoint", "get_device_states", "set_device_states"]
