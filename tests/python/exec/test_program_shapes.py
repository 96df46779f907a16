"""A program runs with arrays of the sizes that it was compiled for, however it was found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import yaml
from testing.processes import run_python

import torch_xla
from torch_xla.experimental.scan import scan

TABLE = Path(__file__).parents[3] / "codegen" / "xla_native_functions.yaml"

# Sizes that follow from a number, which is a parameter of the program from its third value on.
FORMS = """
import torch.nn.functional as F
T = torch.arange(24.0).reshape(4, 6)
IMAGE = torch.arange(48.0).reshape(1, 2, 4, 6)
FORMS = {
    "left": lambda x, n: F.pad(x[0], (n, 1)),
    "right": lambda x, n: F.pad(x[0], (0, n)),
    "both": lambda x, n: F.pad(x[0], (n, n)),
    "of the first": lambda x, n: F.pad(x[0], (0, 0, n, 0)),
    "of two": lambda x, n: F.pad(x[0], (n, 1, 0, n)),
    "with a value": lambda x, n: F.pad(x[0], (0, n), value=2.5),
    "integers": lambda x, n: F.pad(x[0].int(), (n, 0)),
    "masks": lambda x, n: F.pad(x[0] > 3, (n, 2), value=True),
    "cut off": lambda x, n: F.pad(x[0], (-(n % 3), n)),
    "one size": lambda x, n: F.pad(x[0], (n, 8 - n)),
    "images": lambda x, n: F.pad(x[1], (n, n, 1, n)),
    "a module": lambda x, n: torch.nn.ZeroPad2d(n)(x[1]),
    "then used": lambda x, n: F.pad(x[0], (0, n)).sum(1),
    "two results": lambda x, n: torch.cat([F.pad(x[0], (0, n)), F.pad(x[0], (0, n)) + 1], 1),
}
def wrong_forms(order):
    on_device = T.to(device), IMAGE.to(device)
    return sorted({
        name for n in order for name, form in FORMS.items()
        if not torch.equal(form(on_device, n).cpu(), form((T, IMAGE), n))
    })
"""


@pytest.mark.multiprocess
def test_padding_by_many_amounts(tmp_path: Path) -> None:
    """In one process, and in others that find its programs on disk."""
    folder = str(tmp_path / "programs")
    for order in ([1, 2, 3, 4, 5, 6, 2, 1, 0, 5], [5, 0, 1, 3], [0, 1, 5]):
        code = f"{FORMS}\nreport(wrong=wrong_forms({order}), written=count('PersistentCacheWrite'))"
        found, _ = run_python(code, tmp_path, XLA_PERSISTENT_CACHE_PATH=folder)
        assert found["wrong"] == []
    assert found["written"] == 0  # that process compiled nothing anew


def test_padding_in_replays_and_captured_programs(device: torch.device) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    there = x.to(device)
    replayed = torch_xla.compile(lambda x, n: F.pad(x, (n, 1)), replay=True)
    captured = torch.compile(lambda x, n: F.pad(x, (0, n)) * 2, backend="openxla")
    looped: Callable[[torch.Tensor, int], torch.Tensor] = lambda x, n: scan(  # noqa: E731
        lambda c, row: (c, F.pad(row, (n, 0))), x[0], x
    )[1]
    for n in (5, 0, 1, 2, 2, 2, 2, 5, 5, 5, 0):
        assert torch.equal(replayed(there, n).cpu(), F.pad(x, (n, 1))), n
        assert torch.equal(captured(there, n).cpu(), F.pad(x, (0, n)) * 2), n
        assert torch.equal(looped(there, n).cpu(), F.pad(x, (n, 0))), n


def _loss(x: torch.Tensor, n: int, *shape: int) -> torch.Tensor:
    """Of classes along ``x``'s columns; class ``n`` does not count."""
    weight = x.reshape(*shape).clone().requires_grad_()
    target = torch.arange(shape[0], device=x.device).reshape(-1, *[1] * (len(shape) - 2))
    target = target.expand(shape[0], *shape[2:]) % shape[1]
    F.cross_entropy(weight, target, ignore_index=n).backward()
    assert weight.grad is not None
    return weight.grad


def _looked_up(x: torch.Tensor, n: int) -> torch.Tensor:
    weight = x.clone().requires_grad_()
    rows = torch.tensor([0, 1, 2, 3], device=x.device)
    (F.embedding(rows, weight, padding_idx=n) ** 2).sum().backward()
    assert weight.grad is not None
    return weight.grad


def _quantized(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.5, n, 0, 255)


def _gradient(part: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    weight = x.clone().requires_grad_()
    part(weight).square().sum().backward()
    assert weight.grad is not None
    return weight.grad


SWEEP: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "constant_pad_nd": lambda x, n: F.pad(x, (n, 1)),
    "roll": lambda x, n: x.roll((n, -n), (0, 1)),
    "tril": lambda x, n: x.tril(n),
    "triu": lambda x, n: x.triu(-n),
    "slice_backward": lambda x, n: _gradient(lambda w: w[n : n + 2], x),
    "select_backward": lambda x, n: _gradient(lambda w: w[n], x),
    "kthvalue": lambda x, n: x.kthvalue(n + 1, 0).values,
    "embedding": lambda x, n: F.embedding(torch.tensor([3, 0], device=x.device), x, padding_idx=n),
    "embedding_dense_backward": _looked_up,
    "nll_loss_forward": lambda x, n: F.nll_loss(
        x, torch.arange(4, device=x.device), ignore_index=n
    ),
    "nll_loss_backward": lambda x, n: _loss(x, n, 4, 6),
    "nll_loss2d_forward": lambda x, n: F.nll_loss(
        x.view(2, 3, 2, 2), torch.ones(2, 2, 2, dtype=torch.long, device=x.device), ignore_index=n
    ),
    "nll_loss2d_backward": lambda x, n: _loss(x, n, 2, 3, 2, 2),
    "polygamma": lambda x, n: torch.polygamma(n + 1, x + 1),
    "fake_quantize_per_tensor_affine_cachemask": _quantized,
    # Views: where they begin is a number, too.
    "x[n:]": lambda x, n: x[n:],
    "x[:n]": lambda x, n: x[:, :n],
    "x[n]": lambda x, n: x[n] + 1,
    "narrow": lambda x, n: x.narrow(1, n, 6 - n).clone(),
    "diagonal": lambda x, n: x.diagonal(n),
    "arange": lambda x, n: torch.arange(n, 2 * n + 1, device=x.device) + x[0, 0],
    "full": lambda x, n: torch.full((n + 1,), float(n), device=x.device),
    "repeat": lambda x, n: x.repeat(n + 1, 1),
    "unfold": lambda x, n: x.unfold(1, n + 1, 1).sum(-1),
}


def test_numbers_that_are_parameters(device: torch.device) -> None:
    """All operators whose entry names numbers, and none of them with another's sizes or values."""
    table = yaml.safe_load(TABLE.read_text())
    entries = [entry for entry in table["ops"] if isinstance(entry, dict)]
    named = {name for entry in entries for name, keys in entry.items() if "numbers" in keys}
    assert len(named) > 10 and named <= set(SWEEP), named - set(SWEEP)
    x = torch.arange(24.0).reshape(4, 6).sin()
    wrong = []
    for name, call in SWEEP.items():
        for n in (2, 0, 3, 1, 2, 3, 0, 1):
            expected, actual = call(x, n), call(x.to(device), n).cpu()
            close = expected.shape == actual.shape and torch.allclose(
                actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True
            )
            if not close:
                wrong.append((name, n, expected, actual))
    assert not wrong
