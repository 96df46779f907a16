"""Numbers from Python are parameters: another value needs no compilation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_testing import rand

import torch_xla
import torch_xla.debug.metrics as met


def compiles(step: Callable[[Any], Any], values: list[Any]) -> int:
    """How many programs ``step`` of each value compiles, all that it leaves synchronised."""
    torch_xla.sync(wait=True)
    before = met.counter_value("UncachedCompile") or 0
    for value in values:
        result = step(value)  # noqa: F841 - what nobody holds is not computed
        torch_xla.sync()
    return (met.counter_value("UncachedCompile") or 0) - before


FILLS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "full": lambda x, s: torch.full((3,), s, device=x.device) * x,
    "full of a dtype": lambda x, s: torch.full((3,), s, dtype=torch.bfloat16, device=x.device) * x,
    "full of integers": lambda x, s: torch.full((3,), int(s), device=x.device) * x,
    "full of complex": lambda x, s: torch.full((3,), s * 1j, device=x.device) * x,
    "full_like": lambda x, s: torch.full_like(x, s) + x,
    "fill_": lambda x, s: (x + 1).fill_(s) * x,
    "fill_ of what is new": lambda x, s: torch.empty_like(x).fill_(s) / x,
    "number / tensor": lambda x, s: s / x,
    "a slice": lambda x, s: torch.zeros_like(x).index_fill_(0, torch.tensor([1]).to(x.device), s),
}


@pytest.mark.parametrize("name", FILLS)
def test_fill_compiles_once(name: str, device: torch.device) -> None:
    x = rand(3)
    values = [2.5, -3.25, 1e6, -8.0, 7.0]
    there = x.to(device)
    assert compiles(lambda s: FILLS[name](there, s), values) == 1
    for s in values:
        torch.testing.assert_close(FILLS[name](there, s).cpu(), FILLS[name](x, s))


def test_kinds_of_numbers_do_not_share_a_program(device: torch.device) -> None:
    """The same operations on the same shapes, but a float here and an integer there."""
    x = torch.ones(2)
    for value in (2.5, 3, 4.5, 5, True, 2 + 3j):
        expected = torch.full((2,), value, dtype=torch.complex64) * x
        actual = torch.full((2,), value, dtype=torch.complex64, device=device) * x.to(device)
        torch.testing.assert_close(actual.cpu(), expected)


def _cosine_with_warmup(step: int) -> float:
    return step / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * (step - 4) / 16))


@pytest.mark.parametrize("cls", ["Adam", "AdamW", "Adagrad", "SGD"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
def test_learning_rate_schedule_compiles_once(cls: str, fused: bool, device: torch.device) -> None:
    """transformers.Trainer's default: AdamW(fused=True), warm-up from 0, then a cosine."""

    def train(device: torch.device | str, begin: Callable[[], None]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        model.to(device)
        optimizer = getattr(torch.optim, cls)(
            model.parameters(), lr=0.1, weight_decay=0.01, fused=fused, foreach=not fused
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _cosine_with_warmup)
        x, y = rand(4, 6).to(device), rand(4, 2).to(device)
        for step in range(20):
            if step == 2:  # gradients and state are there
                begin()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            torch_xla.sync()
        return [p.detach().cpu() for p in model.parameters()]

    before = []

    def begin() -> None:
        before.append(met.counter_value("UncachedCompile"))

    actual = train(device, begin)
    # Nothing in the steps but what a special number (warm-up ends at 1) may cost.
    after = met.counter_value("UncachedCompile")
    assert after - before[0] <= (0 if fused else 1)
    for a, e in zip(actual, train("cpu", lambda: None), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
