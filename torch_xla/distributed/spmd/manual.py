"""Functions that each device runs on its own part of the tensors: ``shard_map``.

Inside, tensors have the shape of a device's part, and what devices exchange is said by the names
of the mesh's axes.
"""

from __future__ import annotations

import bisect
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch

from torch_xla import _XLAC, runtime
from torch_xla.distributed.spmd.device_mesh import to_mesh, to_partition_spec
from torch_xla.distributed.spmd.mesh import (
    Mesh,
    PartitionSpec,
    axes_by_dimension,
    get_global_mesh,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    check_xla,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
)

if TYPE_CHECKING:  # Slow imports, which a user of DeviceMesh has made already.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

#: The name of an axis of the mesh, or several: a group then goes along all of them, the first one
#: varying slowest.
AxisNames = str | tuple[str, ...]

# The input of a region: its part, the whole, and the spec by which it was split.
_Part = tuple[torch.Tensor, torch.Tensor, PartitionSpec]

# The part, its content when it was made, the whole, and the spec by which it was split.
_Entered = tuple[torch.Tensor, torch.Tensor, torch.Tensor, PartitionSpec]

_ops = torch.ops.torch_xla


_F = TypeVar("_F", bound=Callable[..., Any])


def _not_for_dynamo(function: _F) -> _F:
    """As ``torch.compiler.disable`` does, which would import torch._dynamo.

    A graph of ``torch.compile`` ends before a region, which is traced by the device itself; with
    ``fullgraph=True`` that is an error that says so.
    """
    dynamo, marks = torch._C._dynamo.eval_frame, function.__dict__
    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    marks["_torchdynamo_disable"] = True
    marks["_torchdynamo_disable_msg"] = (
        "torch_xla: a graph cannot hold a manual region of SPMD (shard_map); torch_xla.compile can"
    )
    return function


class _Regions(threading.local):
    """The regions of this thread.

    Attributes:
        stack: Those that it is in, from the outermost: each a mesh and its axes' names.
        spans: Of the last ones, the sequence numbers of autograd where they begin and end, and the
            mesh.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[Mesh, tuple[str, ...]]] = []
        self.spans: list[tuple[int, float, Mesh]] = []

    def begin(self, mesh: Mesh) -> None:
        self.end()
        self.spans.append((torch._C._autograd._get_sequence_nr(), math.inf, mesh))
        del self.spans[:-1000]

    def end(self) -> None:
        if self.spans:
            begin, _, mesh = self.spans[-1]
            self.spans[-1] = (begin, torch._C._autograd._get_sequence_nr(), mesh)


_regions = _Regions()


@contextmanager
def _entered(mesh: Mesh, names: tuple[str, ...]) -> Iterator[None]:
    _regions.stack.append((mesh, names))
    try:
        yield
    finally:
        _regions.stack.pop()
        if not _regions.stack:
            _regions.end()


def _names_of(mesh: Mesh) -> tuple[str, ...]:
    return mesh.axis_names or tuple(map(str, range(len(mesh.mesh_shape))))


def _is_real(t: torch.Tensor) -> bool:
    """Whether a tensor is none of an export's, which have no content."""
    return type(t) in (torch.Tensor, torch.nn.Parameter)


def refuse_part(what: str, t: torch.Tensor) -> None:
    """Raises RuntimeError for a tensor that is the part of a device in a region."""
    if _regions.stack and _is_real(t) and _XLAC._xla_holders(t):
        raise RuntimeError(
            f"{what}: a value of a manual region (shard_map) has a part on each device already; "
            "return it from the region and mark the result"
        )


def _describe(mesh: Mesh, axes: Sequence[int]) -> str:
    names = ", ".join(repr(_names_of(mesh)[axis]) for axis in axes)
    return f"{'axis' if len(axes) == 1 else 'axes'} {names}"


# ------------------------------------------------------------------------- collectives


class _Axis:
    """The axes by which a collective of a value goes: the sizes, and the groups of devices."""

    def __init__(self, what: str, axis_name: AxisNames, x: torch.Tensor | None = None) -> None:
        stack = _regions.stack or _region_of_backward()
        if not stack:
            raise RuntimeError(
                f"{what}: expected to be called in a function given to shard_map(), which has the "
                f"axis {axis_name!r}"
            )
        if x is not None:
            check_xla(what, x)
        names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
        self.mesh = stack[-1][0]
        known = [name for _, region in stack for name in region]
        for name in names:
            if name not in known:
                raise ValueError(
                    f"{what}: expected the name of an axis of the region, {sorted(set(known))}, "
                    f"got {name!r}"
                )
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"{what}: expected one axis or several that differ, got {axis_name!r}")
        numbers = [_names_of(self.mesh).index(name) for name in names]
        rest = [axis for axis in range(len(self.mesh.mesh_shape)) if axis not in numbers]
        self.size = math.prod(self.mesh.mesh_shape[axis] for axis in numbers)
        grid = self.mesh.all_devices()
        order = [0, *(axis + 1 for axis in rest), *(axis + 1 for axis in numbers)]
        self.groups: list[int] = grid.transpose(order).reshape(-1).tolist()
        self.spec = tuple(numbers)


class _Collective(torch.autograd.Function):
    """A linear collective, with the collective that computes its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        how: tuple[str, Sequence[int]],
        back: tuple[str, Sequence[int]],
        groups: Sequence[int],
    ) -> torch.Tensor:
        ctx.how, ctx.back, ctx.groups = how, back, groups
        return cast(torch.Tensor, _ops.manual_collective(x, *how, groups))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        args = grad.contiguous(), ctx.back, ctx.how, ctx.groups
        return _Collective.apply(*args), None, None, None  # type: ignore[no-untyped-call]


class _Extreme(torch.autograd.Function):
    """The largest or least value; devices with equal extremes share its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, op: str, axis: _Axis) -> torch.Tensor:
        ctx.axis = axis
        result = _ops.manual_collective(x, op, [axis.size], axis.groups)
        ctx.save_for_backward(x, result)
        return cast(torch.Tensor, result)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, result = ctx.saved_tensors
        has = (x == result).to(grad.dtype)
        total, count = (_collective(t, ctx.axis, "sum", (), ("sum", ())) for t in (grad, has))
        return has * total / count, None, None


def _collective(
    x: torch.Tensor,
    axis: _Axis,
    kind: str,
    arguments: Sequence[int],
    back: tuple[str, Sequence[int]],
) -> torch.Tensor:
    if axis.size == 1 and kind != "ppermute":
        return x.clone()
    how, returned = ((kind, [axis.size, *more]) for kind, more in ((kind, arguments), back))
    result = _Collective.apply(x, how, returned, axis.groups)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


def _dimension(what: str, x: torch.Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"{what}: expected a dimension of a tensor of shape {list(x.shape)}, got {dim}"
        )
    return dim % x.dim()


def _divisible(what: str, x: torch.Tensor, dim: int, mesh: Mesh, axes: Sequence[int]) -> None:
    count = math.prod(mesh.mesh_shape[axis] for axis in axes)
    if x.shape[dim] % count:
        raise ValueError(
            f"{what}: dimension {dim} of size {x.shape[dim]} cannot be split over the {count} "
            f"devices of {_describe(mesh, axes)}"
        )


def axis_size(axis_name: AxisNames) -> int:
    """Returns how many devices there are along an axis of the region."""
    return _Axis("axis_size", axis_name).size


def axis_index(axis_name: AxisNames) -> torch.Tensor:
    """Returns the device's place along an axis: a zero-dim int64 tensor, another on each device."""
    axis = _Axis("axis_index", axis_name)
    like = torch.zeros((), dtype=torch.int64, device="xla")
    return cast(torch.Tensor, _ops.manual_collective(like, "axis_index", [axis.size], axis.groups))


def _reduced(what: str, x: torch.Tensor, axis_name: AxisNames, op: str) -> torch.Tensor:
    axis = _Axis(what, axis_name, x)
    if op not in ("sum", "mean", "max", "min"):
        raise ValueError(f"{what}: expected op sum, mean, max or min, got {op!r}")
    if op in ("max", "min"):
        if x.is_complex():
            raise TypeError(f"{what}: complex numbers have no order, got {x.dtype}")
        return cast(torch.Tensor, _Extreme.apply(x, op, axis))  # type: ignore[no-untyped-call]
    total = _collective(_countable(x), axis, "sum", (), ("sum", ()))
    return total / axis.size if op == "mean" else total


def _countable(x: torch.Tensor) -> torch.Tensor:
    """Truth values as integers, as torch.sum() adds them."""
    return x.long() if x.dtype == torch.bool else x


def all_reduce(x: torch.Tensor, axis_name: AxisNames, op: str = "sum") -> torch.Tensor:
    """Combines the devices' values along an axis.

    Args:
        x: The device's value. Truth values are added as integers.
        axis_name: The axis.
        op: ``sum``, ``mean``, ``max`` or ``min``. Devices that have the same largest or least
            value share its gradient.
    """
    return _reduced("all_reduce", x, axis_name, op)


def psum(x: torch.Tensor, axis_name: AxisNames) -> torch.Tensor:
    """Returns the sum of the devices' values along an axis."""
    return _reduced("psum", x, axis_name, "sum")


def pmean(x: torch.Tensor, axis_name: AxisNames) -> torch.Tensor:
    """Returns the mean of the devices' values along an axis."""
    return _reduced("pmean", x, axis_name, "mean")


def pmax(x: torch.Tensor, axis_name: AxisNames) -> torch.Tensor:
    """Returns the largest of the devices' values along an axis."""
    return _reduced("pmax", x, axis_name, "max")


def pmin(x: torch.Tensor, axis_name: AxisNames) -> torch.Tensor:
    """Returns the least of the devices' values along an axis."""
    return _reduced("pmin", x, axis_name, "min")


def all_gather(x: torch.Tensor, axis_name: AxisNames, dim: int = 0) -> torch.Tensor:
    """Returns the devices' values one after the other along dimension ``dim``."""
    axis, dim = _Axis("all_gather", axis_name, x), _dimension("all_gather", x, dim)
    return _collective(x, axis, "all_gather", [dim], ("reduce_scatter", [dim]))


def reduce_scatter(x: torch.Tensor, axis_name: AxisNames, dim: int = 0) -> torch.Tensor:
    """Returns the device's part, along dimension ``dim``, of the sum of the devices' values."""
    axis, dim = _Axis("reduce_scatter", axis_name, x), _dimension("reduce_scatter", x, dim)
    _divisible("reduce_scatter", x, dim, axis.mesh, axis.spec)
    return _collective(_countable(x), axis, "reduce_scatter", [dim], ("all_gather", [dim]))


def all_to_all(
    x: torch.Tensor, axis_name: AxisNames, split_dim: int, concat_dim: int
) -> torch.Tensor:
    """Sends a part of ``split_dim`` to each device; joins what comes along ``concat_dim``."""
    axis = _Axis("all_to_all", axis_name, x)
    split, join = (_dimension("all_to_all", x, dim) for dim in (split_dim, concat_dim))
    _divisible("all_to_all", x, split, axis.mesh, axis.spec)
    return _collective(x, axis, "all_to_all", [split, join], ("all_to_all", [join, split]))


def ppermute(
    x: torch.Tensor, axis_name: AxisNames, perm: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Sends the devices' values along an axis.

    Args:
        x: The device's value.
        axis_name: The axis.
        perm: Pairs of a place along the axis and the place that its value is sent to. A device to
            which none is sent gets zeros.
    """
    axis = _Axis("ppermute", axis_name, x)
    pairs = [tuple(pair) if isinstance(pair, (tuple, list)) else (pair,) for pair in perm]
    sources, targets = ([pair[i] for pair in pairs if len(pair) == 2] for i in (0, 1))
    for ends in (sources, targets):
        if len(set(ends) & set(range(axis.size))) != len(pairs):
            raise ValueError(
                f"ppermute: expected pairs of a source and a target from 0 to {axis.size - 1}, the "
                f"places along {_describe(axis.mesh, axis.spec)}, each once, got {pairs}"
            )
    if not pairs:
        return torch.zeros_like(x)
    there = [end for pair in pairs for end in pair]
    back = [end for source, target in pairs for end in (target, source)]
    return _collective(x, axis, "ppermute", there, ("ppermute", back))


# ------------------------------------------------------------------------- regions


class _Edge(torch.autograd.Function):
    """The edge of a region: splits a tensor into parts, or joins parts."""

    @staticmethod
    def forward(
        ctx: Any, t: torch.Tensor, mesh: Mesh, spec: PartitionSpec, inwards: bool
    ) -> torch.Tensor:
        ctx.mesh, ctx.spec, ctx.inwards = mesh, spec, inwards
        sharding = mesh.sharding_of("shard_map", t, spec)
        go = _ops.to_local if inwards else _ops.to_whole
        return cast(torch.Tensor, go(t, sharding.tiles, sharding.devices))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        if ctx.inwards:
            return _sum_of_copies(grad, ctx.mesh, ctx.spec), None, None, None
        if torch.is_grad_enabled():
            _regions.begin(ctx.mesh)
        # Devices whose values stand for the same part share the gradient.
        count = math.prod(ctx.mesh.mesh_shape[axis] for axis in _copy_axes(ctx.mesh, ctx.spec))
        grad = _take_apart(grad, ctx.mesh, ctx.spec)
        return grad / count if count > 1 else grad, None, None, None


def _copy_axes(mesh: Mesh, spec: PartitionSpec) -> list[int]:
    """The axes along which devices hold the same part."""
    used = {axis for axes in axes_by_dimension(mesh, spec) for axis in axes}
    return [axis for axis in range(len(mesh.mesh_shape)) if axis not in used]


def _sum_of_copies(grad: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """The whole gradient of a tensor, of which devices with the same part have a summand each."""
    copies, names = _copy_axes(mesh, spec), _names_of(mesh)
    if math.prod(mesh.mesh_shape[axis] for axis in copies) > 1:
        with _entered(mesh, names):
            grad = psum(grad, tuple(names[axis] for axis in copies))
    whole = _put_together(grad, mesh, spec)
    if torch.is_grad_enabled():
        _regions.end()
        _sum_gradients_of_captured([whole], mesh)
    return whole


# Keys of the metadata of an autograd node: the mesh of the region in which it was made, and whether
# it has a hook already.
_INSIDE, _SUMS = "torch_xla.inside", "torch_xla.sums"


def _is_inside(node: Any) -> bool:
    """Whether a node was made in a region, or is the edge where a region begins."""
    edge: Any = _Edge._backward_cls
    inside = node.metadata.get(_INSIDE)
    if inside is None:
        if isinstance(node, edge):
            inside = node.inwards
        else:
            number = node._sequence_nr()
            place = bisect.bisect_right(_regions.spans, number, key=lambda span: span[0]) - 1
            inside = place >= 0 and number < _regions.spans[place][1] and _regions.spans[place][2]
        node.metadata[_INSIDE] = inside
    return bool(inside)


def _region_of_backward() -> list[tuple[Mesh, tuple[str, ...]]]:
    """The region of the function that the backward pass computes again, as a checkpoint does."""
    node: Any = torch._C._current_autograd_node()
    mesh = None if node is None else node.metadata.get(_INSIDE)
    return [(mesh, _names_of(mesh))] if isinstance(mesh, Mesh) else []


def _sum_gradients_of_captured(results: Sequence[torch.Tensor], mesh: Mesh) -> None:
    """Sums the gradients of the tensors that a region uses and that are no arguments of it.

    What a node of the autograd graph that was made in a region hands to one that was not is a
    summand on each device. Another region may have stored a part that this one uses.
    """
    edge: Any = _Edge._backward_cls
    stack: list[Any] = [t.grad_fn for t in results if t.grad_fn is not None]
    ends = set(stack)
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node in seen or (isinstance(node, edge) and node not in ends):
            continue
        seen.add(node)
        children = [child for child, _ in node.next_functions]
        captured = {i for i, c in enumerate(children) if c is not None and not _is_inside(c)}
        stack += [c for i, c in enumerate(children) if c is not None and i not in captured]
        if captured and _SUMS not in node.metadata:
            node.metadata[_SUMS] = True
            node.register_hook(functools.partial(_sum_at, mesh, captured))


def _sum_at(mesh: Mesh, places: set[int], grads: Sequence[Any], _: Any) -> tuple[Any, ...]:
    return tuple(
        _sum_of_copies(grad, mesh, (None,) * grad.dim())
        if i in places and grad is not None
        else grad
        for i, grad in enumerate(grads)
    )


def _take_apart(
    t: torch.Tensor, mesh: Mesh, spec: PartitionSpec, what: str = "shard_map"
) -> torch.Tensor:
    for dim, axes in enumerate(axes_by_dimension(mesh, spec)[: t.dim()]):
        _divisible(what, t, dim, mesh, axes)
    return cast(torch.Tensor, _Edge.apply(t, mesh, spec, True))  # type: ignore[no-untyped-call]


def _put_together(t: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    return cast(torch.Tensor, _Edge.apply(t, mesh, spec, False))  # type: ignore[no-untyped-call]


@contextmanager
def _saving_wholes(mesh: Mesh, given: Sequence[_Part] | None) -> Iterator[None]:
    """Hands tensors that autograd saves in a region to hooks outside as whole tensors.

    Such a hook may copy them to the host, or a loop stack them; a part cannot leave the region.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is None or given is None:  # None: a region around it does so
        yield
        return
    pack, unpack = hooks
    devices = tuple(range(len(mesh.mesh_shape)))

    def stack(t: torch.Tensor) -> tuple[torch.Tensor, PartitionSpec]:
        spec = (devices, *[None] * t.dim())
        return _put_together(t.detach().unsqueeze(0), mesh, spec), spec

    def save(t: torch.Tensor) -> Any:
        for part, whole, spec in given:
            if _XLAC._xla_same_value(t, part):
                return pack(whole), spec, False
        whole, spec = stack(t)
        return pack(whole), spec, True

    def load(saved: tuple[Any, PartitionSpec, bool]) -> torch.Tensor:
        packed, spec, is_stack = saved
        # The recomputation must wait for the last traced value, which is a part; give it a whole.
        last = _XLAC._xla_last_pending("xla")
        late = None if last is None else stack(last)
        part = _take_apart(unpack(packed).detach(), mesh, spec)
        del late
        return part.squeeze(0) if is_stack else part

    with torch.autograd.graph.saved_tensors_hooks(save, load):
        yield


def _check_copies(t: torch.Tensor, mesh: Mesh, spec: PartitionSpec, names: Sequence[str]) -> None:
    """Refuses a value that differs along an axis, one of ``names``, that ``spec`` does not name.

    What devices got by the same exchanges of the same parts is the same.
    """
    copies = [axis for axis in _copy_axes(mesh, spec) if _names_of(mesh)[axis] in names]
    holders = _XLAC._xla_holders(t) if copies and _is_real(t) else []
    if not holders:
        return
    by_place = np.array(holders)[mesh.all_devices()]
    for axis in copies:
        if (by_place != by_place.take([0], axis + 1)).any():
            raise ValueError(
                f"shard_map: a result, or what is written to an argument, with the partition spec "
                f"{spec} is to be the same on all devices along {_describe(mesh, [axis])}, which "
                "the spec does not name, but each has its own: name the axis in the spec, reduce "
                "over it (psum, all_gather), or pass check_rep=False if the values are equal"
            )


def _check_not_shared(part: torch.Tensor, t: torch.Tensor, entered: Sequence[_Entered]) -> None:
    for other, _, whole, spec in entered:
        if other is not part and _XLAC._xla_get_tensor_id(whole) == _XLAC._xla_get_tensor_id(t):
            raise ValueError(
                "shard_map: the function writes in place to an argument that shares memory with "
                f"another one, of shape {list(whole.shape)} and partition spec {spec}, whose part "
                "does not have what was written: clone one of them"
            )


def _own_part(t: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """Does as :func:`_take_apart`, in a region whose devices along the axes hold copies."""
    mesh.sharding_of("shard_map", t, spec)
    for dim, axes in enumerate(axes_by_dimension(mesh, spec)):
        if not axes:
            continue
        _divisible("shard_map", t, dim, mesh, axes)
        names = tuple(_names_of(mesh)[axis] for axis in axes)
        parts = t.unflatten(dim, (axis_size(names), -1))
        t = parts.index_select(dim, axis_index(names).reshape(1)).squeeze(dim)
    return t


def _all_parts(t: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """Does as :func:`_put_together`, in such a region."""
    mesh.sharding_of("shard_map", t, spec)
    for dim, axes in enumerate(axes_by_dimension(mesh, spec)):
        if axes:
            t = all_gather(t, tuple(_names_of(mesh)[axis] for axis in axes), dim)
    return t


def _check_mode(what: str, mesh: Mesh) -> None:
    if not runtime.is_spmd():
        raise RuntimeError(f"{what}: expected SPMD mode; call torch_xla.runtime.use_spmd() first")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{what}: expected a Mesh, got {type(mesh).__name__}")


def _region_names(mesh: Mesh, axis_names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the axes of a region that begins here."""
    names = _names_of(mesh)
    taken = [name for _, region in _regions.stack for name in region]
    if _regions.stack and _regions.stack[-1][0] != mesh:
        raise ValueError(
            f"shard_map: expected the mesh of the region that it is called in, with the axes "
            f"{_names_of(_regions.stack[-1][0])}, got one with {names}"
        )
    if isinstance(axis_names, str):
        axis_names = (axis_names,)
    if axis_names is None:
        axis_names = [name for name in names if name not in taken]
        if not axis_names:
            raise ValueError(
                f"shard_map: the region that it is called in has all axes of the mesh, {names}; "
                "give that one the argument axis_names"
            )
    for name in axis_names:
        if name not in names or name in taken:
            what = "an axis of a region around this one" if name in taken else "no axis of the mesh"
            raise ValueError(
                f"shard_map: expected axis_names of {[n for n in names if n not in taken]}, got "
                f"{name!r}, {what}"
            )
    return tuple(axis_names)


def _check_spec(mesh: Mesh, spec: PartitionSpec, names: tuple[str, ...]) -> None:
    for axes in axes_by_dimension(mesh, spec):
        for axis in axes:
            if _names_of(mesh)[axis] not in names:
                raise ValueError(
                    f"shard_map: partition spec {spec}: expected axes of the region, {names}, got "
                    f"{_names_of(mesh)[axis]!r}"
                )


def _apply(value: Any, spec: Any, convert: Callable[[torch.Tensor, Any], Any]) -> Any:
    """Converts the tensors of a nested value. A tuple is the spec of all tensors in its place."""
    if isinstance(spec, dict) and isinstance(value, dict):
        if spec.keys() != value.keys():
            raise ValueError(f"shard_map: expected specs of {[*value]}, got {[*spec]}")
        return {name: _apply(value[name], spec[name], convert) for name in value}
    if isinstance(spec, list) and isinstance(value, (list, tuple)):
        if len(spec) != len(value):
            raise ValueError(f"shard_map: expected {len(value)} specs, got {len(spec)}")
        return type(value)([_apply(v, s, convert) for v, s in zip(value, spec, strict=True)])
    if spec is not None and not isinstance(spec, tuple):
        raise ValueError(
            "shard_map: expected a partition spec (a tuple), None, or a list or dictionary of them "
            f"for a value like it, got {spec!r}"
        )

    def one(t: torch.Tensor) -> Any:
        check_xla("shard_map", t)
        return convert(cast(torch.Tensor, unwrap_sharded_tensor(t)), spec)

    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, one, value)


def shard_map(
    f: Callable[..., Any],
    mesh: Mesh,
    in_specs: Sequence[Any],
    out_specs: Any,
    axis_names: Sequence[str] | None = None,
    check_rep: bool = True,
) -> Callable[..., Any]:
    """Makes a function that each device runs on its parts of the tensors.

    ``f`` sees the parts, as tensors of the parts' shapes, and exchanges what it needs by the names
    of the mesh's axes: :func:`psum`, :func:`all_gather`, :func:`ppermute` and so on. Nothing is
    partitioned behind its back, and it may use kernels of a single device. ::

        def product(a, b):  # a: [4, 8], b: [8, 6] on each device
            return xs.psum(a @ b, "model")

        xs.shard_map(product, mesh, [("data", "model"), ("model", None)], ("data", None))

    Gradients go through it. What ``f`` writes to an argument in place is written to the whole.
    Tensors that ``f`` uses and that are no arguments are the same on all devices, and so are random
    numbers. What ``f`` returns along axes that ``out_specs`` does not name, or writes to an
    argument that is not split along them, has to be the same on their devices: reduced or gathered
    over them, or computed from what is.

    A region within a region has the same mesh and other axes; the outer one names its own by
    ``axis_names``.

    Args:
        f: The function.
        mesh: The mesh.
        in_specs: For each argument a partition spec, whose axes split dimensions into equal parts;
            for nested arguments one for all tensors in it, or a list or dictionary of them. None
            stands for the whole tensor on each device.
        out_specs: The same for the result; a list for several results.
        axis_names: The axes of the region; all that no region around it has when None. Along the
            other axes the devices do the same.
        check_rep: Whether to refuse a result that is not certainly the same on devices where
            ``out_specs`` takes it for the same. Switch it off for results that are equal for
            another reason, such as a sum that goes around a ring: the first device's is taken.

    Returns:
        The function, which takes whole tensors and returns whole tensors.

    Raises:
        RuntimeError: The process is not in SPMD mode.
        TypeError: The mesh is none, or an argument no xla tensor.
        ValueError: A spec does not fit the mesh or a tensor, or a result differs along an axis that
            its spec does not name. The message names the axis.
    """
    if not isinstance(in_specs, (tuple, list)) or any(isinstance(s, (str, int)) for s in in_specs):
        raise ValueError(
            "shard_map: expected in_specs with a partition spec for each argument, such as "
            f'[("data", None)], got {in_specs!r}'
        )

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        _check_mode("shard_map", mesh)
        if len(args) != len(in_specs) or kwargs:
            named = f" and {[*kwargs]} by name" if kwargs else ""
            raise ValueError(
                f"shard_map: expected {len(in_specs)} arguments by position, one for each of "
                f"in_specs, got {len(args)}{named}"
            )
        names = _region_names(mesh, axis_names)
        inner = bool(_regions.stack)
        if not inner:
            _regions.begin(mesh)
        given: list[_Part] = []
        entered: list[_Entered] = []
        wholes: list[torch.Tensor] = []

        def enter(t: torch.Tensor, spec: PartitionSpec) -> torch.Tensor:
            if inner:
                return _own_part(t, mesh, spec)
            for part, _, whole, known in entered:
                if whole is t and known == spec:
                    return part
            part = _take_apart(t, mesh, spec)
            given.append((part.detach(), t.detach(), spec))
            entered.append((part, part.detach().clone(), t, spec))
            return part

        def leave(t: torch.Tensor, spec: PartitionSpec) -> torch.Tensor:
            if check_rep:
                _check_copies(t, mesh, spec, names if inner else _names_of(mesh))
            if inner:
                return _all_parts(t, mesh, spec)
            wholes.append(_put_together(t, mesh, spec))
            return wholes[-1]

        def checked(go: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, Any], Any]:
            def one(t: torch.Tensor, spec: Any) -> torch.Tensor:
                spec = (None,) * t.dim() if spec is None else spec
                _check_spec(mesh, spec, names)
                return go(t, spec)

            return one

        with _entered(mesh, names), _saving_wholes(mesh, None if inner else given):
            pairs = zip(args, in_specs, strict=True)
            result = f(*(_apply(arg, spec, checked(enter)) for arg, spec in pairs))
            result = _apply(result, out_specs, checked(leave))
            for part, before, t, spec in entered:
                # Operators such as batch_norm() write without raising the version.
                if _is_real(part) and not _XLAC._xla_same_value(part, before):
                    _check_not_shared(part, t, entered)
                    t.copy_(leave(part, spec))
        _sum_gradients_of_captured(wholes, mesh)
        return result

    return _not_for_dynamo(mapped)


def _an_end(
    what: str, t: torch.Tensor, spec: PartitionSpec, mesh: Mesh | None
) -> tuple[torch.Tensor, Mesh]:
    """Checks the arguments of an end of a region; returns the plain tensor, and the mesh."""
    if _regions.stack:
        raise RuntimeError(
            f"{what}: the call is in a function of shard_map, whose tensors are the devices' parts "
            "already; call shard_map with axis_names, and again in the function for other axes"
        )
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None:
        raise ValueError(f"{what}: expected the argument mesh, or a mesh of set_global_mesh()")
    _check_mode(what, mesh)
    check_xla(what, t)
    mesh.sharding_of(what, t, spec)
    return cast(torch.Tensor, unwrap_sharded_tensor(t)), mesh


@_not_for_dynamo
def enable_manual_sharding(
    t: torch.Tensor | XLAShardedTensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """Takes a tensor apart: what is computed from the result, each device computes for itself.

    :func:`disable_manual_sharding` ends that. :func:`shard_map` is both for a function.

    Args:
        t: An xla tensor.
        partition_spec: For each dimension the axis over which it is split, into equal parts.
        mesh: The mesh; that of :func:`set_global_mesh` when None.

    Returns:
        The device's part, as ``global_tensor`` of the result.
    """
    what = "enable_manual_sharding"
    plain, mesh = _an_end(what, t, partition_spec, mesh)
    _regions.begin(mesh)
    return wrap_as_sharded_tensor(_take_apart(plain, mesh, partition_spec, what))


@_not_for_dynamo
def disable_manual_sharding(
    t: torch.Tensor | XLAShardedTensor,
    partition_spec: PartitionSpec,
    full_shape: Sequence[int],
    *,
    mesh: Mesh | None = None,
) -> XLAShardedTensor:
    """Puts the devices' parts together; the inverse of :func:`enable_manual_sharding`.

    Args:
        t: The device's part.
        partition_spec: As there.
        full_shape: The shape of the whole.
        mesh: As there.

    Raises:
        ValueError: The parts have another whole.
    """
    plain, mesh = _an_end("disable_manual_sharding", t, partition_spec, mesh)
    _check_copies(plain, mesh, partition_spec, _names_of(mesh))
    whole = _put_together(plain, mesh, partition_spec)
    _regions.end()
    _sum_gradients_of_captured([whole], mesh)
    if tuple(whole.shape) != tuple(full_shape):
        raise ValueError(
            f"disable_manual_sharding: the parts make a tensor of shape {list(whole.shape)}, but "
            f"full_shape is {list(full_shape)}"
        )
    return wrap_as_sharded_tensor(whole)


def local_map(
    func: Callable[..., Any],
    out_placements: Any,
    in_placements: Sequence[Sequence[Placement] | None],
    device_mesh: DeviceMesh | Mesh,
) -> Callable[..., Any]:
    """:func:`shard_map` by DTensor's placements, as ``torch.distributed.tensor``'s ``local_map``.

    Args:
        func: The function.
        out_placements: For each axis of the mesh ``Shard(dim)`` or ``Replicate()``; a tuple of
            such lists for several results.
        in_placements: The same for each argument; None for one that is no tensor.
        device_mesh: The mesh.
    """
    mesh = device_mesh if isinstance(device_mesh, Mesh) else to_mesh(device_mesh)

    def spec(t: Any, placements: Sequence[Placement] | None) -> PartitionSpec | None:
        if placements is not None and len(placements) != len(mesh.mesh_shape):
            raise ValueError(
                f"local_map: expected {len(mesh.mesh_shape)} placements, one for each of the "
                f"{_describe(mesh, range(len(mesh.mesh_shape)))}, got {tuple(placements)}"
            )
        return None if placements is None else to_partition_spec(t.dim(), None, placements)

    @functools.wraps(func)
    def mapped(*args: Any) -> Any:
        if len(args) != len(in_placements):
            raise ValueError(
                f"local_map: expected {len(in_placements)} arguments, one for each of "
                f"in_placements, got {len(args)}"
            )
        specs = [spec(t, placements) for t, placements in zip(args, in_placements, strict=True)]
        several = isinstance(out_placements, tuple)
        placements = out_placements if several else [out_placements]
        out: list[Any] = []  # The specs, which are known when the parts are.

        def collect(*parts: Any) -> Any:
            results = func(*parts) if several else [func(*parts)]
            out[:] = [spec(t, one) for t, one in zip(results, placements, strict=True)]
            return results

        results = shard_map(collect, mesh, specs, out)(*args)
        return results if several else results[0]

    return _not_for_dynamo(mapped)
