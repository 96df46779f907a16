"""Meshes that order devices by their connections."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torch_xla import _XLAC, runtime

from .mesh import Mesh


def _dimensions(sizes: Sequence[int], torus: Sequence[int], free: set[int]) -> Iterator[list[Any]]:
    """Yields, for each of ``sizes``, which dimensions of a torus have that product."""
    if not sizes:
        yield []
        return
    for count in range(len(free) + 1):
        for chosen in itertools.combinations(sorted(free), count):
            if math.prod(torus[d] for d in chosen) == sizes[0]:
                for rest in _dimensions(sizes[1:], torus, free - set(chosen)):
                    yield [chosen, *rest]


def order_by_coordinates(coordinates: Sequence[Sequence[int]], shape: Sequence[int]) -> np.ndarray:
    """Orders devices of a torus, so that neighbours along an axis of a mesh are connected.

    Each axis takes whole dimensions of the torus, as few as it can; where the sizes do not permit
    that the devices are in order of their coordinates, the first dimension slowest.

    Args:
        coordinates: The coordinates of each device; together they fill a box.
        shape: The shape of the mesh, which has as many places as there are devices.

    Returns:
        The devices' places in ``coordinates``, in this shape.
    """
    places = np.array(sorted(range(len(coordinates)), key=lambda i: tuple(coordinates[i])))
    torus = [len(set(along)) for along in zip(*coordinates, strict=True)]
    if math.prod(torus) != len(places):  # The places do not fill a box.
        return places.reshape(shape)
    chosen = next(_dimensions(shape, torus, set(range(len(torus)))), None)
    if chosen is None:
        return places.reshape(shape)
    taken = [d for dimensions in chosen for d in dimensions]
    rest = [d for d in range(len(torus)) if d not in taken]  # The dimensions of size 1.
    return places.reshape(torus).transpose(taken + rest).reshape(shape)


def _groups(devices: Sequence[tuple[int, dict[str, Any]]], size: int) -> list[list[int]]:
    """Devices by slice, or by host, where these have ``size``; else by their numbers."""
    for names in (
        [known.get("slice_index") for _, known in devices],
        [host for host, _ in devices],
    ):
        groups: dict[Any, list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
        if all(len(group) == size for group in groups.values()):
            return list(groups.values())
    return [list(range(first, first + size)) for first in range(0, len(devices), size)]


class HybridMesh(Mesh):
    """A mesh over several groups of devices that are connected better inside than outside.

    The size of an axis is the product of its sizes inside a group and over the groups; the groups
    vary slower. A group is a slice of TPUs, or the devices of a host, where these have as many as
    ``ici_mesh_shape``, else devices in order of their numbers. Within a group an axis follows
    the dimensions of the TPUs' torus, so that its collectives run between neighbours.

    Args:
        ici_mesh_shape: The shape of a group ("inter-core interconnect").
        dcn_mesh_shape: How many groups there are along each axis ("data-center network"); one
            when None.
        axis_names: As in :class:`Mesh`.

    Raises:
        ValueError: The shapes do not fit each other, or the number of devices.
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ) -> None:
        inside = tuple(int(size) for size in ici_mesh_shape)
        outside = (1,) * len(inside) if dcn_mesh_shape is None else tuple(map(int, dcn_mesh_shape))
        if len(inside) != len(outside):
            raise ValueError(
                "HybridMesh: expected ici_mesh_shape and dcn_mesh_shape of the same length, got "
                f"{inside} and {outside}"
            )
        count = runtime.global_runtime_device_count()
        if math.prod(inside + outside) != count:
            raise ValueError(
                f"HybridMesh: expected ici_mesh_shape × dcn_mesh_shape of {count} devices, got "
                f"{inside} × {outside}"
            )
        self.ici_mesh_shape = inside
        self.dcn_mesh_shape = outside
        devices: list[tuple[int, dict[str, Any]]] = list(_XLAC._xla_device_attributes())
        ids = []
        for group in _groups(devices, math.prod(inside)):
            known = [devices[index][1] for index in group]
            if all("coords" in attributes for attributes in known):
                coordinates = [(*a["coords"], a.get("core_on_chip", 0)) for a in known]
                ids.append(np.array(group)[order_by_coordinates(coordinates, inside)])
            else:
                ids.append(np.array(group).reshape(inside))
        # [groups…, inside…] to [groups 0, inside 0, groups 1, inside 1, …].
        rank = len(inside)
        order = [axis + group for axis in range(rank) for group in (0, rank)]
        shape = tuple(o * i for o, i in zip(outside, inside, strict=True))
        super().__init__(
            np.stack(ids).reshape(outside + inside).transpose(order), shape, axis_names
        )
