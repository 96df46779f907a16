"""Dims, steps, sizes and indices out of range are refused at the call as on the CPU.

tests/python/bounds.py asks this of every slot of every operator; here are those of thirteen.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from testing.ops import F32
from testing.processes import start_python

import torch_xla
import torch_xla.core.xla_model as xm

Device = torch.device | str
MOST = 2**63 - 1


def cube(device: Device) -> torch.Tensor:
    return torch.arange(24.0).reshape(2, 3, 4).to(device)


def ints(device: Device, *values: int) -> torch.Tensor:
    return torch.tensor(values).to(device)


def ones(device: Device, *shape: int) -> torch.Tensor:
    return torch.ones(shape).to(device)


REFUSED: dict[str, Callable[[Device], Any]] = {
    "select_scatter dim": lambda d: torch.select_scatter(cube(d), ones(d, 2, 4), 3, 0),
    "select_scatter index": lambda d: torch.select_scatter(cube(d), ones(d, 2, 4), 1, -100),
    "select_scatter shape": lambda d: torch.select_scatter(cube(d), ones(d, 4), 1, 0),
    "slice_scatter dim": lambda d: torch.slice_scatter(cube(d), cube(d), 3),
    "slice_scatter huge dim": lambda d: torch.slice_scatter(cube(d), cube(d), 2**31),
    "slice_scatter step": lambda d: torch.slice_scatter(cube(d), cube(d), 0, 0, 2, -4),
    "slice_scatter huge step": lambda d: torch.slice_scatter(
        cube(d), ones(d, 1, 3, 4), 0, 0, 2, MOST
    ),
    "slice_scatter shape": lambda d: torch.slice_scatter(cube(d), ones(d, 3, 4), 0, 0, 1),
    "slice_scatter of a number": lambda d: torch.slice_scatter(ones(d), ones(d)),
    "diagonal_scatter dim": lambda d: torch.diagonal_scatter(cube(d), ones(d, 4, 2), 0, 0, 2**31),
    "diagonal_scatter one dim": lambda d: torch.diagonal_scatter(cube(d), ones(d, 4, 2), 0, 1, 1),
    "index_reduce": lambda d: cube(d).index_reduce(-4, ints(d, 0, 1), cube(d), "amax"),
    "index_select of a number": lambda d: torch.index_select(ones(d), -300, ints(d, 0)),
    "sort": lambda d: cube(d).sort(2**31),
    "argsort": lambda d: cube(d).argsort(2**31),
    "roll": lambda d: cube(d).roll(1, -4),
    "flip of a number": lambda d: ones(d).flip(3),
    "sum of a number": lambda d: ones(d).sum(3),
    "slice step": lambda d: cube(d)[0:2:MOST],
    "unfold step": lambda d: cube(d).unfold(0, 2, MOST),
    "as_strided strides": lambda d: torch.as_strided(cube(d), (2, 2), (MOST, 1)),
    "as_strided offset": lambda d: torch.as_strided(cube(d), (2,), (1,), MOST),
    "as_strided of a part": lambda d: torch.as_strided(cube(d)[:, 1], (2, 2), (MOST, MOST)),
    "expand": lambda d: cube(d).expand(2**62, 2, 3, 4),
    "select_backward": lambda d: torch.ops.aten.select_backward(ones(d, 2, 4), [2, 3, 4], 1, 5),
    "slice_backward": lambda d: torch.ops.aten.slice_backward(cube(d), [2, 3, 4], 5, 0, 2, 1),
    "uniform to infinity": lambda d: ones(d, 3).uniform_(0, float("inf")),
    "uniform from -infinity": lambda d: ones(d, 3).uniform_(-float("inf"), 0),
    "uniform of half": lambda d: ones(d, 3).half().uniform_(0, 1e5),
    "uniform range": lambda d: ones(d, 3).uniform_(-3e38, 3e38),
    "histc to infinity": lambda d: torch.histc(ones(d, 3), min=0, max=float("inf")),
    "empty_strided stride": lambda d: torch.empty_strided((5,), (-4,), device=d),
    "empty_strided huge stride": lambda d: torch.empty_strided((5,), (MOST,), device=d),
    "empty_strided lengths": lambda d: torch.empty_strided((5,), (1, 1), device=d),
    "scalar_tensor of NaN": lambda d: torch.scalar_tensor(
        float("nan"), dtype=torch.int64, device=d
    ),
    "linspace from NaN": lambda d: torch.linspace(float("nan"), 1, 2, dtype=torch.int64, device=d),
    "logspace from NaN": lambda d: torch.logspace(float("nan"), 1, 2, dtype=torch.int64, device=d),
    "scalar_tensor of 1j": lambda d: torch.scalar_tensor(1j, dtype=torch.float32, device=d),
    "scalar_tensor of 300": lambda d: torch.scalar_tensor(300, dtype=torch.uint8, device=d),
    "// 0": lambda d: ints(d, 4, 5) // 0,
    "% 0": lambda d: ints(d, 4, 5) % 0,
    "4 % 0": lambda d: 4 % ints(d, 0),
    "// [1, 0]": lambda d: ints(d, 4, 5) // ints(d, 1, 0),
    "% [1, 0]": lambda d: ints(d, 4, 5) % ints(d, 1, 0),
    "fmod": lambda d: torch.fmod(ints(d, 4, 5), ints(d, 0)),
    "div": lambda d: torch.div(ints(d, 4, 5), ints(d, 0), rounding_mode="trunc"),
    "% 0 among others": lambda d: ints(d, 1, 1, 1, 1, 1) % ints(d, -2, -1, 0, 1, 2),
    "output_size": lambda d: torch.repeat_interleave(ones(d, 3), ints(d, 1, 2, 3), output_size=7),
    "output_size of repeats": lambda d: torch.repeat_interleave(ints(d, 1, 2), output_size=2),
    "repeats below 0": lambda d: torch.repeat_interleave(ints(d, 3, -1), output_size=2),
    "full": lambda d: torch.full((2,), 1e30, dtype=torch.int32, device=d) * 0,
    "full of none": lambda d: ones(d, 2).new_full([0], 1j),
    "full_like": lambda d: torch.full_like(ones(d, 2), 1j) * 0,
    "full_like of bytes": lambda d: torch.full_like(ones(d, 2), 256, dtype=torch.uint8) + 1,
    "fill_": lambda d: ones(d, 2).half().fill_(1e30) * 0,
    "fill_ a part": lambda d: ints(d, 1, 2)[:1].fill_(float("nan")) * 0,
    "repeat": lambda d: ones(d, 2, 0).repeat(-4, 1),
    "unravel_index": lambda d: torch.unravel_index(ints(d, 4, 5), (3, 0)),
    "diagonal_backward": lambda d: torch.ops.aten.diagonal_backward(
        ones(d, 4, 2), [2, 3, 4], 0, 0, 7
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_the_cpu(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as on_cpu:
        REFUSED[name]("cpu")
    with pytest.raises(on_cpu.type) as on_xla:
        REFUSED[name](xm.xla_device())
    assert on_xla.type is on_cpu.type, on_xla.value
    torch_xla.sync(wait=True)  # nothing broken was left in the graph


def test_kernel_size_that_the_cpu_does_not_come_back_from(device: torch.device) -> None:
    for size in (0, -1, -(2**63)):
        with pytest.raises(RuntimeError, match="kernel size"):
            torch.nn.functional.fractional_max_pool3d(ones(device, 1, 4, 4, 4), size, output_size=2)


def test_modes_that_are_none(device: torch.device) -> None:
    image, grid = ones(device, 1, 1, 4, 4), ones(device, 1, 2, 2, 2)
    for modes in ((3, 0), (-4, 0), (0, 3), (0, 2**31)):
        with pytest.raises(RuntimeError, match="interpolation_mode and padding_mode 0, 1 or 2"):
            torch.grid_sampler_2d(image, grid, *modes, False)


def test_sizes_of_nothing_that_xla_cannot_lay_out(device: torch.device) -> None:
    for x in (ones(device), torch.ones((), dtype=torch.int64, device=device)):
        assert torch.nonzero_static(x, size=2**40).cpu().shape == (2**40, 0)
        with pytest.raises(RuntimeError, match="too large"):
            torch.nonzero_static(x, size=MOST)


def test_steps_of_backward_ops(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="step"):
        torch.ops.aten.slice_backward(cube(device), [2, 3, 4], 0, 0, 2, 0)
    with pytest.raises(RuntimeError, match="dimensions"):
        torch.ops.aten.slice_backward(ones(device, 2), [2, 3, 4], 2, 0, 2, 1)


TAKEN: dict[str, Callable[[Device], Any]] = {
    "slice_scatter": lambda d: torch.slice_scatter(cube(d), ones(d, 1, 3, 4), 0, -1, MOST, 2**40),
    "slice_scatter steps": lambda d: torch.slice_scatter(cube(d), ones(d, 2, 3, 2), -1, 1, None, 2),
    "slice_scatter of nothing": lambda d: torch.slice_scatter(cube(d), ones(d, 2, 0, 4), 1, 2, 1),
    "select_scatter": lambda d: torch.select_scatter(cube(d), ones(d, 2, 4), -2, -1),
    "diagonal": lambda d: cube(d).diagonal(-(2**63)),
    "tril": lambda d: cube(d).tril(-(2**63)) + cube(d).triu(MOST),
    "unfold_backward of one window": lambda d: torch.ops.aten.unfold_backward(
        ones(d, 1, 2), [4], 0, 2, 2**40
    ),
    "div": lambda d: torch.div(ints(d, 4), ints(d, 0)),
    "// 0 of floats": lambda d: ones(d, 1) // ints(d, 0),
    "% 0 of nothing": lambda d: ints(d, 4, 5)[:0] % 0,
    "% a part": lambda d: ints(d, 4, 5) % ints(d, 3, 0)[:1],
    "new_zeros": lambda d: ones(d, 2).new_zeros(MOST, 0),
    "no steps": lambda d: (
        torch.logspace(float("nan"), 1, 0, dtype=torch.int64, device=d)
        + torch.linspace(float("inf"), 1, 0, dtype=torch.int64, device=d)
    ),
    "empty_strided": lambda d: torch.empty_strided((0,), (4,), device=d),
    "uniform": lambda d: ones(d, 3).uniform_(-1e38, 1e38).isfinite(),
    "full": lambda d: torch.full((2,), -1, dtype=torch.uint8, device=d),
    "full of bools": lambda d: torch.full((2,), 1j, dtype=torch.bool, device=d),
    "full with infinity": lambda d: torch.full((2,), float("inf"), dtype=torch.half, device=d),
    "fill_ complex": lambda d: torch.ones(2, dtype=torch.complex64, device=d).fill_(2 - 1j),
    "fill_ 2**63": lambda d: torch.ones(2, dtype=torch.uint64, device=d).fill_(2**63),
    "repeat of nothing": lambda d: ones(d, 0).repeat(2, 0, -4),
    "vector_norm of one": lambda d: torch.stack(
        [torch.linalg.vector_norm(ones(d, 1) * -8, p) for p in (-100, float("nan"), 1e30, 0, 3)]
    ),
    "vector_norm of none": lambda d: torch.linalg.vector_norm(ones(d, 2, 0), float("nan"), 1),
    "vector_norm of some": lambda d: torch.linalg.vector_norm(ones(d, 2, 1) * -8, -100, 1),
    "vector_norm of more": lambda d: torch.linalg.vector_norm(ones(d, 2, 2), float("nan"), 1),
    "output_size": lambda d: torch.repeat_interleave(ones(d, 2), ints(d, 1, 2), output_size=3),
    "as_strided of nothing": lambda d: torch.as_strided(cube(d), (0, 2), (MOST, MOST)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_on_the_cpu(name: str) -> None:
    actual, expected = TAKEN[name](xm.xla_device()).cpu(), TAKEN[name]("cpu")
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_sizes_that_overflow(device: torch.device) -> None:
    for make in (
        lambda: torch.empty(2**62, device=device),
        lambda: torch.arange(-(2**63), 2, 2, dtype=F32, device=device),
    ):
        with pytest.raises(RuntimeError, match="overflow"):
            make()
    torch_xla.sync(wait=True)
    assert xm.xla_device() == device


def test_sizes_that_only_the_cpu_refused(device: torch.device) -> None:
    x = torch.ones(1, 2, 4, device=device)
    w = torch.ones(2, 2, 3, device=device)
    for call in (
        lambda: F.conv_transpose1d(x, w, output_padding=3),
        lambda: F.conv_transpose1d(x, w, output_padding=-1),
        lambda: F.conv_transpose1d(x, w, groups=0),
        lambda: F.interpolate(x, 0, mode="linear"),
        lambda: F.interpolate(x[:, None], scale_factor=0, mode="bilinear"),
        lambda: F.avg_pool1d(x, 2, 2**31),
        lambda: torch.as_strided_scatter(x, x[0, 0, :1], (0,), (1,)),
    ):
        with pytest.raises(RuntimeError):
            call()


SWEPT = (
    "argsort",
    "as_strided",
    "diagonal_scatter",
    "flip",
    "index_reduce.amax",
    "index_select",
    "nn.functional.fractional_max_pool2d",
    "roll",
    "select_scatter",
    "slice_scatter",
    "sort",
    "tril",
    "unfold",
)


def test_every_slot_of_some_operators() -> None:
    # In a process of its own: it forks for each operator, which one that has devices cannot.
    script = Path(__file__).parents[1] / "bounds.py"
    options = ("--quiet", "-v", "--ops", ",".join(SWEPT))
    result = start_python(str(script), *options, timeout=600)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "13 operators" in result.stdout and "100.00% of the CPU's errors" in result.stdout
