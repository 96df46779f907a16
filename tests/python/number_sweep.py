"""Every number slot of PyTorch's operators, 20 values each: how many programs are compiled?

    python tests/python/number_sweep.py [--ops REGEX] [--values 20] [--verbose]

A slot is an argument of an operator in ``torch.testing``'s database that its schema calls a number
or a float. One value may cost one program, and those that a lowering makes use of (an exponent)
two more: what compiles more than three for the values of one slot is listed, and the exit status
is 1. So is 0 for an operator in ``EXCUSES``, which says why.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

LIMIT = 3

# Operator (a regular expression over its whole name) -> why its slots may compile more.
EXCUSES = {
    r"arange|linspace|logspace|range|nn\.functional\.(interpolate|upsample.*)|_upsample_.*": (
        "the number decides a size, or is as good as one"
    ),
    r"nonzero_static|masked_.*|bernoulli|multinomial": "the result's size is in the data",
}


@dataclass(frozen=True)
class Slot:
    """One number argument of one sample: a key of ``kwargs`` or a position in ``args``."""

    name: str
    sample: SampleInput
    key: str | int

    def value(self) -> Any:
        return (
            self.sample.kwargs[self.key]
            if isinstance(self.key, str)
            else self.sample.args[self.key]
        )

    def call(self, op: Callable[..., Any], device: Any, value: Any) -> Any:
        """Calls ``op`` on ``device`` with another value in the slot."""

        def move(x: Any) -> Any:
            return x.detach().to(device) if isinstance(x, torch.Tensor) else x

        given = tree_map(move, (self.sample.input, self.sample.args, self.sample.kwargs))
        tensor, args, kwargs = given[0], list(given[1]), dict(given[2])
        if isinstance(self.key, str):
            kwargs[self.key] = value
        else:
            args[self.key] = value
        return op(tensor, *args, **kwargs)


def _number_arguments(op: OpInfo) -> tuple[set[str], set[int]]:
    """Names and positions (after the input) that an overload calls a number or a float."""
    names: set[str] = set()
    positions: set[int] = set()
    base = (op.aten_name or op.name).split(".")[-1]
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or not hasattr(packet, "overloads"):
        return names, positions
    for overload in packet.overloads():
        for i, argument in enumerate(getattr(packet, overload)._schema.arguments):
            if re.fullmatch(
                r"(number|float|Scalar)(\?|\[\])?|Optional\[(number|float)\]", str(argument.type)
            ):
                names.add(argument.name)
                positions.add(i - 1)
    return names, positions


def slots_of(op: OpInfo, dtype: torch.dtype) -> Iterator[Slot]:
    """One slot for each argument, at the first sample that gives it."""
    names, positions = _number_arguments(op)
    seen: set[str | int] = set()
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        found: list[str | int] = [
            i
            for i, value in enumerate(sample.args)
            if isinstance(value, float) or (type(value) is int and i in positions)
        ]
        found += [
            name
            for name, value in sample.kwargs.items()
            if isinstance(value, float) or (type(value) is int and name in names)
        ]
        for key in found:
            if key not in seen:
                seen.add(key)
                yield Slot(f"{op.formatted_name}({key})", sample, key)


def values_of(slot: Slot, op: Callable[..., Any], count: int) -> list[Any]:
    """Values about the sample's that the CPU takes, and whose results have one shape and dtype."""
    base, values, expected = slot.value(), [], None
    for k in range(3 * count):
        value = base + (k if isinstance(base, int) else 0.013 * k * max(1.0, abs(base)))
        if isinstance(value, float) and not value < 1e6:
            value = 0.37 + 0.01 * k
        if value in (0, 1):  # special, as everywhere
            continue
        try:
            result = slot.call(op, "cpu", value)
        except Exception:  # noqa: BLE001 - what the CPU refuses is no value
            continue
        kind = [(x.shape, x.dtype) for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if expected is None:
            expected = kind
        if kind == expected:
            values.append(value)
        if len(values) == count:
            break
    return values


def compiles(slot: Slot, op: Callable[..., Any], values: list[Any]) -> tuple[int, str]:
    """How many programs the calls compile, and an error where there is one."""
    device = xm.xla_device()
    torch_xla.sync(wait=True)
    before = met.counter_value("UncachedCompile") or 0
    try:
        for value in values:
            torch.manual_seed(0)
            result = slot.call(op, device, value)  # noqa: F841 - held, or nothing is computed
            torch_xla.sync(wait=True)
    except Exception as error:  # noqa: BLE001 - another test's affair
        return 0, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return (met.counter_value("UncachedCompile") or 0) - before, ""


def excuse(name: str) -> str | None:
    return next((why for pattern, why in EXCUSES.items() if re.fullmatch(pattern, name)), None)


def sweep(pattern: str, count: int, verbose: bool = False) -> tuple[dict[str, int], list[str]]:
    """Returns the compiles of each slot, and the slots that have too many."""
    results: dict[str, int] = {}
    bad: list[str] = []
    for op in op_db:
        if not re.search(pattern, op.formatted_name):
            continue
        dtype = torch.float32 if torch.float32 in op.dtypes else None
        if dtype is None:
            continue
        try:
            slots = list(slots_of(op, dtype))
        except Exception as error:  # noqa: BLE001 - samples that need what is not here
            print(f"{op.formatted_name}: no samples ({error})")
            continue
        for slot in slots:
            values = values_of(slot, op.op, count)
            if len(values) < 4:
                continue
            number, error = compiles(slot, op.op, values)
            results[slot.name] = number
            why = excuse(op.name)
            if verbose or error or (number > LIMIT and not why):
                print(f"{slot.name}: {number} programs for {len(values)} values {error}")
            if number > LIMIT and not why:
                bad.append(slot.name)
    return results, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="a regular expression over names")
    parser.add_argument("--values", type=int, default=20)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results, bad = sweep(args.ops, args.values, args.verbose)
    counts = sorted(set(results.values()))
    table = ", ".join(f"{n}: {sum(v == n for v in results.values())}" for n in counts)
    print(f"{len(results)} slots; programs of {args.values} values: {table}")
    print(f"{len(bad)} slots compile more than {LIMIT}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
