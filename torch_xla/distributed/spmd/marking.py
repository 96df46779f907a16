"""Saying how tensors lie on the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from torch_xla import _XLAC, runtime
from torch_xla._internal.replicas import replication
from torch_xla._internal.tensors import is_xla
from torch_xla.distributed.spmd.manual import refuse_part
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    check_xla,
    unwrap_sharded_tensor,
    with_sharding,
    wrap_as_sharded_tensor,
)


def _check(name: str, t: Any, mesh: Any, partition_spec: PartitionSpec) -> _XLAC.Sharding:
    """Returns the sharding, if ``t`` can have it."""
    if not runtime.is_spmd():
        if replication.topology().world_size > 1:
            raise RuntimeError(
                f"{name}: expected SPMD mode, in which one process has all devices; this one is a "
                "replica, with one of them. Run the program without a launcher and call "
                "torch_xla.runtime.use_spmd(), or shard the replicas' parameters with "
                "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel"
            )
        raise RuntimeError(f"{name}: expected SPMD mode; call torch_xla.runtime.use_spmd() first")
    check_xla(name, t)
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{name}: expected a Mesh, got {type(mesh).__name__}")
    refuse_part(name, t)
    return mesh.sharding_of(name, t, partition_spec)


def mark_sharding(
    t: torch.Tensor | XLAShardedTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> XLAShardedTensor:
    """Says how a tensor lies on the devices, from now on.

    The tensor itself is marked, and keeps that through in-place operations; marking a module's
    parameters needs no assignment. Data that no operation has used yet is uploaded so, other data
    is moved by the next program. On a view it is a hint, for its value as of now, and without
    effect where several of its elements are one in memory (``expand``). ::

        mesh = Mesh(range(4), (2, 2), ("data", "model"))
        x = mark_sharding(x, mesh, ("data", None))
        mark_sharding(linear.weight, mesh, ("model", None))

    Args:
        t: An xla tensor of any shape. Dimensions need not be divisible by their number of parts.
        mesh: The mesh.
        partition_spec: For each dimension the axis of the mesh (name or number) over which it is
            split, a tuple of axes, or None for one that is not. Over the axes that it does not
            name the tensor is replicated.

    Returns:
        The same tensor under another type, which tells how it lies.

    Raises:
        RuntimeError: The process is not in SPMD mode, or the tensor is marked otherwise: see
            :func:`clear_sharding`.
        TypeError: ``t`` is no xla tensor, or ``mesh`` no mesh.
        ValueError: The partition spec does not fit the tensor or the mesh.
    """
    sharding = _check("mark_sharding", t, mesh, partition_spec)
    marked = _XLAC._xla_marked_sharding(t)
    if marked is not None and marked != sharding:
        raise RuntimeError(
            f"mark_sharding: the tensor is marked {marked} already; call clear_sharding() before "
            f"marking it {sharding}, which is the partition spec {partition_spec}"
        )
    _XLAC._xla_mark_sharding(t, sharding)
    return wrap_as_sharded_tensor(t)


def clear_sharding(t: torch.Tensor | XLAShardedTensor) -> torch.Tensor:
    """Takes the mark off a tensor: from now on XLA chooses how it lies.

    Returns:
        The tensor, as a plain one.
    """
    check_xla("clear_sharding", t)
    plain = cast(torch.Tensor, unwrap_sharded_tensor(t))
    marked = _XLAC._xla_marked_sharding(t) is not None
    _XLAC._xla_clear_sharding(t)
    if marked:  # The data keeps its sharding; the next program's result need not.
        _XLAC._xla_optimization_barrier_([plain])
    return plain


def mark_sharding_with_gradients(
    t: torch.Tensor | XLAShardedTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """Returns a tensor of the same content that is marked; its gradient is marked so, too.

    For activations: XLA may lose track of how they lie on the way back. Unlike
    :func:`mark_sharding` it leaves ``t`` alone.

    Args and Raises are those of :func:`mark_sharding`.
    """
    sharding = _check("mark_sharding_with_gradients", t, mesh, partition_spec)
    return with_sharding(unwrap_sharded_tensor(t), sharding)


class MarkShardingFunction(torch.autograd.Function):
    """A copy of a tensor that lies in some way, and whose gradient does, too."""

    @staticmethod
    def forward(
        ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
    ) -> torch.Tensor:
        ctx.sharding = _check("MarkShardingFunction", torch_tensor, mesh, partition_spec)
        return with_sharding(torch_tensor, ctx.sharding)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return with_sharding(gradient, ctx.sharding), None, None


@dataclass
class ShardingSpec:
    """A mesh with a partition spec: how to shard what is to come, such as a loader's batches.

    Attributes:
        mesh: The mesh.
        partition_spec: As for :func:`mark_sharding`.
        minibatch: Whether tensors hold this process's part of a batch, along dimension 0, rather
            than all of it. SPMD mode has one process, whose part is all; the first dimension has
            to be split.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool = False

    def __post_init__(self) -> None:
        sharding = self.mesh.get_op_sharding(self.partition_spec)
        if self.minibatch and (sharding.is_replicated or sharding.tiles[0] == 1):
            raise ValueError(
                "ShardingSpec: expected a partition spec that splits dimension 0, with "
                f"minibatch=True, got {self.partition_spec}"
            )
        self._sharding = sharding

    @property
    def sharding(self) -> _XLAC.Sharding:
        """The sharding."""
        return self._sharding

    def xla_spec(self, t: torch.Tensor) -> _XLAC.Sharding | None:
        """Returns the sharding for a tensor, or None where it has other dimensions."""
        return self._sharding if self.can_apply(t) else None

    def can_apply(self, t: torch.Tensor) -> bool:
        """Returns whether a tensor has as many dimensions as the partition spec."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> XLAShardedTensor:
        """Marks an xla tensor: see :func:`mark_sharding`."""
        return mark_sharding(t, self.mesh, self.partition_spec)


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Puts a barrier behind a module's backward pass: see ``xm.optimization_barrier_``.

    XLA then does not compute again, ahead of time, what the module's backward pass needs: with a
    checkpointed module, that is what the memory is saved by.
    """

    def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        _XLAC._xla_optimization_barrier_(
            [g for g in grad_input if isinstance(g, torch.Tensor) and is_xla(g)]
        )

    m.register_full_backward_hook(hook)
