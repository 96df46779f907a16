"""PyTorch's operator database with sizes as arguments: each operator in several sizes, with poison.

    python tests/python/dynamic_sizes_ops.py [NAME…] [--part 0/2] [--json FILE [--again refuses]]
    python tests/python/dynamic_sizes_ops.py --page FILE…    # the table of docs/dynamic_sizes.md

A sample's dimensions of one size get other sizes, and the operator runs in each of them, then once
more with its gradient. All padding holds NaN and indices out of bounds. An operator *generalizes*
if one program served other sizes than the one that it was compiled for, *refuses* if every size
has a program of its own, and is *wrong* if a result that came out of a bucket differs from the
CPU's. Exits with 1 if one is wrong.

The file of results is written after each operator, and what is in it does not run again, so that a
run that was ended goes on. An operator that ends the process, or hangs, is wrong.
"""

import argparse
import collections
import faulthandler
import itertools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["XLA_DYNAMIC_SIZES"] = "poison"
os.environ["XLA_RECOMPILE_WARNING"] = "0"
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiles twice as fast

import torch
from testing.opinfo import _tolerances
from testing.opinfo_cases import OPS, _samples, dtypes_of
from testing.opinfo_exceptions import CANONICAL, RANDOM, UNINITIALIZED
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

import torch_xla
from torch_xla import _XLAC
from torch_xla.debug import explain, metrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dynamic_sizes.md"
MARK = "<!-- written by tests/python/dynamic_sizes_ops.py -->"
MORE = (0, 1, 8)  # is added to a size
KINDS = ("generalizes", "in part", "refuses", "wrong", "no size")
LIMIT = 900  # seconds of an operator, on a busy machine
RUNNING = {"kind": "wrong", "notes": ["it ended the process, or hung"]}
Values = tuple[tuple[Any, ...], dict[str, Any]]


def resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """A tensor whose dimensions of size `old` have the size `new`, of the same elements."""
    result = tensor.detach()
    for dim, size in enumerate(tensor.shape):
        if size == old:
            result = result.index_select(dim, torch.arange(new) * old // new)
    return result.clone()


def computed(op: OpInfo, values: Values, to: str, grad: bool) -> list[torch.Tensor]:
    """Results on a device, or gradients."""
    leaves: list[torch.Tensor] = []

    def moved(x: Any) -> Any:
        if not torch.is_tensor(x):
            return x
        x = x.to(to)
        if grad and (x.is_floating_point() or x.is_complex()):
            leaves.append(x.requires_grad_())
            return x * 1
        return x

    torch.manual_seed(1)
    args, kwargs = pytree.tree_map(moved, values)
    given = op(*args, **kwargs)
    canonical = CANONICAL.get(op.name)
    results = pytree.tree_leaves(canonical(given, *args, **kwargs) if canonical else given)
    results = [r for r in results if torch.is_tensor(r)]
    if grad:
        outs = [r for r in results if r.requires_grad]
        cotangents = [(1 / (1 + r.detach().abs())).to(r.dtype) for r in outs]
        found = torch.autograd.grad(outs, leaves, cotangents, allow_unused=True) if outs else ()
        results = [g for g in found if g is not None]
    if to == "xla":
        torch_xla.sync()
    return [r.detach().cpu() for r in results]


def cases(op: OpInfo, dtype: torch.dtype, limit: int) -> Iterator[list[Values]]:
    """Samples of an operator, each in several sizes."""
    found = []
    for sample in _samples(op, dtype, None):
        values = ((sample.input, *sample.args), sample.kwargs)
        tensors = [x for x in pytree.tree_leaves(values) if torch.is_tensor(x)]
        sizes = sorted({size for x in tensors for size in x.shape if size > 1})
        if sizes and all(x.layout == torch.strided for x in tensors):
            found.append((values, sizes[:2]))
    limit = min(limit, len(found))
    for values, sizes in (found[i * len(found) // limit] for i in range(limit)):
        for old in sizes:
            yield [
                pytree.tree_map_only(torch.Tensor, lambda x: resized(x, old, old + more), values)  # noqa: B023
                for more in MORE
            ]


def difference(op: OpInfo, got: torch.Tensor, want: torch.Tensor) -> str:
    """How a result differs. Sums have another order in a bucket, so it may by rounding."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, on the CPU {want.dtype}{list(want.shape)}"
    rtol, atol = _tolerances(op, want.dtype) or (0.0, 0.0)
    if want.is_floating_point() and want.element_size() == 1:
        got, want = got.float(), want.float()
    finite = want[want.isfinite()] if want.is_floating_point() else want.new_empty(0)
    largest = finite.abs().max().item() if finite.numel() else 1.0
    try:
        torch.testing.assert_close(
            got, want, rtol=max(rtol, 1e-4), atol=max(atol, 1e-4 * max(1, largest)), equal_nan=True
        )
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def depends_on_rounding(op: OpInfo, values: Values, want: list[torch.Tensor]) -> bool:
    """Whether inputs that differ by rounding have other gradients on the CPU, too.

    The gradient of a factorization of a singular matrix has: matrices of repeated rows are.
    """

    def nudged(x: Any) -> Any:
        if not torch.is_tensor(x) or not (x.is_floating_point() or x.is_complex()):
            return x
        return x * (1 + torch.finfo(x.dtype).eps * torch.randint_like(x.real, -2, 3))

    near = computed(op, pytree.tree_map(nudged, values), "cpu", True)
    return any(difference(op, n, w) for n, w in zip(near, want, strict=True))


def _count() -> int:
    return metrics.counter_value("DynamicSizes") or 0


def _compilations() -> int:
    last = explain.last()
    return last.number if last else 0


def _reasons(after: int) -> set[str]:
    """Why programs that were compiled since then keep their sizes."""
    notes = (r for found in explain.all() if found.number > after for r in found.reasons)
    return {r.text for r in notes if r.kind == "sizes" and "are part of" in r.text}


def check(op: OpInfo, grad: bool, limit: int) -> dict[str, Any]:
    """What became of an operator: its kind, and notes that say why."""
    served, tried, refused = 0, 0, set()
    dtype = dtypes_of(op)[0]
    torch.manual_seed(0)
    for sizes in cases(op, dtype, limit):
        torch_xla.sync()
        # The CPU divides by the number of another row, or reads a permutation that nobody set.
        if (grad and sizes[0][1].get("scale_grad_by_freq")) or sizes[0][1].get("driver") == "gelsy":
            continue
        for k, values in enumerate(sizes):
            try:
                want = computed(op, values, "cpu", grad)
            except Exception:  # noqa: BLE001 - the size does not fit the operator
                break
            before, compiled = _count(), _compilations()
            try:
                got = computed(op, values, "xla", grad)
            except Exception as error:  # noqa: BLE001 - it is reported
                if k == 0:
                    break
                return {"kind": "wrong", "notes": [f"{type(error).__name__} {str(error)[:200]}"]}
            in_bucket = _count() > before
            different = [
                text for w, g in zip(want, got, strict=True) if (text := difference(op, g, w))
            ]
            excused = in_bucket and grad and different and depends_on_rounding(op, values, want)
            if different and in_bucket and not excused:
                shapes = [list(x.shape) for x in pytree.tree_leaves(values) if torch.is_tensor(x)]
                return {"kind": "wrong", "notes": [f"{shapes}: {different[0]}"]}
            if different:
                break  # it differs with sizes of its own, too (opinfo_exceptions.py), or is excused
            served += in_bucket
            tried += k > 0
            if k and not in_bucket:
                refused |= _reasons(compiled)
                break
    kind = ("in part" if refused else "generalizes") if served else "refuses"
    return {"kind": kind if tried else "no size", "notes": sorted(refused)}


def run(
    names: list[str], done: set[str], limit: int, tell: Callable[[str, dict[str, Any]], None]
) -> None:
    """Checks operators, each forward and with its gradient."""
    for name in names:
        op = OPS[name]
        forward: dict[str, Any] = {}
        for grad in (False, True):
            title = name + (" gradient" if grad else "")
            if title in done or name in RANDOM | UNINITIALIZED or not dtypes_of(op):
                continue
            if grad and not (op.supports_autograd and dtypes_of(op)[0] in op.backward_dtypes):
                continue
            tell(title, RUNNING)
            _XLAC._xla_clear_programs()
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.perf_counter()
                # The graph of a gradient has the forward in it.
                refused = forward.get("kind") == "refuses"
                found = dict(forward) if refused else check(op, grad, limit)
                forward = found
            faulthandler.cancel_dump_traceback_later()
            found["seconds"] = round(time.perf_counter() - start, 1)
            tell(title, found)


def why(note: str) -> str:
    """A refusal without the sizes and the line."""
    note = re.sub("of family [0-9a-f]+", "of its family", note)
    node, _, reason = note.removeprefix("sizes are part of the program: ").partition(": ")
    return f"{node.split()[0]}: {reason}" if reason else note


def table(found: dict[str, dict[str, Any]]) -> str:
    """The counts and the reasons, as Markdown."""
    ran = len({name.removesuffix(" gradient") for name in found})
    lines = [
        f"{ran} of the {len(OPS)} operators ran; the others are random, or have no values:",
        "",
    ]
    lines += ["| | " + " | ".join(KINDS) + " |", "|---|" + "---|" * len(KINDS)]
    for title, of_grad in (("forward", False), ("gradient", True)):
        counts = collections.Counter(
            one["kind"] for name, one in found.items() if name.endswith(" gradient") == of_grad
        )
        lines.append(f"| {title} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |")
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for name, one in found.items():
        for reason in {re.sub(r"^[\w:]+: (?!no rule)", "", why(note)) for note in one["notes"]}:
            reasons[reason].append(name)
    lines += ["", "| refused, because | operators and gradients |", "|---|---|"]
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    lines += [f"| {reason.replace('|', '/')} | {len(names)} |" for reason, names in ordered[:25]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="0/1", help="this part of so many")
    parser.add_argument("--samples", type=int, default=4, help="of each operator")
    parser.add_argument("--json", help="a file for the results, and of those of a run before")
    parser.add_argument("--again", nargs="+", default=[], help="kinds in the file that run again")
    parser.add_argument("--page", nargs="+", help="write the page from these files")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    if args.page:
        for file in args.page:
            found.update(json.loads(Path(file).read_text()))
        before, _, after = PAGE.read_text().split(MARK)
        PAGE.write_text(f"{before}{MARK}\n\n{table(found)}\n\n{MARK}{after}")
        return

    file = Path(args.json or os.devnull)
    if args.json and file.exists():
        found.update(json.loads(file.read_text()))
    done = {name for name, one in found.items() if one["kind"] not in args.again}

    def tell(name: str, one: dict[str, Any]) -> None:
        found[name] = one
        file.write_text(json.dumps(found, indent=1))
        if one is RUNNING:
            return
        notes = "; ".join(sorted(set(map(why, one["notes"]))))
        print(f"{one['kind']:12} {name:50} {one['seconds']:6.1f} s  {notes}", flush=True)

    part, parts = map(int, args.part.split("/"))
    names = args.names or list(itertools.islice(OPS, part, None, parts))
    run(names, done, args.samples, tell)
    print(table(found))
    sys.exit(any(one["kind"] == "wrong" for one in found.values()))


if __name__ == "__main__":
    main()
