"""What PyTorch's meshes and placements mean here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec

if TYPE_CHECKING:  # Slow imports, which a user of DeviceMesh has made already.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


def to_mesh(device_mesh: DeviceMesh) -> Mesh:
    """Returns the mesh of a ``DeviceMesh``.

    Raises:
        ValueError: Its device type is not xla.
    """
    if device_mesh.device_type != "xla":
        raise ValueError(
            f"expected a DeviceMesh of device type 'xla', got {device_mesh.device_type!r}"
        )
    devices = device_mesh.mesh
    return Mesh(devices.flatten().tolist(), tuple(devices.shape), device_mesh.mesh_dim_names)


def to_partition_spec(
    rank: int, device_mesh: DeviceMesh | None, placements: Sequence[Placement] | None
) -> PartitionSpec:
    """Returns what placements mean for a tensor.

    Args:
        rank: The tensor's number of dimensions.
        device_mesh: The mesh; None: one of as many dimensions as there are placements.
        placements: For each dimension of the mesh ``Shard(dim)`` or ``Replicate()``; None
            replicates.

    Returns:
        The partition spec, of axis numbers.

    Raises:
        ValueError: There are more or fewer placements than mesh dimensions, or others.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard

    if placements is None:
        placements = [Replicate()] * (0 if device_mesh is None else device_mesh.ndim)
    if device_mesh is not None and len(placements) != device_mesh.ndim:
        raise ValueError(
            f"expected {device_mesh.ndim} placements, one for each dimension of the mesh, got "
            f"{tuple(placements)}"
        )
    axes: list[list[int]] = [[] for _ in range(rank)]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            continue
        if type(placement) is not Shard:
            raise ValueError(
                f"expected placements Shard(dim) or Replicate() on xla, got {placement!r}"
            )
        if not -rank <= placement.dim < rank:
            raise ValueError(
                f"expected placements of the {rank} dimensions of the tensor, got {placement!r}"
            )
        axes[placement.dim].append(axis)
    return tuple(tuple(dimension) or None for dimension in axes)
