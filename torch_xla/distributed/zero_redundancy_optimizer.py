"""ZeRO-1: each replica keeps, and updates, its part of the optimizer's state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_xla._internal.replicas import replication
from torch_xla.core import collectives


class _Flat:
    """The parameters of one dtype in a group as one array, of which this replica has a part."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        groups: list[list[int]],
        optimizer_dtype: torch.dtype | None,
        reduction_dtype: torch.dtype | None,
    ) -> None:
        self.parameters = parameters
        self._reduction_dtype = reduction_dtype
        self._ready = 0
        self._groups = groups
        self._sizes = [parameter.numel() for parameter in parameters]
        count = collectives.group_size(groups)
        self._count = count
        self._padding = -sum(self._sizes) % count
        own = collectives.group_rank(groups)
        part = (sum(self._sizes) + self._padding) // count
        self._own = slice(own * part, (own + 1) * part)
        self._is_ahead = False
        shard = self._part_of_parameters().clone()
        self.shard = torch.nn.Parameter(shard.to(optimizer_dtype or shard.dtype))

    def _flatten(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [tensor.reshape(-1) for tensor in tensors]
        if self._padding:
            parts.append(parts[0].new_zeros(self._padding))
        return torch.cat(parts)

    def own_part(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns this replica's part of tensors that are like the parameters, or one of all."""
        return self._flatten(tensors)[self._own]

    def _part_of_parameters(self) -> torch.Tensor:
        return self.own_part([parameter.detach() for parameter in self.parameters])

    def take_parameters(self) -> None:
        """Takes over changes of the parameters since they were written: loaded, clamped, tied.

        Elements of a wider shard stay as they are if the parameters hold their rounded values.
        """
        if self._is_ahead:
            return
        part = self._part_of_parameters()
        same = self.shard.detach().to(part.dtype) == part
        self.shard.copy_(torch.where(same, self.shard, part.to(self.shard.dtype)))

    def load(self, shard: torch.Tensor) -> None:
        """Takes a saved shard; the next step writes it to the parameters."""
        self.shard.copy_(shard.to(self.shard.device))
        self._is_ahead = True

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Adds the mean of the replicas' gradients to the shard's; those that are missing are 0."""
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self.parameters
        ]
        flat = self._flatten(gradients)
        mean = collectives.reduce_scatter(
            collectives.REDUCE_SUM,
            flat.to(self._reduction_dtype or flat.dtype),
            1.0 / self._count,
            0,
            self._count,
            self._groups or None,
        ).to(self.shard.dtype)
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean

    def take_when_ready(self, parameter: torch.nn.Parameter) -> None:
        """Takes all gradients in the backward pass, when the last one has come."""
        self._ready += 1
        if self._ready == len(self.parameters):
            self.take_early()

    def forget_ready(self) -> None:
        """Restarts the count of gradients for the next backward pass."""
        self._ready = 0

    def take_early(self) -> None:
        """Takes existing gradients from the parameters."""
        self._ready = 0
        if any(parameter.grad is not None for parameter in self.parameters):
            self.take_gradients()
        for parameter in self.parameters:
            parameter.grad = None

    def give_parameters(self) -> None:
        """Writes the replicas' shards to the parameters."""
        self._is_ahead = False
        dtype = self.parameters[0].dtype
        flat = collectives.all_gather(self.shard.detach().to(dtype), 0, self._groups or None)
        parts = flat[: sum(self._sizes)].split(self._sizes)
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.detach().copy_(part.view(parameter.shape))


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """Shards an optimizer's state over the replicas.

    A step reduces the gradients, so that each replica has the mean of its part, updates that part
    and gathers the parameters: call :meth:`step` alone, without
    :func:`torch_xla.core.xla_model.optimizer_step`. The parameters of one dtype in a group are
    one array, so that a step has two transfers for each, or as many as the bucket sizes make it.
    The optimizer must work element by element, as SGD, Adam and AdamW do.

    Args:
        params: Parameters or parameter groups, on an xla device and the same on every replica.
        optimizer_class: The optimizer.
        optimizer_dtype: Dtype of the parts that the optimizer works on (a master copy); that of
            the parameters when None.
        grad_clipping: Whether to scale the gradients down to the norm ``max_norm``.
        max_norm: The largest 2-norm of all gradients together; 1 when None.
        pin_layout: Changes nothing; taken for scripts that pass it.
        sharding_groups: The replica groups over which to shard, as lists of ordinals of one
            size; all replicas when None. Gradients are reduced within a group.
        grad_norm_groups: The replica groups over which norms are summed up; those of
            ``sharding_groups`` when None.
        lazy_init: Whether to call :meth:`init_zero` later, by hand.
        bucket_cap_mb_all_gather: The largest array, in megabytes, but for parameters that are
            larger; 0 for one of all of a dtype. The smaller one of the two counts.
        bucket_cap_mb_reduce_scatter: The same.
        use_grad_acc_hook: Whether gradients are reduced in the backward pass, as soon as all of an
            array are there; the parameters' ``grad`` is None after it.
        save_master_weights: Changes nothing: ``state_dict()`` always has them.
        higher_cc_precision: Whether to reduce gradients in ``optimizer_dtype``.
        **defaults: Arguments for ``optimizer_class``.

    Raises:
        TypeError: ``optimizer_class`` is no optimizer.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Sequence[Sequence[int]] | None = None,
        grad_norm_groups: Sequence[Sequence[int]] | None = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        if not (
            isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
        ):
            raise TypeError(
                f"ZeroRedundancyOptimizer: expected `optimizer_class` to be an optimizer's class, "
                f"got {optimizer_class!r}"
            )
        super().__init__(params, defaults)
        name = "ZeroRedundancyOptimizer"
        self._groups = collectives.checked_groups(name, sharding_groups, same_size=True)
        self._norm_groups = (
            self._groups
            if grad_norm_groups is None
            else collectives.checked_groups(name, grad_norm_groups)
        )
        self._optimizer_class = optimizer_class
        self._optimizer_dtype = optimizer_dtype
        self._defaults = defaults
        self._grad_clipping = grad_clipping
        self._max_norm = 1.0 if max_norm is None else max_norm
        caps = [cap for cap in (bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter) if cap]
        self._bucket_cap_mb = min(caps, default=0)
        self._reduction_dtype = optimizer_dtype if higher_cc_precision else None
        self._early = use_grad_acc_hook
        self._hooks: list[Any] = []
        #: The norm of all gradients at the last step that clipped them.
        self.grad_norm: torch.Tensor | None = None
        self.base_optimizer: torch.optim.Optimizer | None = None
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Shards the parameters and makes the optimizer of the shards."""
        self._flats: list[list[_Flat]] = []
        base_groups = []
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.requires_grad]
            flats = [
                _Flat(
                    [parameters[i] for i in bucket],
                    self._groups,
                    self._optimizer_dtype,
                    self._reduction_dtype,
                )
                for bucket in collectives.buckets(parameters, self._bucket_cap_mb)
            ]
            if self._early:
                self._hooks += [
                    parameter.register_post_accumulate_grad_hook(flat.take_when_ready)
                    for flat in flats
                    for parameter in flat.parameters
                ]
            self._flats.append(flats)
            options = {name: value for name, value in group.items() if name != "params"}
            base_groups.append({"params": [flat.shard for flat in flats], **options})
        self.base_optimizer = self._optimizer_class(base_groups, **self._defaults)

    def _initialized(self, method: str) -> torch.optim.Optimizer:
        if self.base_optimizer is None:
            raise RuntimeError(f"ZeroRedundancyOptimizer: call init_zero() before {method}()")
        return self.base_optimizer

    def _all_flats(self) -> list[_Flat]:
        return [flat for flats in self._flats for flat in flats]

    @property
    def sharding_groups(self) -> list[list[int]]:
        """The replica groups over which the state is sharded."""
        return self._groups or [list(range(replication.topology().world_size))]

    def get_shape_info(self) -> dict[int, torch.Size]:
        """Returns the shapes of the parameters, by their number in ``state_dict()``."""
        parameters = (p for group in self.param_groups for p in group["params"])
        return {i: parameter.shape for i, parameter in enumerate(parameters)}

    def remove_hooks(self) -> None:
        """Lets gradients stay with the parameters until :meth:`step`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._early = False

    def _clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales the shards' gradients down to a common norm; returns the norm before."""
        found = (flat.shard.grad for flat in self._all_flats())
        gradients = [gradient for gradient in found if gradient is not None]
        if norm_type == float("inf"):
            parts = [g.float().abs().max() for g in gradients if g.numel()]
            total, reduction, power = torch.stack(parts).max(), collectives.REDUCE_MAX, 1.0
        else:
            parts = [g.float().abs().pow(norm_type).sum() for g in gradients]
            total, reduction, power = (
                torch.stack(parts).sum(),
                collectives.REDUCE_SUM,
                1.0 / norm_type,
            )
        summed = collectives.all_reduce(reduction, total, groups=self._norm_groups or None)
        norm: torch.Tensor = summed.pow(power)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Takes a step on all replicas together.

        Args:
            closure: Called first, with gradients enabled; it computes the loss.
            **kwargs: Arguments for the optimizer's ``step()``.

        Returns:
            What ``closure`` returned, None without one.
        """
        base_optimizer = self._initialized("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            # A scheduler changes this optimizer's groups, so copy its changes to the base
            # optimizer.
            for group, base in zip(self.param_groups, base_optimizer.param_groups, strict=True):
                base.update({name: value for name, value in group.items() if name != "params"})
            for flat in self._all_flats():
                if self._early:
                    flat.take_early()  # If some parameters had no part in the loss.
                if flat.shard.grad is None:
                    flat.take_gradients()
                flat.take_parameters()
            if self._grad_clipping:
                self.grad_norm = self._clip_grad_norm(self._max_norm)
            base_optimizer.step(**kwargs)
            for flat in self._all_flats():
                flat.give_parameters()
                flat.shard.grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, also those that were reduced early."""
        super().zero_grad(set_to_none)
        if self.base_optimizer is not None:
            self.base_optimizer.zero_grad()
            for flat in self._all_flats():  # A failed backward pass has counted some gradients.
                flat.forget_ready()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this replica: its part of the optimizer's, and the groups."""
        state = super().state_dict()
        state["base_state"] = self._initialized("state_dict").state_dict()
        state["shape_info"] = self.get_shape_info()
        state["shards"] = [flat.shard.detach() for flat in self._all_flats()]
        return state

    def load_state_dict(self, state_dict: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Takes the state that :meth:`state_dict` returned on this replica.

        Args:
            state_dict: The state, or a list of the states of all replicas, of any number of
                them. A state may be one of torch_xla 2.9: then all replicas load together.

        Raises:
            ValueError: It is no state, or one of other parameters, buckets or numbers of replicas.
        """
        base_optimizer = self._initialized("load_state_dict")
        is_one = isinstance(state_dict, dict)
        states: Any = [state_dict] if is_one else list(state_dict)
        for state in states or [{}]:
            if "base_state" not in state or state.keys().isdisjoint(("shards", "shape_info")):
                raise ValueError(
                    "ZeroRedundancyOptimizer.load_state_dict: expected a state of this optimizer, "
                    f"got one of keys {sorted(state)}"
                )
        state = states[0]
        flats = self._all_flats()
        if is_one and "shards" in state:
            base_state, shards = state["base_state"], state["shards"]
            own = [list(flat.shard.shape) for flat in flats]
            if own != (found := [list(shard.shape) for shard in shards]):
                raise ValueError(
                    "ZeroRedundancyOptimizer.load_state_dict: expected this replica's parts, of "
                    f"shapes {own}, got {found}; a state is of the same parameters, buckets and "
                    "number of replicas. Of another number of replicas, give a list of all states"
                )
        else:
            options = base_optimizer.state_dict()["param_groups"]
            values, shards = self._split_anew(states)
            base_state = {"state": values, "param_groups": options}
        rest = ("base_state", "shards", "shape_info", "sharded_master_weights")
        super().load_state_dict({name: state[name] for name in state if name not in rest})
        base_optimizer.load_state_dict(base_state)
        with torch.no_grad():
            for flat, shard in zip(flats, shards, strict=True):
                if shard is not None:
                    flat.load(shard)

    def _split_anew(self, states: list[Any]) -> tuple[dict[int, Any], list[Any]]:
        """Joins the parts of all replicas; returns this replica's state and shards.

        A state of 2.9 has a part of each parameter: some rows, of which the last may be padding.
        It has no shards where it was not told to save them: the model has the parameters.
        """
        is_own = "shards" in states[0]
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        tables = [s["base_state"]["state"] if is_own else s["base_state"] for s in states]
        masters = [
            dict(enumerate(s["shards"])) if is_own else s.get("sharded_master_weights", {})
            for s in states
        ]

        def joined(parts: list[Any], size: int, flat: _Flat) -> torch.Tensor:
            parts = [part.to(flat.shard.device) for part in parts]
            if len(parts) == 1 and not is_own:
                whole = collectives.all_gather(parts[0], 0, self._groups or None)
            else:
                whole = torch.cat(parts)
            if not size <= whole.numel() < size + parts[0].numel() + (size == 0):
                raise ValueError(
                    f"ZeroRedundancyOptimizer.load_state_dict: expected {size} elements, in parts "
                    f"of all replicas, got {whole.numel()}"
                )
            return whole.reshape(-1)[:size]

        state: dict[int, dict[str, Any]] = {}
        shards: list[Any] = []
        for i, flat in enumerate(self._all_flats()):
            of_29 = [(places[id(p)], p.numel()) for p in flat.parameters]
            pieces = [(i, sum(size for _, size in of_29))] if is_own else of_29
            names = {name for place, _ in pieces for name in tables[0].get(place, ())}
            for name in sorted(names):
                wholes = []
                for place, size in pieces:
                    parts = [table.get(place, {}).get(name) for table in tables]
                    if isinstance(parts[0], torch.Tensor) and parts[0].dim():
                        wholes.append(joined(parts, size, flat))
                    elif parts[0] is not None:
                        state.setdefault(i, {})[name] = copy.deepcopy(parts[0])  # A count of steps.
                    else:  # A parameter without a gradient until then.
                        wholes.append(torch.zeros(size, device=flat.shard.device))
                if name not in state.get(i, {}):
                    state.setdefault(i, {})[name] = flat.own_part(wholes)
            saved = [[master.get(place) for master in masters] for place, _ in pieces]
            there = all(part is not None for parts in saved for part in parts)
            sized = zip(saved, pieces, strict=True)
            shards.append(
                flat.own_part([joined(parts, size, flat) for parts, (_, size) in sized])
                if there
                else None
            )
        return state, shards


__all__ = ["ZeroRedundancyOptimizer"]
