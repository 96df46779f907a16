"""The parameters of a wrapped module that are gathered and reduced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xla._internal import replication
from torch_xla.core import collectives


class Sharding(NamedTuple):
    """Over which replicas, and in which dtypes."""

    groups: list[list[int]]
    compute_dtype: torch.dtype | None
    float32_reduction: bool

    @property
    def size(self) -> int:
        """How many replicas share a parameter."""
        return collectives.group_size(self.groups)

    @property
    def rank(self) -> int:
        """This replica's place among them."""
        rank = replication.topology().rank
        return next((group.index(rank) for group in self.groups if rank in group), rank)


class Place(NamedTuple):
    """A parameter's name in a module."""

    module: nn.Module
    name: str


class Bucket:
    """Parameters of one dtype as one array, of which this replica keeps a part, ``shard``.

    Modules see ``full``, tensors that hold data from :meth:`gather` to :meth:`free`. They stay
    the same objects, so that what autograd has saved of the forward pass has its data again in
    the backward pass.

    Args:
        parameters: The parameters, each with all its places.
        names: Their names, from the wrapped module.
        sharding: Where the parts are.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[nn.Parameter, list[Place]]],
        names: list[str],
        sharding: Sharding,
    ) -> None:
        self.names = names
        self.shapes = [parameter.shape for parameter, _ in parameters]
        self._sharding = sharding
        self._sizes = [shape.numel() for shape in self.shapes]
        self.padded_size = sum(self._sizes) + -sum(self._sizes) % sharding.size
        first = parameters[0][0]
        flat = self._flatten([parameter.detach() for parameter, _ in parameters])
        part = self.padded_size // sharding.size
        begin = sharding.rank * part
        shard = flat[begin : begin + part].clone()
        self.shard = nn.Parameter(shard, requires_grad=first.requires_grad)
        self.full: list[torch.Tensor] = []
        dtype = sharding.compute_dtype if first.dtype.is_floating_point else None
        self._empty = torch.empty(0, dtype=dtype or first.dtype, device=first.device)
        for parameter, places in parameters:
            full = self._empty.clone().requires_grad_(parameter.requires_grad)
            self.full.append(full)
            for module, name in places:
                module._parameters.pop(name, None)
                setattr(module, name, full)
        self.is_gathered = False
        self._ready = 0
        self.reduces = True
        if first.requires_grad:
            for full in self.full:
                full.register_post_accumulate_grad_hook(self._on_gradient)

    def _flatten(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [tensor.reshape(-1) for tensor in tensors]
        padding = self.padded_size - sum(self._sizes)
        if padding:
            parts.append(parts[0].new_zeros(padding))
        return torch.cat(parts)

    @torch.no_grad()
    def gather(self) -> None:
        """Gives ``full`` its data, from all replicas."""
        if self.is_gathered:
            return
        flat = collectives.all_gather(
            self.shard.detach().to(self._empty.dtype), 0, self._sharding.groups or None
        )
        parts = flat[: sum(self._sizes)].split(self._sizes)
        for full, part, shape in zip(self.full, parts, self.shapes, strict=True):
            full.data = part.view(shape)
        self.is_gathered = True

    @torch.no_grad()
    def free(self) -> None:
        """Takes the data of ``full``; what is traced still has it."""
        if not self.is_gathered:
            return
        for full in self.full:
            full.data = self._empty
        self.is_gathered = False

    def _on_gradient(self, full: torch.Tensor) -> None:
        self._ready += 1
        if self.reduces and self._ready == len(self.full):
            self.reduce()

    @torch.no_grad()
    def reduce(self) -> None:
        """Adds this replica's part of the mean gradient to the shard's, if there is any."""
        self._ready = 0
        if not self.reduces or all(full.grad is None for full in self.full):
            return
        gradients = [
            torch.zeros(shape, dtype=self._empty.dtype, device=self._empty.device)
            if full.grad is None
            else full.grad
            for full, shape in zip(self.full, self.shapes, strict=True)
        ]
        flat = self._flatten(gradients)
        if self._sharding.float32_reduction:
            flat = flat.float()
        size = self._sharding.size
        part = collectives.reduce_scatter(
            collectives.REDUCE_SUM, flat, 1.0 / size, 0, size, self._sharding.groups or None
        ).to(self.shard.dtype)
        self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
        for full in self.full:
            full.grad = None
        self.free()

    def metadata(self, shard_name: str) -> dict[str, Any]:
        """Returns what is needed to join the shards of a checkpoint."""
        return {
            "shard_name": shard_name,
            "names": self.names,
            "shapes": [tuple(shape) for shape in self.shapes],
        }
