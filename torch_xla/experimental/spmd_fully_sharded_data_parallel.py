"""FSDP by SPMD: XLA gathers parameters where they are used and scatters their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from torch_xla import _XLAC
from torch_xla.distributed import spmd
from torch_xla.distributed.fsdp.wrap import recursive_wrap
from torch_xla.distributed.spmd.mesh import Axis, PartitionSpec

_WRAPPED = "_orig_module"
_AXIS = "fsdp"


def _parameter_spec(shape: torch.Size, count: int) -> PartitionSpec:
    """Splits the largest dimension that ``count`` divides, or else the largest."""
    if not shape or max(shape) < 2:
        return (None,) * len(shape)
    divisible = [size if size % count == 0 else 0 for size in shape]
    sizes = divisible if any(divisible) else list(shape)
    split = sizes.index(max(sizes))
    return tuple(_AXIS if i == split else None for i in range(len(shape)))


class SpmdFullyShardedDataParallel(nn.Module):
    """Wraps a module whose parameters are split over the mesh's axis ``fsdp``.

    So are their gradients and the optimizer's state, if the optimizer is made after wrapping.
    Inputs have to be split over the same axis along the batch, by ``mark_sharding`` or a loader's
    ``input_sharding``; outputs are then, too::

        mesh = xs.Mesh(range(4), (4, 1), ("fsdp", "model"))
        model = SpmdFullyShardedDataParallel(module, mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        x = xs.mark_sharding(x, mesh, ("fsdp", None))
        loss_fn(model(x), y).backward()
        optimizer.step()

    A parameter is split along its largest dimension that the axis divides, or else its largest
    one. Parameters that are marked already stay as they are.

    Args:
        module: The module; it is moved to xla.
        mesh: A mesh with an axis ``fsdp``; that of ``set_global_mesh`` when None.
        shard_output: Called with the output and the mesh, to mark the output; None marks a
            tensor, or the first one of a tuple or list, along dimension 0.
        auto_wrap_policy: Says which children to wrap: a policy of
            ``torch.distributed.fsdp.wrap``.
        auto_wrapper_callable: Wraps them: called with a module and the arguments of this class;
            this class when None.
        extra_data_axis: Another axis of the mesh over which the batch is split, while parameters
            are replicated: that of the machines, on several.

    Raises:
        ValueError: There is no mesh, or it has no such axis, or the module is wrapped already.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: spmd.Mesh | None = None,
        shard_output: Callable[[Any, spmd.Mesh], Any] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise ValueError("SpmdFullyShardedDataParallel: the module is wrapped already")
        mesh = spmd.get_global_mesh() if mesh is None else mesh
        if mesh is None:
            raise ValueError(
                "SpmdFullyShardedDataParallel: expected a mesh; pass one, or set_global_mesh()"
            )
        for axis in (_AXIS, extra_data_axis):
            if axis is not None and mesh.get_axis_name_idx(axis) is None:
                raise ValueError(
                    f"SpmdFullyShardedDataParallel: expected a mesh with an axis {axis!r}, got "
                    f"{mesh}"
                )
        if auto_wrap_policy is not None:
            recursive_wrap(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or SpmdFullyShardedDataParallel,
                ignored_modules=set(),
                ignored_params=set(),
                only_wrap_children=True,
                mesh=mesh,
                shard_output=shard_output,
                extra_data_axis=extra_data_axis,
            )
        self._mesh = mesh
        self._shard_output = shard_output
        self._batch_axes: tuple[Axis, ...] | Axis = (
            _AXIS if extra_data_axis is None else (extra_data_axis, _AXIS)
        )
        setattr(self, _WRAPPED, module.to("xla"))
        count = mesh.shape()[_AXIS]
        for parameter in module.parameters():
            if _XLAC._xla_marked_sharding(parameter) is None:
                spmd.mark_sharding(parameter, mesh, _parameter_spec(parameter.shape, count))

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        return cast(nn.Module, getattr(self, _WRAPPED))

    def __getattr__(self, name: str) -> Any:
        """Finds what is not here in the module that is wrapped."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(_WRAPPED), name)

    def __getitem__(self, key: Any) -> Any:
        """Returns a part of a module that has parts, such as ``nn.Sequential``."""
        return getattr(self, _WRAPPED)[key]

    def _marked(self, output: torch.Tensor) -> torch.Tensor:
        if not output.dim():
            return output  # A loss has no batch dimension.
        spec = (self._batch_axes,) + (None,) * (output.dim() - 1)
        return spmd.mark_sharding_with_gradients(output, self._mesh, spec)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module, and marks its output."""
        output = self.module(*args, **kwargs)
        if self._shard_output is not None:
            marked = self._shard_output(output, self._mesh)
            return output if marked is None else marked
        if isinstance(output, torch.Tensor):
            return self._marked(output)
        if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
            parts = [self._marked(output[0]), *output[1:]]
            named = hasattr(output, "_fields")
            return type(output)(*parts) if named else type(output)(parts)
        raise ValueError(
            "SpmdFullyShardedDataParallel: expected an output that is a tensor, or begins with "
            f"one, got {type(output).__name__}; pass `shard_output`"
        )
