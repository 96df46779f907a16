"""What PyTorch decides by the type of a device, decided for xla, too."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.optim import optimizer, swa_utils
from torch.utils import _foreach_utils


def _and_xla(devices: Callable[[], list[str]]) -> Callable[[], list[str]]:
    @functools.wraps(devices)
    def with_xla() -> list[str]:
        return [*devices(), "xla"]

    return with_xla


def register() -> None:
    """Makes optimizers and gradient clipping work on lists, and backward stay on its thread.

    A ``_foreach_`` call over all parameters is one node of the graph; a loop over them is
    many. Autograd gives devices other than the CPU a thread of their own, so that kernels can
    be launched while others are; tracing has nothing to launch, and waking that thread costs
    more than a small model's whole backward.
    """
    for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
        function = _and_xla(getattr(_foreach_utils, name))
        for module in (_foreach_utils, optimizer, swa_utils):
            if hasattr(module, name):
                setattr(module, name, function)
    torch.autograd.set_multithreading_enabled(False)
