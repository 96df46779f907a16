"""Linear layers whose input keeps its dimensions, and so its sharding."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC


def _others(rank: int, dims: Sequence[int]) -> list[int]:
    return [dim for dim in range(rank) if dim not in dims]


def _order(keys: Sequence[int]) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__)


class _DotGeneral(torch.autograd.Function):
    """Products of two tensors, summed over dimensions of each, the others in their order."""

    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, a_dims: list[int], b_dims: list[int]
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.dims = a_dims, b_dims
        return _XLAC._xla_dot_general(a, b, a_dims, b_dims)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        a_dims, b_dims = ctx.dims
        a_free, b_free = _others(a.dim(), a_dims), _others(b.dim(), b_dims)
        count = len(a_free)
        a_gradient = b_gradient = None
        if ctx.needs_input_grad[0]:
            last = list(range(count, gradient.dim()))
            product = _DotGeneral.apply(gradient, b, last, b_free)  # type: ignore[no-untyped-call]
            a_gradient = product.permute(_order(a_free + [a_dims[i] for i in _order(b_dims)]))
        if ctx.needs_input_grad[1]:
            first = list(range(count))
            product = _DotGeneral.apply(gradient, a, first, a_free)  # type: ignore[no-untyped-call]
            b_gradient = product.permute(_order(b_free + [b_dims[i] for i in _order(a_dims)]))
        return a_gradient, b_gradient, None, None


def einsum_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The linear function as one contraction: ``einsum("...n,mn->...m", input, weight) + bias``.

    ``torch.nn.functional.linear`` makes a matrix of its input, which merges the batch dimensions:
    if others than the first are split over the devices, XLA has to gather them for that. Here
    they stay as they are, in the backward pass, too.

    Args:
        input: [..., n], on xla.
        weight: [m, n], of the same dtype.
        bias: [m].

    Returns:
        [..., m].
    """
    dims = [input.dim() - 1], [1]
    output: torch.Tensor = _DotGeneral.apply(input, weight, *dims)  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The forward pass of a linear layer through :func:`einsum_linear`.

    Off the xla device it is the layer's usual one.

    Args:
        m: The layer.
        input: [..., in_features].

    Returns:
        [..., out_features].
    """
    if input.device.type != "xla":
        return nn.functional.linear(input, m.weight, m.bias)
    return einsum_linear(input, m.weight, m.bias)


def apply_xla_patch_to_nn_linear(
    module: nn.Module,
    patched_function: Callable[[nn.Linear, torch.Tensor], torch.Tensor] = (
        xla_patched_nn_linear_forward
    ),
) -> nn.Module:
    """Makes the linear layers of a module keep the batch dimensions apart.

    Args:
        module: The module; its ``nn.Linear`` children of any depth, or itself, are changed.
        patched_function: Called with a layer and its input in place of ``forward``.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear):
            child.forward = types.MethodType(patched_function, child)  # type: ignore[method-assign]
    return module


class XLAPatchedLinear:
    """:func:`einsum_linear` as ``XLAPatchedLinear.apply(input, weight, bias=None)``."""

    apply = staticmethod(einsum_linear)


class EinsumLinear(nn.Linear):
    """A linear layer whose forward pass is :func:`einsum_linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns ``input @ weight.T + bias``; ``input`` is [..., in_features]."""
        return xla_patched_nn_linear_forward(self, input)
