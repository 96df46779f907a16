"""Functions of tensors that PyTorch itself does not have."""

from __future__ import annotations

import torch

from torch_xla import _XLAC


def _pairwise_iou(boxes: torch.Tensor) -> torch.Tensor:
    """[N, 4] boxes (y0, x0, y1, x1) to the [N, N] areas of intersection over union."""
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
    # The kept ones first, each group in its order.
    first = torch.logical_not(kept).to(torch.int32).argsort(stable=True)[:output_size]
    valid = kept.sum(dtype=torch.int32).clamp(max=output_size)
    position = torch.arange(output_size, device=boxes.device, dtype=torch.int32)
    indices = torch.where(position < valid, order[first].to(torch.int32), 0)
    return indices, valid
