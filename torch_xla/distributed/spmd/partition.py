"""Partition specs: over which axes of a mesh the dimensions of a tensor are split."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_xla.distributed.spmd.mesh import Mesh

#: One axis of a mesh, by its number or its name.
Axis = int | str
#: For each dimension of a tensor: an axis, several (the first varies slowest), or None.
PartitionSpec = tuple[tuple[Axis, ...] | Axis | None, ...]


def _axis_number(mesh: Mesh, axis: Axis, spec: PartitionSpec) -> int:
    if isinstance(axis, str):
        number = mesh.get_axis_name_idx(axis)
        if number is None:
            names = "no names" if mesh.axis_names is None else f"names {mesh.axis_names}"
            raise ValueError(
                f"partition spec {spec}: expected an axis of the mesh, which has {names}, got "
                f"{axis!r}"
            )
        return number
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ValueError(
            f"partition spec {spec}: expected None, the name or the number of an axis, or a tuple "
            f"of axes, got {axis!r}"
        )
    if not 0 <= axis < len(mesh.mesh_shape):
        raise ValueError(
            f"partition spec {spec}: expected an axis from 0 to {len(mesh.mesh_shape) - 1}, got "
            f"{axis}"
        )
    return axis


def axes_by_dimension(mesh: Mesh, spec: PartitionSpec) -> list[tuple[int, ...]]:
    """Returns the numbers of the axes over which each dimension is split.

    Raises:
        ValueError: An axis does not exist, or occurs twice.
    """
    if not isinstance(spec, (tuple, list)):
        raise ValueError(
            f"expected a partition spec: a tuple with an entry for each dimension, got {spec!r}"
        )
    dimensions = []
    for entry in spec:
        axes = () if entry is None else entry if isinstance(entry, (tuple, list)) else (entry,)
        dimensions.append(tuple(_axis_number(mesh, axis, spec) for axis in axes))
    used = [axis for axes in dimensions for axis in axes]
    if len(set(used)) != len(used):
        raise ValueError(f"partition spec {spec}: expected each axis of the mesh once at most")
    return dimensions
