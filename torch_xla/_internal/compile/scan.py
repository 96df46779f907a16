"""Loops over the first dimension of tensors that are one loop of the program, too.

:func:`scan` compiles its function once, however many iterations there are; written in Python, the
loop would be that many copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla._internal.compile import autograd_edges, tracing

_SCAN = "scan()"


class _Residuals:
    """The tensors that autograd keeps of a function for its backward pass."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def pack(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "xla":
            return tensor
        # In-place operations on the tensor may follow.
        self.tensors.append(tensor.detach().clone())
        return self.tensors[-1]

    def unpack(self, kept: torch.Tensor) -> torch.Tensor:
        return kept


class _Plan:
    """How a scan is computed: its traced function, and the function of its gradients."""

    def __init__(self, carry: int, ys: int, length: int) -> None:
        self.carry, self.ys, self.length = carry, ys, length
        self.forward: tracing.Function
        self.backward: tracing.Function | None = None
        self.params: list[torch.Tensor] = []
        self.num_xs = 0
        self.kept: list[int] = []  # Indices of carries that the backward function takes.
        self.carry_grads: list[int] = []  # Carries with gradients, in the loop and outside.
        self.y_grads: list[int] = []
        self.x_grads: list[int] = []
        # The tensors of each iteration that the backward function takes.
        self.order: list[tuple[str, int]] = []


def _check_carry(given: Sequence[torch.Tensor], returned: Sequence[Any], specs: Any) -> None:
    if specs[0] != specs[1]:
        raise ValueError(
            f"{_SCAN}: expected `fn` to return a carry of the structure of `init`, {specs[0]}, got "
            f"{specs[1]}"
        )
    for number, (before, after) in enumerate(zip(given, returned, strict=True)):
        if not isinstance(after, torch.Tensor) or before.device != after.device:
            raise TypeError(
                f"{_SCAN}: expected `fn` to return tensors on {before.device} as its carry, got "
                f"{after.device if isinstance(after, torch.Tensor) else type(after).__name__}"
            )
        if before.shape != after.shape or before.dtype != after.dtype:
            raise ValueError(
                f"{_SCAN}: expected `fn` to return carry {number} as {before.dtype} of shape "
                f"{list(before.shape)}, as it is in `init`, got {after.dtype} of shape "
                f"{list(after.shape)}"
            )


def _length(xs: Sequence[torch.Tensor]) -> int:
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in xs}
    if len(lengths) != 1 or None in lengths or 0 in lengths:
        raise ValueError(
            f"{_SCAN}: expected tensors in `xs` of one first dimension of at least 1, got shapes "
            f"{[list(tensor.shape) for tensor in xs]}"
        )
    return xs[0].shape[0]


def _forward(plan: _Plan, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Runs the loop: the last carry, then what is stacked: ys, residuals, kept carries."""
    return tracing.loop([plan.forward], operands, plan.carry, plan.num_xs, plan.length)


class Scan(torch.autograd.Function):
    """A scan, as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        carry = plan.carry
        results = _forward(plan, tensors[: carry + plan.num_xs])
        ctx.plan = plan
        visible = plan.carry + plan.ys
        kept = results[len(results) - len(plan.kept) :]
        stacks = {("x", i): tensors[carry + i] for i in range(plan.num_xs)}
        stacks |= {("residual", i): tensor for i, tensor in enumerate(results[visible:])}
        stacks |= {("carry", i): t for i, t in zip(plan.kept, kept, strict=True)}
        ctx.save_for_backward(*(stacks[key] for key in plan.order))
        outputs = tuple(results[:visible])
        with_gradients = {*plan.carry_grads, *(carry + y for y in plan.y_grads)}
        ctx.mark_non_differentiable(
            *(out for i, out in enumerate(outputs) if i not in with_gradients)
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        plan = ctx.plan
        wanted = [grads[i] for i in plan.carry_grads]
        wanted += [grads[plan.carry + y] for y in plan.y_grads]
        operands = [tensor.detach() for tensor in (*wanted, *ctx.saved_tensors)]
        first = len(plan.carry_grads)
        results = tracing.loop(
            [plan.backward],
            operands,
            carries=first,
            sliced=len(operands) - first,
            length=plan.length,
            sums=len(plan.params),
            reverse=True,
        )
        found: list[torch.Tensor | None] = [None] * (plan.carry + plan.num_xs)
        for place, gradient in zip(plan.carry_grads, results, strict=False):
            found[place] = gradient
        results = results[first:]
        for place, gradient in zip(plan.x_grads, results, strict=False):
            found[plan.carry + place] = gradient
        return autograd_edges.first_order_only(_SCAN, (None, *found, *results[len(plan.x_grads) :]))


def _needs_gradient(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _plan_backward(
    plan: _Plan,
    capture: Any,
    arguments: tuple[list[torch.Tensor], list[torch.Tensor]],
    outputs: list[torch.Tensor],
    kept: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Makes the backward function; returns the residuals that the forward function must keep."""
    carry, xs = arguments
    plan.carry_grads = [
        i for i in range(plan.carry) if carry[i].requires_grad and outputs[i].requires_grad
    ]
    plan.y_grads = [i for i in range(plan.ys) if outputs[plan.carry + i].requires_grad]
    plan.x_grads = [i for i, x in enumerate(xs) if x.requires_grad]
    sources = [outputs[i] for i in plan.carry_grads]
    sources += [outputs[plan.carry + i] for i in plan.y_grads]
    cotangents = [capture.placeholder(tensor) for tensor in sources]
    targets = [carry[i] for i in plan.carry_grads] + [xs[i] for i in plan.x_grads]
    targets += plan.params
    found_grads = torch.autograd.grad(sources, targets, cotangents, allow_unused=True)
    grads = [
        torch.zeros_like(target) if grad is None else grad
        for grad, target in zip(found_grads, targets, strict=True)
    ]
    # Replace views and multiples by their bases: a transposed weight is then an input instead of a
    # residual, and attention's scaled queries and keys share one product.
    kept = capture.bases(kept)
    dependent = capture.depend(kept)
    candidates = [tensor for tensor, ours in zip(kept, dependent, strict=True) if ours]
    names = [("carry", i) for i in range(plan.carry)] + [("x", i) for i in range(len(xs))]
    names += [("residual", i) for i in range(len(candidates))]
    offered = [*carry, *xs, *candidates]
    found = tracing.function(capture, [*offered, *cotangents], grads, "scan_backward")
    used = [i for i in found.inputs if i < len(offered)]
    # Residuals are numbered anew, since the function is called only with residuals that it uses.
    order = [names[i] for i in used]
    residuals = [candidates[i] for kind, i in order if kind == "residual"]
    numbers = iter(range(len(residuals)))
    plan.order = [(k, next(numbers)) if k == "residual" else (k, i) for k, i in order]
    plan.kept = [i for kind, i in order if kind == "carry"]
    places = {len(offered) + i: i for i in range(len(cotangents))}
    places |= {old: len(cotangents) + new for new, old in enumerate(used)}
    plan.backward = found._replace(inputs=[places[i] for i in found.inputs])
    return residuals


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Calls ``carry, y = fn(carry, x)`` for each ``x`` along the first dimension of ``xs``.

    The same as this, as one loop of the program::

        def scan(fn, init, xs):
            ys = []
            for i in range(len(xs)):
                init, y = fn(init, xs[i])
                ys.append(y)
            return init, torch.stack(ys)

    ``fn`` is traced once for each call, in one iteration. It must not read a tensor, nor change
    one from outside. Its random numbers are others in every iteration. Gradients go to ``init``,
    ``xs`` and the parameters that ``fn`` uses; what autograd keeps for them is stacked, but for
    what :func:`torch_xla.utils.checkpoint.checkpoint` within ``fn`` computes again.

    Args:
        fn: The function. ``carry`` keeps its structure, shapes and dtypes.
        init: The first carry: nested data with xla tensors.
        xs: Nested data with xla tensors of one first dimension.
        partition_fn: Changes nothing: autograd says what is kept for the backward pass.
        is_fn_pure: Changes nothing: functions are the same whenever they trace the same.

    Returns:
        The last carry, and the stacked ``y``.

    Raises:
        ValueError: The carry changes its form, ``xs`` have no common first dimension, or ``fn``
            uses a tensor from outside that was computed and needs a gradient.
        TypeError: ``fn`` returns something else than two values of nested tensors.
        RuntimeError: ``fn`` reads a tensor, or changes one from outside.
    """
    carry_leaves, carry_spec = tree_flatten(init)
    x_leaves, x_spec = tree_flatten(xs)
    device = tracing.device_of(_SCAN, [*carry_leaves, *x_leaves])
    length = _length(x_leaves)
    inputs = [*carry_leaves, *x_leaves]
    gradients = torch.is_grad_enabled()
    residuals = _Residuals()
    with tracing.trace(_SCAN, device) as capture:
        carry = [capture.placeholder(tensor) for tensor in carry_leaves]
        sliced = [capture.placeholder(tracing.like(t.shape[1:], t.dtype)) for t in x_leaves]
        for tensor in carry:
            tensor.requires_grad_(gradients and _needs_gradient(tensor))
        for tensor, x in zip(sliced, x_leaves, strict=True):
            tensor.requires_grad_(gradients and x.requires_grad)
        since = autograd_edges.now()
        with torch.autograd.graph.saved_tensors_hooks(residuals.pack, residuals.unpack):
            # The function may change its arguments in place.
            given = [tensor.clone() for tensor in (*carry, *sliced)]
            returned = fn(
                tree_unflatten(given[: len(carry)], carry_spec),
                tree_unflatten(given[len(carry) :], x_spec),
            )
        effects = capture.take_effects()
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"{_SCAN}: expected `fn` to return a carry and a y, got {type(returned).__name__}"
            )
        new_carry, new_spec = tree_flatten(returned[0])
        _check_carry(carry, new_carry, (carry_spec, new_spec))
        ys, y_spec = tree_flatten(returned[1])
        present = [i for i, y in enumerate(ys) if y is not None]
        outputs = [*new_carry, *(ys[i] for i in present)]
        tracing.device_of(_SCAN, outputs)
        plan = _Plan(len(carry), len(present), length)
        plan.num_xs = len(sliced)
        kept: list[torch.Tensor] = []
        if gradients:
            plan.params = autograd_edges.leaves_outside(_SCAN, outputs, [*carry, *sliced], since)
            gradients = bool(plan.params) or any(tensor.requires_grad for tensor in inputs)
        if gradients:
            kept = _plan_backward(plan, capture, (carry, sliced), outputs, residuals.tensors)
        results = [*outputs, *kept, *(carry[i] for i in plan.kept)]
        plan.forward = tracing.function(
            capture, [*carry, *sliced], results, "scan", effects=effects
        )
    if gradients:
        results = list(Scan.apply(plan, *inputs, *plan.params))  # type: ignore[no-untyped-call]
    else:
        results = _forward(plan, inputs)
    stacked: list[Any] = [None] * len(ys)
    for i, y in zip(present, results[len(carry) :], strict=True):
        stacked[i] = y
    return tree_unflatten(results[: len(carry)], carry_spec), tree_unflatten(stacked, y_spec)


__all__ = ["Scan", "scan"]
