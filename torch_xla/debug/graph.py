"""Pictures of graphs, and the programs that the compiler made of them."""

from __future__ import annotations

import html
import itertools
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_xla import _XLAC
from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import hlo, memory_owners

_LINE = re.compile(r"\s*%(\d+) = (.+?) ([\w.]+::[\w.]+)\((.*?)\)(.*)")
_ROW, _GAP, _CHAR = 64, 24, 6.6  # heights and widths in pixels
_GRAPHVIZ_TIMEOUT = 60


class _Node(NamedTuple):
    op: str
    shape: str
    operands: list[int]
    line: str
    is_root: bool


def _relative(path: str) -> str:
    """A file's path relative to the working directory, as in reports."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def _view(shape: str, operand: str, strides: list[int]) -> str:
    """Names the view that ``as_strided`` makes, by the result's strides."""

    def sizes(text: str) -> list[int]:
        return [int(size) for size in re.findall(r"\d+", text.partition("[")[2])]

    dims = sizes(shape)
    moving = [stride for dim, stride in zip(dims, strides, strict=True) if dim > 1]
    if 0 in moving:
        return "expand"
    if math.prod(dims) != math.prod(sizes(operand)):
        return "slice"
    return "view" if moving == sorted(moving, reverse=True) else "transpose"


def _nodes(text: str, names: Sequence[str] = ()) -> dict[int, _Node]:
    """The operations by number; ``names`` are the names of their input arrays, in order."""
    nodes: dict[int, _Node] = {}
    inputs = iter(names)
    for line in text.splitlines():
        if not (match := _LINE.match(line)):
            continue
        number, shape, op, operands, rest = match.groups()
        place = re.search(r"location=\S*@(.*?)(?:, ROOT=|$)", rest)
        taken = [int(found) for found in re.findall(r"%(\d+)", operands)]
        if value := re.match(r", value=([^,]*)", rest) if not operands else None:
            op += f" {value[1]}"
        elif op == "xla::device_data":
            op = next(inputs, "") or op
        elif strides := re.search(r", stride=\(([^)]*)\)", rest) if "as_strided" in op else None:
            made = [int(stride) for stride in re.findall(r"\d+", strides[1])]
            op += f" ({_view(shape, nodes[taken[0]].shape, made)})"
        nodes[int(number)] = _Node(
            op,
            shape,
            taken,
            _relative(place[1]) if place else "",
            "ROOT=" in rest,
        )
    return nodes


def _layers(nodes: dict[int, _Node]) -> tuple[list[list[int]], dict[int, list[int]]]:
    """Sorts nodes into layers: operands above their users, related nodes near each other.

    Returns:
        The layers, and by number its places in the layers that edges from it pass, which have
        negative numbers.
    """
    depth: dict[int, int] = {}
    for number, node in nodes.items():  # Operands come first.
        depth[number] = max((depth[one] + 1 for one in node.operands), default=0)
    users: dict[int, list[int]] = {number: [] for number in nodes}
    for number, node in nodes.items():
        for one in node.operands:
            users[one].append(number)
    # A leaf is drawn right above its first user.
    for number, node in nodes.items():
        if not node.operands and users[number]:
            depth[number] = min(depth[user] for user in users[number]) - 1
    layers: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    below: dict[int, list[int]] = {number: [] for number in nodes}
    above: dict[int, list[int]] = {number: [] for number in nodes}
    passes: dict[int, list[int]] = {}
    numbers = itertools.count(-1, -1)
    for number in nodes:
        layers[depth[number]].append(number)
        last = max((depth[user] for user in users[number]), default=0)
        way = [number]
        for level in range(depth[number] + 1, last):
            way.append(next(numbers))
            layers[level].append(way[-1])
        passes[number] = way[1:]
        for one, other in itertools.pairwise(way):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
        for user in users[number]:
            last = way[depth[user] - depth[number] - 1]
            below.setdefault(last, []).append(user)
            above[user].append(last)
    place = {number: float(i) for layer in layers for i, number in enumerate(layer)}
    for sweep in range(4):
        neighbours = below if sweep % 2 else above
        for layer in reversed(layers) if sweep % 2 else layers:
            wanted = {
                number: sum(place[one] for one in near) / len(near)
                if (near := neighbours.get(number))
                else place[number]
                for number in layer
            }
            layer.sort(key=lambda number: wanted[number])
            for i, number in enumerate(layer):
                place[number] = float(i)
    return layers, passes


def _color(node: _Node) -> str:
    if node.is_root:
        return "#ffe0b3"
    return "#d6e9ff" if not node.operands else "#f4f4f4"


def _draw(text: str, names: Sequence[str] = ()) -> str:
    nodes = _nodes(text, names)
    layers, passes = _layers(nodes)
    width = dict.fromkeys(itertools.chain.from_iterable(passes.values()), 0.0) | {
        number: 16 + _CHAR * max(map(len, (node.op, node.shape, node.line)))
        for number, node in nodes.items()
    }
    spans = [sum(width[n] + _GAP for n in layer) for layer in layers]
    total, height = max(spans, default=0) + _GAP, len(layers) * (_ROW + _GAP) + _GAP
    middle: dict[int, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        x = (total - spans[row]) / 2 + _GAP / 2
        for number in layer:
            middle[number] = x + width[number] / 2, _GAP + row * (_ROW + _GAP)
            x += width[number] + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {total:.0f} {height:.0f}" font-family="monospace" font-size="11">',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#777"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, node in nodes.items():
        x, y = middle[number]
        for one in node.operands:
            path, from_x, from_y = "M", *middle[one]
            for to_x, to_y in [*(middle[p] for p in passes[one] if middle[p][1] < y), (x, y)]:
                path += f"{from_x:.0f},{from_y + _ROW:.0f} C{from_x:.0f},{from_y + _ROW + 12:.0f} "
                path += f"{to_x:.0f},{to_y - 12:.0f} {to_x:.0f},{to_y:.0f}"
                if to_y < y:
                    path += " L"
                from_x, from_y = to_x, to_y
            parts.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#tip)"/>')
    for number, node in nodes.items():
        x, y = middle[number]
        parts.append(
            f'<g><title>%{number}</title><rect x="{x - width[number] / 2:.0f}" y="{y:.0f}" '
            f'width="{width[number]:.0f}" height="{_ROW}" rx="4" fill="{_color(node)}" '
            'stroke="#777"/>'
        )
        for row, words in enumerate((node.op, node.shape, node.line)):
            parts.append(
                f'<text x="{x:.0f}" y="{y + 18 + 18 * row:.0f}" text-anchor="middle">'
                f"{html.escape(words)}</text>"
            )
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


class Drawing(str):
    """An SVG, which notebooks show as a picture."""

    def _repr_svg_(self) -> str:
        return str(self)


def _graphviz(tensors: Sequence[torch.Tensor], kind: str) -> bytes:
    program = shutil.which("dot")
    if not program:
        raise RuntimeError("render(): Graphviz's `dot` is not installed")
    result = subprocess.run(
        [program, f"-T{kind}"],
        input=_XLAC._get_xla_tensors_dot(list(tensors)).encode(),
        capture_output=True,
        timeout=_GRAPHVIZ_TIMEOUT,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"render(): Graphviz failed: {result.stderr.decode().strip()}")
    return result.stdout


def render(
    tensors: Sequence[torch.Tensor],
    path: str | os.PathLike[str] | None = None,
    graphviz: bool | None = None,
) -> Drawing:
    """Draws the graph that tensors are waiting to be computed by. They are not computed.

    Args:
        tensors: XLA tensors of any shape and dtype.
        path: A file to write the drawing to, as SVG; where Graphviz draws, in any format of its,
            by the suffix.
        graphviz: Whether Graphviz draws it; None: where its ``dot`` is installed. Without it each
            operation stands below those that it takes values of.

    Returns:
        The drawing, as the text of an SVG, which notebooks show as a picture: each operation with
        its shape and the line that traced it.

    Raises:
        RuntimeError: Graphviz is asked for and failed, or is not there.
        ValueError: The file is to be of a format that Graphviz alone writes, and it does not draw.
    """
    draws = graphviz if graphviz is not None else bool(shutil.which("dot"))
    kind = os.path.splitext(path or "")[1].lower().removeprefix(".") or "svg"
    if kind != "svg" and not draws:
        raise ValueError(
            f"render(): Graphviz writes .{kind} files, and its `dot` is not installed or not asked "
            "for: write an .svg, or install Graphviz"
        )
    if draws:
        drawing = Drawing(_graphviz(tensors, "svg").decode())
    else:
        holders = memory_owners.find()
        names = [
            str(holders[number]) if number in holders and holders[number].name else ""
            for number in _XLAC._input_array_ids(list(tensors))
        ]
        drawing = Drawing(_draw(_XLAC._get_xla_tensors_text(list(tensors)), names))
    if path is not None:
        write_file(path, drawing if kind == "svg" else _graphviz(tensors, kind))
    return drawing


def save_optimized(folder: str | os.PathLike[str]) -> list[str]:
    """Writes the programs in memory as the compiler optimized them, one file each.

    Args:
        folder: It is made where it is not there.

    Returns:
        The files: ``program-0003-name.txt``, the last one used last; ``.pb`` where the plugin's
        format is not XLA's. Empty where the plugin shows no programs.
    """
    os.makedirs(folder, exist_ok=True)
    _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
    files = []
    for number, program in enumerate(_XLAC._xla_compiled_programs()):
        optimized = program.optimized()
        if optimized is None:
            continue
        module = hlo.read(*optimized)
        name = re.sub(r"[^\w.-]", "_", program.name)
        file = os.path.join(folder, f"program-{number:04d}-{name}.{'txt' if module else 'pb'}")
        write_file(file, module.text() if module else optimized[1])
        files.append(file)
    return files
