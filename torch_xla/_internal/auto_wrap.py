"""Wrapping the children of a module that a policy names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import wrap


def for_torch(policy: Callable[..., bool]) -> Callable[..., bool]:
    """Returns a policy as torch calls it: with ``module``, ``recurse`` and ``nonwrapped_numel``.

    Those that are written for ``torch_xla.distributed.fsdp`` name the last ``unwrapped_params``.
    """
    parameters = inspect.signature(policy).parameters
    if "unwrapped_params" not in parameters:
        return policy

    def adapted(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return policy(module=module, recurse=recurse, unwrapped_params=nonwrapped_numel)

    return adapted


def wrap_children(
    module: nn.Module,
    policy: Callable[..., bool],
    wrapper: Callable[..., nn.Module],
    **options: Any,
) -> None:
    """Replaces those children of ``module`` that ``policy`` says by ``wrapper(child, **options)``.

    Args:
        module: The module; itself it is not wrapped.
        policy: A policy of ``torch_xla.distributed.fsdp.wrap`` or ``torch.distributed.fsdp.wrap``.
        wrapper: The class, or a function that is called as it would be.
        options: Its other arguments.
    """
    wrap._recursive_wrap(
        module,
        auto_wrap_policy=for_torch(policy),
        wrapper_cls=wrapper,
        ignored_modules=set(),
        ignored_params=set(),
        only_wrap_children=True,
        **options,
    )
