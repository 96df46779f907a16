"""What PyTorch decides by the type of a device, decided for xla, too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils


def _and_xla(devices: Callable[..., list[str]]) -> Callable[..., list[str]]:
    @functools.wraps(devices)
    def with_xla(*args: Any, **kwargs: Any) -> list[str]:
        names = devices(*args, **kwargs)
        return names if "xla" in names else [*names, "xla"]

    return with_xla


def register() -> None:
    """Makes optimizers and gradient clipping work on lists, and backward stay on its thread.

    A ``_foreach_`` call over all parameters is one node of the graph; a loop over them is
    many. Autograd gives devices other than the CPU a thread of their own, so that kernels can
    be launched while others are; tracing has nothing to launch, and waking that thread costs
    more than a small model's whole backward.
    """
    lists = {
        name: _and_xla(getattr(module, name))
        for module, name in (
            (_foreach_utils, "_get_foreach_kernels_supported_devices"),
            (_foreach_utils, "_get_fused_kernels_supported_devices"),
            (optimizer, "_get_capturable_supported_devices"),
        )
    }
    # The optimizers' modules have imported these functions by name.
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("torch.optim.")]
    for module in [_foreach_utils, *modules]:
        for name, function in lists.items():
            if hasattr(module, name):
                setattr(module, name, function)
    torch.autograd.set_multithreading_enabled(False)
