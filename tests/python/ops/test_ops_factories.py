"""Tensors made of numbers: ranges, spaces, fills, the identity, memory that nobody filled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from testing.ops import F32, I32, check_many, fallbacks, rand
from torch import Tensor

BIG = 2**63 + 5


def test_large_unsigned_numbers(device: torch.device) -> None:
    number = torch.tensor(BIG, dtype=torch.uint64)
    for x in (
        torch.zeros(2, dtype=torch.uint64, device=device).copy_(number),
        torch.zeros(2, dtype=torch.uint64, device=device).fill_(BIG),
        torch.full((2,), BIG, dtype=torch.uint64, device=device),
        number.to(device).expand(2),
    ):
        assert x.tolist() == [BIG, BIG]
    # Beside floats it is a positive number, not one that wrapped.
    check_many(
        [(torch.add, (rand(3), BIG)), (torch.lt, (rand(3), BIG)), (torch.mul, (rand(3), BIG))]
    )


HUGE_INTO: dict[str, Callable[[Tensor, int], Tensor]] = {
    "fill": lambda x, n: x.fill_(n),
    "full_like": lambda x, n: torch.full_like(x, n),
    "masked_fill": lambda x, n: x.masked_fill(x == 0, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "clamp from below": lambda x, n: x.clamp(min=n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1], device=x.device), n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([1], device=x.device), n),
    "where": lambda x, n: torch.where(x == 0, x, n),
    "setitem": lambda x, n: x.index_put_((torch.tensor([1], device=x.device),), x.new_full((), n)),
    "add": lambda x, n: x + n,
    "equal": lambda x, n: x == n,
}
HUGE_DTYPES = (F32, torch.int64, torch.uint64, I32, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("name", HUGE_INTO)
def test_huge_numbers_are_taken_or_refused_as_on_the_cpu(name: str) -> None:
    def outcome(device: str, dtype: torch.dtype, number: int) -> Any:
        try:
            return HUGE_INTO[name](torch.zeros(2, dtype=dtype, device=device), number).tolist()
        except RuntimeError as error:
            return str(error).split("\n")[0]

    for dtype in HUGE_DTYPES:
        for number in (2**63, 2**64 - 1):
            expected = outcome("cpu", dtype, number)
            assert outcome("xla", dtype, number) == expected, (dtype, number)


def test_numbers_go_into_an_out_of_their_count(device: torch.device) -> None:
    # Its shape stays.
    for function in (
        lambda out: torch.arange(4, out=out),
        lambda out: torch.linspace(0, 1, 4, out=out),
        lambda out: torch.logspace(0, 1, 4, out=out),
    ):
        expected = function(torch.empty(2, 2))
        out = torch.empty(2, 2, device=device)
        torch.testing.assert_close(function(out).cpu(), expected)
        assert out.shape == (2, 2)


def test_eye_out_of_one_size(device: torch.device) -> None:
    before = fallbacks()
    for dtype in (F32, torch.int64, torch.bool):
        out = torch.empty(3, 3, dtype=dtype, device=device)
        assert torch.eye(3, out=out) is out
        torch.testing.assert_close(out.cpu(), torch.eye(3, dtype=dtype))
    with pytest.raises(RuntimeError, match="n must be greater or equal to 0"):
        torch.eye(-1, out=torch.empty(0, device=device))
    assert fallbacks() == before


def test_even_spaces_of_bools() -> None:
    for spaced in (torch.linspace, torch.logspace):
        for device in ("cpu", "xla"):
            assert spaced(0, 1, 1, dtype=torch.bool, device=device).tolist() == [
                spaced is torch.logspace
            ]
            with pytest.raises(NotImplementedError, match="'Bool'"):
                spaced(0, 1, 3, dtype=torch.bool, device=device)


def test_deterministic_memory_is_filled(device: torch.device) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert torch.empty_strided((3,), (1,), device=device).isnan().all()
        assert (torch.empty(3, dtype=I32, device=device) == 2**31 - 1).all()
        for sizes in ((5,), (2, 3)):  # what was there stays
            grown = torch.ones(3, device=device).resize_(sizes).view(-1)
            assert grown[:3].eq(1).all() and grown[3:].isnan().all()
        part = torch.ones(3, device=device)[1:].resize_(4)
        assert part[:2].eq(1).all() and part[2:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.empty(3, device=device).eq(0).all()


def test_like_on_another_device(device: torch.device) -> None:
    x = torch.empty(2, 3, dtype=I32, device=device)
    likes = (torch.zeros_like, torch.ones_like, lambda x, **to: torch.full_like(x, 7, **to))
    for like in likes:
        for to in ({"device": "cpu"}, {"device": "cpu", "dtype": F32}, {"device": "meta"}):
            expected, made = like(x.cpu(), **to), like(x, **to)
            assert (made.device, made.dtype) == (expected.device, expected.dtype)
            assert made.shape == expected.shape
            if not made.is_meta:
                assert torch.equal(made, expected)
