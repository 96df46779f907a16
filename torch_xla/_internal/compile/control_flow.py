"""Branches and loops that are part of the program: the host never reads their conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla import _XLAC
from torch_xla._internal.compile import autograd_edges, tracing
from torch_xla._internal.compile.scan import scan

_hlo = _XLAC.hlo


def _forms(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(list(tensor.shape), tensor.dtype) for tensor in tensors]


class _Branch:
    """A branch that was traced."""

    def __init__(self, capture: Any, fn: Callable[..., Any], operands: Any, gradients: bool):
        leaves, spec = tree_flatten(operands)
        self.arguments = [
            capture.placeholder(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        tensors = [leaf for leaf in self.arguments if isinstance(leaf, torch.Tensor)]
        for placeholder in tensors:
            floating = placeholder.dtype.is_floating_point or placeholder.dtype.is_complex
            placeholder.requires_grad_(gradients and floating)
        since = autograd_edges.now()
        returned = fn(*tree_unflatten(self.arguments, spec))
        self.outputs, self.spec = tree_flatten(returned)
        tracing.device_of("cond()", self.outputs)
        self.inputs = tensors
        self.params: list[torch.Tensor] = []
        if gradients:
            self.params = autograd_edges.leaves_outside("cond()", self.outputs, tensors, since)
        self.forward = tracing.function(capture, tensors, self.outputs, "branch")
        self.backward: tracing.Function | None = None

    def add_backward(self, capture: Any, params: list[torch.Tensor]) -> None:
        cotangents = [capture.placeholder(output) for output in self.outputs]
        pairs = [(o, c) for o, c in zip(self.outputs, cotangents, strict=True) if o.requires_grad]
        targets = [*(t for t in self.inputs if t.requires_grad), *params]
        grads: Sequence[torch.Tensor | None] = [None] * len(targets)
        if pairs:
            grads = torch.autograd.grad(
                [output for output, _ in pairs],
                targets,
                [cotangent for _, cotangent in pairs],
                allow_unused=True,
            )
        filled = [
            torch.zeros_like(target) if grad is None else grad
            for grad, target in zip(grads, targets, strict=True)
        ]
        self.backward = tracing.function(
            capture, [*self.inputs, *cotangents], filled, "branch_backward"
        )


def _choose(
    pred: torch.Tensor, functions: Sequence[tracing.Function], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Calls the first function where ``pred`` is true, else the second."""
    first, second = functions
    count = len(inputs)

    def make(values: Sequence[Any]) -> Any:
        given = values[1 : 1 + count]
        of_first = values[1 + count : 1 + count + len(first.captured)]
        of_second = values[1 + count + len(first.captured) :]
        return _hlo.if_(
            values[0],
            lambda: first.call(given, of_first, values[0]),
            lambda: second.call(given, of_second, values[0]),
        )

    key = ("cond", first.text, tuple(first.inputs), second.text, tuple(second.inputs))
    operands = [pred, *inputs, *first.captured, *second.captured]
    return tracing.build(key, make, operands)


class _Cond(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Any, pred: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        branches, count = plan
        ctx.plan = plan
        ctx.save_for_backward(pred, *tensors[:count])
        outputs = tuple(_choose(pred, [b.forward for b in branches], tensors[:count]))
        plain = [
            output
            for output, *of_branches in zip(outputs, *(b.outputs for b in branches), strict=True)
            if not any(tensor.requires_grad for tensor in of_branches)
        ]
        ctx.mark_non_differentiable(*plain)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        branches, count = ctx.plan
        pred, *inputs = ctx.saved_tensors
        found = _choose(pred, [b.backward for b in branches], [*inputs, *grads])
        of_inputs = iter(found)
        result = [next(of_inputs) if t.requires_grad else None for t in branches[0].inputs]
        return autograd_edges.first_order_only("cond()", (None, None, *result, *of_inputs))


def cond(
    pred: torch.Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """Calls ``true_fn(*operands)`` or ``false_fn(*operands)``, as the program's ``pred`` says.

    Both are traced, one of them runs; ``pred`` is not read. Gradients go to the operands and the
    parameters that the functions use; what they need is computed again in the backward pass.

    Args:
        pred: An xla tensor of one bool, or a Python bool, which decides at once.
        true_fn: A function. It must not read a tensor, nor change one from outside.
        false_fn: Another one, which returns tensors of the same shapes and dtypes.
        operands: Their arguments: xla tensors, nested or not, and Python numbers.

    Raises:
        ValueError: ``pred`` is not one bool, or the functions return tensors of different forms.
        TypeError: The functions return something other than tensors.
        RuntimeError: A function reads a tensor, or changes one from outside.
    """
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    if pred.numel() != 1 or pred.dtype != torch.bool:
        raise ValueError(
            f"cond(): expected `pred` to be one bool, got {pred.dtype} of shape {list(pred.shape)}"
        )
    if pred.device.type != "xla":
        return (true_fn if pred.item() else false_fn)(*operands)
    tensors = [leaf for leaf in tree_flatten(operands)[0] if isinstance(leaf, torch.Tensor)]
    gradients = torch.is_grad_enabled()
    with tracing.trace("cond()", pred.device) as capture:
        branches = [_Branch(capture, fn, operands, gradients) for fn in (true_fn, false_fn)]
        first, second = branches
        forms = [_forms(branch.outputs) for branch in branches]
        if first.spec != second.spec or forms[0] != forms[1]:
            raise ValueError(
                "cond(): expected both functions to return tensors of the same shapes and dtypes, "
                f"got {forms[0]} in {first.spec} and {forms[1]} in {second.spec}"
            )
        params = list({id(p): p for branch in branches for p in branch.params}.values())
        gradients = bool(params) or any(tensor.requires_grad for tensor in tensors)
        gradients = gradients and torch.is_grad_enabled()
        if gradients:
            for branch in branches:
                branch.add_backward(capture, params)
    pred = pred.reshape(())
    if gradients:
        sizes = branches, len(tensors)
        results = _Cond.apply(sizes, pred, *tensors, *params)  # type: ignore[no-untyped-call]
    else:
        results = _choose(pred, [first.forward, second.forward], tensors)
    return tree_unflatten(list(results), first.spec)


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    additional_inputs: Sequence[Any] | None = None,
) -> Any:
    """Calls ``values = body_fn(*values)`` as long as ``cond_fn(*values)``, in the program.

    Both are traced once; nothing is read. No gradient goes through it: the number of turns is not
    known. :func:`torch_xla.experimental.scan.scan` has gradients.

    Args:
        cond_fn: Returns one bool, an xla tensor. It must not read a tensor, nor change one from
            outside; so must not ``body_fn``.
        body_fn: Returns the next values, of the same shapes and dtypes. Its random numbers are
            others in every turn.
        carried_inputs: The first values: a tuple of xla tensors, nested or not.
        additional_inputs: Arguments of both functions after the values, the same in each turn.

    Raises:
        ValueError: The values change their form, or ``cond_fn`` does not return one bool.
        TypeError: They are no tensors.
        RuntimeError: A function reads a tensor, or changes one from outside.
    """
    more = tuple(additional_inputs or ())
    leaves, spec = tree_flatten(carried_inputs)
    fixed, fixed_spec = tree_flatten(more)
    tensors = [leaf for leaf in fixed if isinstance(leaf, torch.Tensor)]
    leaves = [_as_tensor(leaf, (*leaves, *tensors)) for leaf in leaves]
    device = tracing.device_of("while_loop()", [*leaves, *tensors])
    with torch.no_grad(), tracing.trace("while_loop()", device) as capture:
        state = [capture.placeholder(leaf) for leaf in leaves]
        given = [
            capture.placeholder(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in fixed
        ]
        arguments = [*tree_unflatten(state, spec), *tree_unflatten(given, fixed_spec)]
        decision = cond_fn(*arguments)
        effects = capture.take_effects()
        returned = tree_flatten(body_fn(*arguments))[0]
        returned = [_as_tensor(leaf, state) for leaf in returned]
        if not isinstance(decision, torch.Tensor):
            decision = torch.tensor(bool(decision), device=device)
        if decision.numel() != 1 or decision.dtype != torch.bool:
            raise ValueError(
                f"while_loop(): expected `cond_fn` to return one bool, got {decision.dtype} of "
                f"shape {list(decision.shape)}"
            )
        tracing.device_of("while_loop()", [decision, *returned])
        if len(returned) != len(state) or _forms(returned) != _forms(state):
            raise ValueError(
                "while_loop(): expected `body_fn` to return values of the shapes and dtypes of "
                f"`carried_inputs`, {_forms(state)}, got {_forms(returned)}"
            )
        inputs = [*state, *(leaf for leaf in given if isinstance(leaf, torch.Tensor))]
        body = tracing.function(capture, inputs, returned, "body")
        test = tracing.function(
            capture, inputs, [decision.reshape(())], "condition", effects=effects
        )
    given = [leaf.detach() for leaf in (*leaves, *tensors)]
    results = tracing.loop([body, test], given, carries=len(state))
    return tree_unflatten(results, spec)


def _as_tensor(leaf: Any, others: Sequence[Any]) -> Any:
    """Returns a carried Python number as the tensor that the loop carries."""
    if isinstance(leaf, (bool, int, float)):
        device = next((t.device for t in others if isinstance(t, torch.Tensor)), "xla")
        return torch.tensor(leaf, device=device)
    return leaf


def fori_loop(
    lower: int | torch.Tensor, upper: int | torch.Tensor, body_fun: Callable[..., Any], *init: Any
) -> Any:
    """Calls ``values = body_fun(i, *values)`` for each ``i`` from ``lower`` to ``upper - 1``.

    With bounds that are Python numbers gradients go through it, as through
    :func:`torch_xla.experimental.scan.scan`; with tensors they do not.

    Args:
        lower: The first ``i``: an int, or an xla tensor of one integer, which is not read.
        upper: The end of the range, which ``i`` does not reach.
        body_fun: Gets ``i``, an int64 tensor, and the values; returns the next ones: a tuple of
            them, or the one that there is.
        *init: The first values: xla tensors of any shape.

    Returns:
        The last values, a tuple; the value itself where there is one.
    """

    def step(i: torch.Tensor, values: Sequence[Any]) -> tuple[Any, ...]:
        result = body_fun(i, *values)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    device = tracing.device_of("fori_loop()", tree_flatten(init)[0])
    if isinstance(lower, int) and isinstance(upper, int):
        values = init
        if lower < upper:
            turns = torch.arange(lower, upper, device=device)
            values, _ = scan(lambda values, i: (step(i, values), None), init, turns)
    else:
        start, stop = (
            torch.as_tensor(bound, device=device).reshape(()).to(torch.int64)
            for bound in (lower, upper)
        )
        _, *values = while_loop(
            lambda i, *rest: i < rest[-1],
            lambda i, *rest: (i + 1, *step(i, rest[:-1])),
            (start, *init),
            (stop,),
        )
    return values[0] if len(init) == 1 else tuple(values)


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """Returns the stacked ``f(x, *args)`` of each ``x`` along the first dimension of ``xs``.

    Args:
        f: A function of xla tensors, traced once: see :func:`torch_xla.experimental.scan.scan`.
        xs: Nested data with xla tensors of one first dimension.
        *args: Further arguments of ``f``.
    """
    return scan(lambda carry, x: (carry, f(x, *args)), (), xs)[1]


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "generic",
) -> Any:
    """Returns what ``combine_fn`` makes of the first, the first two, … elements along ``dim``.

    Args:
        combine_fn: An associative function of two elements: nested tensors without ``dim``, of any
            number in front.
        xs: Nested data with tensors of one size along ``dim``.
        dim: The dimension.
        reverse: From the end.
        combine_mode: As PyTorch's; ``"pointwise"`` is for CUDA's kernels.
    """
    from torch._higher_order_ops import associative_scan as of_pytorch

    return of_pytorch(combine_fn, xs, dim, reverse=reverse, combine_mode=combine_mode)
