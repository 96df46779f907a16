"""Graphs to files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import torch

from torch_xla import _XLAC, runtime
from torch_xla._internal.files.atomic_file import write_file

_numbers = itertools.count()


def save_tensors_graph(save_dir: str, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the graph that tensors are waiting to be computed by, one file for each call.

    Args:
        save_dir: A folder; it is made where it is not there. Each replica has one of its own in
            it, named by its ordinal.
        name: The name of the graph, part of the file's.
        tensors: XLA tensors of any shape and dtype. They are not computed.
    """
    folder = os.path.join(save_dir, str(runtime.global_ordinal()))
    os.makedirs(folder, exist_ok=True)
    text = _XLAC._get_xla_tensors_text(list(tensors))
    write_file(os.path.join(folder, f"graph-{next(_numbers):04d}-{name}"), text)
