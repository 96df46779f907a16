"""DeviceMesh and functional collectives in replicas, against Gloo on the CPU."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from testing.mesh_cases import Cases, check
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

pytestmark = pytest.mark.multiprocess

cases = Cases()


def own(device_type: str, *shape: int) -> torch.Tensor:
    """A tensor of this replica's own, whose sums and products are exact."""
    size = torch.Size(shape).numel()
    return (torch.arange(1.0, 1 + size).view(shape) + 10 * dist.get_rank()).to(device_type)


def told(mesh: DeviceMesh) -> dict[str, Any]:
    return {
        "mesh": mesh.mesh.tolist(),
        "names": mesh.mesh_dim_names,
        "coordinate": mesh.get_coordinate(),
        "rank": mesh.get_rank(),
        "sizes": [mesh.size(i) for i in range(mesh.ndim)],
        "local": [mesh.get_local_rank(i) for i in range(mesh.ndim)],
        "groups": [dist.get_process_group_ranks(mesh.get_group(i)) for i in range(mesh.ndim)],
    }


def sums(device_type: str, mesh: DeviceMesh) -> list[torch.Tensor]:
    """What each dimension's group sums."""
    found = []
    for i in range(mesh.ndim):
        x = own(device_type, 3)
        dist.all_reduce(x, group=mesh.get_group(i))
        found.append(x)
    return found


def grid(device_type: str) -> DeviceMesh:
    shape = (2, dist.get_world_size() // 2)
    return init_device_mesh(device_type, shape, mesh_dim_names=("dp", "tp"))


def line(device_type: str) -> DeviceMesh:
    return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("all",))


@cases.case(2, 4)
def one_dimension(device_type: str) -> Any:
    mesh = line(device_type)
    return told(mesh), sums(device_type, mesh)


@cases.case(2, 4)
def two_dimensions(device_type: str) -> Any:
    mesh = grid(device_type)
    return told(mesh), sums(device_type, mesh)


@cases.case(4)
def slices(device_type: str) -> Any:
    mesh = grid(device_type)
    return [
        (told(mesh[name]), sums(device_type, mesh[name])) for name in ("dp", "tp", ("dp", "tp"))
    ]


@cases.case(4)
def three_dimensions(device_type: str) -> Any:
    mesh = init_device_mesh(device_type, (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    return told(mesh), told(mesh["pp", "tp"]), sums(device_type, mesh["dp", "tp"])


@cases.case(2, 4)
def flattened(device_type: str) -> Any:
    mesh = grid(device_type)
    flat = mesh._flatten("both")
    return told(flat), sums(device_type, flat), told(mesh["both"])


@cases.case(4)
def unflattened(device_type: str) -> Any:
    mesh = line(device_type)._unflatten(0, (2, 2), ("dp", "tp"))
    return told(mesh), sums(device_type, mesh)


@cases.case(4)
def reordered(device_type: str) -> Any:
    mesh = DeviceMesh(device_type, [[3, 1], [2, 0]], mesh_dim_names=("x", "y"))
    return told(mesh), sums(device_type, mesh)


@cases.case(4)
def of_some_ranks(device_type: str) -> Any:
    mesh = DeviceMesh(device_type, [1, 3])
    if mesh.get_coordinate() is None:
        return "outside"
    return told(mesh), sums(device_type, mesh)


@cases.case(4)
def from_group(device_type: str) -> Any:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mesh = DeviceMesh.from_group(groups[dist.get_rank() % 2], device_type)
    return told(mesh), sums(device_type, mesh)


@cases.case(2)
def as_context(device_type: str) -> Any:
    with line(device_type) as mesh:
        return told(mesh), mesh == line(device_type), hash(mesh) == hash(line(device_type))


@cases.case(2)
def all_groups(device_type: str) -> Any:
    mesh = grid(device_type)
    return [group.size() for group in mesh.get_all_groups()]


# ------------------------------------------------------------------ functional collectives


@functools.cache
def shared_mesh(device_type: str) -> DeviceMesh:
    """The mesh of these cases; making its groups takes longer than all that they do."""
    return grid(device_type) if dist.get_world_size() == 4 else line(device_type)


def waited(function: Callable[[str, Any], Any]) -> Callable[[str], Any]:
    """A case over a mesh's groups: one whole, and, with 4 replicas, of two halves."""

    def run(device_type: str) -> Any:
        mesh = shared_mesh(device_type)
        return [
            [functional.wait_tensor(x) for x in found] if isinstance(found, list) else found
            for found in (function(device_type, (mesh, i)) for i in range(mesh.ndim))
        ]

    return run


def with_gradient(function: Callable[[torch.Tensor, Any], torch.Tensor], *shape: int) -> Any:
    def run(device_type: str, group: Any) -> Any:
        x = own(device_type, *shape).requires_grad_()
        y = functional.wait_tensor(function(x, group))
        (y * own(device_type, *y.shape)).sum().backward()
        return y, x.grad

    return run


def size_of(group: Any) -> int:
    mesh, dimension = group
    return mesh.size(dimension)


for op in ("sum", "avg", "max", "min", "product"):
    if op != "avg":  # Gloo has none.
        cases.add(
            f"all_reduce_{op}",
            waited(lambda d, g, op=op: [functional.all_reduce(own(d, 2, 3), op, g)]),
            (2, 4),
        )
for dim in (0, 1):
    cases.add(
        f"all_gather_tensor_{dim}",
        waited(lambda d, g, dim=dim: [functional.all_gather_tensor(own(d, 2, 3), dim, g)]),
        (2, 4),
    )
    cases.add(
        f"reduce_scatter_tensor_{dim}",
        waited(
            lambda d, g, dim=dim: [functional.reduce_scatter_tensor(own(d, 4, 8), "sum", dim, g)]
        ),
        (2, 4),
    )
    cases.add(
        f"all_gather_gradient_{dim}",
        waited(
            with_gradient(
                lambda x, g, dim=dim: functional.all_gather_tensor_autograd(x, dim, g), 2, 3
            )
        ),
        (2, 4),
    )
    cases.add(
        f"reduce_scatter_gradient_{dim}",
        waited(
            with_gradient(
                lambda x, g, dim=dim: functional.reduce_scatter_tensor_autograd(x, "sum", dim, g),
                4,
                8,
            )
        ),
        (2, 4),
    )
cases.add(
    "broadcast",
    waited(lambda d, g: [functional.broadcast(own(d, 3), 1, g)]),
    (2, 4),
)
cases.add(
    "all_to_all_even",
    waited(lambda d, g: [functional.all_to_all_single(own(d, 8, 2), None, None, g)]),
    (2, 4),
)
cases.add(
    "all_to_all_gradient",
    waited(
        with_gradient(
            lambda x, g: functional.all_to_all_single_autograd(
                x, [8 // size_of(g)] * size_of(g), [8 // size_of(g)] * size_of(g), g
            ),
            8,
            2,
        )
    ),
    (2, 4),
)


def uneven_exchange(device_type: str, group: Any) -> Any:
    mesh, dimension = group
    mine, count = mesh.get_local_rank(dimension), mesh.size(dimension)
    x = own(device_type, (mine + 1) * count, 2)
    return [
        functional.all_to_all_single(x, [r + 1 for r in range(count)], [mine + 1] * count, group)
    ]


cases.add("all_to_all_uneven", waited(uneven_exchange), (2, 4))
cases.add(
    "all_reduce_coalesced",
    waited(lambda d, g: functional.all_reduce_coalesced([own(d, 3), own(d, 2, 2)], "sum", g)),
    (2, 4),
)
cases.add(
    "all_gather_coalesced",
    waited(lambda d, g: functional.all_gather_into_tensor_coalesced([own(d, 3), own(d, 2, 2)], g)),
    (2, 4),
)
cases.add(
    "reduce_scatter_coalesced",
    waited(
        lambda d, g: functional.reduce_scatter_tensor_coalesced(
            [own(d, 4), own(d, 8, 2)], "sum", [0, 0], g
        )
    ),
    (2, 4),
)
cases.add(
    "permute",
    waited(lambda d, g: [functional.permute_tensor(own(d, 3), [*range(1, size_of(g)), 0], g)]),
    (2, 4),
)


def run_all() -> dict[str, Any]:
    return cases.run_here()


results = cases.results(run_all)


@pytest.mark.parametrize(("count", "name"), cases.names())
def test_mesh(results, count, name):
    check(results[count], name)
