"""The operators that FSDP2 defines for each device type by name, for xla."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# A slow import of PyTorch's defines the operators; an implementation may come before it.
_library = torch.library.Library("fsdp", "IMPL", "XLA")


def _all_gather_copy_in(
    inputs: Sequence[torch.Tensor],
    output: torch.Tensor,
    sizes: Sequence[int],
    count: int,
    rank: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns input and output of the all-gather; here the input is no part of the output."""
    with torch.no_grad():
        return torch.cat([tensor.reshape(-1).to(output.dtype) for tensor in inputs]), output


def _split_with_sizes_copy(
    output: torch.Tensor, sizes: Sequence[int], dim: int = 0, *, out: Sequence[torch.Tensor]
) -> None:
    for target, part in zip(out, output.split_with_sizes(list(sizes), dim), strict=True):
        target.copy_(part)


def _chunk_cat(
    tensors: Sequence[torch.Tensor], dim: int, num_chunks: int, out: torch.Tensor
) -> None:
    out.copy_(torch._chunk_cat(list(tensors), dim, num_chunks))


def register() -> None:
    """At import."""
    _library.impl("all_gather_copy_in", _all_gather_copy_in)
    _library.impl("split_with_sizes_copy", _split_with_sizes_copy)
    _library.impl("chunk_cat", _chunk_cat)
