"""``nn.Module.to(device)`` keeps parameters that are tied tied.

PyTorch moves a parameter in place where it can. From the CPU to an xla device it cannot: the
module gets a new ``nn.Parameter`` for each place that holds the old one, and weights that were
one (an embedding and the output layer of a language model) would silently train apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn


def _shared_parameters(root: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Returns, for each parameter that ``root`` holds in several places, these places."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [shared for shared in places.values() if len(shared) > 1]


def register() -> None:
    """Wraps ``nn.Module._apply``, which all conversions of a module come down to."""
    apply = nn.Module._apply

    @functools.wraps(apply)
    def apply_and_tie(self: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tied = _shared_parameters(self)
        result = apply(self, fn, *args, **kwargs)
        for (first, first_name), *others in tied:
            for module, name in others:
                module._parameters[name] = first._parameters[first_name]
        return result

    nn.Module._apply = apply_and_tie
