"""The devices as a grid with named axes."""

from __future__ import annotations

import ast
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_xla import _XLAC, runtime

#: One axis of a mesh, by its number or its name.
Axis = int | str
#: For each dimension of a tensor: an axis, several (the first varies slowest), or None.
PartitionSpec = tuple[tuple[Axis, ...] | Axis | None, ...]


class Mesh:
    """Devices of the process, as a grid of one or more axes.

    A mesh may have a part of the devices, if their number divides that of all. The others then
    hold copies, in the same order.

    Args:
        device_ids: The numbers of the devices, each once, in row-major order of the grid: a list,
            or an array of any shape.
        mesh_shape: How many devices there are along each axis.
        axis_names: The names of the axes, by which partition specs can speak of them; without
            them they go by their numbers.

    Raises:
        ValueError: The devices, the shape and the names do not fit each other.
    """

    def __init__(
        self,
        device_ids: np.ndarray | Sequence[int],
        mesh_shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
    ) -> None:
        ids = np.asarray(device_ids).reshape(-1)
        self.device_ids = ids.astype(np.int64)
        if isinstance(mesh_shape, int) or (self.device_ids != ids).any():
            raise ValueError(
                "Mesh: expected integers as `device_ids` and a sequence of sizes as `mesh_shape`, "
                f"got {ids.tolist()} and {mesh_shape}"
            )
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        if not self.mesh_shape or min(self.mesh_shape) < 1:
            raise ValueError(
                f"Mesh: expected `mesh_shape` of axes of at least 1, got {self.mesh_shape}"
            )
        if len(self.device_ids) != math.prod(self.mesh_shape):
            raise ValueError(
                f"Mesh: expected {math.prod(self.mesh_shape)} device_ids, the product of "
                f"mesh_shape {self.mesh_shape}, got {len(self.device_ids)}"
            )
        if len(set(self.device_ids.tolist())) != len(self.device_ids) or min(self.device_ids) < 0:
            raise ValueError(
                f"Mesh: expected device_ids from 0 that differ, got {self.device_ids.tolist()}"
            )
        if axis_names is not None:
            axis_names = tuple(axis_names)
            if len(axis_names) != len(self.mesh_shape):
                raise ValueError(
                    f"Mesh: expected {len(self.mesh_shape)} axis_names, one for each axis of "
                    f"mesh_shape {self.mesh_shape}, got {axis_names}"
                )
            if len(set(axis_names)) != len(axis_names) or not all(
                isinstance(name, str) for name in axis_names
            ):
                raise ValueError(
                    f"Mesh: expected strings as axis_names, each once, got {axis_names}"
                )
        self.axis_names: tuple[str, ...] | None = axis_names

    def size(self) -> int:
        """Returns the number of devices."""
        return len(self.device_ids)

    def shape(self) -> OrderedDict[str | int, int]:
        """Returns the size of each axis, by its name (its number where there are no names)."""
        return OrderedDict(
            zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True)
        )

    def get_logical_mesh(self) -> np.ndarray:
        """Returns the device numbers as an array of the mesh's shape."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Returns the number of the axis with a name; None where there is none."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def get_op_sharding(self, partition_spec: PartitionSpec) -> _XLAC.Sharding:
        """Returns how an array of that partition spec lies on the devices.

        Args:
            partition_spec: For each dimension of the array the axis (name or number) over which
                it is split, a tuple of axes, of which the first varies slowest, or None.

        Returns:
            The sharding. ``str()`` gives it in XLA's spelling.

        Raises:
            ValueError: An axis does not exist, or occurs twice, or the process has not the devices.
        """
        axes = axes_by_dimension(self, partition_spec)
        grid = self.all_devices()
        used = [axis for dimension in axes for axis in dimension]
        if not used:
            return _XLAC.Sharding.replicated()
        rest = [axis for axis in range(len(self.mesh_shape)) if axis not in used]
        tiles = [math.prod(self.mesh_shape[axis] for axis in dimension) for dimension in axes]
        devices = grid.transpose([axis + 1 for axis in used + rest] + [0]).reshape(-1)
        return _XLAC.Sharding.tiled(tiles, devices.tolist())

    def sharding_of(
        self, what: str, t: torch.Tensor, partition_spec: PartitionSpec
    ) -> _XLAC.Sharding:
        """Returns :meth:`get_op_sharding` for a tensor, or for a whole of which it is a part.

        Args:
            what: The function that was called, for messages.
            t: The tensor.
            partition_spec: For each of its dimensions an entry.

        Raises:
            ValueError: As :meth:`get_op_sharding`, or the number of entries is another.
        """
        sharding = self.get_op_sharding(partition_spec)
        if len(partition_spec) != t.dim():
            raise ValueError(
                f"{what}: expected a partition spec with an entry for each of the {t.dim()} "
                f"dimensions of the tensor (shape {list(t.shape)}), got {partition_spec}"
            )
        return sharding

    def all_devices(self) -> np.ndarray:
        """Returns all devices of the process as grids of the mesh's shape, the mesh's own first.

        Raises:
            ValueError: The process has not the devices, or their number is no multiple.
        """
        count = runtime.addressable_runtime_device_count()
        if count % self.size() or max(self.device_ids) >= count:
            sizes = ", ".join(f"{name!r} of {size}" for name, size in self.shape().items())
            raise ValueError(
                f"mesh of the devices {self.device_ids.tolist()} along {sizes}: expected devices "
                f"of the {count} of the process, and a number of them that divides {count}"
            )
        others = [device for device in range(count) if device not in set(self.device_ids.tolist())]
        return np.array([*self.device_ids.tolist(), *others]).reshape(-1, *self.mesh_shape)

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """Returns the mesh whose ``str()`` that is; None where it is no mesh's."""
        try:
            parts = ast.literal_eval(mesh_str)
            return cls(np.array(parts["device_ids"]), parts["mesh_shape"], parts["axis_names"])
        except (KeyError, SyntaxError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        return str(
            {
                "device_ids": self.device_ids.tolist(),
                "mesh_shape": self.mesh_shape,
                "axis_names": self.axis_names,
            }
        )

    def get_jax_mesh(self) -> Any:
        """Returns a mesh of JAX's devices with this one's shape and names.

        Raises:
            ImportError: jax is not installed.
        """
        import jax

        devices = np.array(jax.devices())[self.device_ids].reshape(self.mesh_shape)
        names = self.axis_names or tuple(map(str, range(len(self.mesh_shape))))
        return jax.sharding.Mesh(devices, names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return (
            self.mesh_shape == other.mesh_shape
            and self.axis_names == other.axis_names
            and np.array_equal(self.device_ids, other.device_ids)
        )

    def __hash__(self) -> int:
        return hash((self.mesh_shape, self.axis_names, tuple(self.device_ids.tolist())))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(device_ids={self.device_ids.tolist()}, "
            f"mesh_shape={self.mesh_shape}, axis_names={self.axis_names})"
        )


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
    for axis in used:
        if used.count(axis) > 1:
            name = mesh.axis_names[axis] if mesh.axis_names else axis
            raise ValueError(
                f"partition spec {spec}: expected each axis of the mesh once at most, got "
                f"{name!r} {used.count(axis)} times"
            )
    return dimensions


_global_mesh: Mesh | None = None


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Returns a mesh of one axis over all devices."""
    count = runtime.global_runtime_device_count()
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the mesh for what is not given one, such as FSDP."""
    global _global_mesh
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"set_global_mesh(): expected a Mesh, got {type(mesh).__name__}")
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """Returns what :func:`set_global_mesh` has set; None before."""
    return _global_mesh
