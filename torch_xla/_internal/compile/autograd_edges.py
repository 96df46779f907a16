"""Finds the tensors outside of a function that its autograd graph reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def now() -> int:
    """Returns the sequence number of the next autograd node; later nodes have larger ones."""
    return torch._C._autograd._get_sequence_nr()


def first_order_only(
    what: str, gradients: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients of a backward pass; to differentiate them raises.

    Without this, a pass with ``create_graph=True`` would take them for constants.

    Args:
        what: Names the function in the message of the error.
        gradients: What ``backward`` of a ``torch.autograd.Function`` returns.
    """
    if not torch.is_grad_enabled():
        return tuple(gradients)
    present = [gradient for gradient in gradients if gradient is not None]
    error = torch._C._functions.DelayedError(
        f"{what}: its gradients are not differentiable: second derivatives do not go through it. "
        "Write a loop or a branch of Python where they are needed",
        len(present),
    )
    made = error(*(gradient.detach().requires_grad_() for gradient in present))
    marked = iter(made if isinstance(made, tuple) else (made,))
    return tuple(None if gradient is None else next(marked) for gradient in gradients)


def leaves_outside(
    what: str, outputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], since: int
) -> list[torch.Tensor]:
    """Returns the leaves that need gradients, besides ``arguments``, below ``outputs``.

    Args:
        what: Names the function in the messages of errors.
        outputs: What the function returned.
        arguments: What it was called with.
        since: :func:`now` before the call.

    Raises:
        ValueError: A tensor from outside needs a gradient but is no leaf.
    """
    own = {id(tensor) for tensor in arguments}
    found: dict[int, torch.Tensor] = {}
    stack: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(stack)
    for tensor in outputs:
        if tensor.grad_fn is None and tensor.requires_grad and id(tensor) not in own:
            found[id(tensor)] = tensor
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            if id(variable) not in own:
                found[id(variable)] = variable
            continue
        if node._sequence_nr() < since:
            raise ValueError(
                f"{what}: the function uses a tensor from outside that was computed and needs a "
                f"gradient ({node.name()}); pass it as an argument, or detach() it"
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return list(found.values())
