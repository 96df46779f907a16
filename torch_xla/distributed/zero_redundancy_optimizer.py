"""ZeRO-1: each replica keeps, and updates, its part of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_xla._internal import replication
from torch_xla.core import collectives


class _Flat:
    """Parameters of one dtype in one group, seen as one array, of which this replica has a part."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        groups: list[list[int]],
        optimizer_dtype: torch.dtype | None,
    ) -> None:
        self.parameters = parameters
        self._groups = groups
        self._sizes = [parameter.numel() for parameter in parameters]
        count = collectives.group_size(groups)
        self._count = count
        self._padding = -sum(self._sizes) % count
        rank = replication.topology().rank
        own = next((group.index(rank) for group in groups if rank in group), rank)
        part = (sum(self._sizes) + self._padding) // count
        flat = self._flatten([parameter.detach() for parameter in parameters])
        shard = flat[own * part : (own + 1) * part].clone()
        self.shard = torch.nn.Parameter(shard.to(optimizer_dtype or shard.dtype))

    def _flatten(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [tensor.reshape(-1) for tensor in tensors]
        if self._padding:
            parts.append(parts[0].new_zeros(self._padding))
        return torch.cat(parts)

    def take_gradients(self) -> None:
        """Gives the shard the mean of the replicas' gradients; those that are missing are 0."""
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self.parameters
        ]
        self.shard.grad = collectives.reduce_scatter(
            collectives.REDUCE_SUM,
            self._flatten(gradients),
            1.0 / self._count,
            0,
            self._count,
            self._groups or None,
        ).to(self.shard.dtype)

    def give_parameters(self) -> None:
        """Writes the replicas' shards to the parameters."""
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
    one array, so that a step has two transfers for each. The optimizer must work element by
    element, as SGD, Adam and AdamW do.

    Args:
        params: Parameters or parameter groups, on an xla device and the same on every replica.
        optimizer_class: The optimizer.
        optimizer_dtype: Dtype of the parts that the optimizer works on (a master copy); that of
            the parameters when None.
        grad_clipping: Whether to scale the gradients down to the norm ``max_norm``.
        max_norm: The largest 2-norm of all gradients together.
        pin_layout: Changes nothing; taken for scripts that pass it.
        sharding_groups: The replica groups over which to shard, as lists of ordinals of one
            size; all replicas when None. Gradients are reduced within a group.
        grad_norm_groups: The replica groups over which norms are summed up; those of
            ``sharding_groups`` when None.
        lazy_init: Whether to call :meth:`init_zero` later, by hand.
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
        max_norm: float = 1.0,
        pin_layout: bool = True,
        sharding_groups: Sequence[Sequence[int]] | None = None,
        grad_norm_groups: Sequence[Sequence[int]] | None = None,
        lazy_init: bool = False,
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
        self._max_norm = max_norm
        self.base_optimizer: torch.optim.Optimizer | None = None
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Shards the parameters and makes the optimizer of the shards."""
        self._flats: list[list[_Flat]] = []
        base_groups = []
        for group in self.param_groups:
            by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.requires_grad:
                    by_dtype.setdefault(parameter.dtype, []).append(parameter)
            flats = [
                _Flat(parameters, self._groups, self._optimizer_dtype)
                for parameters in by_dtype.values()
            ]
            self._flats.append(flats)
            options = {name: value for name, value in group.items() if name != "params"}
            base_groups.append({"params": [flat.shard for flat in flats], **options})
        self.base_optimizer = self._optimizer_class(base_groups, **self._defaults)

    def _all_flats(self) -> list[_Flat]:
        return [flat for flats in self._flats for flat in flats]

    def _clip_gradients(self) -> None:
        gradients = [flat.shard.grad for flat in self._all_flats()]
        total = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum()
        total = collectives.all_reduce(
            collectives.REDUCE_SUM, total, groups=self._norm_groups or None
        )
        self.grad_norm = total.sqrt()
        scale = (self._max_norm / (self.grad_norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Takes a step on all replicas together.

        Args:
            closure: Called first, with gradients enabled; it computes the loss.
            **kwargs: Arguments for the optimizer's ``step()``.

        Returns:
            What ``closure`` returned, None without one.
        """
        if self.base_optimizer is None:
            raise RuntimeError("ZeroRedundancyOptimizer: call init_zero() before step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            # A scheduler changes the groups that it was given: ours.
            for group, base in zip(
                self.param_groups, self.base_optimizer.param_groups, strict=True
            ):
                base.update({name: value for name, value in group.items() if name != "params"})
            for flat in self._all_flats():
                flat.take_gradients()
            if self._grad_clipping:
                self._clip_gradients()
            self.base_optimizer.step(**kwargs)
            for flat in self._all_flats():
                flat.give_parameters()
                flat.shard.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this replica: its part of the optimizer's, and the groups."""
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()
        state["shards"] = [flat.shard.detach() for flat in self._all_flats()]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state that :meth:`state_dict` returned on this replica."""
        state_dict = dict(state_dict)
        base_state, shards = state_dict.pop("base_state"), state_dict.pop("shards")
        super().load_state_dict(state_dict)
        self.base_optimizer.load_state_dict(base_state)
        with torch.no_grad():
            for flat, shard in zip(self._all_flats(), shards, strict=True):
                flat.shard.copy_(shard.to(flat.shard.device))


__all__ = ["ZeroRedundancyOptimizer"]
