"""Planners of torch.distributed.checkpoint for tensors that lie on several devices."""

from __future__ import annotations

import collections
import dataclasses
import io
import threading
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from torch_xla import _XLAC


def _sharding_of(value: Any) -> _XLAC.Sharding | None:
    """Returns how a computed xla tensor lies on the devices; None where every one has it all."""
    if not isinstance(value, torch.Tensor) or value.device.type != "xla" or not value.numel():
        return None
    sharding = _XLAC._xla_sharding(value)
    return None if sharding is None or sharding.is_replicated else sharding


def _write_items(
    item: WriteItem, tensor: torch.Tensor, sharding: _XLAC.Sharding
) -> list[tuple[WriteItem, int]]:
    """Returns the parts of a tensor to write, each with the device that holds it."""
    items = []
    for device in range(len(sharding.devices)):
        offsets, sizes, copy = sharding.tile_of(device, list(tensor.shape))
        if copy != 0 or 0 in sizes:
            continue
        place = torch.Size(offsets)
        shard = WriteItem(
            index=MetadataIndex(item.index.fqn, place),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=ChunkStorageMetadata(offsets=place, sizes=torch.Size(sizes)),
                properties=TensorProperties.create_from_tensor(tensor),
                size=tensor.size(),
            ),
        )
        items.append((shard, device))
    return items


class SPMDSavePlanner(DefaultSavePlanner):
    """Saves tensors in SPMD mode part by part, each part once::

        dcp.save(state_dict, storage_writer=writer, planner=SPMDSavePlanner(), no_dist=True)

    Nothing is put together for it. Any planner loads what it saves: ``SPMDLoadPlanner``, onto
    whatever sharding, or PyTorch's own, into CPU tensors. All else in the state dict is saved as
    :class:`torch.distributed.checkpoint.DefaultSavePlanner` does, which also tells the arguments.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Takes the state dict; computes what is only traced."""
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        values = self.state_dict.values()
        tensors = [v for v in values if isinstance(v, torch.Tensor) and v.device.type == "xla"]
        if tensors:
            _XLAC._xla_sync_multi(tensors, [], True)
        self._lock = threading.Lock()
        self._devices: dict[MetadataIndex, int] = {}
        self._tiles: dict[str, list[torch.Tensor]] = {}
        self._left: collections.Counter[str] = collections.Counter()

    def create_local_plan(self) -> SavePlan:
        """Plans to write each part of each tensor once."""
        plan = super().create_local_plan()
        items = []
        for item in plan.items:
            value = self.state_dict.get(item.index.fqn)
            sharding = _sharding_of(value)
            if value is None or sharding is None:
                items.append(item)
                continue
            for shard, device in _write_items(item, value, sharding):
                items.append(shard)
                self._devices[shard.index] = device
                self._left[item.index.fqn] += 1
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Returns what is to be written: for a part, the CPU tensor of it."""
        device = self._devices.get(write_item.index)
        if device is None:
            return super().resolve_data(write_item)
        name = write_item.index.fqn
        with self._lock:  # Writers use several threads.
            if name not in self._tiles:
                self._tiles[name] = _XLAC._xla_tiles(self.state_dict[name])
            tile = self._tiles[name][device]
            self._left[name] -= 1
            if not self._left[name]:
                del self._tiles[name]
        return tile


class RestrictedLoadPlanner(DefaultLoadPlanner):
    """Loads no other objects than tensors and plain Python ones, unless told to.

    Args:
        *args: As for ``torch.distributed.checkpoint.DefaultLoadPlanner``.
        weights_only: With False any object is loaded, and a checkpoint from a stranger may run any
            code.
        **kwargs: The same.
    """

    def __init__(self, *args: Any, weights_only: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weights_only = weights_only

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Takes an object of the checkpoint; raises pickle.UnpicklingError where it may not."""
        if self._weights_only:
            torch.load(value, map_location="cpu", weights_only=True)
            value.seek(0)
        super().load_bytes(read_item, value)


class SPMDLoadPlanner(RestrictedLoadPlanner):
    """Loads a checkpoint into tensors in SPMD mode, which keep the way they lie::

        dcp.load(state_dict, storage_reader=reader, planner=SPMDLoadPlanner(), no_dist=True)

    It does not matter how they lay when they were saved, or by which planner. A tensor is put
    together on the host, one at a time, and each device is sent its part. All else is loaded as
    :class:`RestrictedLoadPlanner` does, which also tells the arguments.
    """

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Takes the state dict whose tensors are to be filled."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._lock = threading.Lock()
        self._buffers: dict[str, torch.Tensor] = {}
        self._left: collections.Counter[str] = collections.Counter()

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Takes the plan, and counts the reads of each tensor."""
        plan = super().finish_plan(new_plan)
        self._left.update(item.dest_index.fqn for item in plan.items)
        return plan

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Returns where a tensor is read to: for one on xla a CPU tensor in its place."""
        tensor = super().lookup_tensor(index)
        if tensor.device.type != "xla":
            return tensor
        with self._lock:
            if index.fqn not in self._buffers:
                self._buffers[index.fqn] = torch.empty(tensor.shape, dtype=tensor.dtype)
            return self._buffers[index.fqn]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Sends a tensor to the devices when the last part of it was read."""
        name = read_item.dest_index.fqn
        with self._lock:
            self._left[name] -= 1
            buffer = self._buffers.pop(name, None) if not self._left[name] else None
        if buffer is None:
            return
        target = self.state_dict[name]
        sharding = _sharding_of(target)
        with torch.no_grad():
            if sharding is not None:
                target.copy_(_XLAC._xla_send_sharded(buffer, sharding))
            else:
                target.copy_(buffer)
