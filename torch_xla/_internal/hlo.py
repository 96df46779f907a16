"""Reads what a compiler made of a program: XLA's HloModuleProto, by the numbers of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

# xla.PrimitiveType: the name in XLA's texts, and bytes of an element.
_TYPES = {
    1: ("pred", 1),
    2: ("s8", 1),
    3: ("s16", 2),
    4: ("s32", 4),
    5: ("s64", 8),
    6: ("u8", 1),
    7: ("u16", 2),
    8: ("u32", 4),
    9: ("u64", 8),
    10: ("f16", 2),
    11: ("f32", 4),
    12: ("f64", 8),
    15: ("c64", 8),
    16: ("bf16", 2),
    18: ("c128", 16),
    19: ("f8e5m2", 1),
    20: ("f8e4m3fn", 1),
    21: ("s4", 1),
    22: ("u4", 1),
    24: ("f8e5m2fnuz", 1),
    25: ("f8e4m3fnuz", 1),
}
_TUPLE = 13

# Kinds of collectives, each by its synchronous name; -start is the half that is counted.
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields (number, value) of a message: an integer, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"expected an HloModuleProto, found a field of wire type {kind}")
            size, at = _varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def _integers(value: int | memoryview) -> list[int]:
    """The items of a repeated integer field, which may be packed."""
    if isinstance(value, int):
        return [value]
    items, at = [], 0
    while at < len(value):
        item, at = _varint(value, at)
        items.append(item)
    return items


class Shape(NamedTuple):
    """The type of an instruction's result."""

    element: int
    dims: tuple[int, ...]
    parts: tuple[Shape, ...]

    def __str__(self) -> str:
        if self.element == _TUPLE:
            return f"({', '.join(map(str, self.parts))})"
        name = _TYPES.get(self.element, (f"type{self.element}", 0))[0]
        return f"{name}[{','.join(map(str, self.dims))}]"

    @property
    def bytes(self) -> int:
        """Of the array, without padding; of a tuple those of its parts."""
        if self.element == _TUPLE:
            return sum(part.bytes for part in self.parts)
        return _TYPES.get(self.element, ("", 0))[1] * math.prod(self.dims)


def _shape(data: memoryview) -> Shape:
    element, dims, parts = 0, [], []
    for number, value in _fields(data):
        if number == 2:
            element = value
        elif number == 3:
            dims += _integers(value)
        elif number == 4:
            parts.append(_shape(value))
    return Shape(element, tuple(dims), tuple(parts))


class Instruction(NamedTuple):
    """One instruction; ``operands`` and ``id`` are numbers within the module."""

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    target: str


def _instruction(data: memoryview) -> Instruction:
    name = opcode = target = ""
    shape, operands, identity = Shape(0, (), ()), [], 0
    for number, value in _fields(data):
        if number == 1:
            name = bytes(value).decode()
        elif number == 2:
            opcode = bytes(value).decode()
        elif number == 3:
            shape = _shape(value)
        elif number == 28:
            target = bytes(value).decode(errors="replace")
        elif number == 35:
            identity = value
        elif number == 36:
            operands += _integers(value)
    return Instruction(identity, name, opcode, shape, tuple(operands), target)


class Module(NamedTuple):
    """A program: instructions of each computation by its name."""

    name: str
    computations: dict[str, list[Instruction]]

    def collectives(self) -> dict[str, tuple[int, int]]:
        """Returns how many there are of each kind, and the bytes of their results on one device.

        Those in the body of a loop count once.
        """
        found: dict[str, tuple[int, int]] = {}
        for instructions in self.computations.values():
            for instruction in instructions:
                started = instruction.opcode.endswith("-start")
                kind = instruction.opcode.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                shape = instruction.shape
                if started and kind != "all-reduce" and len(shape.parts) > 1:
                    shape = shape.parts[1]  # (operand, result, …)
                count, size = found.get(kind, (0, 0))
                found[kind] = count + 1, size + shape.bytes
        return dict(sorted(found.items()))

    def text(self) -> str:
        """Returns the program, a line for each instruction."""
        lines = [f"HloModule {self.name}"]
        for name, instructions in self.computations.items():
            names = {instruction.id: instruction.name for instruction in instructions}
            lines.append(f"\n{name} {{")
            for instruction in instructions:
                operands = ", ".join(names.get(i, f"#{i}") for i in instruction.operands)
                target = f', custom_call_target="{instruction.target}"' * bool(instruction.target)
                lines.append(
                    f"  {instruction.name} = {instruction.shape} "
                    f"{instruction.opcode}({operands}){target}"
                )
            lines.append("}")
        return "\n".join(lines) + "\n"


def read(format: str, data: bytes) -> Module | None:
    """Returns the module of a plugin's optimized program, None where it is in another format.

    Args:
        format: ``"hlo"`` or ``"hlo_with_config"``.
        data: As the plugin gives it.
    """
    view = memoryview(data)
    if format == "hlo_with_config":
        view = next((value for number, value in _fields(view) if number == 1), view)
    elif format != "hlo":
        return None
    name, computations = "", {}
    for number, value in _fields(view):
        if number == 1:
            name = bytes(value).decode()
        elif number == 3:
            label, instructions = "", []
            for inner, content in _fields(value):
                if inner == 1:
                    label = bytes(content).decode()
                elif inner == 2:
                    instructions.append(_instruction(content))
            computations[label] = instructions
    return Module(name, computations)
