"""Prepares what a checkpoint is restored into."""

from __future__ import annotations

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state

from torch_xla._internal.compile.step import sync


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the optimizer's state, whose tensors a checkpoint is restored into.

    Optimizers make it at their first step. That step is taken here, with gradients of zero and a
    learning rate of zero: parameters keep their values, and their gradients. An optimizer that
    has state is left as it is.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None  # With a gradient PyTorch's function would assume a step was taken.
    _init_optim_state(optimizer)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    sync()
    return optimizer
