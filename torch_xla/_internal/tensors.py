"""What PyTorch's type stubs do not know of tensors."""

from __future__ import annotations

import torch


def is_xla(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on an xla device; a fake one of ``torch.compile``'s is not."""
    return bool(tensor.is_xla)  # type: ignore[attr-defined]
