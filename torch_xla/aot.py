"""Compiles for devices that are not there, and says what a program would need on them.

``python -m torch_xla.aot script.py --topology v5e:2x4`` runs a script up to its first steps and
prints the plan of its largest program; :func:`compile` gives the same of a function. See
docs/platforms.md.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

import torch_xla
from torch_xla import _XLAC
from torch_xla._internal import hlo, plugins, regions, topologies

# What a read of a value says: csrc/runtime/compile_only.cpp.
_READ = "shapes and no values"


class Plan:
    """What the compiler says of a program, on one device of those that it runs on.

    Attributes:
        name: Of the program.
        devices: How many it runs on.
        topology: What it was compiled for, None on devices that are there.
        arguments: Bytes of its arguments: parameters, state, inputs.
        outputs: Bytes of its results, those that take the memory of arguments among them.
        aliased: Bytes of these.
        temporaries: Bytes of what lives during the program alone, activations for example.
        code: Bytes of machine code.
        peak: Bytes in use when most are.
        flops: Operations on floating point numbers, XLA's estimate; where the plugin makes none
            (that of NVIDIA's GPUs) or the program has loops, whose bodies that counts once, those
            of matrix products and convolutions, counted in the optimized program.
        bytes_accessed: Bytes that go to and from memory, XLA's estimate; NaN where the
            plugin makes none.
        collectives: By kind, how many run and the bytes of their results; one in a loop counts as
            often as the loop runs.
    """

    def __init__(self, program: Any, topology: topologies.Topology | None) -> None:
        self._program = program
        self.topology = topology
        self.name: str = program.name
        self.devices: int = program.devices
        memory = {name: max(size, 0) for name, size in program.memory().items()}
        self.arguments: int = memory["arguments"]
        self.outputs: int = memory["outputs"]
        self.aliased: int = memory["aliased"]
        self.temporaries: int = memory["temporaries"]
        self.code: int = memory["code"]
        self.peak: int = self.arguments + self.outputs - self.aliased + self.temporaries + self.code
        costs = dict(program.costs())
        self.flops: float = costs.get("flops", math.nan)
        self.bytes_accessed: float = costs.get("bytes accessed", math.nan)
        optimized = program.optimized()
        self._module = hlo.read(*optimized) if optimized else None
        self.collectives = self._module.collectives() if self._module else {}
        if self._module and (math.isnan(self.flops) or self._module.has_loops()):
            self.flops = float(self._module.flops())

    @property
    def fits(self) -> bool | None:
        """Whether :attr:`peak` is below the device's memory; None where that is not known."""
        chip = self.topology and self.topology.chip
        return self.peak <= chip.memory if chip else None

    def roofline(self) -> dict[str, float]:
        """Returns the least seconds that a run takes, by what would bound it.

        Returns:
            ``compute``, ``memory`` and ``network``; empty where the device's peaks are not known.
            NaN where XLA estimates nothing.
        """
        chip = self.topology and self.topology.chip
        if not chip:
            return {}
        return {
            "compute": self.flops / chip.flops,
            "memory": self.bytes_accessed / chip.bandwidth,
            "network": sum(size for _, size in self.collectives.values()) / chip.link,
        }

    def largest(self, count: int = 5) -> list[hlo.Live]:
        """Returns the largest arrays that the program makes and has when it has most.

        Each with its bytes, shape, and the operator and line that it comes from (with
        ``XLA_HLO_DEBUG=1``). Empty where the plugin does not show the program.
        """
        return self._module.largest(count) if self._module else []

    def text(self) -> str:
        """Returns the optimized program; empty where the plugin does not show it."""
        return self._module.text() if self._module else ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the executable as the plugin serializes it.

        Raises:
            RuntimeError: The plugin cannot.
        """
        data = self._program.serialized()
        with open(path, "wb") as file:
            file.write(data)

    def __str__(self) -> str:
        where = self.topology.text if self.topology else _XLAC._xla_platform()
        rows = [
            ("program", f"{self.name} on {self.devices} device{'s' * (self.devices > 1)}, {where}"),
            ("arguments", _bytes(self.arguments)),
            ("outputs", f"{_bytes(self.outputs)}, {_bytes(self.aliased)} in arguments' memory"),
            ("temporaries", _bytes(self.temporaries)),
            ("code", _bytes(self.code)),
            ("peak", _bytes(self.peak)),
        ]
        if self.topology and self.topology.chip:
            verdict = "fits" if self.fits else "DOES NOT FIT"
            rows[-1] = ("peak", f"{rows[-1][1]} of {_bytes(self.topology.chip.memory)}: {verdict}")
        rows.append(("flops", f"{self.flops:.4g}"))
        rows.append(("bytes accessed", _bytes(self.bytes_accessed)))
        for kind, (count, size) in self.collectives.items():
            rows.append((kind, f"{count}, {_bytes(size)}"))
        for bound, seconds in self.roofline().items():
            text = "unknown" if math.isnan(seconds) else f"{seconds * 1e3:.4g} ms"
            rows.append((f"by {bound}", text))
        for array in self.largest():
            rows.append(
                (_bytes(array.bytes), f"{_short(array.shape)} {_short(array.line)}".rstrip())
            )
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _short(text: str, length: int = 100) -> str:
    """Cut in the middle: what an array is comes first, where it was made last."""
    return text if len(text) <= length else f"{text[: length // 3]}…{text[-length * 2 // 3 :]}"


def _bytes(size: float) -> str:
    return "unknown" if math.isnan(size) else _XLAC._bytes_text(int(size))


def _use(topology: str | None) -> topologies.Topology | None:
    """Makes the topology this process's, and returns it; with None what it has."""
    running = _XLAC._xla_is_initialized()
    if topology is not None and os.environ.get("XLA_TOPOLOGY") != topology:
        wanted = topologies.parse(topology)
        if running:
            raise RuntimeError(
                f"aot: the devices of {_XLAC._xla_platform()} are in use already; compile for "
                f"{topology} in a process of its own, or set XLA_TOPOLOGY={topology}"
            )
        os.environ["XLA_TOPOLOGY"] = topology
        os.environ["PJRT_DEVICE"] = wanted.platform
        plugins.register_plugins()
    return topologies.requested()


def _programs_since(before: Sequence[Any], topology: topologies.Topology | None) -> list[Plan]:
    known = {program.identity for program in before}
    compiled = [p for p in _XLAC._xla_compiled_programs() if p.identity not in known]
    return [Plan(program, topology) for program in compiled]


def compile(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    topology: str | None = None,
    mesh: Any = None,
) -> Plan:
    """Compiles what a function does, without running it where the devices are not there.

    What the function computes and changes is one program, whose arguments are the tensors that
    were there before. Where it cuts its graph itself, the largest of its programs is told.

    Args:
        fn: The function; a training step for example.
        args: Its arguments. Tensors and modules in them (in lists, tuples and dicts) are moved to
            the device.
        topology: For example ``"v5e:2x4"``, before the first use of a device; by default
            ``XLA_TOPOLOGY``, or the devices that are there.
        mesh: A :class:`torch_xla.distributed.spmd.Mesh`, or the sizes of its axes by their names:
            SPMD mode over it, as the global mesh.

    Returns:
        The plan.

    Raises:
        RuntimeError: Another device is in use, the compiler refuses the program, or ``fn`` reads
            the value of a tensor and the device has none.
        ValueError: There is no such topology, or the function computes nothing.
    """
    used = _use(topology)
    if mesh is not None:
        from torch_xla.distributed import spmd

        torch_xla.runtime.use_spmd()
        if isinstance(mesh, dict):
            sizes = tuple(mesh.values())
            mesh = spmd.Mesh(range(math.prod(sizes)), sizes, tuple(mesh))
        spmd.set_global_mesh(mesh)
    device = torch_xla.device()

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, (torch.Tensor, torch.nn.Module)) else x

    args = tree_map(move, tuple(args))
    torch_xla.sync(wait=True)
    before = _XLAC._xla_compiled_programs()
    with torch_xla.step():  # One program: an optimizer's step is not its end.
        result = fn(*args)
    torch_xla.sync(wait=True)
    plans = _programs_since(before, used)
    del result
    if not plans:
        raise ValueError("aot.compile(): the function computes nothing that was not compiled yet")
    return max(plans, key=lambda plan: plan.peak)


# ---------------------------------------------------------------- python -m torch_xla.aot


class _EnoughError(BaseException):
    """Ends the script; no script catches it."""


def _held() -> list[tuple[str, int]]:
    """Bytes of the parameters and of the optimizers' state that this process holds."""
    parameters: dict[int, int] = {}
    state: dict[int, int] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # Asking a lazy object for its class may import what it stands for.
        if issubclass(kind, torch.nn.Parameter) and thing.device.type == "xla":
            parameters[id(thing)] = thing.numel() * thing.element_size()
        elif issubclass(kind, torch.optim.Optimizer):
            for values in thing.state.values():
                for value in values.values() if isinstance(values, dict) else ():
                    if isinstance(value, torch.Tensor) and value.device.type == "xla":
                        state[id(value)] = value.numel() * value.element_size()
    return [("parameters", sum(parameters.values())), ("optimizer state", sum(state.values()))]


def _run(script: str, arguments: Sequence[str], syncs: int) -> tuple[str, list[tuple[str, int]]]:
    """Runs a script until it has made so many syncs.

    Returns:
        Why it ended, and what it held then.
    """
    sync, made = regions.sync, 0

    def counting_sync(wait: bool = False) -> None:
        nonlocal made
        sync(True)
        made += 1
        if made >= syncs:
            raise _EnoughError

    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    regions.sync = counting_sync
    try:
        runpy.run_path(script, run_name="__main__")
    except _EnoughError:
        return f"after {made} syncs", _held()  # Its frames are there yet.
    except SystemExit as error:
        return f"when the script exited ({error.code or 0})", _held()
    except RuntimeError as error:
        if _READ not in str(error):
            raise
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script]
        where = f"line {own[-1].lineno}: {own[-1].line}" if own else str(error)
        sync(True)  # What is traced and not compiled yet is a part of the step.
        return f"where the script reads a value, {where}", _held()
    finally:
        regions.sync = sync
    return "at the end of the script", _held()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.aot",
        description="What a script needs on devices that are not there.",
        epilog="All other arguments are the script's.",
        allow_abbrev=False,
    )
    parser.add_argument("--topology", help="v5e:2x4, h100:8, …; default: XLA_TOPOLOGY")
    parser.add_argument("--syncs", type=int, default=3, help="how many until it is ended (3)")
    parser.add_argument("--program", metavar="FILE", help="the optimized program goes here")
    parser.add_argument("script")
    options, arguments = parser.parse_known_args(argv)
    used = _use(options.topology)
    _XLAC._set_ir_debug(True)  # Each instruction names its operator and line.
    ended, held = _run(options.script, arguments, options.syncs)
    plans = _programs_since((), used)
    if not plans:
        print(f"{options.script} ended {ended}, and has compiled nothing on xla", file=sys.stderr)
        return 1
    plan = max(plans, key=lambda plan: plan.peak)
    print(f"{options.script}: {len(plans)} programs, ended {ended}; the largest:\n")
    print(plan)
    if plan.devices == 1:
        for name, size in held:
            print(f"{name} that the script holds: {_bytes(size)}")
    if options.program:
        with open(options.program, "w") as file:
            file.write(plan.text())
    return 1 if plan.fits is False else 0


if __name__ == "__main__":
    sys.exit(main())
