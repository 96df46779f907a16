"""torch.multinomial: what is drawn, and how often."""

import pytest
import torch
from scipy import stats

N = 20_000
P = 1e-3


def test_multinomial_with_replacement(device):
    torch.manual_seed(15)
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0])
    x = torch.multinomial(weights.to(device), N, replacement=True)
    assert x.dtype == torch.int64
    counts = torch.bincount(x.cpu(), minlength=5)
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(counts[1:4].numpy(), N * weights[1:4].numpy() / 8).pvalue > P


def test_multinomial_draws_nothing_of_no_weight(device):
    """Not where a sum of weights was rounded, either: few of many have one."""
    torch.manual_seed(0)
    for _ in range(20):
        weights = torch.zeros(20000)
        weights[torch.randperm(20000)[:300]] = torch.rand(300)
        for samples, replacement in ((20000, True), (300, False), (1, True), (1, False)):
            drawn = torch.multinomial(weights.to(device), samples, replacement).cpu()
            assert (weights[drawn] > 0).all()
            assert replacement or len(drawn.unique()) == samples


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_of_one(device, replacement):
    weights = torch.tensor([1.0, 0.0, 3.0, 6.0], dtype=torch.float64)
    rows = weights.expand(N, 4).to(device)
    for given in (rows, rows.half()):
        drawn = torch.multinomial(given, 1, replacement)
        assert drawn.shape == (N, 1) and drawn.dtype == torch.int64
        shares = drawn.flatten().cpu().bincount(minlength=4) / N
        torch.testing.assert_close(shares, (weights / 10).float(), rtol=0, atol=0.02)


def test_multinomial_without_replacement(device):
    torch.manual_seed(16)
    weights = torch.tensor([1.0, 2.0, 4.0, 0.0]).expand(N, 4)
    x = torch.multinomial(weights.to(device), 3).cpu()
    assert torch.equal(x.sort().values, torch.tensor([0, 1, 2]).expand(N, 3))  # distinct
    first = torch.bincount(x[:, 0], minlength=4)[:3]
    assert stats.chisquare(first.numpy(), N * torch.tensor([1, 2, 4]).numpy() / 7).pvalue > P
    # The second, given that 2 came first: 1 to 2.
    second = torch.bincount(x[x[:, 0] == 2, 1], minlength=2)
    total = second.sum().item()
    assert stats.chisquare(second.numpy(), [total / 3, 2 * total / 3]).pvalue > P
