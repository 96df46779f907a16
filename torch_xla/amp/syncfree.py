"""Optimizers whose step under a ``GradScaler`` does not wait for the device.

They are PyTorch's fused ones: one operator for all parameters, which skips the update on the
device where a gradient overflowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class SGD(torch.optim.SGD):
    """``torch.optim.SGD(..., fused=True)``; the arguments are its own."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"fused": True, **kwargs})


class Adam(torch.optim.Adam):
    """``torch.optim.Adam(..., fused=True)``; the arguments are its own."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"fused": True, **kwargs})


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW(..., fused=True)``; the arguments are its own."""

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"fused": True, **kwargs})
