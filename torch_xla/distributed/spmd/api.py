"""DTensor's interface, under the path at which torch_xla 2.9 defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_xla.distributed.spmd import device_mesh
from torch_xla.distributed.spmd.dtensor import xla_distribute_module, xla_distribute_tensor
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """Returns the mesh of a ``DeviceMesh`` of device type xla."""
    return device_mesh.to_mesh(dt_mesh)


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> PartitionSpec:
    """Returns what placements mean for a tensor: see :func:`xla_distribute_tensor`."""
    return device_mesh.to_partition_spec(tensor.dim(), None, placements)


__all__ = [
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
