"""``torch.nn.SyncBatchNorm`` in replicas.

PyTorch's own function is for a list of devices without xla, and reads the device in each call. This
one stays in the graph, with one collective in the forward and one in the backward pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional


def forward(module: nn.SyncBatchNorm, x: torch.Tensor) -> torch.Tensor:
    """Returns what ``module(x)`` is for an xla tensor, whose batch the replicas have parts of."""
    group: Any = module.process_group or dist.group.WORLD
    if not module.training or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return nn.modules.batchnorm._BatchNorm.forward(module, x)
    module._check_input_dim(x)
    module._check_non_zero_input_channels(x)
    channels = x.size(1)
    dims = [i for i in range(x.ndim) if i != 1]
    shape = [channels if i == 1 else 1 for i in range(x.ndim)]
    values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    count = x.numel() // channels
    mean = values.sum(dims) / max(count, 1)
    squares = (values - mean.view(shape)).square().sum(dims)
    own = torch.cat([mean, squares, mean.new_full((1,), count)])
    of_all = functional.all_gather_tensor_autograd(own.unsqueeze(0), 0, group)
    means, all_squares, counts = functional.wait_tensor(of_all).split([channels, channels, 1], 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    squares = (all_squares + counts * (means - mean).square()).sum(0)
    if module.track_running_stats:
        _track(module, mean.detach(), (squares / (total - 1)).detach())
    scale = (squares / total + module.eps).rsqrt()
    result: torch.Tensor = (values - mean.view(shape)) * scale.view(shape)
    if module.weight is not None:
        result = result * module.weight.view(shape)
    if module.bias is not None:
        result = result + module.bias.view(shape)
    return result.to(x.dtype)


def _track(module: nn.SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    count = cast(torch.Tensor, module.num_batches_tracked)
    with torch.no_grad():
        count.add_(1)
        factor: Any = module.momentum
        if factor is None:  # The average over all batches; does not read the count.
            factor = count.to(mean.dtype).reciprocal()
        for name, new in (("running_mean", mean), ("running_var", variance)):
            running: torch.Tensor = getattr(module, name)
            running.copy_(running + factor * (new.to(running.dtype) - running))
