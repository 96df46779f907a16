"""Comparing the tensors of two runs of a model, for example on the CPU and on xla.

In both: ``configure(folder)`` once, ``save("layer1", output)`` in the model's code. Then
``compare(folder1, folder2)``, or ``python -m torch_xla.debug.model_comparator folder1 folder2``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from collections import defaultdict

import torch

from torch_xla import runtime
from torch_xla._internal.files.atomic_file import atomic_write

_state = threading.local()


def compare_tensors(
    tensor1: torch.Tensor,
    tensor2: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str | None:
    """Says how two tensors differ.

    Args:
        tensor1: A tensor.
        tensor2: Another one.
        rtol: How much elements may differ, relative to ``tensor2``'s.
        atol: How much they may differ beyond that.
        max_diffs: How many elements to name at most.

    Returns:
        None where they agree; else a text.
    """
    if tensor1.dtype != tensor2.dtype:
        return f"dtypes differ: {tensor1.dtype} vs. {tensor2.dtype}"
    if tensor1.shape != tensor2.shape:
        return f"shapes differ: {list(tensor1.shape)} vs. {list(tensor2.shape)}"
    tensor1, tensor2 = tensor1.detach().cpu(), tensor2.detach().cpu()
    different = ~torch.isclose(tensor1, tensor2, rtol=rtol, atol=atol, equal_nan=True)
    places = different.nonzero().tolist()
    if not places:
        return None
    lines = [f"{len(places)} of {tensor1.numel()} elements differ (rtol={rtol}, atol={atol})"]
    for place in places[:max_diffs]:
        a, b = tensor1[tuple(place)].item(), tensor2[tuple(place)].item()
        lines.append(f"  {place}: {a} vs. {b}")
    if len(places) > max_diffs:
        lines.append(f"  and {len(places) - max_diffs} more")
    return "\n".join(lines)


def configure(save_dir: str) -> None:
    """Says where this thread's :func:`save` writes, and counts its steps from 0."""
    os.makedirs(save_dir, exist_ok=True)
    _state.folder = save_dir
    _state.steps = defaultdict(int)


def save(name: str, tensor: torch.Tensor, step: int | None = None) -> None:
    """Writes a tensor, if :func:`configure` was called.

    Args:
        name: What it is.
        tensor: Of any shape, dtype and device; it is computed.
        step: The how-manieth of that name it is; they are counted when None.
    """
    folder = getattr(_state, "folder", None)
    if folder is None:
        return
    if step is None:
        step = _state.steps[name]
        _state.steps[name] += 1
    safe = re.sub(r"[^\w.-]", "_", name)
    path = os.path.join(folder, f"{safe}.{step}.{runtime.global_ordinal()}.pt")
    with atomic_write(path, sync=False) as file:
        torch.save(tensor.detach().cpu(), file)


def tensor_file_compare(
    path1: str, path2: str, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str | None:
    """The same as :func:`compare_tensors` for the tensors in two files."""
    return compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)


def compare(
    save_dir1: str,
    save_dir2: str,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str | None:
    """Says how the tensors in two folders differ.

    Args:
        save_dir1: A folder that :func:`save` has written to.
        save_dir2: Another one.
        rtol: See :func:`compare_tensors`.
        atol: The same.
        max_diffs: The same.

    Returns:
        None where they agree; else a text that names the files.
    """
    files1, files2 = set(os.listdir(save_dir1)), set(os.listdir(save_dir2))
    lines = [f"{name}: only in {save_dir1}" for name in sorted(files1 - files2)]
    lines += [f"{name}: only in {save_dir2}" for name in sorted(files2 - files1)]
    for name in sorted(files1 & files2):
        path1, path2 = os.path.join(save_dir1, name), os.path.join(save_dir2, name)
        if found := tensor_file_compare(path1, path2, rtol, atol, max_diffs):
            lines.append(f"{name}: {found}")
    return "\n".join(lines) or None


def main() -> None:
    """Compares two folders; its exit status says whether they agree."""
    parser = argparse.ArgumentParser(description=compare.__doc__)
    parser.add_argument("save_dir1")
    parser.add_argument("save_dir2")
    parser.add_argument("--rtol", type=float, default=1e-05)
    parser.add_argument("--atol", type=float, default=1e-08)
    parser.add_argument("--max_diffs", type=int, default=25)
    report = compare(**vars(parser.parse_args()))
    if report:
        print(report)
    sys.exit(1 if report else 0)


if __name__ == "__main__":
    main()
