"""XlaFullyShardedDataParallel: parameters, gradients and optimizer state sharded over replicas."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

import torch_xla
from torch_xla._internal.auto_wrap import wrap_children
from torch_xla.core import collectives
from torch_xla.distributed.fsdp.bucket import Bucket, Place, Sharding
from torch_xla.distributed.fsdp.state_dict import WRAPPED, clean_name


class XlaFullyShardedDataParallel(nn.Module):
    """Wraps a module whose parameters are sharded over the replicas.

    Each replica keeps a part of every parameter. The forward pass gathers the whole ones, and
    drops them after it; the backward pass gathers them again, and leaves each replica the mean
    of its part of the gradients. Modules can be nested, which makes less be there at a time::

        model = FSDP(nn.Sequential(FSDP(layer1), FSDP(layer2)).to(device))
        optimizer = torch.optim.AdamW(model.parameters())
        loss_fn(model(x), y).backward()
        optimizer.step()  # Not xm.optimizer_step(): gradients are reduced already.

    Make the optimizer after wrapping: its parameters are the shards. All replicas must have the
    same parameters when they are wrapped.

    Args:
        module: The module, on an xla device.
        reshard_after_forward: Whether to drop whole parameters after the forward pass.
        flatten_parameters: Whether to keep all parameters of a dtype in one array, which is
            gathered and reduced in one transfer. Parameters that want gradients and those that
            do not are apart.
        execute_sharding_on_init: Whether to run what the sharding has traced, so that whole
            parameters leave memory at once.
        optimization_barrier_in_forward: Changes nothing: a collective is a barrier of its own.
        optimization_barrier_in_backward: The same.
        mark_step_on_finalization: Whether the backward pass of the outermost module ends with
            :func:`torch_xla.sync`.
        disable_reshard_on_root: Whether the outermost module keeps its own parameters from the
            forward pass to the backward pass, which starts with them.
        compute_dtype: Dtype of whole parameters, and of floating-point inputs; that of the
            parameters when None.
        buffer_dtype: Dtype of floating-point buffers; ``compute_dtype`` when None.
        fp32_reduce_scatter: Whether to reduce gradients in float32.
        sharding_groups: The replica groups over which to shard, as lists of ordinals of one
            size; all replicas when None.
        pin_layout_in_collective_ops: Changes nothing; taken for scripts that pass it.
        auto_wrap_policy: Says which children to wrap: a policy of
            ``torch.distributed.fsdp.wrap``.
        auto_wrapper_callable: Wraps them, with these arguments; this class when None.

    Raises:
        ValueError: ``sharding_groups`` are not as above.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        mark_step_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Sequence[Sequence[int]] | None = None,
        pin_layout_in_collective_ops: bool = True,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, XlaFullyShardedDataParallel):
            raise ValueError("XlaFullyShardedDataParallel: the module is wrapped already")
        if auto_wrap_policy is not None:
            wrap_children(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or XlaFullyShardedDataParallel,
                reshard_after_forward=reshard_after_forward,
                flatten_parameters=flatten_parameters,
                execute_sharding_on_init=execute_sharding_on_init,
                compute_dtype=compute_dtype,
                buffer_dtype=buffer_dtype,
                fp32_reduce_scatter=fp32_reduce_scatter,
                sharding_groups=sharding_groups,
            )
        groups = collectives.checked_groups(
            "XlaFullyShardedDataParallel", sharding_groups, same_size=True
        )
        self._sharding = Sharding(groups, compute_dtype, fp32_reduce_scatter)
        self._reshard_after_forward = reshard_after_forward
        self._mark_step_on_finalization = mark_step_on_finalization
        self._disable_reshard_on_root = disable_reshard_on_root
        self._is_root: bool | None = None
        self._has_final_callback = False
        self._buckets = self._make_buckets(module, flatten_parameters)
        self._fsdp_wrapped_module = module
        buffer_dtype = buffer_dtype or compute_dtype
        if buffer_dtype is not None:
            for buffer in module.buffers():
                if buffer.dtype.is_floating_point:
                    buffer.data = buffer.data.to(buffer_dtype)
        self._shard_names = []
        for i, bucket in enumerate(self._buckets):
            # The number keeps `a.b_c` and `a_b.c` apart.
            end = "flat" if flatten_parameters else bucket.names[0].replace(".", "_")
            name = f"shard_{i}_{end}"
            self.register_parameter(name, bucket.shard)
            self._shard_names.append(name)
        if execute_sharding_on_init:
            torch_xla.sync()

    def _make_buckets(self, module: nn.Module, flatten: bool) -> list[Bucket]:
        """Shards what no nested wrapper has; a parameter with several places is one."""
        found: dict[nn.Parameter, list[Place]] = {}
        names: dict[nn.Parameter, str] = {}
        wrapped = {
            child
            for outer in module.modules()
            if isinstance(outer, XlaFullyShardedDataParallel)
            for child in (outer, *outer.module.modules())
        }
        for path, child in module.named_modules(remove_duplicate=True):
            if child in wrapped:
                continue
            for name, parameter in child._parameters.items():
                if parameter is None:
                    continue
                found.setdefault(parameter, []).append(Place(child, name))
                names.setdefault(parameter, f"{path}.{name}" if path else name)
        bunches: dict[Any, list[nn.Parameter]] = {}
        for parameter in found:
            key = (parameter.dtype, parameter.requires_grad) if flatten else id(parameter)
            bunches.setdefault(key, []).append(parameter)
        return [
            Bucket([(p, found[p]) for p in bunch], [names[p] for p in bunch], self._sharding)
            for bunch in bunches.values()
        ]

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        return self._fsdp_wrapped_module

    def __getattr__(self, name: str) -> Any:
        """Finds what is not here in the module that is wrapped."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(WRAPPED), name)

    def _nested(self) -> Iterator[XlaFullyShardedDataParallel]:
        """This wrapper, and all inside of it."""
        return (m for m in self.modules() if isinstance(m, XlaFullyShardedDataParallel))

    def _find_root(self) -> None:
        """The wrapper that runs first is the outermost one."""
        if self._is_root is None:
            for wrapper in self._nested():
                wrapper._is_root = wrapper is self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module with whole parameters."""
        self._find_root()
        dtype = self._sharding.compute_dtype
        if dtype is not None:
            args, kwargs = _pytree.tree_map(
                lambda x: (
                    x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x
                ),
                (args, kwargs),
            )
        for bucket in self._buckets:
            # What a forward pass without a backward one has left may be old.
            bucket.free()
            bucket.gather()
        outputs = self.module(*args, **kwargs)
        keeps = self._is_root and self._disable_reshard_on_root and torch.is_grad_enabled()
        if self._reshard_after_forward and not keeps:
            for bucket in self._buckets:
                bucket.free()
        if torch.is_grad_enabled():
            for output in _pytree.tree_leaves(outputs):
                if isinstance(output, torch.Tensor) and output.requires_grad:
                    output.register_hook(self._before_backward)
        return outputs

    def _before_backward(self, gradient: torch.Tensor) -> None:
        for bucket in self._buckets:
            bucket.gather()
        if not self._has_final_callback:
            self._has_final_callback = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        """At the end of the whole backward pass."""
        self._has_final_callback = False
        for bucket in self._buckets:
            bucket.reduce()  # Where some parameters have had no part in the output.
            bucket.free()
        if self._is_root and self._mark_step_on_finalization:
            torch_xla.sync()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets gradients add up on each replica; the first backward pass after it reduces them.

        Whole gradients stay in memory meanwhile.
        """
        buckets = [bucket for wrapper in self._nested() for bucket in wrapper._buckets]
        for bucket in buckets:
            bucket.reduces = False
        try:
            yield
        finally:
            for bucket in buckets:
                bucket.reduces = True

    @torch.no_grad()
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> torch.Tensor:
        """Scales all gradients down to a norm, over all replicas' shards together.

        Args:
            max_norm: The largest norm.
            norm_type: The p of the norm; ``inf`` for the largest absolute value.
            groups: The replica groups over which shards are summed up; those of the sharding
                when None.

        Returns:
            The norm before, a tensor without dimensions.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        groups = self._sharding.groups or None if groups is None else groups
        norm_type = float(norm_type)
        device = next(self.parameters()).device
        if norm_type == float("inf"):
            local = [gradient.abs().max().float() for gradient in gradients if gradient.numel()]
            reduction, power = collectives.REDUCE_MAX, 1.0
            total = torch.stack(local).max() if local else torch.zeros((), device=device)
        else:
            local = [gradient.float().abs().pow(norm_type).sum() for gradient in gradients]
            reduction, power = collectives.REDUCE_SUM, 1.0 / norm_type
            total = torch.stack(local).sum() if local else torch.zeros((), device=device)
        norm = collectives.all_reduce(reduction, total, groups=groups).pow(power)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    @contextlib.contextmanager
    def summon_full_params(self) -> Iterator[None]:
        """Lets whole parameters be read inside the block; writing to them has no effect."""
        buckets = [bucket for wrapper in self._nested() for bucket in wrapper._buckets]
        gathered = [bucket for bucket in buckets if not bucket.is_gathered]
        for bucket in gathered:
            bucket.gather()
        try:
            yield
        finally:
            for bucket in gathered:
                bucket.free()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the unwrapped module, whole, on the CPU. All replicas call it."""
        state = {}
        with self.summon_full_params(), torch.no_grad():
            for path, child in self.named_modules():
                if isinstance(child, XlaFullyShardedDataParallel):
                    for bucket in child._buckets:
                        for name, full in zip(bucket.names, bucket.full, strict=True):
                            key = clean_name(f"{path}.{WRAPPED}.{name}")
                            state[key] = full.detach().clone()
            for name, buffer in self.named_buffers():
                state[clean_name(name)] = buffer.detach().clone()
            torch_xla.sync()
            return {name: tensor.cpu() for name, tensor in state.items()}

    def get_shard_metadata(self) -> dict[str, Any]:
        """Returns what joins the replicas' ``state_dict()``; save it with each of them.

        See :func:`torch_xla.distributed.fsdp.consolidate_sharded_model_checkpoints`.
        """
        shards = []
        for path, child in self.named_modules():
            if not isinstance(child, XlaFullyShardedDataParallel):
                continue
            prefix = f"{path}." if path else ""
            for shard_name, bucket in zip(child._shard_names, child._buckets, strict=True):
                entry = bucket.metadata(prefix + shard_name)
                entry["names"] = [f"{prefix}{WRAPPED}.{name}" for name in entry["names"]]
                shards.append(entry)
        return {
            "rank": self._sharding.rank,
            "world_size": self._sharding.size,
            "shards": copy.deepcopy(shards),
            "buffers": [name for name, _ in self.named_buffers()],
        }
