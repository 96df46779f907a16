"""Policies that say which children of a module to wrap.

They are those of ``torch.distributed.fsdp.wrap``, but that the number of parameters is named
``unwrapped_params``. Both kinds are taken for ``auto_wrap_policy``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import wrap


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wraps every module."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    lambda_fn: Callable[[nn.Module], bool],
) -> bool:
    """Wraps the modules for which a function returns true.

    Args:
        module: The module that is looked at.
        recurse: Whether the question is to look at its children.
        unwrapped_params: How many parameters are in it that no child has wrapped.
        lambda_fn: The function.
    """
    return wrap.lambda_auto_wrap_policy(module, recurse, unwrapped_params, lambda_fn)


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    transformer_layer_cls: set[type[nn.Module]],
) -> bool:
    """Wraps the layers of a transformer.

    Args:
        module: As for :func:`lambda_auto_wrap_policy`.
        recurse: The same.
        unwrapped_params: The same.
        transformer_layer_cls: The layers' classes.
    """
    return wrap.transformer_auto_wrap_policy(
        module, recurse, unwrapped_params, transformer_layer_cls
    )


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Wraps modules of so many parameters that are not wrapped inside.

    Args:
        module: As for :func:`lambda_auto_wrap_policy`.
        recurse: The same.
        unwrapped_params: The same.
        min_num_params: The number of parameters.
        force_leaf_modules: Classes of modules whose children are not looked at.
        exclude_wrap_modules: Classes of modules that are not wrapped themselves.
    """
    return wrap.size_based_auto_wrap_policy(
        module, recurse, unwrapped_params, min_num_params, force_leaf_modules, exclude_wrap_modules
    )


def _for_torch(policy: Callable[..., bool]) -> Callable[..., bool]:
    """Returns a policy as torch calls it: with ``module``, ``recurse`` and ``nonwrapped_numel``.

    Those that are written for ``torch_xla.distributed.fsdp`` name the last ``unwrapped_params``.
    """
    parameters = inspect.signature(policy).parameters
    if "unwrapped_params" not in parameters:
        return policy

    def adapted(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return policy(module=module, recurse=recurse, unwrapped_params=nonwrapped_numel)

    return adapted


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps the children that a policy names, and then the module.

    Args:
        module: The module.
        auto_wrap_policy: The policy.
        wrapper_cls: What wraps; called with a module and ``kwargs``.
        ignored_modules: Modules that are neither wrapped nor looked into.
        ignored_params: Parameters that do not count.
        only_wrap_children: Whether the module itself stays as it is.
        **kwargs: The wrapper's other arguments.

    Returns:
        The module, wrapped or not, and how many of its parameters were wrapped.
    """
    return wrap._recursive_wrap(
        module,
        _for_torch(auto_wrap_policy),
        wrapper_cls,
        ignored_modules,
        ignored_params,
        only_wrap_children,
        **kwargs,
    )
