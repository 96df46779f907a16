"""The parameters of a wrapped module that are gathered and reduced together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xla._internal.tensors import is_xla
from torch_xla.core import collectives


class Sharding(NamedTuple):
    """The replicas over which to shard, and the dtypes."""

    groups: list[list[int]]
    compute_dtype: torch.dtype | None
    float32_reduction: bool
    by_rows: bool  # Parts are whole rows of the first dimension of a single parameter.
    multiple: int  # Otherwise a part's number of elements is a multiple of this.

    @property
    def size(self) -> int:
        """How many replicas share a parameter."""
        return collectives.group_size(self.groups)

    @property
    def rank(self) -> int:
        """This replica's place among them."""
        return collectives.group_rank(self.groups)


class Place(NamedTuple):
    """A parameter's name in a module."""

    module: nn.Module
    name: str


class Bucket:
    """Parameters of one dtype as one array, of which this replica keeps a part, ``shard``.

    Modules see ``full``, tensors that hold data from :func:`gather` to :meth:`free`. They stay
    the same objects, so that what autograd has saved of the forward pass has its data again in
    the backward pass.

    Args:
        parameters: The parameters, each with all its places.
        names: The parameters' names in the wrapped module.
        flat_name: A name for the array, if it holds all parameters of a kind.
        sharding: Where the parts are.
        on_ready: Called when all gradients are there, but not where they only add up.

    Attributes:
        shard: This replica's part.
        full: The whole parameters.
        divisors: What gradients are divided by before and after they are summed up.
        reduces: Whether gradients are to be reduced; they add up meanwhile.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[nn.Parameter, list[Place]]],
        names: list[str],
        flat_name: str | None,
        sharding: Sharding,
        on_ready: Callable[[Bucket], None],
    ) -> None:
        self.names = names
        self.name = flat_name or names[0]
        self.shapes = [parameter.shape for parameter, _ in parameters]
        self.sharding = sharding
        self._on_ready_to_reduce = on_ready
        self._sizes = [shape.numel() for shape in self.shapes]
        by_rows = sharding.by_rows and flat_name is None and len(self.shapes[0]) > 0
        unit = self.shapes[0][1:].numel() if by_rows else sharding.multiple
        # If rows are empty, so are parts.
        parts = -(-sum(self._sizes) // (sharding.size * max(unit, 1)))
        self.padded_size = parts * unit * sharding.size
        first = parameters[0][0]
        flat = self._flatten([parameter.detach() for parameter, _ in parameters])
        part = self.padded_size // sharding.size
        begin = sharding.rank * part
        # Cut on the CPU first: the device need not hold the whole module.
        device = first.device if is_xla(first) else "xla"
        shard = flat[begin : begin + part].clone().to(device)
        if by_rows:
            shard = shard.view(parts, *self.shapes[0][1:])
        self.shard = nn.Parameter(shard, requires_grad=first.requires_grad)
        self.shard._is_sharded = True  # type: ignore[attr-defined]  # Lightning looks for it.
        self.divisors = (1.0, float(sharding.size))
        self.full: list[torch.Tensor] = []
        dtype = sharding.compute_dtype if first.dtype.is_floating_point else None
        self._empty = torch.empty(0, dtype=dtype or first.dtype, device=device)
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

    def part(self) -> torch.Tensor:
        """Returns this replica's part in the dtype that modules see, [n]."""
        return self.shard.detach().reshape(-1).to(self._empty.dtype)

    def fill(self, flat: torch.Tensor) -> None:
        """Gives ``full`` its data, all replicas' parts."""
        parts = flat[: sum(self._sizes)].split(self._sizes)
        for full, part, shape in zip(self.full, parts, self.shapes, strict=True):
            full.data = part.view(shape)
        self.is_gathered = True

    @torch.no_grad()
    def free(self) -> None:
        """Drops the data of ``full``; traced operations still hold it."""
        if not self.is_gathered:
            return
        for full in self.full:
            full.data = self._empty
        self.is_gathered = False

    def _on_gradient(self, full: torch.Tensor) -> None:
        self._ready += 1
        if self.reduces and self._ready == len(self.full):
            self._on_ready_to_reduce(self)

    def has_gradient(self) -> bool:
        """Returns whether there is a gradient that is to be reduced."""
        return self.reduces and any(full.grad is not None for full in self.full)

    def whole_gradient(self) -> torch.Tensor:
        """Returns this replica's gradient of the whole array, [replicas, n]; 0 where it is none."""
        gradients = [
            torch.zeros(shape, dtype=self._empty.dtype, device=self._empty.device)
            if full.grad is None
            else full.grad
            for full, shape in zip(self.full, self.shapes, strict=True)
        ]
        flat = self._flatten(gradients)
        if self.sharding.float32_reduction:
            flat = flat.float()
        before = self.divisors[0]
        return (flat if before == 1.0 else flat / before).view(self.sharding.size, -1)

    def take_gradient(self, part: torch.Tensor) -> None:
        """Adds this replica's part of the summed gradients, [n], to the shard's gradient."""
        part = (part * (1.0 / self.divisors[1])).to(self.shard.dtype).view(self.shard.shape)
        self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
        self.drop_gradients()
        self.free()

    def drop_gradients(self) -> None:
        """Forgets the gradients of ``full``."""
        for full in self.full:
            full.grad = None

    def finish(self) -> None:
        """Ends a backward pass, in which some gradients may be missing."""
        self._ready = 0
        self.free()

    def metadata(self, shard_name: str) -> dict[str, Any]:
        """Returns what is needed to join the shards of a checkpoint."""
        return {
            "shard_name": shard_name,
            "names": self.names,
            "shapes": [tuple(shape) for shape in self.shapes],
        }


@torch.no_grad()
def gather(buckets: Sequence[Bucket], together: bool = False) -> None:
    """Gives the ``full`` of buckets their data, from all replicas.

    Args:
        buckets: Buckets of one module; those that have their data are left out.
        together: Whether to do it in one transfer for each dtype.
    """
    waiting: dict[Any, list[tuple[Bucket, torch.Tensor]]] = {}
    for bucket in buckets:
        if not bucket.is_gathered:
            part = bucket.part()
            waiting.setdefault(part.dtype if together else bucket, []).append((bucket, part))
    for joined in waiting.values():
        sharding = joined[0][0].sharding
        parts = [part for _, part in joined]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        flat = collectives.all_gather(flat, 0, sharding.groups or None)
        if len(parts) == 1:
            joined[0][0].fill(flat)
            continue
        columns = flat.view(sharding.size, -1).split([part.numel() for part in parts], 1)
        for (bucket, _), column in zip(joined, columns, strict=True):
            bucket.fill(column.reshape(-1))


@torch.no_grad()
def reduce(buckets: Sequence[Bucket]) -> None:
    """Adds this replica's part of the gradients to the shards', in one transfer for each dtype."""
    waiting: dict[torch.dtype, list[tuple[Bucket, torch.Tensor]]] = {}
    for bucket in buckets:
        if bucket.has_gradient():
            gradient = bucket.whole_gradient()
            waiting.setdefault(gradient.dtype, []).append((bucket, gradient))
    for joined in waiting.values():
        sharding = joined[0][0].sharding
        gradients = [gradient for _, gradient in joined]
        whole = gradients[0] if len(gradients) == 1 else torch.cat(gradients, 1)
        flat = collectives.reduce_scatter(
            collectives.REDUCE_SUM,
            whole.reshape(-1),
            1.0,
            0,
            sharding.size,
            sharding.groups or None,
        )
        parts = flat.split([gradient.shape[1] for gradient in gradients])
        for (bucket, _), part in zip(joined, parts, strict=True):
            bucket.take_gradient(part)
