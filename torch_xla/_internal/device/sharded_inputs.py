"""Sends batches to the devices, each of which gets only its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.nested_data import for_each_instance, map_tensors
from torch_xla._internal.replicas import spmd_mode


def _pairs(data: Any, specs: Any) -> dict[Any, Any] | None:
    """Returns the specs by the keys or the indices of ``data``; None where they do not fit."""
    if isinstance(specs, Mapping):
        fits = isinstance(data, Mapping) and set(specs) == set(data)
        return dict(specs) if fits else None
    if isinstance(specs, Sequence) and not isinstance(specs, str):
        fits = isinstance(data, Sequence) and len(specs) == len(data)
        return dict(enumerate(specs)) if fits else None
    return None


def _plan(data: Any, specs: Any, planned: dict[int, Any]) -> None:
    """Notes the spec of each tensor by the tensor's id."""
    if specs is None:
        return
    if hasattr(specs, "can_apply"):  # A ShardingSpec.

        def note(tensor: torch.Tensor) -> None:
            if specs.can_apply(tensor):
                planned[id(tensor)] = specs

        for_each_instance(data, torch.is_tensor, note)
        return
    pairs = _pairs(data, specs)
    if pairs is None:
        keys = set(data) if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(
            "input_sharding: expected a ShardingSpec, or specs nested as the data, got "
            f"{specs!r} for data of {keys}"
        )
    for key, spec in pairs.items():
        _plan(data[key], spec, planned)


def send_sharded(data: Any, device: torch.device | str, input_sharding: Any) -> Any:
    """See :func:`torch_xla.core.xla_model.send_cpu_data_to_device`."""
    if not spmd_mode.is_on():
        raise RuntimeError(
            "input_sharding: expected SPMD mode; call torch_xla.runtime.use_spmd() first"
        )
    planned: dict[int, Any] = {}
    _plan(data, input_sharding, planned)

    def send(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        spec = planned.get(id(tensor))
        if spec is None:
            return tensor.to(device)
        return _XLAC._xla_send_sharded(tensor.detach(), spec.sharding)

    return map_tensors(send, data)
