"""Batches of unequal sizes in a few programs (experimental/bucketing.py)."""

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.bucketing import Bucketed


def batches(sizes):
    for rows, length in sizes:
        x = torch.arange(1.0, rows * length * 2 + 1).view(rows, length, 2)
        yield {"x": x, "y": torch.ones(rows), "n": 5, "s": torch.tensor(3.0)}


def test_padding_and_masks():
    given = [(3, 4), (3, 5), (2, 1)]
    found = list(Bucketed(batches(given), [8, 4], value=-1, batch_size=3))
    assert [tuple(batch["x"].shape) for batch, _ in found] == [(3, 4, 2), (3, 8, 2), (3, 4, 2)]
    for (batch, mask), before, (rows, length) in zip(found, batches(given), given, strict=True):
        assert mask.dtype == torch.bool and mask.shape == batch["x"].shape[:2]
        assert torch.equal(batch["x"][:rows, :length], before["x"])
        assert mask.sum() == rows * length and mask[:rows, :length].all()
        assert (batch["x"][~mask] == -1).all() and (batch["y"][rows:] == -1).all()
        assert batch["n"] == 5 and batch["s"] == 3


def test_programs_are_as_many_as_sizes(device):
    given = [(4, length) for length in (3, 5, 7, 9, 2, 11, 13, 6)]
    loader = Bucketed(list(batches(given)), [8, 16])
    assert len(loader) == len(given)
    weight = torch.full((2,), 0.5, device=device)
    before = met.counter_value("UncachedCompile") or 0
    means = []
    for batch, mask in MpDeviceLoader(loader, device):
        means.append((((batch["x"] * weight).sum(-1)) * mask).sum() / mask.sum())
    expected = [(one["x"] * 0.5).sum(-1).mean() for one in batches(given)]
    assert (met.counter_value("UncachedCompile") or 0) - before <= 3
    torch.testing.assert_close(torch.stack(means).cpu(), torch.stack(expected))


def test_errors():
    with pytest.raises(ValueError, match="dimension 1 of at most 4, got 5"):
        list(Bucketed(batches([(2, 5)]), [4]))
    with pytest.raises(ValueError, match="a batch of at most 1, got 2"):
        list(Bucketed(batches([(2, 3)]), [4], batch_size=1))
    with pytest.raises(ValueError, match="of one size along dimensions 0 and 1"):
        list(Bucketed([(torch.ones(2, 3), torch.ones(2, 4))], [4]))
    with pytest.raises(ValueError, match="expected sizes"):
        Bucketed([], [])
