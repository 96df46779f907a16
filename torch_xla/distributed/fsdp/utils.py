"""Helpers to use with XlaFullyShardedDataParallel."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_xla.distributed.spmd.linear import XLAPatchedLinear, apply_xla_patch_to_nn_linear

__all__ = ["XLAPatchedLinear", "apply_xla_patch_to_nn_linear", "checkpoint_module"]


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Makes a module compute its activations again in the backward pass; returns it.

    Wrap the result: ``XlaFullyShardedDataParallel(checkpoint_module(module))``.
    """
    forward = module.forward

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = checkpointed
    return module
