"""``nn.Module.to(device)`` moves parameters in place, as between other devices.

PyTorch does so where the old and the new tensor are of a kind, which those of the CPU and of an
xla device are not: the module gets a new ``nn.Parameter`` for each place that holds the old one.
An optimizer made before would go on with the old ones; weights that were one (an embedding and the
output layer of a language model) would train apart; and parameters of lazy modules, whose shape
the first call finds, would have shape 0 for good. None of that would be an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter


def _moved_in_place(old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
    """Returns ``old`` with all that ``new`` is; ``new`` itself where ``old`` is in use.

    That is so while an autograd graph of it is alive, or a weak reference to it.
    """
    if isinstance(old, UninitializedParameter) and not isinstance(new, UninitializedParameter):
        new = UninitializedParameter(new.requires_grad, device=new.device, dtype=new.dtype)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return new
    return old


def register() -> None:
    """Wraps ``nn.Module._apply``, which all conversions of a module come down to."""
    apply = nn.Module._apply

    @functools.wraps(apply)
    def apply_in_place(self: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        places = [
            (module, name, parameter)
            for module in self.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        result = apply(self, fn, *args, **kwargs)
        moved: dict[nn.Parameter, nn.Parameter] = {}
        for module, name, old in places:
            new = module._parameters[name]
            if new is old:
                continue
            if old not in moved:
                moved[old] = _moved_in_place(old, new)
            module._parameters[name] = moved[old]
        return result

    nn.Module._apply = apply_in_place
