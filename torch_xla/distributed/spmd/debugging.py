"""Pictures of how tensors lie on the devices."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch

from torch_xla import _XLAC, runtime

try:
    import rich.box
    import rich.console
    import rich.table
    import rich.text
except ImportError:
    rich = None  # type: ignore[assignment]

_COLORS = ("blue", "green", "magenta", "cyan", "yellow", "red")

_TILED = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\]"
    r"(?:(?P<list>[\d,]+)|<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?)"
    r"(?P<copies>\s+last_tile_dim_replicate)?\}"
)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _devices_by_tile(sharding: str) -> np.ndarray:
    """Returns the devices that hold each tile: [tiles…, copies]."""
    text = sharding.strip()
    if text in ("", "{replicated}"):
        return np.arange(runtime.global_runtime_device_count())[None]
    if text == "{manual}":  # each device has a part, and there is no whole
        return np.arange(runtime.global_runtime_device_count())[:, None]
    maximal = re.fullmatch(r"\{maximal device=(\d+)\}", text)
    if maximal:
        return np.array([[int(maximal[1])]])
    match = _TILED.fullmatch(text)
    if not match:
        raise ValueError(
            "visualize_sharding: expected a sharding in XLA's spelling, such as "
            f"'{{devices=[2,2]0,1,2,3}}' or '{{replicated}}', got {sharding!r}"
        )
    tiles = _numbers(match["tiles"])
    if match["list"]:
        devices = np.array(_numbers(match["list"]))
    else:
        dims = _numbers(match["dims"])
        devices = np.arange(math.prod(dims)).reshape(dims)
        if match["order"]:
            devices = devices.transpose(_numbers(match["order"]))
    if devices.size != math.prod(tiles):
        raise ValueError(
            f"visualize_sharding: expected {math.prod(tiles)} devices for tiles {tiles}, got "
            f"{devices.size}: {sharding!r}"
        )
    if not match["copies"]:
        tiles.append(1)
    return devices.reshape(tiles)


def _cells(sharding: str) -> list[list[str]]:
    """Returns a row for each part of the first dimension that is split, a cell for each of the
    second."""
    devices = _devices_by_tile(sharding)
    split = [size for size in devices.shape[:-1] if size > 1]
    if len(split) > 2:
        raise ValueError(
            "visualize_sharding: expected a sharding that splits two dimensions at most, got "
            f"{sharding!r}"
        )
    # A sharding that only splits the last dimension is drawn as one row.
    last_only = len(split) == 1 and (devices.ndim == 2 or devices.shape[0] == 1)
    rows = 1 if last_only or not split else split[0]
    grid = devices.reshape(rows, -1, devices.shape[-1])
    name = runtime.device_type()
    return [[f"{name} {','.join(map(str, copies))}" for copies in row] for row in grid.tolist()]


def _as_text(cells: list[list[str]], min_width: int, max_width: int, height: int) -> str:
    columns = len(cells[0])
    longest = max(len(cell) for row in cells for cell in row) + 2
    width = max(min_width, min(longest, max(3, max_width // columns)))
    lines = []
    for index, row in enumerate(cells):
        left, middle, right = "┌┬┐" if index == 0 else "├┼┤"
        lines.append(left + middle.join(["─" * width] * columns) + right)
        wrapped = [
            [cell[i : i + width - 2] for i in range(0, len(cell), width - 2)] for cell in row
        ]
        tall = max(height, max(map(len, wrapped)))
        for line in range(tall):
            parts = []
            for texts in wrapped:
                at = line - (tall - len(texts)) // 2
                parts.append((texts[at] if 0 <= at < len(texts) else "").center(width))
            lines.append("│" + "│".join(parts) + "│")
    lines.append("└" + "┴".join(["─" * width] * columns) + "┘")
    return "\n".join(lines)


def _as_table(cells: list[list[str]], use_color: bool, min_width: int, height: int) -> Any:
    table = rich.table.Table(
        show_header=False, show_lines=True, padding=0, pad_edge=False, box=rich.box.SQUARE
    )
    for _ in cells[0]:
        table.add_column(justify="center", vertical="middle", min_width=min_width)
    colors: dict[str, str] = {}
    for row in cells:
        texts = []
        for cell in row:
            color = colors.setdefault(cell, _COLORS[len(colors) % len(_COLORS)])
            above = (height - 1) // 2
            text = "\n" * above + f" {cell} " + "\n" * (height - 1 - above)
            texts.append(rich.text.Text(text, style=color if use_color else ""))
        table.add_row(*texts)
    return table


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Any:
    """Prints a table of which devices hold which part of a tensor.

    Rows are the parts of the tensor's first dimension that is split, columns those of the second.
    Devices that hold the same part are in one cell. With ``rich`` installed, the table has colors.

    Args:
        sharding: The sharding in XLA's spelling, as of ``XLAShardedTensor.sharding_spec``.
        use_color: Whether to use colors.
        scale: How high a row is, in units of three lines.
        min_width: The least width of a cell, in characters.
        max_width: The largest width of the table without ``rich``; that keeps to the terminal.

    Returns:
        What was printed: a ``rich.table.Table``, or a string without ``rich``.

    Raises:
        ValueError: ``sharding`` is not in XLA's spelling, or splits more than two dimensions.
    """
    cells = _cells(sharding)
    height = max(1, round(3 * scale))
    if rich is None:
        table = _as_text(cells, min_width, max_width, height)
        print(table)
    else:
        table = _as_table(cells, use_color, min_width, height)
        rich.console.Console(no_color=not use_color).print(table)
    return table


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> Any:
    """Prints a table of which devices hold which part of a tensor.

    Args:
        t: An xla tensor of any shape, of which two dimensions at most are split. It is computed
            where nothing else tells how it will lie.
        **kwargs: Those of :func:`visualize_sharding`, which also says what is returned.
    """
    if not isinstance(t, torch.Tensor) or t.device.type != "xla":
        found = f"one on {t.device}" if isinstance(t, torch.Tensor) else type(t).__name__
        raise TypeError(f"visualize_tensor_sharding: expected an xla tensor, got {found}")
    if not _XLAC._get_xla_sharding_spec(t):
        _XLAC._xla_sync_multi([t], [], True)
    return visualize_sharding(_XLAC._get_xla_sharding_spec(t), **kwargs)
