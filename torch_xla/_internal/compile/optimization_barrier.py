"""Barriers across which XLA moves no computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla import _XLAC

# Texts of functions, by the shapes and dtypes of their tensors.
_functions: dict[tuple[Any, ...], str] = {}


def apply(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors of the same values, all of which depend on all of ``tensors``."""
    if not tensors:
        return []
    key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    if key not in _functions:
        _functions[key] = _XLAC._stablehlo_of(
            lambda *values: _XLAC.hlo.optimization_barrier(values), list(tensors)
        )
    return _XLAC._stablehlo_call(_functions[key], list(tensors))


def apply_late(tensors: Sequence[torch.Tensor], late: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors of the same values that are not available before those of ``late`` are.

    Some compilers (XLA's for the CPU) remove barriers before they merge equal computations. So
    this makes the values depend on a number that a compiler does not know.
    """
    hlo = _XLAC.hlo
    number = torch.scalar_tensor(2, dtype=torch.int64, device=tensors[0].device)
    operands = [number, *tensors, *late]

    def make(*values: Any) -> Any:
        stays = values[0] > hlo.full(values[0], 1, [], torch.int64)
        for value in values[1 + len(tensors) :]:
            if 0 in value.shape:
                continue
            rank = len(value.shape)
            first = hlo.reshape(hlo.slice(value, [0] * rank, [1] * rank), [])
            stays = stays | hlo.compare(first, first, "ne")
        return hlo.optimization_barrier(
            [
                hlo.select(stays, value, hlo.full_like(value, 1))  # Hides a 0 from XLA, too.
                for value in values[1 : 1 + len(tensors)]
            ]
        )

    key = ("late", len(tensors), *((tuple(t.shape), t.dtype) for t in operands))
    if key not in _functions:
        _functions[key] = _XLAC._stablehlo_of(make, operands)
    return _XLAC._stablehlo_call(_functions[key], operands)


def apply_(tensors: Sequence[torch.Tensor]) -> None:
    """Applies a barrier in place. Autograd sees no change, since the values stay the same."""
    for tensor, value in zip(tensors, apply(tensors), strict=True):
        _XLAC._xla_assign(tensor, value)
