"""Points that XLA moves no computation across."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla import _XLAC

# By the shapes and dtypes of the tensors.
_functions: dict[tuple, str] = {}


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


def apply_(tensors: Sequence[torch.Tensor]) -> None:
    """The same in place. Autograd takes it for no change, as it is none of the values."""
    for tensor, value in zip(tensors, apply(tensors), strict=True):
        _XLAC._xla_assign(tensor, value)
