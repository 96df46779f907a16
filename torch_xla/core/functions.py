"""Functions of tensors that PyTorch itself does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from torch_xla import _XLAC
from torch_xla.core import collectives


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        reduce_type: str,
        scale: float,
        groups: Sequence[Sequence[int]] | None,
    ) -> torch.Tensor:
        result: torch.Tensor = collectives.all_reduce(reduce_type, value, scale, groups)
        ctx.reduce_type, ctx.scale, ctx.groups = reduce_type, scale, groups
        if reduce_type != collectives.REDUCE_SUM:
            ctx.save_for_backward(value)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        # Every replica's result depends on this one's value. What is computed here can be
        # differentiated again.
        grad = all_reduce(collectives.REDUCE_SUM, grad, ctx.scale, ctx.groups)
        if ctx.reduce_type == collectives.REDUCE_SUM:
            return grad, None, None, None
        (value,) = ctx.saved_tensors
        if ctx.reduce_type == collectives.REDUCE_MUL:
            return grad * _product_of_others(value, ctx.groups).conj(), None, None, None
        best = collectives.all_reduce(ctx.reduce_type, value, 1.0, ctx.groups)
        # Replicas with the same value share the gradient, as elements do in torch.amax.
        chosen = (value == best).to(grad.dtype)
        count = collectives.all_reduce(collectives.REDUCE_SUM, chosen, 1.0, ctx.groups)
        return grad * chosen / count, None, None, None


def _product_of_others(value: torch.Tensor, groups: Sequence[Sequence[int]] | None) -> torch.Tensor:
    """The product of the other replicas' values. Zeros rule out a quotient."""
    lists = collectives.checked_groups("all_reduce", groups)
    size = collectives.group_size(lists)
    own = collectives.group_rank(lists)
    # A gather that allows groups of different sizes.
    values = torch.zeros((size, *value.shape), dtype=value.dtype, device=value.device)
    values[own] = value
    values = all_reduce(collectives.REDUCE_SUM, values, 1.0, groups)
    others = [values[i] for i in range(size) if i != own]
    return torch.stack(others).prod(0) if others else torch.ones_like(value)


def all_reduce(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Reduces a tensor across the replicas; can be differentiated.

    All replicas have to take part in the backward pass, too. ``REDUCE_AND`` and ``REDUCE_OR``
    are for integers and bool, which have no gradients.

    Args:
        reduce_type: As in :func:`torch_xla.core.xla_model.all_reduce`, like the others.
        value: The tensor.
        scale: What the result is multiplied by.
        groups: The replica groups; one of all replicas when None.
        cctx: Not needed; taken for scripts that pass it.
        pin_layout: The same.
    """
    result = _AllReduce.apply(value, reduce_type, scale, groups)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, dim: int, groups: Sequence[Sequence[int]] | None
    ) -> torch.Tensor:
        ctx.dim, ctx.groups, ctx.shape = dim, groups, value.shape
        return collectives.all_gather(value, dim, groups)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        lists = collectives.checked_groups("all_gather", ctx.groups)
        size = collectives.group_size(lists)
        if torch.is_grad_enabled():  # The gradient is differentiated again.
            total = all_reduce(collectives.REDUCE_SUM, grad, 1.0, ctx.groups)
            part = total.chunk(size, ctx.dim)[collectives.group_rank(lists)]
        else:
            part = collectives.reduce_scatter(
                collectives.REDUCE_SUM, grad, 1.0, ctx.dim, size, ctx.groups
            )
        return part.reshape(ctx.shape), None, None


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Concatenates the replicas' tensors along a dimension; can be differentiated.

    All replicas have to take part in the backward pass, too.

    Args:
        value: The tensor, of the same shape on every replica.
        dim: The dimension; negative ones count from the last.
        groups: The replica groups, all of one size; one of all replicas when None.
        pin_layout: Changes nothing; taken for scripts that pass it.

    Returns:
        The replicas' values in the order of the group.
    """
    return cast(torch.Tensor, _AllGather.apply(value, dim, groups))  # type: ignore[no-untyped-call]


def _pairwise_iou(boxes: torch.Tensor) -> torch.Tensor:
    """Returns intersection over union, [N, N], of boxes (y0, x0, y1, x1), [N, 4]."""
    low = torch.minimum(boxes[:, :2], boxes[:, 2:])
    high = torch.maximum(boxes[:, :2], boxes[:, 2:])
    area = (high - low).prod(1)
    overlap = torch.minimum(high[:, None], high[None]) - torch.maximum(low[:, None], low[None])
    intersection = overlap.clamp(min=0).prod(2)
    union = area[:, None] + area[None] - intersection
    return torch.where(union > 0, intersection / union, torch.zeros_like(union))


def nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: torch.Tensor | float,
    iou_threshold: torch.Tensor | float,
    output_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Non-maximum suppression, computed on the device with static shapes.

    Boxes are taken by falling score; a box that is taken removes those that overlap it by more
    than ``iou_threshold``.

    Args:
        boxes: [N, 4], floating point: corners (y0, x0, y1, x1) in any order.
        scores: [N], floating point.
        score_threshold: Boxes with a score that is not above it are never taken.
        iou_threshold: The largest intersection over union of two boxes that are both taken.
        output_size: The number of indices to return, at most N.

    Returns:
        The indices of the boxes taken, by falling score: int32 of shape [output_size], with
        zeros behind the last valid one; and the number of valid ones, a zero-dim int32 tensor.

    Raises:
        ValueError: A shape is not as above, or ``output_size`` is not between 0 and N.
    """
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise ValueError(f"nms: boxes must have shape [N, 4], got {list(boxes.shape)}")
    count = boxes.shape[0]
    if scores.shape != (count,):
        raise ValueError(f"nms: scores must have shape [{count}], got {list(scores.shape)}")
    if not 0 <= output_size <= count:
        raise ValueError(f"nms: output_size must be from 0 to {count} (boxes), got {output_size}")
    order = scores.argsort(descending=True, stable=True)
    overlaps = _pairwise_iou(boxes[order]) > iou_threshold
    kept = _XLAC._xla_suppress(overlaps, scores[order] > score_threshold)
    # Kept boxes first; both groups keep their order.
    first = torch.logical_not(kept).to(torch.int32).argsort(stable=True)[:output_size]
    valid = kept.sum(dtype=torch.int32).clamp(max=output_size)
    position = torch.arange(output_size, device=boxes.device, dtype=torch.int32)
    indices = torch.where(position < valid, order[first].to(torch.int32), 0)
    return indices, valid
