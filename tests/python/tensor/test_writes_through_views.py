"""Writes through views of one storage: what of them is left of a loop."""

import pytest
import torch

import torch_xla
from torch_xla import _XLAC


def updates(x: torch.Tensor) -> int:
    """How many writes into a part of ``x`` its graph has."""
    return _XLAC._get_xla_tensors_text([x]).count("as_strided_view_update")


def test_in_place_arithmetic_of_a_part_is_one_write(device: torch.device) -> None:
    """x[i] += i reads x[i], writes it, reads what it wrote and writes that again."""
    n = 40
    x, matrix = torch.zeros(n).to(device), torch.zeros(3, n).to(device)
    for i in range(n):
        x[i] += i
        matrix[:, i] += i
    assert updates(x) == n
    assert updates(matrix) == n
    assert x.tolist() == list(range(n))
    assert matrix.tolist() == [list(range(n))] * 3


def test_what_is_overwritten_is_not_written(device: torch.device) -> None:
    x = torch.zeros(4, 4).to(device)
    x[1] = 2.5
    before = x.clone()
    x[1] = x[1]
    x[1] = 3.5
    assert updates(x) == 1
    assert x.sum().item() == 14
    assert before.sum().item() == 10


def test_another_write_in_between_is_seen(device: torch.device) -> None:
    def program(device: torch.device | str) -> torch.Tensor:
        x = torch.zeros(4, 4).to(device)
        x[:, 1] = 7.5
        x[1] = 0
        x[:, 1] += 1
        y = x.view(16)
        y[4:8] = 2.5
        x[1] *= 3
        y[5] -= 1
        x[1, 2:4] += x[1, 0:2]
        return x.cpu()

    assert program(device).tolist() == program("cpu").tolist()


def test_view_whose_elements_overlap_is_read_from_memory(device: torch.device) -> None:
    x = torch.arange(6.0).to(device)
    part = x.as_strided((3, 2), (1, 1), 0)
    x.as_strided((3,), (2,), 0).fill_(9.5)
    x.expand(2, 6).fill_(1.5)
    x[2] = 4.5
    assert part.tolist() == [[1.5, 1.5], [1.5, 4.5], [4.5, 1.5]]


WINDOWS = {
    "unfold": lambda x: x.unfold(0, 3, 1),
    "unfold by two": lambda x: x.unfold(0, 3, 2),
    "unfold of rows": lambda x: x.view(3, 4).unfold(1, 3, 1)[1:],
    "as_strided": lambda x: x.as_strided((4, 3), (2, 1), 1),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float, torch.int64, torch.bool, torch.complex64], ids=str)
def test_writes_of_parts_of_windows_that_overlap(name, dtype, device: torch.device) -> None:
    """Other elements of the view are in the same place, and are not written."""

    def program(device: torch.device | str) -> list[torch.Tensor]:
        i = torch.tensor([1], device=device)
        results = []
        for write in (
            lambda v, ones, mask: v.index_fill_(0, i, 1),
            lambda v, ones, mask: v.__setitem__(i, 1),
            lambda v, ones, mask: v.index_put_((i,) * v.dim(), ones[0]),
            lambda v, ones, mask: v.index_copy_(-1, i, ones.expand(v.shape)[..., :1]),
            lambda v, ones, mask: v.put_(i + 1, ones),
            lambda v, ones, mask: v.masked_fill_(mask, 1),
            lambda v, ones, mask: v.masked_scatter_(mask, ones.expand(v.shape).flatten()),
            lambda v, ones, mask: v.scatter_(0, torch.ones_like(v, dtype=torch.int64)[:1], 1),
        ):
            x = (torch.arange(12) * 3 if dtype != torch.bool else torch.zeros(12)).to(dtype)
            if dtype.is_floating_point:
                x[3:7] = torch.tensor([torch.nan, torch.inf, 0.0, -0.0])
            x = x.to(device)
            v = WINDOWS[name](x)
            mask = (torch.arange(v.numel(), device=device) % 5 == 1).view(v.shape)
            write(v, torch.ones(1, device=device).to(dtype), mask)
            results += [x, v]
        return [x.cpu() for x in results]

    for actual, expected in zip(program(device), program("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def shift(x: torch.Tensor) -> None:
    x[..., 1:] = x[..., :-1].clone()


def shift_back_and_scale(x: torch.Tensor) -> None:
    x[..., :-1] = x[..., 1:] * 2 + 1


def flip_a_part(x: torch.Tensor) -> None:
    x[..., 2:12] = x[..., 2:12].flip(-1)


def subtract_the_mean(x: torch.Tensor) -> None:
    x[..., 2:12] -= x[..., 2:12].mean(-1, keepdim=True)


def accumulate(x: torch.Tensor) -> None:
    x[..., 2:12] = x[..., 2:12].cumsum(-1)


def reverse_by_index(x: torch.Tensor) -> None:
    x[..., :10] = x[..., torch.arange(9, -1, -1, device=x.device)]


def swap(x: torch.Tensor) -> None:
    part = x[..., :5].clone()
    x[..., :5] = x[..., 5:10]
    x[..., 5:10] = part


def take_through_another_shape(x: torch.Tensor) -> None:
    x.view(-1)[10:] = x.view(10, -1)[:, :1].repeat(1, x.numel() // 10 - 1).view(-1)


SELF_WRITES = [
    shift,
    shift_back_and_scale,
    flip_a_part,
    subtract_the_mean,
    accumulate,
    reverse_by_index,
    swap,
    take_through_another_shape,
]


@pytest.mark.parametrize("shape", [(1, 20), (3, 1, 20), (4, 20)], ids=str)
@pytest.mark.parametrize("write", SELF_WRITES)
def test_a_part_is_computed_from_what_it_overwrites(write, shape, device: torch.device) -> None:
    """XLA fuses an update with what makes it, and writes in place. Each reader fuses otherwise."""
    torch.manual_seed(0)
    given = torch.rand(shape)
    order = torch.rand(shape).argsort(-1)

    def program(device: torch.device | str) -> list[torch.Tensor]:
        results = []
        for reader in (
            lambda x, index: x.gather(-1, index),
            lambda x, index: x.scatter(-1, index, x),
            lambda x, index: x.sort(-1).values,
            lambda x, index: shift(x),
        ):
            x = given.to(device, copy=True)
            write(x)
            results += [reader(x, order.to(device)), x]
            torch_xla.sync()
        return [x.cpu() for x in results if x is not None]

    for actual, expected in zip(program(device), program("cpu"), strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_words_that_make_up_the_most_probable_part(device: torch.device) -> None:
    """Sampling of language models (top-p) shifts a mask by one place, then sorts it back."""

    def program(device: torch.device | str) -> torch.Tensor:
        torch.manual_seed(0)
        scores, order = torch.randn(1, 50).to(device).sort(descending=True)
        removed = scores.softmax(-1).cumsum(-1) > 0.8
        removed[..., 1:] = removed[..., :-1].clone()
        removed[..., 0] = False
        return removed.scatter(1, order, removed).cpu()

    assert program(device).tolist() == program("cpu").tolist()
