"""``torch.utils.checkpoint``: what is computed again is not what was computed before.

XLA sees that both computations are equal, and keeps the first for the second. So the second takes
its arguments, and the seeds of its random numbers, behind a barrier that waits for the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from torch_xla import _XLAC
from torch_xla._internal.nested_data import map_tensors
from torch_xla._internal.tensors import is_xla, plain


def _made_of(tensor: Any, values: Iterator[torch.Tensor]) -> Any:
    """The tensor, of the next values instead of those that ``plain`` gives of it.

    A wrapper holds other things, too: a DTensor its mesh.
    """
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        inner = {name: _made_of(getattr(tensor, name), values) for name in names}
        made = type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
        return made.detach()
    return next(values) if isinstance(tensor, torch.Tensor) and is_xla(tensor) else tensor


class _Barrier(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, late: list[torch.Tensor], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        zero = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
        held = (x for tensor in tensors for x in plain(tensor) if is_xla(x))
        values = iter(_XLAC._xla_optimization_barrier([zero, *held], late))
        results = [next(values), *(_made_of(tensor, values) for tensor in tensors)]
        ctx.set_materialize_grads(False)
        # A result that needed no gradient needs none again: both computations save the same
        # tensors.
        needs_grad = (False, *ctx.needs_input_grad[1:])
        ctx.mark_non_differentiable(
            *(r for r, needed in zip(results, needs_grad, strict=True) if not needed)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *grads)


def _again(
    function: Callable[..., Any], late: list[torch.Tensor] | None, args: Any, kwargs: Any
) -> Any:
    """Calls a function that has been called before with the same arguments.

    Args:
        function: The function.
        late: Tensors that are there when it shall be computed; None: what was traced last, which
            in a backward pass is a gradient.
        args: Its arguments.
        kwargs: Its named arguments.
    """
    given: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if is_xla(tensor):
            given.append(tensor)
        return tensor

    map_tensors(collect, (args, kwargs), objects=False)
    if given and late is None:
        last = _XLAC._xla_last_pending(str(given[0].device))
        late = [] if last is None else [last]
    if not given or not late:  # Another program computes the gradient.
        return function(*args, **kwargs)
    with _disable_current_modes():  # Selective checkpoints count operators.
        mask, *results = _Barrier.apply(late, *given)  # type: ignore[no-untyped-call]
    replaced = dict(zip(map(id, given), results, strict=True))
    args, kwargs = map_tensors(
        lambda tensor: replaced.get(id(tensor), tensor), (args, kwargs), objects=False
    )
    before = _XLAC._xla_set_seed_mask(mask)
    try:
        return function(*args, **kwargs)
    finally:
        _XLAC._xla_set_seed_mask(before)


def backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """``CheckpointFunction.backward``: checkpoints with ``use_reentrant=True``."""

    def run(ctx: Any, *grads: Any) -> Any:
        tensors = (grad for grad in grads if isinstance(grad, torch.Tensor))
        late = [x for grad in tensors for x in plain(grad) if is_xla(x)]
        if not late:
            return original(ctx, *grads)
        function = ctx.run_function
        ctx.run_function = lambda *args: _again(function, late, args, {})
        try:
            return original(ctx, *grads)
        finally:
            ctx.run_function = function

    return run


def generator(original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    """``_checkpoint_without_reentrant_generator``: it calls ``fn`` in the backward pass alone."""

    def make(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
        @functools.wraps(fn, updated=())
        def again(*inputs: Any, **named: Any) -> Any:
            return _again(fn, None, inputs, named)

        return original(again, *args, **kwargs)

    return make
