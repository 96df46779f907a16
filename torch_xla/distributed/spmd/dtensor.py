"""PyTorch's DTensor API on the xla device: it leads here for a device mesh of type xla."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from torch_xla import _XLAC
from torch_xla._internal.patches import replica_mesh
from torch_xla.distributed.spmd.device_mesh import to_mesh, to_partition_spec
from torch_xla.distributed.spmd.marking import mark_sharding
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

if TYPE_CHECKING:  # Slow imports, which a user of DeviceMesh has made already.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


def _api() -> Any:
    from torch.distributed.tensor import _api

    return _api


def _is_of_replicas(device_mesh: DeviceMesh) -> bool:
    return hasattr(device_mesh, "_dim_group_names")


def xla_distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Distributes a tensor over the devices; ``torch.distributed.tensor.distribute_tensor``.

    Over the replicas of a mesh with groups that is PyTorch's own, and the result a ``DTensor``.

    Args:
        tensor: A tensor of any shape. One that is not on xla is sent there.
        device_mesh: A mesh of device type xla over all devices.
        placements: For each dimension of the mesh ``Shard(dim)`` or ``Replicate()``. Of several
            that split the same dimension, the first varies slowest.

    Returns:
        The distributed tensor. An xla tensor is marked itself: see :func:`mark_sharding`.

    Raises:
        ValueError: The mesh or the placements do not fit.
        RuntimeError: The process is not in SPMD mode, or the tensor is marked otherwise.
    """
    if _is_of_replicas(device_mesh):
        # PyTorch's function leads here through a branch that passes on three of its arguments.
        caller = sys._getframe(1)
        given = caller.f_locals if caller.f_code is _api().distribute_tensor.__code__ else {}
        source = {"src_data_rank": given["src_data_rank"]} if "src_data_rank" in given else {}
        distribute = replica_mesh.without_branch(_api().distribute_tensor)
        return cast(torch.Tensor, distribute(tensor, device_mesh, placements, **source))
    mesh = to_mesh(device_mesh)
    spec = to_partition_spec(tensor.dim(), device_mesh, placements)
    if tensor.device.type != "xla":
        sent = _XLAC._xla_send_sharded(tensor.detach().cpu(), mesh.get_op_sharding(spec))
        tensor = XLAShardedTensor(sent).requires_grad_(tensor.requires_grad)
    return mark_sharding(tensor, mesh, spec)


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Distributes a module's parameters; ``torch.distributed.tensor.distribute_module``.

    Over the replicas of a mesh with groups that is PyTorch's own.

    Args:
        module: The module. It is moved to xla.
        device_mesh: A mesh of device type xla over all devices.
        partition_fn: Called with the name of each submodule, the submodule and the mesh; it
            distributes what it wants to, by :func:`xla_distribute_tensor`. What it leaves is
            replicated.
        input_fn: Called with the module, its inputs and the mesh before a forward pass; returns
            the inputs.
        output_fn: Called with the module, its outputs and the mesh after it; returns the outputs.
    """
    if device_mesh is None:
        raise ValueError("xla_distribute_module: expected a DeviceMesh, got None")
    if _is_of_replicas(device_mesh):
        distribute = replica_mesh.without_branch(_api().distribute_module)
        result = distribute(module, device_mesh, partition_fn, input_fn, output_fn)
        return cast(nn.Module, result)
    mesh = to_mesh(device_mesh)
    module.to("xla")
    if partition_fn is not None:
        for name, child in module.named_modules():
            partition_fn(name, child, device_mesh)
    for tensor in (*module.parameters(), *module.buffers()):
        if _XLAC._xla_marked_sharding(tensor) is None:
            mark_sharding(tensor, mesh, (None,) * tensor.dim())
    if input_fn is not None:
        module.register_forward_pre_hook(lambda child, inputs: input_fn(child, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(
            lambda child, inputs, outputs: output_fn(child, outputs, device_mesh)
        )
    module._distribute_module_applied = True  # type: ignore[assignment]
    return module
