"""Optimizers whose step under a ``GradScaler`` does not wait for the device.

They are PyTorch's fused ones: one operator for all parameters, which skips the update on the
device where a gradient overflowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object


class _SyncFree(_Optimizer):
    """What the optimizers share: they are fused, and ``step`` takes ``found_inf``."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"fused": True, **kwargs})

    def step(
        self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None
    ) -> Any:
        """Updates the parameters.

        Args:
            closure: Computes the loss again, and returns it.
            found_inf: A tensor of one element; where it is not zero nothing is updated. A
                ``GradScaler`` gives it by itself.
        """
        if found_inf is None:
            return super().step(closure)
        self.found_inf = found_inf.to(torch.float32)
        try:
            return super().step(closure)
        finally:
            del self.found_inf


class SGD(_SyncFree, torch.optim.SGD):
    """``torch.optim.SGD(..., fused=True)``; the arguments are its own."""


class Adam(_SyncFree, torch.optim.Adam):
    """``torch.optim.Adam(..., fused=True)``; the arguments are its own."""


class AdamW(_SyncFree, torch.optim.AdamW):
    """``torch.optim.AdamW(..., fused=True)``; the arguments are its own."""


for _name in ("sgd", "adam", "adamw"):  # torch_xla 2.9 has a module for each.
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]
