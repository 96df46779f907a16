"""``nn.Module.to(device)`` keeps tied parameters tied, and those of lazy modules lazy.

PyTorch moves a parameter in place where it can. From the CPU to an xla device it cannot: the
module gets a new ``nn.Parameter`` for each place that holds the old one. Weights that were one (an
embedding and the output layer of a language model) would silently train apart, and parameters
whose shape the first call finds would have shape 0 for good.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter


def _parameters(root: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yields every place that holds a parameter, and the parameter."""
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter


def _shared_parameters(root: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Returns, for each parameter that ``root`` holds in several places, these places."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module, name, parameter in _parameters(root):
        places.setdefault(id(parameter), []).append((module, name))
    return [shared for shared in places.values() if len(shared) > 1]


def _uninitialized_parameters(root: nn.Module) -> list[tuple[nn.Module, str]]:
    return [
        (module, name)
        for module, name, parameter in _parameters(root)
        if isinstance(parameter, UninitializedParameter)
    ]


def register() -> None:
    """Wraps ``nn.Module._apply``, which all conversions of a module come down to."""
    apply = nn.Module._apply

    @functools.wraps(apply)
    def apply_and_keep(self: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tied, uninitialized = _shared_parameters(self), _uninitialized_parameters(self)
        result = apply(self, fn, *args, **kwargs)
        for module, name in uninitialized:
            moved = module._parameters[name]
            if not isinstance(moved, UninitializedParameter):
                module._parameters[name] = UninitializedParameter(
                    moved.requires_grad, device=moved.device, dtype=moved.dtype
                )
        for (first, first_name), *others in tied:
            for module, name in others:
                module._parameters[name] = first._parameters[first_name]
        return result

    nn.Module._apply = apply_and_keep
