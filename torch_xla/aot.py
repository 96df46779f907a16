"""Compiles for absent devices, and says what a program would need on them.

``python -m torch_xla.aot script.py --topology v5e:2x4`` runs a script up to its first steps and
prints the plan of its largest program; :func:`compile` gives the same of a function. See
docs/platforms.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

import torch_xla
from torch_xla import _XLAC
from torch_xla._internal.compile import step
from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import hlo
from torch_xla._internal.plugins import device_counts, finder, platform_choice, topologies
from torch_xla._internal.tensors import is_xla, plain

# The error when a value is read: csrc/runtime/compile_only.cpp.
_READ = "shapes and no values"

# The error of compilers that know the chip's memory.
_EXHAUSTED = "RESOURCE_EXHAUSTED"


class Plan:
    """What the compiler says of a program, on one device of those that it runs on.

    Attributes:
        name: The program's name.
        devices: The number of devices that it runs on.
        topology: The topology that it was compiled for; None for the devices of this machine.
        arguments: Bytes of its arguments: parameters, state, inputs.
        outputs: Bytes of its results, those that take the memory of arguments among them.
        aliased: Bytes of the results that take the memory of arguments.
        temporaries: Bytes of what lives during the program alone: activations, for example, or
            what oneDNN's convolutions copy.
        code: Bytes of machine code.
        peak: The largest number of bytes in use.
        flops: Operations on floating point numbers, XLA's estimate; where the plugin makes none
            (that of NVIDIA's GPUs) or the program has loops, whose bodies that counts once, those
            of matrix products and convolutions, counted in the optimized program.
        bytes_accessed: Bytes that go to and from memory, XLA's estimate; NaN where the
            plugin makes none.
        collectives: By kind, how many run and the bytes of their results; one in a loop counts as
            often as the loop runs.
    """

    def __init__(
        self, program: Any, topology: topologies.Topology | None, held: dict[str, int]
    ) -> None:
        self._program = program
        self._held = held
        self.topology = topology
        self.name: str = program.name
        self.devices: int = program.devices
        memory = {name: max(size, 0) for name, size in program.memory().items()}
        self.arguments: int = memory["arguments"]
        self.outputs: int = memory["outputs"]
        self.aliased: int = memory["aliased"]
        costs = dict(program.costs())
        self.flops: float = costs.get("flops", math.nan)
        self.bytes_accessed: float = costs.get("bytes accessed", math.nan)
        optimized = program.optimized()
        self._module = hlo.read(*optimized) if optimized else None
        copies = self._module.library_copies() if self._module else 0
        self.temporaries: int = memory["temporaries"] + copies
        self.code: int = memory["code"]
        self.peak: int = self.arguments + self.outputs - self.aliased + self.temporaries + self.code
        self.collectives = self._module.collectives() if self._module else {}
        if self._module and (math.isnan(self.flops) or self._module.has_loops()):
            self.flops = float(self._module.flops())

    @property
    def fits(self) -> bool | None:
        """Whether :attr:`peak` is below the device's memory; None where that is not known."""
        chip = self.topology and self.topology.chip
        return self.peak <= chip.memory if chip else None

    def categories(self) -> dict[str, int]:
        """Returns the bytes of :attr:`peak` by what they are.

        Returns:
            ``parameters`` and ``optimizer state``: those that the process held when this was
            compiled, the state also where this makes it; ``other arguments``: buffers, inputs;
            ``results``: in memory of their own;
            ``activations``: what the forward pass makes and is there when most bytes are (with
            ``XLA_HLO_DEBUG=1``, and where the plugin shows the program); ``other temporaries``;
            ``code``. Their sum is the peak.
        """
        parameters = min(self._held["parameters"], self.arguments)
        inputs, results = self.arguments - parameters, self.outputs - self.aliased
        state = self._held["optimizer state"]
        if state <= inputs:
            inputs -= state
        else:  # The first step makes the state.
            state = min(state, results)
            results -= state
        live = self._module.live() if self._module else []
        forward = sum(array.bytes for array in live if array.line and not array.backward)
        activations = min(forward, self.temporaries)
        return {
            "parameters": parameters,
            "optimizer state": state,
            "other arguments": inputs,
            "results": results,
            "activations": activations,
            "other temporaries": self.temporaries - activations,
            "code": self.code,
        }

    def batches(self) -> float | None:
        """Estimates how many times the batch could be what it is.

        Parameters, their gradients, the optimizer's state and code stay, all else grows with the
        batch. :func:`largest_batch` does not estimate.

        Returns:
            The factor, below 1 where this does not fit; None where the device's memory is not
            known or nothing grows.
        """
        chip = self.topology and self.topology.chip
        parts = self.categories()
        gradients = min(parts["parameters"], parts["other temporaries"])
        fixed = parts["parameters"] + parts["optimizer state"] + parts["code"] + gradients
        if not chip or self.peak <= fixed:
            return None
        return max(chip.memory - fixed, 0) / (self.peak - fixed)

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
        write_file(path, self._program.serialized())

    def __str__(self) -> str:
        where = self.topology.text if self.topology else _XLAC._xla_platform()
        rows = [
            ("program", f"{self.name} on {self.devices} device{'s' * (self.devices > 1)}, {where}"),
            ("arguments", _bytes(self.arguments)),
            ("outputs", f"{_bytes(self.outputs)}, {_bytes(self.aliased)} in arguments' memory"),
            ("temporaries", _bytes(self.temporaries)),
            ("peak", _bytes(self.peak)),
        ]
        if self.topology and self.topology.chip:
            verdict = "fits" if self.fits else "DOES NOT FIT"
            rows[-1] = ("peak", f"{rows[-1][1]} of {_bytes(self.topology.chip.memory)}: {verdict}")
        rows += [(f"  {name}", _bytes(size)) for name, size in self.categories().items() if size]
        batches = self.batches()
        if batches is not None:
            rows.append(("largest batch", f"about {batches:.3g} times this one"))
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
    """Cuts the middle out: an array's kind is at the beginning, its line at the end."""
    return text if len(text) <= length else f"{text[: length // 3]}…{text[-length * 2 // 3 :]}"


def _bytes(size: float) -> str:
    return "unknown" if math.isnan(size) else _XLAC._bytes_text(int(size))


def _use(topology: str | None) -> topologies.Topology | None:
    """Makes the process use a topology, and returns it; with None, the one already in use."""
    running = _XLAC._xla_is_initialized()
    if topology is not None and platform_choice.topology() != topology:
        wanted = topologies.parse(topology)
        if running:
            raise RuntimeError(
                f"aot: the devices of {_XLAC._xla_platform()} are in use already; compile for "
                f"{topology} in a process of its own, or set XLA_TOPOLOGY={topology}"
            )
        platform_choice.set_topology(topology)
        platform_choice.set_platform(wanted.platform)
        finder.register_plugins()
    return topologies.requested()


def _shard_bytes(t: torch.Tensor) -> int:
    """The bytes of the tensor's part on one device; a fake tensor has none."""
    total = 0
    for x in plain(t):
        if not is_xla(x):
            continue
        sharding = _XLAC._xla_sharding(x)
        dims = sharding.tile_dims(list(x.shape)) if sharding else x.shape
        total += math.prod(dims) * x.element_size()
    return total


def _is_freed(parameter: torch.nn.Parameter) -> bool:
    """Whether its memory was given up, as that of whole parameters is by FSDP2."""
    return type(parameter) is torch.nn.Parameter and not parameter.untyped_storage().nbytes()


def _held() -> dict[str, int]:
    """Bytes of the process's parameters and optimizer state on a device."""
    parameters: dict[int, int] = {}
    state: dict[int, int] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # `__class__` of a lazy object may import its module.
        # A DTensor itself tells whether it is a parameter.
        if issubclass(kind, torch.Tensor) and isinstance(thing, torch.nn.Parameter):
            if thing.device.type == "xla" and not _is_freed(thing):
                parameters[id(thing)] = _shard_bytes(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            for values in thing.state.values():
                for value in values.values() if isinstance(values, dict) else ():
                    if isinstance(value, torch.Tensor) and value.device.type == "xla":
                        state[id(value)] = _shard_bytes(value)
    return {"parameters": sum(parameters.values()), "optimizer state": sum(state.values())}


def _programs_since(
    before: Sequence[Any], topology: topologies.Topology | None, held: dict[str, int]
) -> list[Plan]:
    known = {program.identity for program in before}
    compiled = [p for p in _XLAC._xla_compiled_programs() if p.identity not in known]
    return [Plan(program, topology, held) for program in compiled]


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
    # The memory of a program for many sizes is that of its largest size.
    exact = _XLAC._xla_compile_settings([], "", keeps_sizes=True)
    settings = _XLAC._xla_set_thread_settings(exact)
    try:
        with torch_xla.step():  # One program: the optimizer's step does not end it.
            result = fn(*args)
        torch_xla.sync(wait=True)
    finally:
        _XLAC._xla_set_thread_settings(settings)
    plans = _programs_since(before, used, _held())
    del result
    if not plans:
        raise ValueError("aot.compile(): the function computes nothing that was not compiled yet")
    return max(plans, key=lambda plan: plan.peak)


# ---------------------------------------------------------------- the largest batch


def _search(peak_of: Callable[[int], int | None], start: int, memory: int) -> int:
    """The largest batch that fits, to 3 %, given that the peak is nearly affine in the batch.

    Args:
        peak_of: Compiles for a batch; returns the peak in bytes, None if compiling fails.
        start: The first that is tried.
        memory: Bytes.

    Returns:
        The batch; 0 where not even one fits.
    """
    peaks: dict[int, int] = {}
    fits, too_large, batch = 0, None, start
    while too_large is None or too_large - fits > max(1, fits // 32):
        peak = peak_of(batch)
        if peak is not None:
            peaks[batch] = peak
        if peak is not None and peak <= memory:
            fits = batch
        else:
            too_large = batch
        (a, low), (b, high) = min(peaks.items(), default=(0, 0)), max(peaks.items(), default=(0, 0))
        if a < b and high <= low:
            raise ValueError(
                f"the largest batch: expected more memory for a larger one, got {low} bytes for "
                f"{a} and {high} for {b}"
            )
        if a < b:
            batch = min(b + (memory - high) * (b - a) // (high - low), 4 * b)
        else:
            batch = 2 * batch if too_large is None else (fits + too_large) // 2
        if batch <= fits:
            batch = fits + max(1, fits // 32)
        if too_large is not None and batch >= too_large:
            batch = (fits + too_large) // 2
    return fits


def largest_batch(
    fn: Callable[..., Any],
    args_of: Callable[[int], Sequence[Any]],
    start: int = 1,
    topology: str | None = None,
    mesh: Any = None,
    memory: int | None = None,
) -> int:
    """Finds the largest batch that fits, by compiling for some.

    Args:
        fn: A training step, see :func:`compile`.
        args_of: Gives its arguments for a batch of so many.
        start: The first batch that is tried.
        topology: See :func:`compile`.
        mesh: See :func:`compile`.
        memory: Bytes of a device; by default the chip's.

    Returns:
        The largest batch, to 3 %; 0 where not even one fits.

    Raises:
        RuntimeError: As :func:`compile`.
        ValueError: The device's memory is not known, or need does not grow with the batch.
    """
    used = _use(topology)
    if memory is None:
        if not used or not used.chip:
            raise ValueError(
                "aot.largest_batch(): the memory of this device is not known; give memory="
            )
        memory = int(used.chip.memory)

    def peak_of(batch: int) -> int | None:
        try:
            return compile(fn, args_of(batch), mesh=mesh).peak
        except RuntimeError as error:
            if _EXHAUSTED not in str(error):
                raise
            return None

    return _search(peak_of, start, memory)


def _find_option(option: str, arguments: Sequence[str]) -> tuple[int, int, bool]:
    """Where the script's arguments have the option, its value, and whether ``=`` joins them."""
    for at, argument in enumerate(arguments):
        name, joined, value = argument.partition("=")
        if name == option and (joined or at + 1 < len(arguments)):
            return at, int(value if joined else arguments[at + 1]), bool(joined)
    raise ValueError(f"--batch={option}: expected {option} N behind the script's name")


def _batch_of_script(
    option: str, script: str, arguments: Sequence[str], topology: str, syncs: int
) -> int:
    """Runs :func:`largest_batch` on a script that has an option for the batch."""
    at, start, joined = _find_option(option, arguments)
    chip = topologies.parse(topology).chip
    if chip is None:
        raise ValueError(f"--batch: the memory of {topology} is not known")

    def peak_of(batch: int) -> int | None:
        value = [f"{option}={batch}"] if joined else [option, str(batch)]
        changed = [*arguments[:at], *value, *arguments[at + 2 - joined :]]
        command = ["--json", "--topology", topology, "--syncs", str(syncs), script, *changed]
        print(f"compiling for {option} {batch}", file=sys.stderr)
        run = subprocess.run(
            [sys.executable, "-m", "torch_xla.aot", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.stdout.endswith("}\n"):
            return int(json.loads(run.stdout.splitlines()[-1])["peak"])
        if _EXHAUSTED in run.stderr:
            return None
        raise RuntimeError(f"{script} failed with {' '.join(value)}:\n{run.stderr[-2000:]}")

    return _search(peak_of, start, int(chip.memory))


# ---------------------------------------------------------------- python -m torch_xla.aot


class _EnoughError(BaseException):
    """Ends the script; no script catches it."""


def _run(script: str, arguments: Sequence[str], syncs: int) -> tuple[str, dict[str, int]]:
    """Runs a script until it has made so many syncs.

    Returns:
        Why the script ended, and what it held then.
    """
    sync, made = step.cut, 0

    def counting_sync(wait: bool = False) -> None:
        nonlocal made
        sync(True)
        made += 1
        if made >= syncs:
            raise _EnoughError

    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    step.cut = counting_sync
    try:
        runpy.run_path(script, run_name="__main__")
    except _EnoughError:
        return f"after {made} syncs", _held()  # The frames of the script still exist.
    except SystemExit as error:
        return f"when the script exited ({error.code or 0})", _held()
    except RuntimeError as error:
        if _READ not in str(error):
            raise
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script]
        where = f"line {own[-1].lineno}: {own[-1].line}" if own else str(error)
        sync(True)  # Traced operations that are not compiled yet belong to the step.
        return f"where the script reads a value, {where}", _held()
    finally:
        step.cut = sync
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
    parser.add_argument(
        "--batch",
        metavar="OPTION",
        help="finds the largest that fits; the script's option for it: --batch=--batch-size",
    )
    parser.add_argument("--json", action="store_true", help="prints bytes as one line of JSON")
    parser.add_argument("script")
    options, arguments = parser.parse_known_args(argv)
    if options.batch:
        _find_option(options.batch, arguments)
    used = _use(options.topology)
    if used is not None and used.platform not in device_counts.startable_platforms():
        try:
            _XLAC._xla_get_devices()
        except RuntimeError as error:  # Before the script, whose traceback would hide it.
            parser.exit(2, f"{parser.prog}: {error}\n")
    _XLAC._set_ir_debug(True)  # Each instruction names its operator and line.
    try:
        ended, held = _run(options.script, arguments, options.syncs)
    except RuntimeError as error:
        if not options.batch or _EXHAUSTED not in str(error):
            raise
        print(f"{options.script} does not fit: {str(error).splitlines()[0]}")
        plan = None
    else:
        plans = _programs_since((), used, held)
        if not plans:
            print(
                f"{options.script} ended {ended}, having compiled nothing on xla", file=sys.stderr
            )
            return 1
        plan = max(plans, key=lambda plan: plan.peak)
        if options.json:
            print(json.dumps({"peak": plan.peak, "fits": plan.fits, **plan.categories()}))
        else:
            count = f"{len(plans)} program{'s' * (len(plans) > 1)}"
            print(f"{options.script}: {count}, ended {ended}; the largest:\n")
            print(plan)
        if options.program:
            write_file(options.program, plan.text())
    if options.batch:
        batch = _batch_of_script(
            options.batch, options.script, arguments, used.text if used else "", options.syncs
        )
        print(f"{options.batch} {batch} is the largest that fits, to 3 %")
    return 1 if plan is None or plan.fits is False else 0


if __name__ == "__main__":
    sys.exit(main())
