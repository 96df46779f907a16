"""Reads compiled programs: XLA's HloModuleProto, whose fields it knows by their numbers."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# By xla.PrimitiveType: the name in XLA's texts, and the bytes of an element.
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

# Kinds of collectives by their synchronous names. Of two halves only "-start" is counted.
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)


# This follows the name of an operator in its derivative: csrc/lowering/context.cpp.
BACKWARD = " (backward)"


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yields a message's fields as (number, value); a value is an integer or a memoryview."""
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
        """The array's bytes without padding; the sum of the parts for a tuple."""
        if self.element == _TUPLE:
            return sum(part.bytes for part in self.parts)
        return _TYPES.get(self.element, ("", 0))[1] * math.prod(self.dims)

    def arrays(self) -> Iterator[Shape]:
        """Yields the shape itself; for a tuple, the arrays in it."""
        if self.element != _TUPLE:
            yield self
        for part in self.parts:
            yield from part.arrays()


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
    """One instruction.

    ``id``, ``operands`` and ``called`` (computations) are numbers within the module; ``line`` is
    the operator and ``file:line`` of the program that it comes from, where they are known;
    ``part`` is which of a tuple is taken;
    ``details`` are the messages that only some kinds of instructions have, by their numbers.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    target: str
    called: tuple[int, ...]
    line: str
    part: int
    details: dict[int, memoryview]


_LITERAL, _WINDOW, _CONVOLUTION, _DOT, _CONFIG, _DIRECTION = 8, 15, 16, 30, 43, 63


def _metadata(data: memoryview, frames: list[str]) -> str:
    name, frame = "", 0
    for number, value in _fields(data):
        if number == 2:
            name = bytes(value).decode()
        elif number == 15:
            frame = value
    where = frames[frame - 1] if 0 < frame <= len(frames) else ""
    return f"{name} at {where}" if name and where else name or where


def _instruction(data: memoryview, frames: list[str]) -> Instruction:
    name = opcode = target = line = ""
    shape, operands, identity, part = Shape(0, (), ()), [], 0, 0
    called, details = [], {}
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
        elif number == 38:
            called += _integers(value)
        elif number == 7:
            line = _metadata(value, frames)
        elif number == 13:
            part = value
        elif number in (_LITERAL, _WINDOW, _CONVOLUTION, _DOT, _CONFIG, _DIRECTION):
            details[number] = value
    return Instruction(
        identity, name, opcode, shape, tuple(operands), target, tuple(called), line, part, details
    )


def _message(data: memoryview | None) -> dict[int, list[int]]:
    """The integer fields of a message by their numbers; writers leave out fields that are 0."""
    found: dict[int, list[int]] = {}
    for number, value in _fields(data or memoryview(b"")):
        if isinstance(value, int) or number in (1, 2, 3, 4, 5, 6, 11, 12):
            found.setdefault(number, []).extend(_integers(value))
    return found


def _dot_flops(product: Instruction, left: Shape) -> int:
    contracted = _message(product.details.get(_DOT)).get(1, [])
    return 2 * math.prod(product.shape.dims) * math.prod(left.dims[d] for d in contracted)


def _taps(size: int, positions: int, window: dict[int, list[int]]) -> int:
    """Counts the elements of one dimension that all windows read, without the padding."""

    def field(number: int, default: int) -> int:
        value = window.get(number, [default])[0]
        return value - (1 << 64) if value >> 63 else value

    stride, before = field(2, 1), field(3, 0)
    dilation, base = field(5, 1), field(6, 1)
    last = (size - 1) * base
    return sum(
        0 <= (at := position * stride - before + tap * dilation) <= last and at % base == 0
        for position in range(positions)
        for tap in range(field(1, 1))
    )


def _convolution_flops(product: Instruction, left: Shape, kernel: Shape) -> int:
    numbers = _message(product.details.get(_CONVOLUTION))
    features = kernel.dims[numbers.get(3, [0])[0]]
    result = product.shape
    window = product.details.get(_WINDOW, memoryview(b""))
    windows = [_message(value) for n, value in _fields(window) if n == 1]
    pairs = [
        _taps(left.dims[a], result.dims[b], window)
        for a, b, window in zip(numbers.get(11, []), numbers.get(12, []), windows, strict=False)
    ]
    others = result.dims[numbers.get(9, [0])[0]] * result.dims[numbers.get(10, [0])[0]]
    return 2 * features * others * math.prod(pairs)


def _cudnn_flops(call: Instruction, shapes: list[Shape]) -> int:
    """FLOPs of cuDNN's convolutions: all three directions multiply the same pairs of elements."""
    result = call.shape.parts[0] if call.shape.parts else call.shape
    if "BackwardFilter" in call.target:
        kernel, output = result, shapes[1]
    elif "BackwardInput" in call.target:
        kernel, output = shapes[1], shapes[0]
    else:
        kernel, output = shapes[1], result
    features = kernel.dims[_message(call.details.get(_CONVOLUTION)).get(4, [0])[0]]
    return 2 * math.prod(output.dims) * math.prod(kernel.dims) // features


def _cublas_flops(call: Instruction, left: Shape) -> int:
    result = call.shape.parts[0] if call.shape.parts else call.shape
    config = json.loads(bytes(call.details.get(_CONFIG, b"{}")))
    numbers = config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
    contracted = numbers.get("lhs_contracting_dimensions", [])
    return 2 * math.prod(result.dims) * math.prod(left.dims[int(d)] for d in contracted)


# Calls of csrc/cpu/calls.h.
_LIBRARY = "torch_xla.cpu_"
_LIBRARY_CONVOLUTION = "torch_xla.cpu_convolution"
_LIBRARY_ATTENTION = "torch_xla.cpu_attention"
_LIBRARY_RECURRENT = "torch_xla.cpu_recurrent"
_LIBRARY_FEW_ROWS = "torch_xla.cpu_few_rows"
_BACKWARD = "_backward"


def _numbers(call: Instruction, name: str) -> list[int]:
    """The integers of an attribute of a library call, whose attributes are text."""
    config = bytes(call.details.get(_CONFIG, b"")).decode()
    found = re.search(rf"\b{name} = array<i64: ([\d, -]+)>", config)
    return [int(n) for n in found[1].split(",")] if found else []


def _library_operands(call: Instruction, shapes: list[Shape]) -> list[Shape]:
    """The operands as the call reads them; the program may have joined their dimensions."""
    numbers = iter(_numbers(call, "operand_dims"))
    dims = [tuple(itertools.islice(numbers, rank)) for rank in numbers]
    return [s._replace(dims=d) for s, d in zip(shapes, dims, strict=True)] if dims else shapes


def _library_attention_flops(call: Instruction, shapes: list[Shape]) -> int:
    """FLOPs of attention: two products in the forward pass, five in the gradient."""
    is_backward = call.target.endswith(_BACKWARD)
    query, key = shapes[1:3] if is_backward else shapes[:2]
    return (10 if is_backward else 4) * math.prod(query.dims) * key.dims[2]


def _library_recurrent_flops(call: Instruction, shapes: list[Shape]) -> int:
    """FLOPs of recurrent layers: products of the states with the weights, or their gradients."""
    places = shapes[3 if call.target.endswith(_BACKWARD) else 0].dims[:2]
    return 2 * math.prod(places) * math.prod(shapes[1].dims)


def _library_convolution_flops(call: Instruction, shapes: list[Shape]) -> int:
    """By its words: part, groups, strides, paddings, dilations (csrc/cpu/convolution_call.h)."""
    part, _, *lists = _numbers(call, "words")
    image, kernel, output = (
        (shapes[0], shapes[1], call.shape),
        (call.shape, shapes[1], shapes[0]),
        (shapes[0], call.shape, shapes[1]),
    )[part]
    rank = len(lists) // 3
    windows = zip(lists[:rank], lists[rank : 2 * rank], lists[2 * rank :], strict=True)
    pairs = [
        _taps(image.dims[d], output.dims[d], {1: [kernel.dims[d]], 2: [s], 3: [p], 5: [dilation]})
        for d, (s, p, dilation) in enumerate(windows, 2)
    ]
    return 2 * output.dims[0] * output.dims[1] * kernel.dims[1] * math.prod(pairs)


# The result of these operations is an operand's memory, or takes no memory.
_ALIASES = {"bitcast", "tuple", "get-tuple-element", "optimization-barrier", "while", "conditional"}
_IN_PLACE = {"dynamic-update-slice", "parameter"}


def _origin(instructions: dict[int, Instruction], identity: int) -> Instruction:
    """Follows copies back to the instruction that made the value."""
    found = instructions[identity]
    while found.opcode in ("bitcast", "copy", "copy-done", "copy-start"):
        found = instructions[found.operands[0]]
    return found


def _part(instructions: dict[int, Instruction], identity: int, index: int) -> Instruction | None:
    whole = instructions[identity]
    return _origin(instructions, whole.operands[index]) if whole.opcode == "tuple" else None


def _whole_number(constant: Instruction) -> int | None:
    """The value of a constant of a 32-bit or 64-bit integer type."""
    if constant.opcode != "constant" or constant.shape.dims:
        return None
    # The fields of s32, s64, u32 and u64 literals. A literal of 0 may have no field.
    of_type = {4: 4, 5: 5, 8: 6, 9: 7}.get(constant.shape.element)
    for number, value in _fields(constant.details.get(_LITERAL, memoryview(b""))):
        if number == of_type:
            return _integers(value)[0]
    return None


class Live(NamedTuple):
    """An array that a program holds when its memory use is at its peak."""

    bytes: int
    shape: str
    line: str

    @property
    def backward(self) -> bool:
        """Whether the backward pass makes it."""
        return BACKWARD in self.line


class Module(NamedTuple):
    """A program: instructions of each computation by its number, in the order that they run in."""

    name: str
    entry: int
    names: dict[int, str]
    computations: dict[int, list[Instruction]]

    def runs(self) -> dict[int, int]:
        """Returns how often each computation runs; a loop of unknown length counts once."""
        found = dict.fromkeys(self.computations, 0)

        def visit(identity: int, times: int) -> None:
            found[identity] += times
            for instruction in self.computations[identity]:
                for called in instruction.called:
                    visit(called, times * self._trips(identity, instruction))

        visit(self.entry, 1)
        return found

    def _trips(self, identity: int, loop: Instruction) -> int:
        if loop.opcode != "while":
            return 1
        try:
            config = json.loads(bytes(loop.details.get(_CONFIG, b"{}")))
        except ValueError:  # Another compiler's text.
            config = {}
        if "known_trip_count" in config:
            return int(config["known_trip_count"].get("n", 1))
        # The TPU compiler does not tell the number. It is in ``counter < constant``, if the counter
        # starts at a constant and is increased by 1.
        condition = {i.id: i for i in self.computations[loop.called[1]]}
        test = self.computations[loop.called[1]][-1]
        if test.opcode != "compare" or bytes(test.details.get(_DIRECTION, b"")) != b"LT":
            return 1
        counter, bound = (condition[i] for i in test.operands)
        stop = _whole_number(bound)
        body = {i.id: i for i in self.computations[loop.called[0]]}
        if counter.opcode != "get-tuple-element" or stop is None:
            return 1
        outside = {i.id: i for i in self.computations[identity]}
        start = _part(outside, loop.operands[0], counter.part)
        after = _part(body, self.computations[loop.called[0]][-1].id, counter.part)
        if start is None or after is None or after.opcode != "add":
            return 1
        first = _whole_number(start)
        by = [_whole_number(_origin(body, i)) for i in after.operands]
        return stop - first if first is not None and 1 in by and stop > first else 1

    def flops(self) -> int:
        """Returns the FLOPs of products and convolutions on one device, for all turns of loops."""
        total = 0
        runs = self.runs()
        for identity, instructions in self.computations.items():
            shapes = {instruction.id: instruction.shape for instruction in instructions}
            for instruction in instructions:
                operands = [shapes[i] for i in instruction.operands if i in shapes]
                if instruction.target.startswith(_LIBRARY):
                    operands = _library_operands(instruction, operands)
                flops = 0
                if instruction.opcode == "dot":
                    flops = _dot_flops(instruction, operands[0])
                elif instruction.opcode == "convolution":
                    flops = _convolution_flops(instruction, *operands)
                elif instruction.target.startswith("__cudnn$conv"):
                    flops = _cudnn_flops(instruction, operands)
                elif instruction.target == _LIBRARY_CONVOLUTION:
                    flops = _library_convolution_flops(instruction, operands)
                elif instruction.target.startswith(_LIBRARY_ATTENTION):
                    flops = _library_attention_flops(instruction, operands)
                elif instruction.target.startswith(_LIBRARY_RECURRENT):
                    flops = _library_recurrent_flops(instruction, operands)
                elif instruction.target == _LIBRARY_FEW_ROWS:
                    flops = 2 * math.prod(instruction.shape.dims) * operands[0].dims[-1]
                elif instruction.target.startswith("__cublas$"):
                    flops = _cublas_flops(instruction, operands[0])
                total += runs[identity] * flops
        return total

    def library_copies(self) -> int:
        """Returns the largest memory in bytes that libraries take besides the compiler's plan.

        Our convolutions on the CPU are oneDNN's, whose kernels copy operands and result into
        layouts of their own; attention's kernel makes results of its own.
        """
        copies = [0]
        for instructions in self.computations.values():
            sizes = {instruction.id: instruction.shape.bytes for instruction in instructions}
            for instruction in instructions:
                if instruction.target == _LIBRARY_CONVOLUTION:
                    operands = sum(sizes[i] for i in instruction.operands)
                    copies.append(instruction.shape.bytes + operands)
                elif instruction.target.startswith(_LIBRARY_ATTENTION):
                    copies.append(instruction.shape.bytes)
        return max(copies)

    def has_loops(self) -> bool:
        """Whether a computation runs more than once."""
        return any(times > 1 for times in self.runs().values())

    def largest(self, count: int) -> list[Live]:
        """Returns the largest arrays that exist when memory use is at its peak.

        Arguments are left out. Arrays are followed from where they are made to their last use,
        so these are what the compiler has to find room for, not where it found it.
        """
        return sorted(self.live(), key=lambda array: -array.bytes)[:count]

    def live(self) -> list[Live]:
        """Returns the arrays that exist when memory use is at its peak, without arguments."""
        return self._peak(self.entry)[1]

    def _peak(self, identity: int) -> tuple[int, list[Live]]:
        instructions = self.computations[identity]
        sources: dict[int, set[int]] = {}  # The operands whose memory a result is.
        last: dict[int, int] = {}
        made: dict[int, list[Live]] = {}
        for at, instruction in enumerate(instructions):
            used = set().union(*(sources.get(i, set()) for i in instruction.operands))
            for source in used:
                last[source] = at
            if instruction.opcode in _ALIASES or instruction.opcode.endswith("-done"):
                sources[instruction.id] = used
            elif instruction.opcode in _IN_PLACE:
                sources[instruction.id] = (
                    sources.get(instruction.operands[0], set()) if (instruction.operands) else set()
                )
            else:
                sources[instruction.id] = {instruction.id}
                last[instruction.id] = at
                shape = instruction.shape
                if instruction.opcode.endswith("-start") and len(shape.parts) > 1:
                    shape = shape.parts[1]  # (operand, result, …)
                made[at] = [
                    Live(part.bytes, str(part), instruction.line) for part in shape.arrays()
                ]
        if instructions:  # The results outlive the program.
            for source in sources[instructions[-1].id]:
                last[source] = len(instructions)
        live: dict[int, list[Live]] = {}
        size = 0
        most: tuple[int, list[Live]] = (0, [])
        for at, instruction in enumerate(instructions):
            if at in made:
                live[instruction.id] = made[at]
                size += sum(array.bytes for array in made[at])
            within: tuple[int, list[Live]] = (0, [])
            if instruction.opcode in ("while", "conditional", "call"):
                within = max((self._peak(called) for called in instruction.called), default=within)
            if size + within[0] > most[0]:
                most = size + within[0], [*itertools.chain(*live.values()), *within[1]]
            for source in [i for i in live if last[i] <= at]:
                size -= sum(array.bytes for array in live.pop(source))
        return most

    def collectives(self) -> dict[str, tuple[int, int]]:
        """Returns how many collectives of each kind run, and their results' bytes on a device.

        A collective in a loop counts as often as the loop runs, if the compiler knows that.
        """
        found: dict[str, tuple[int, int]] = {}
        runs = self.runs()
        for identity, instructions in self.computations.items():
            times = runs[identity]
            for instruction in instructions:
                started = instruction.opcode.endswith("-start")
                kind = instruction.opcode.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                shape = instruction.shape
                if started and kind != "all-reduce" and len(shape.parts) > 1:
                    shape = shape.parts[1]  # (operand, result, …)
                count, size = found.get(kind, (0, 0))
                if times:
                    found[kind] = count + times, size + times * shape.bytes
        return dict(sorted(found.items()))

    def text(self) -> str:
        """Returns the program, a line for each instruction."""
        lines = [f"HloModule {self.name}"]
        for identity, instructions in self.computations.items():
            names = {instruction.id: instruction.name for instruction in instructions}
            lines.append(f"\n{self.names[identity]} {{")
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
    """Returns the module of a plugin's optimized program, None where it is in another format."""
    view = memoryview(data)
    if format == "hlo_with_config":
        view = next((value for number, value in _fields(view) if number == 1), view)
    elif format != "hlo":
        return None
    fields = list(_fields(view))
    frames = next((_frames(value) for number, value in fields if number == 17), [])
    order = next((_schedule(value) for number, value in fields if number == 7), {})
    name, entry, names, computations = "", 0, {}, {}
    for number, value in fields:
        if number == 1:
            name = bytes(value).decode()
        elif number == 6:
            entry = value
        elif number == 3:
            identity, label, instructions = 0, "", []
            for inner, content in _fields(value):
                if inner == 1:
                    label = bytes(content).decode()
                elif inner == 2:
                    instructions.append(_instruction(content, frames))
                elif inner == 5:
                    identity = content
            if identity in order:
                at = order[identity]
                instructions.sort(key=lambda instruction: at.get(instruction.id, 0))  # noqa: B023
            names[identity], computations[identity] = label, instructions
    return Module(name, entry, names, computations)


def _schedule(data: memoryview) -> dict[int, dict[int, int]]:
    """The position of each instruction in its computation's order, by the instruction's number."""
    found = {}
    for _, entry in _fields(data):
        identity, order = 0, dict[int, int]()
        for number, value in _fields(entry):
            if number == 1:
                identity = value
            elif number == 2:
                for _, ids in _fields(value):
                    for i in _integers(ids):
                        order[i] = len(order)
        found[identity] = order
    return found


def _frames(data: memoryview) -> list[str]:
    """``file:line`` of each stack frame."""
    files, locations, frames = [], [], []
    for number, value in _fields(data):
        if number == 1:
            files.append(bytes(value).decode())
        elif number == 3:
            locations.append({n: v for n, v in _fields(value) if isinstance(v, int)})
        elif number == 4:
            frames.append({n: v for n, v in _fields(value) if isinstance(v, int)})

    def text(frame: dict[int, int]) -> str:
        at = frame.get(1, 0)
        if not 0 < at <= len(locations):
            return ""
        file = locations[at - 1].get(1, 0)
        return f"{files[file - 1]}:{locations[at - 1].get(3, 0)}" if 0 < file <= len(files) else ""

    return [text(frame) for frame in frames]
