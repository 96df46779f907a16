"""Writes through views of one storage: what of them is left of a loop."""

import torch

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
