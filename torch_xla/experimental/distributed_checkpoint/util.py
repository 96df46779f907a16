"""What a checkpoint is restored into."""

from __future__ import annotations

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state

import torch_xla


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the optimizer's state, whose tensors a checkpoint is restored into.

    Optimizers make it at their first step. That step is taken here, with gradients of zero and a
    learning rate of zero: parameters keep their values. An optimizer that has state, or whose
    parameters have gradients, is left as it is.

    Returns:
        The optimizer.
    """
    _init_optim_state(optimizer)
    torch_xla.sync()
    return optimizer
