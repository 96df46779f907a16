"""XlaFullyShardedDataParallel: parameters, gradients and optimizer state sharded over replicas."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from torch_xla._internal.compile.step import sync
from torch_xla._internal.tensors import is_xla
from torch_xla.core import collectives
from torch_xla.distributed.fsdp.bucket import Bucket, Place, Sharding, gather, reduce
from torch_xla.distributed.fsdp.state_dict_utils import WRAPPED, clean_name
from torch_xla.distributed.fsdp.wrap import recursive_wrap


def _materialize(module: nn.Module, init: Callable[[nn.Module], None] | None) -> None:
    """Gives a module's parameters and buffers on the meta device their memory and values."""

    def is_meta(child: nn.Module, recurse: bool) -> bool:
        tensors = itertools.chain(child.parameters(recurse), child.buffers(recurse))
        return any(tensor.is_meta for tensor in tensors)

    if not is_meta(module, True):
        return
    if init is not None:
        init(module)
        return
    for name, child in module.named_modules():
        if is_meta(child, False):
            if not hasattr(child, "reset_parameters"):
                raise ValueError(
                    f"XlaFullyShardedDataParallel: {name or 'the module'} "
                    f"({type(child).__name__}) is on the meta device and has no "
                    "reset_parameters(); expected `param_init_fn`, which gives it its values"
                )
            child.to_empty(device="xla", recurse=False)
            child.reset_parameters()


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
        module: The module: on an xla device; on the CPU, from where this replica's part alone goes
            to the device; or on the meta device: see ``param_init_fn``.
        reshard_after_forward: Whether to drop whole parameters after the forward pass.
        flatten_parameters: Whether to keep all parameters of a dtype in one array, which is
            gathered and reduced in one transfer. Parameters that want gradients and those that
            do not are apart.
        execute_sharding_on_init: Whether to run what the sharding has traced, so that whole
            parameters leave memory at once.
        optimization_barrier_in_forward: Changes nothing: a collective is a barrier of its own.
        optimization_barrier_in_backward: The same.
        sync_on_finalization: Whether the backward pass of the outermost module ends with
            :func:`torch_xla.sync`.
        disable_reshard_on_root: Whether the outermost module keeps its own parameters from the
            forward pass to the backward pass, which starts with them.
        compute_dtype: Dtype of whole parameters, and of floating-point inputs; that of the
            parameters when None.
        buffer_dtype: Dtype of floating-point buffers; ``compute_dtype`` when None.
        fp32_reduce_scatter: Whether to reduce gradients in float32.
        sharding_groups: The replica groups over which to shard, as lists of ordinals of one
            size; all replicas when None.
        sharding_rank: This replica's place in its group; it follows from the groups, and is
            checked.
        sharding_world_size: The size of a group; the same.
        shard_param_on_dim_0: Whether parts are rows of the first dimension and keep the other
            dimensions, for optimizers that look at shapes. Not with ``flatten_parameters``.
        pin_layout_in_collective_ops: Changes nothing; taken for scripts that pass it.
        reduce_scatter_bucket_size_mb: Gradients of a wrapper are reduced together once they have
            so many megabytes, and at the end; each as soon as it is there when 0 or None.
        coalesce_all_gather_ops: Whether a wrapper's parameters are gathered in one transfer.
        auto_wrap_policy: Says which children to wrap: a policy of
            :mod:`torch_xla.distributed.fsdp.wrap` or ``torch.distributed.fsdp.wrap``.
        auto_wrapper_callable: Wraps them, with these arguments; this class when None.
        param_init_fn: Called with a module that has parameters on the meta device, to give it
            real ones. When None they are made on the xla device, and each child's
            ``reset_parameters()`` is called.
        _shard_size_multiple: A part's number of elements is padded to one of these, where parts
            are not rows.
        _use_xla_patched_linear: Changes nothing, as all that follow; taken for scripts that pass
            them.
        mark_step_on_finalization: An older name of ``sync_on_finalization``.

    Raises:
        ValueError: ``sharding_groups``, ``sharding_rank`` or ``sharding_world_size`` are not as
            above, the module is wrapped already, or it is on the meta device and has a child that
            cannot be initialized.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Sequence[Sequence[int]] | None = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
        _debug_dummy_forward_pass: bool = False,
        _debug_msg: str = "xla_fsdp",
        _debug_print: bool = False,
        _debug_dummy_all_gather_op: bool = False,
        _debug_dummy_all_reduce_op: bool = False,
        _debug_dummy_reduce_scatter_op: bool = False,
        _debug_dummy_optimization_barrier_op: bool = False,
        mark_step_on_finalization: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(module, XlaFullyShardedDataParallel):
            raise ValueError("XlaFullyShardedDataParallel: the module is wrapped already")
        if auto_wrap_policy is not None:
            recursive_wrap(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or XlaFullyShardedDataParallel,
                ignored_modules=set(),
                ignored_params=set(),
                only_wrap_children=True,
                reshard_after_forward=reshard_after_forward,
                flatten_parameters=flatten_parameters,
                execute_sharding_on_init=execute_sharding_on_init,
                compute_dtype=compute_dtype,
                buffer_dtype=buffer_dtype,
                fp32_reduce_scatter=fp32_reduce_scatter,
                sharding_groups=sharding_groups,
                shard_param_on_dim_0=shard_param_on_dim_0,
                reduce_scatter_bucket_size_mb=reduce_scatter_bucket_size_mb,
                coalesce_all_gather_ops=coalesce_all_gather_ops,
                param_init_fn=param_init_fn,
                _shard_size_multiple=_shard_size_multiple,
            )
        groups = collectives.checked_groups(
            "XlaFullyShardedDataParallel", sharding_groups, same_size=True
        )
        self._sharding = Sharding(
            groups, compute_dtype, fp32_reduce_scatter, shard_param_on_dim_0, _shard_size_multiple
        )
        for name, given, actual in (
            ("sharding_rank", sharding_rank, self._sharding.rank),
            ("sharding_world_size", sharding_world_size, self._sharding.size),
        ):
            if given not in (None, actual):
                raise ValueError(
                    f"XlaFullyShardedDataParallel: expected `{name}` of {actual}, as `groups` of "
                    f"{groups or 'all replicas'} have it on this one, got {given}"
                )
        _materialize(module, param_init_fn)
        self._reshard_after_forward = reshard_after_forward
        self._syncs_at_end = sync_on_finalization or mark_step_on_finalization
        self._gathers_together = coalesce_all_gather_ops
        self._bytes_to_reduce = (reduce_scatter_bucket_size_mb or 0) << 20
        self._to_reduce: list[Bucket] = []
        self._disable_reshard_on_root = disable_reshard_on_root
        self._is_root: bool | None = None
        # The id of the backward pass that is running or has failed.
        self._graph_task: int | None = None
        self._buckets = self._make_buckets(module, flatten_parameters)
        self._fsdp_wrapped_module = module
        self._convert_buffers(module, buffer_dtype or compute_dtype)
        self._shard_names = []
        for i, bucket in enumerate(self._buckets):
            # The number keeps `a.b_c` and `a_b.c` apart.
            end = "flat" if flatten_parameters else bucket.names[0].replace(".", "_")
            name = f"shard_{i}_{end}"
            self.register_parameter(name, bucket.shard)
            self._shard_names.append(name)
        if execute_sharding_on_init:
            sync()

    @staticmethod
    def _convert_buffers(module: nn.Module, dtype: torch.dtype | None) -> None:
        """Puts buffers on the device, and converts those of a floating-point dtype."""
        moved: dict[torch.Tensor, torch.Tensor] = {}
        for child in module.modules():
            for name, buffer in child._buffers.items():
                if buffer is None:
                    continue
                new = dtype if buffer.dtype.is_floating_point else None
                if not is_xla(buffer):
                    if buffer not in moved:
                        moved[buffer] = buffer.to("xla", new)
                    child._buffers[name] = moved[buffer]
                elif new is not None:
                    buffer.data = buffer.data.to(new)

    def _make_buckets(self, module: nn.Module, flatten: bool) -> list[Bucket]:
        """Shards the parameters that no nested wrapper has; one with several names is one."""
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
            Bucket(
                [(p, found[p]) for p in bunch],
                [names[p] for p in bunch],
                f"flat_param_{i}" if flatten else None,
                self._sharding,
                self._on_ready,
            )
            for i, bunch in enumerate(bunches.values())
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
        if self._graph_task is not None and torch._C._current_graph_task_id() < 0:
            # The last backward pass has failed, so clear its state here.
            self._graph_task = None
            self._to_reduce.clear()
            for bucket in self._buckets:
                bucket.drop_gradients()
                bucket.finish()
        dtype = self._sharding.compute_dtype
        if dtype is not None:
            args, kwargs = _pytree.tree_map(
                lambda x: (
                    x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x
                ),
                (args, kwargs),
            )
        for bucket in self._buckets:
            # Parameters that a forward pass without a backward pass gathered may be outdated.
            bucket.free()
        gather(self._buckets, self._gathers_together)
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
        gather(self._buckets, self._gathers_together)
        task = torch._C._current_graph_task_id()
        if task != self._graph_task:
            self._graph_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        """Runs at the end of the whole backward pass."""
        self._graph_task = None
        # Reduce also buckets in which some parameters did not contribute to the output.
        self._to_reduce.clear()
        if self._bytes_to_reduce:
            reduce(self._buckets)
        for bucket in self._buckets:
            reduce([bucket])
            bucket.finish()
        if self._is_root and self._syncs_at_end:
            sync()

    def _on_ready(self, bucket: Bucket) -> None:
        self._to_reduce.append(bucket)
        waiting = sum(b.padded_size * b.full[0].element_size() for b in self._to_reduce)
        if waiting >= self._bytes_to_reduce:
            reduce(self._to_reduce)
            self._to_reduce.clear()

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Sets what gradients are divided by; without, by the number of replicas after the sum.

        Args:
            pre: The divisor before the replicas' gradients are summed up.
            post: The one after.
            recursive: Whether it holds for the wrappers inside, too.
        """
        for wrapper in self._nested() if recursive else [self]:
            for bucket in wrapper._buckets:
                bucket.divisors = (pre, post)

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The parameters (shards) that have a gradient."""
        return [parameter for parameter in self.parameters() if parameter.grad is not None]

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Returns the shards, each with the name of what it is a part of.

        That is the parameter's name in the unwrapped module, or with ``flatten_parameters``
        ``flat_param_0`` and so on behind the name of the child that is wrapped.
        """
        return [
            (clean_name(f"{path}.{bucket.name}"), bucket.shard)
            for path, child in self.named_modules()
            if isinstance(child, XlaFullyShardedDataParallel)
            for bucket in child._buckets
        ]

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
        summed = collectives.all_reduce(reduction, total, groups=groups)
        norm: torch.Tensor = summed.pow(power)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    @contextlib.contextmanager
    def summon_full_params(self) -> Iterator[None]:
        """Lets whole parameters be read inside the block; writing to them has no effect."""
        buckets = [bucket for wrapper in self._nested() for bucket in wrapper._buckets]
        gathered = [bucket for bucket in buckets if not bucket.is_gathered]
        gather(gathered)
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
            sync()
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
