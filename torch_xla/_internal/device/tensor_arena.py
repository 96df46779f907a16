"""Converting the tensors of nested data together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla.utils.utils import for_each_instance, for_each_instance_rewrite


class ToXlaTensorArena:
    """Replaces tensors in nested data by what one call makes of all of them.

    Args:
        convert_fn: Called once with the list of the tensors; returns as many.
        select_fn: Says of an object in the data whether it is one of them.
    """

    def __init__(
        self,
        convert_fn: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        select_fn: Callable[[Any], bool],
    ) -> None:
        self._convert_fn = convert_fn
        self._select_fn = select_fn

    def transform(self, inputs: Any) -> Any:
        """Returns the data with its tensors replaced; it is not changed."""
        tensors: list[torch.Tensor] = []
        for_each_instance(inputs, self._select_fn, tensors.append)
        converted = iter(self._convert_fn(tensors))
        return for_each_instance_rewrite(inputs, self._select_fn, lambda _: next(converted))
