"""Tensors that tell how they lie on the devices."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, SupportsIndex, cast

import torch

from torch_xla import _XLAC
from torch_xla._internal.tensors import is_xla
from torch_xla.distributed.spmd.device_mesh import to_mesh, to_partition_spec


class ShardingType(IntEnum):
    """The kinds of sharding that XLA has. Tensors here are of those marked with a star."""

    REPLICATED = 0  # * every device has all of it
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3  # * every device has a part of its own
    MANUAL = 4
    PARTIAL = 5  # * parts, each on several devices
    UNKNOWN = 6


@dataclass
class XLAShard:
    """What one device holds of a tensor.

    Attributes:
        data: The part, a CPU tensor. Where the parts of a dimension are not equal, the last ones
            are shorter, or empty.
        indices: Where it is in the whole: a slice for each dimension; ``...`` if it is all of it.
        shard_device: The device, for example ``"CPU:0"``.
        replica: The number of this copy of the part, from 0.
    """

    data: torch.Tensor
    indices: list[slice] | types.EllipsisType
    shard_device: str
    replica: int

    @property
    def replica_id(self) -> int:
        """The same as ``replica``."""
        return self.replica

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The same as ``data``, which has no padding."""
        return self.data


def _device_name(number: int) -> str:
    platform = _XLAC._xla_platform()
    return f"{platform}:{number}"


def _tiles(tensor: torch.Tensor) -> tuple[list[torch.Tensor], _XLAC.Sharding]:
    """Returns each device's part, and the sharding. Computes the tensor."""
    tiles = _XLAC._xla_tiles(tensor)
    sharding = _XLAC._xla_sharding(tensor)
    if sharding is None:  # The sharding of a view is not known.
        return _tiles(tensor.detach().clone())
    return tiles, sharding


class _WithSharding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, sharding: _XLAC.Sharding) -> torch.Tensor:
        ctx.sharding = sharding
        return _XLAC._xla_with_sharding(unwrap_sharded_tensor(t), sharding)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return with_sharding(gradient, ctx.sharding), None


def with_sharding(t: torch.Tensor, sharding: _XLAC.Sharding) -> torch.Tensor:
    """Returns a tensor of the same content that lies so, as its gradient does."""
    marked = _WithSharding.apply(t, sharding)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, marked)


def check_xla(what: str, t: Any) -> None:
    """Raises TypeError for what is no xla tensor; ``what`` is the function that was called."""
    if not isinstance(t, torch.Tensor) or t.device.type != "xla":
        found = f"one on {t.device}" if isinstance(t, torch.Tensor) else repr(t)
        raise TypeError(f"{what}: expected an xla tensor, got {found}")


class XLAShardedTensor(torch.Tensor):
    """A tensor on all devices of the process, each of which may hold a part of it.

    :func:`mark_sharding` makes it. It is the tensor that was marked, under another type: it has
    the same memory and the same gradients, and operators take it as any other xla tensor. Their
    results are plain tensors.

    Raises:
        TypeError: ``elem`` is no xla tensor.
    """

    # Operators return plain tensors, and cost no more than on plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type[XLAShardedTensor], elem: torch.Tensor, *args: Any, **kwargs: Any
    ) -> XLAShardedTensor:
        check_xla("XLAShardedTensor", elem)
        result = elem.as_subclass(cls)
        if kwargs.get("requires_grad"):
            result.requires_grad_()
        return result

    @property
    def global_tensor(self) -> torch.Tensor:
        """The same as a plain tensor."""
        return self.as_subclass(torch.Tensor)

    @property
    def sharding_spec(self) -> str:
        """How it lies on the devices, in XLA's spelling."""
        return _XLAC._get_xla_sharding_spec(self)

    def invalidate_spec_cache(self) -> None:
        """Changes nothing: how it lies is asked for each time."""

    @property
    def sharding_type(self) -> ShardingType | None:
        """The kind of its sharding; None where it is not marked and not computed yet."""
        sharding = _XLAC._xla_sharding(self)
        if sharding is None:
            return None
        if sharding.is_replicated:
            return ShardingType.REPLICATED
        tiles = 1
        for count in sharding.tiles:
            tiles *= count
        return ShardingType.TILED if tiles == len(sharding.devices) else ShardingType.PARTIAL

    @property
    def local_shards(self) -> list[XLAShard]:
        """What each device holds, in order of the devices. Computes the tensor, and copies it."""
        tiles, sharding = _tiles(self)
        shards = []
        for number, tile in enumerate(tiles):
            offsets, sizes, copy = sharding.tile_of(number, list(self.shape))
            indices: Any = ...
            if not sharding.is_replicated:
                indices = [slice(o, o + s, 1) for o, s in zip(offsets, sizes, strict=True)]
            shards.append(XLAShard(tile, indices, _device_name(number), copy))
        return shards

    def load_local_shards_(self, shards: Sequence[XLAShard]) -> None:
        """Replaces what each device holds.

        Args:
            shards: Shards as of :attr:`local_shards`, in order of the devices, with CPU tensors
                of the same shapes and dtype. Copies of a part have to be equal; the first is
                taken.

        Raises:
            ValueError: The number, the shapes or the dtypes of ``shards`` are others.
        """
        sharding = _XLAC._xla_sharding(self)
        if sharding is None:
            _, sharding = _tiles(self)
        count = _XLAC._xla_spmd_devices()
        if len(shards) != count:
            raise ValueError(
                f"load_local_shards_: expected {count} shards, one for each device, got "
                f"{len(shards)}"
            )
        whole = torch.empty(self.shape, dtype=self.dtype)
        for number, shard in enumerate(shards):
            offsets, sizes, copy = sharding.tile_of(number, list(self.shape))
            if list(shard.data.shape) != list(sizes) or shard.data.dtype != self.dtype:
                raise ValueError(
                    f"load_local_shards_: expected a shard {number} of shape {list(sizes)} and "
                    f"{self.dtype}, got {list(shard.data.shape)} and {shard.data.dtype}"
                )
            if copy == 0:
                place = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
                whole[place] = shard.data
        with torch.no_grad():
            self.copy_(_XLAC._xla_send_sharded(whole, sharding))

    def full_tensor(self) -> torch.Tensor:
        """Returns a plain tensor that every device has all of, as DTensor's method does."""
        return with_sharding(self.global_tensor, _XLAC.Sharding.replicated())

    def redistribute(
        self, device_mesh: Any, placements: Sequence[Any], *, async_op: bool = False
    ) -> XLAShardedTensor:
        """Returns the same content with other placements, as DTensor's method does.

        It is traced like any other operation, with ``async_op`` and without.

        See :func:`torch_xla.distributed.spmd.xla_distribute_tensor`.
        """
        spec = to_partition_spec(self.dim(), device_mesh, placements)
        sharding = to_mesh(device_mesh).get_op_sharding(spec)
        return XLAShardedTensor(with_sharding(self.global_tensor, sharding))

    def detach(self) -> XLAShardedTensor:
        """Returns it without its gradient's history; ``nn.Parameter`` needs the type."""
        return XLAShardedTensor(self.global_tensor.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> XLAShardedTensor:
        if not self.is_leaf:
            raise RuntimeError("only tensors that are leaves of the graph can be deep-copied")
        if id(self) in memo:
            return cast(XLAShardedTensor, memo[id(self)])
        copied = self.global_tensor.detach().clone()
        marked = _XLAC._xla_marked_sharding(self)
        if marked is not None:
            _XLAC._xla_mark_sharding(copied, marked)
        result = XLAShardedTensor(copied)
        result.requires_grad_(self.requires_grad)
        result.__dict__.update(self.__dict__)  # Such as whether it is a parameter.
        memo[id(self)] = result
        return result

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Files contain plain tensors.
        return (
            self.global_tensor.detach().requires_grad_(self.requires_grad).__reduce_ex__(protocol)
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor!r}, sharding_spec={self.sharding_spec!r})"


def wrap_as_sharded_tensor(t: torch.Tensor, *args: Any, **kwargs: Any) -> XLAShardedTensor:
    """Returns an xla tensor as an :class:`XLAShardedTensor`, whether it is sharded or not."""
    return t if isinstance(t, XLAShardedTensor) else XLAShardedTensor(t, *args, **kwargs)


def wrap_if_sharded(x: Any) -> Any:
    """Returns a marked or split xla tensor as :class:`XLAShardedTensor`; all else as it is."""
    if not isinstance(x, torch.Tensor) or isinstance(x, XLAShardedTensor) or not is_xla(x):
        return x
    if _XLAC._xla_marked_sharding(x) is None:
        sharding = _XLAC._xla_sharding(x)
        if sharding is None or sharding.is_replicated:
            return x
    return XLAShardedTensor(x)


def unwrap_sharded_tensor(t: Any) -> Any:
    """Returns an :class:`XLAShardedTensor` as a plain tensor; all else as it is."""
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t
