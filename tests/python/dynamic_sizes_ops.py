"""PyTorch's operator database with sizes as arguments: each operator in several sizes, with poison.

    python tests/python/dynamic_sizes_ops.py [--ops NAME…] [--json FILE]

A sample's dimensions of one size get other sizes, and the operator runs in each of them, forward
and with its gradient, behind and before elementwise operations. Its padding holds NaN and indices
out of bounds. An operator generalizes if a program served another size, is refused if every size
has its own, and is wrong if a result differs from the CPU's.
"""

import argparse
import collections
import json
import os
import sys

os.environ["XLA_DYNAMIC_SIZES"] = "poison"
os.environ["XLA_RECOMPILE_WARNING"] = "0"

import torch
from testing.opinfo_cases import OPS
from torch.utils import _pytree as pytree

import torch_xla
from torch_xla.debug import metrics

SIZES = (1, 3, 8)  # are added
SAMPLES = 6


def resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """A tensor whose dimensions of size `old` have the size `new`, of the same elements."""
    result = tensor.detach()
    for dim, size in enumerate(tensor.shape):
        if size == old:
            result = result.index_select(dim, torch.arange(new) % old)
    return result.clone()


def computed(op, args, kwargs, to: str):
    """Results and gradients on a device."""
    leaves = []

    def moved(x):
        if not torch.is_tensor(x):
            return x
        x = x.to(to)
        if x.is_floating_point():
            leaves.append(x.requires_grad_())
            return x * 1
        return x

    args, kwargs = pytree.tree_map(moved, (args, kwargs))
    results = [r for r in pytree.tree_leaves(op.op(*args, **kwargs)) if torch.is_tensor(r)]
    results = [r + 0 if r.dtype != torch.bool else r for r in results]
    loss = sum((r * r.detach().cos()).sum() for r in results if r.requires_grad)
    if torch.is_tensor(loss) and op.supports_autograd:
        loss.backward()
    torch_xla.sync()
    grads = [x.grad for x in leaves if x.grad is not None]
    return [r.detach().cpu() for r in results + grads]


def check(op) -> tuple[str, str]:
    """What became of an operator: ("right" | "wrong" | "refused" | "none", a note)."""
    seen, sizes_tried = "none", 0
    count = lambda: metrics.counter_value("DynamicSizes") or 0  # noqa: E731
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=False)
    for _, sample in zip(range(SAMPLES), samples, strict=False):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
        for old in sorted({size for x in tensors for size in x.shape if size > 1})[:2]:
            for more in (0, *SIZES):
                given = pytree.tree_map(
                    lambda x: resized(x, old, old + more) if torch.is_tensor(x) else x,  # noqa: B023
                    (args, kwargs),
                )
                try:
                    want = computed(op, *given, "cpu")
                except Exception:
                    break
                before = count()
                try:
                    got = computed(op, *given, "xla")
                except Exception as error:
                    if more == 0:
                        break
                    return "wrong", f"{old}+{more}: {type(error).__name__} {str(error)[:200]}"
                sizes_tried += more > 0
                for k, (w, g) in enumerate(zip(want, got, strict=True)):
                    if w.shape != g.shape or not torch.allclose(
                        w.to(torch.complex128), g.to(torch.complex128), 1e-3, 1e-3, equal_nan=True
                    ):
                        if count() == before:  # not by a bucket
                            break
                        return "wrong", f"{old}+{more}: result {k} {tuple(w.shape)}"
                if count() > before:
                    seen = "right"
    return ("refused" if seen == "none" and sizes_tried else seen), ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", nargs="*", default=[])
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--json")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    outcome = {}
    for i, (name, op) in enumerate(OPS.items()):
        if (args.ops and name not in args.ops) or i % parts != part:
            continue
        if torch.float32 not in op.dtypes:
            continue
        try:
            outcome[name] = check(op)
        except Exception as error:
            outcome[name] = ("none", str(error)[:100])
        if outcome[name][0] == "wrong":
            print(name, *outcome[name], flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(outcome, file)
    print(dict(collections.Counter(kind for kind, _ in outcome.values())))
    sys.exit(any(kind == "wrong" for kind, _ in outcome.values()))


if __name__ == "__main__":
    main()
