"""A part of the sweep of bounds.py: operators that it once found to end the process."""

from __future__ import annotations

from pathlib import Path

from testing.processes import start_python

OPS = (
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


def test_numbers_out_of_range() -> None:
    # In a process of its own: it forks for each operator, which one that has devices cannot.
    script = Path(__file__).parents[1] / "bounds.py"
    options = ("--quiet", "-v", "--ops", ",".join(OPS))
    result = start_python(str(script), *options, timeout=600)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "13 operators" in result.stdout and "100.00% of the CPU's errors" in result.stdout
