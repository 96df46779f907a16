"""Gradients of several batches in one program, which has the step once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla.experimental.scan import scan


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Calls ``train_step`` for each batch: the mean of the losses, and its gradients.

    The same as this, as one loop of the program::

        total = 0
        for batch in zip(*iterable_tensors):
            loss, *carried_tensors = train_step(*batch, *carried_tensors)
            loss = loss / len(iterable_tensors[0])
            loss.backward()
            total += loss.detach()

    Args:
        train_step: Returns the loss, and the next carried tensors behind it where there are some.
            It must not read a tensor, nor change one from outside: see
            :func:`torch_xla.experimental.scan.scan`.
        iterable_tensors: XLA tensors whose first dimension counts the batches.
        model: The model; the gradients are added to those of its parameters.
        *carried_tensors: What goes from one call to the next.

    Returns:
        The mean of the losses; with carried tensors a tuple of it and the last ones.

    Raises:
        ValueError: There is no batch, or the tensors are not of one number of batches.
    """
    counts = [len(tensor) for tensor in iterable_tensors]
    if not counts or min(counts) != max(counts) or counts[0] == 0:
        raise ValueError(
            "gradient_accumulation(): expected `iterable_tensors` with one number of batches, of "
            f"at least 1, as their first dimensions, got {counts or 'no tensor'}"
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def one(carry: Any, batch: Any) -> tuple[Any, None]:
        total, sums, carried = carry
        with torch.enable_grad():
            result = train_step(*batch, *carried)
            loss, *carried = result if isinstance(result, (tuple, list)) else (result,)
            loss = loss / counts[0]
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        sums = [
            total if grad is None else total + grad for total, grad in zip(sums, grads, strict=True)
        ]
        return (total + loss.detach(), sums, [tensor.detach() for tensor in carried]), None

    with torch.no_grad():
        device = iterable_tensors[0].device
        start = [torch.zeros_like(parameter) for parameter in parameters]
        zero = torch.zeros((), device=device)
        (total, sums, carried), _ = scan(
            one, (zero, start, list(carried_tensors)), list(iterable_tensors)
        )
        for parameter, gradient in zip(parameters, sums, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient
    return (total, *carried) if carried else total


__all__ = ["gradient_accumulation"]
