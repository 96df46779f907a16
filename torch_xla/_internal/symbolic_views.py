"""Views whose sizes are symbols, while torch.compile traces with shapes that may change.

The kernels of ``view`` and ``slice`` for autograd on the device (csrc/ops/view_autograd.cpp) take
integers. Where PyTorch traces, and there alone, these stand before them: with a symbol they say
the same by operators that PyTorch's own kernels differentiate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_impls import _compute_stride

_view = torch.ops.aten.view.default
_slice = torch.ops.aten.slice.Tensor


def _has_symbol(*values: Any) -> bool:
    return any(isinstance(value, torch.SymInt) for value in values)


def _view_kernel(x: torch.Tensor, size: Sequence[Any]) -> Any:
    if not _has_symbol(*size):
        return _view._op_dk(DispatchKey.AutogradXLA, x, size)
    if len(size) == x.dim() and all(a == b for a, b in zip(size, x.shape, strict=True)):
        return torch.ops.aten.alias.default(x)
    sizes = list(size)
    open_places = [i for i, one in enumerate(sizes) if not _has_symbol(one) and one == -1]
    if len(open_places) == 1:
        (place,) = open_places
        known: Any = 1
        for i, one in enumerate(sizes):
            known = known if i == place else known * one
        sizes[place] = x.numel() // known
    total: Any = 1
    contiguous: list[Any] = []
    for one in reversed(sizes):
        contiguous.insert(0, total)
        total = total * one
    if total != x.numel():
        raise RuntimeError(f"shape '{list(size)}' is invalid for input of size {x.numel()}")
    strides = contiguous if x.is_contiguous() else _compute_stride(x.shape, x.stride(), sizes)
    if strides is None:
        raise RuntimeError(
            f"view() to {list(size)}, which may change: a tensor of shape {list(x.shape)} with "
            f"strides {list(x.stride())} has no such view; call contiguous() before it"
        )
    return torch.ops.aten._reshape_alias.default(x, sizes, strides)


def _slice_kernel(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    if not _has_symbol(start, end) or _has_symbol(step):
        return _slice._op_dk(DispatchKey.AutogradXLA, x, dim, start, end, step)
    size = x.shape[dim]

    def place(bound: Any, otherwise: Any) -> Any:
        if bound is None or (not _has_symbol(bound) and bound == sys.maxsize):
            return otherwise
        if bound < 0:
            bound = bound + size
        return 0 if bound < 0 else size if bound > size else bound

    first, last = place(start, 0), place(end, size)
    if last < first:
        last = first
    sizes = [first, last - first, size - last]
    part = torch.ops.aten.split_with_sizes.default(x, sizes, dim)[1]
    if step == 1:
        return part
    return _slice._op_dk(DispatchKey.AutogradXLA, part, dim, None, None, step)


def register() -> None:
    """At import: puts them before the device's kernels where PyTorch traces."""
    _view.py_impl(DispatchKey.AutogradXLA)(_view_kernel)
    _slice.py_impl(DispatchKey.AutogradXLA)(_slice_kernel)
