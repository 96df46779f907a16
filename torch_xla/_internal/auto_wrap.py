"""Wrapping the children of a module that a policy of torch.distributed.fsdp names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import wrap


def wrap_children(
    module: nn.Module,
    policy: Callable[..., bool],
    wrapper: Callable[..., nn.Module],
    **options: Any,
) -> None:
    """Replaces those children of ``module`` that ``policy`` says by ``wrapper(child, **options)``.

    Args:
        module: The module; itself it is not wrapped.
        policy: A policy of ``torch.distributed.fsdp.wrap``.
        wrapper: The class, or a function that is called as it would be.
        options: Its other arguments.
    """
    wrap._recursive_wrap(
        module,
        auto_wrap_policy=policy,
        wrapper_cls=wrapper,
        ignored_modules=set(),
        ignored_params=set(),
        only_wrap_children=True,
        **options,
    )
