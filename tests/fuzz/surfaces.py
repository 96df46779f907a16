"""The ways in which the fuzzer runs a program, besides line by line into one lazy graph.

A surface takes a program as a function of its inputs and calls the function as a user would, with
new inputs for each call. What the last call gave is compared.
"""

import random
import re
import threading
from collections.abc import Callable
from typing import Any

import programs
import torch
from programs import Program
from torch import Tensor

import torch_xla

Function = Callable[..., dict[str, Tensor]]
Device = tuple[str, str]


def plain(program: Program) -> Program:
    """Without the lines that cut the graph or that the CPU refuses: the others are a function."""
    lines = [
        line
        for line, error in zip(program.lines, program.errors, strict=True)
        if not error and line != "sync()"
    ]
    return Program(lines, [""] * len(lines))


class Called:
    """A program as a function.

    Attributes:
        function: Takes the inputs, returns the variables by name.
        inputs: Makes the inputs anew.
    """

    def __init__(self, program: Program, devices: Device) -> None:
        made = [line for line in program.lines if " = make(" in line]
        body = [line for line in program.lines if line not in made]
        names = [line.split(" = ")[0] for line in made]
        results = names + [match[1] for line in body if (match := re.match(r"(v\d+) = ", line))]
        lines = [f"def function({', '.join(names)}):", *(f"    {line}" for line in body)]
        lines.append(f"    return dict({', '.join(f'{name}={name}' for name in results)})")
        self._environment = programs.environment(*devices)
        exec("\n".join(lines), self._environment)  # noqa: S102
        self._made, self._devices = made, devices
        self.function: Function = self._environment["function"]

    def inputs(self) -> list[Tensor]:
        env = programs.environment(*self._devices)
        for line in self._made:
            exec(line, env)  # noqa: S102
        return list(programs.variables(env).values())


def _eager(called: Called) -> dict[str, Tensor]:
    with torch_xla.experimental.eager_mode_context(True):
        return called.function(*called.inputs())


def _thread(called: Called) -> dict[str, Tensor]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(called.function(*called.inputs()))
        except Exception as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _compiled(calls: int, **options: Any) -> Callable[[Called], dict[str, Tensor]]:
    def run(called: Called) -> dict[str, Tensor]:
        step = torch_xla.compile(called.function, **options)
        for _ in range(calls - 1):
            step(*called.inputs())
        return step(*called.inputs())

    return run


def _dynamo(called: Called, backend: str = "openxla") -> dict[str, Tensor]:
    torch._dynamo.reset()
    step = torch.compile(called.function, backend=backend)
    step(*called.inputs())
    return step(*called.inputs())


SURFACES: dict[str, Callable[[Called], dict[str, Tensor]]] = {
    "eager": _eager,
    "thread": _thread,
    "compile": _compiled(2),
    "replay": _compiled(5, replay=True),
    "dynamo": _dynamo,
}


def drawn(seed: int) -> str:
    """The surface of this seed's program."""
    return random.Random(seed).choice(list(SURFACES))


def check(program: Program, surface: str, devices: Device) -> str:
    """How a plain program differs from the CPU's on this surface; "" for not at all."""
    on_cpu = Called(program, ("cpu", "cpu"))
    with torch.backends.mkldnn.flags(enabled=False):
        reference = on_cpu.function(*on_cpu.inputs())
    if surface == "dynamo":
        devices = devices[:1] * 2  # One graph of torch.compile has one device.
    try:
        seen = SURFACES[surface](Called(program, devices))
        torch_xla.sync()
    except Exception as error:  # noqa: BLE001
        if surface == "dynamo":
            try:
                _dynamo(on_cpu, "aot_eager_decomp_partition")
            except type(error):
                return ""  # PyTorch cannot compile the function for the CPU, either.
        return f"{surface}: {type(error).__name__}: {error}"
    said = programs.check(program, dict(seen), [""] * len(program.lines), reference)
    return said and f"{surface}: {said}"


def failure(seed: int, length: int, devices: Device) -> tuple[int, str, str] | None:
    """Runs the seed's program on the surface drawn for it: what is its surface's own fault."""
    surface, program = drawn(seed), plain(programs.write(seed, length))

    def fails(candidate: Program) -> str:
        said = check(candidate, surface, devices)
        if not said or programs.excused(said):
            return ""
        # What the plain way does, too, is found there.
        if programs.blame(candidate, devices, torch_xla.sync):
            return ""
        rounding = programs.explained_by_rounding(candidate, said.removeprefix(f"{surface}: "))
        return "" if rounding else said

    if not (said := fails(program)):
        return None
    short = programs.shrink(program, lambda candidate: bool(fails(plain(candidate))))
    lines = "\n".join(short.lines)
    return seed, said, f"# on {surface}\n{lines}"
