"""torch_xla.core.functions.nms against the textbook loop."""

import pytest
import torch

import torch_xla.core.functions as xf
import torch_xla.debug.metrics as met


def _iou(a: torch.Tensor, b: torch.Tensor) -> float:
    height = min(a[2], b[2]) - max(a[0], b[0])
    width = min(a[3], b[3]) - max(a[1], b[1])
    if height <= 0 or width <= 0:
        return 0.0
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])  # noqa: E731
    return float(height * width / (area(a) + area(b) - height * width))


def _greedy(boxes, scores, score_threshold, iou_threshold, output_size):
    taken: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if scores[i] > score_threshold and all(
            _iou(boxes[j], boxes[i]) <= iou_threshold for j in taken
        ):
            taken.append(i)
    taken = taken[:output_size]
    return taken + [0] * (output_size - len(taken)), len(taken)


@pytest.mark.parametrize("seed", range(3))
def test_equals_greedy_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(40, 2, generator=generator) * 4
    boxes = torch.cat([corners, corners + 0.3 + torch.rand(40, 2, generator=generator)], 1)
    scores = torch.rand(40, generator=generator).round(decimals=1)  # with ties
    for size, threshold in ((40, 0.3), (5, 0.1)):
        expected, valid = _greedy(boxes, scores, 0.2, threshold, size)
        indices, count = xf.nms(
            boxes.to("xla"), scores.to("xla"), torch.tensor(0.2), threshold, size
        )
        assert indices.tolist() == expected
        assert count.item() == valid


def test_chain_and_corner_order():
    # Each box overlaps the next: the 1st removes the 2nd, so the 3rd stays.
    boxes = torch.tensor([[0.0, i, 1.0, i + 1.9] for i in range(6)])
    scores = torch.linspace(1, 0.5, 6)
    flipped = boxes[:, [2, 3, 0, 1]]
    for given in (boxes, flipped):
        indices, count = xf.nms(given.to("xla"), scores.to("xla"), 0.0, 0.2, 6)
        assert indices.tolist() == [0, 2, 4, 0, 0, 0]
        assert count.item() == 3


def test_runs_on_the_device_with_one_program():
    met.clear_all()
    boxes, scores = torch.rand(8, 4, device="xla"), torch.rand(8, device="xla")
    indices, count = xf.nms(boxes, scores, 0.5, 0.5, 4)
    assert indices.shape == (4,) and count.shape == ()
    assert met.counter_value("xla::nms") == 1
    assert not met.executed_fallback_ops()


def test_bad_input():
    boxes, scores = torch.rand(3, 4, device="xla"), torch.rand(3, device="xla")
    with pytest.raises(ValueError, match=r"shape \[N, 4\]"):
        xf.nms(boxes[:, :3], scores, 0.0, 0.5, 1)
    with pytest.raises(ValueError, match="scores must have shape"):
        xf.nms(boxes, scores[:2], 0.0, 0.5, 1)
    with pytest.raises(ValueError, match="output_size"):
        xf.nms(boxes, scores, 0.0, 0.5, 4)
