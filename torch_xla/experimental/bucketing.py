"""Batches of unequal sizes, padded to a few: each size of a batch is a program to compile."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def _padded(tensor: torch.Tensor, dim: int, size: int, value: float) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = size
    padded = tensor.new_full(shape, value)
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return padded


def _fitting(length: int, sizes: Sequence[int], what: str) -> int:
    place = bisect.bisect_left(sizes, length)
    if place == len(sizes):
        raise ValueError(f"Bucketed: expected {what} of at most {sizes[-1]}, got {length}")
    return sizes[place]


class Bucketed:
    """A loader whose batches come in a few sizes, with masks of what was there.

    Tensors of a batch (nested in any way) that have ``dim`` are padded along it to the least of
    ``sizes`` that holds them, and with ``batch_size`` all are padded along the first dimension, as
    the last batch of an epoch needs. It goes between a loader on the host and
    :class:`torch_xla.distributed.parallel_loader.MpDeviceLoader`::

        loader = Bucketed(DataLoader(dataset, 32, collate_fn=pad), [64, 256], batch_size=32)
        for (tokens, labels), mask in MpDeviceLoader(loader, "xla"):
            loss = (losses(model(tokens), labels) * mask).sum() / mask.sum()

    Args:
        loader: Gives batches of tensors on the CPU, whose sizes along ``dim`` are equal.
        sizes: Sizes along ``dim``, in any order.
        dim: Which dimension differs; at least 1.
        value: What is put in.
        batch_size: The size of the first dimension; by default that is left as it is.

    Raises:
        ValueError: There is no size, or ``dim`` is below 1. When it is iterated: a batch is larger
            than the last size or ``batch_size``, its tensors differ in size, or none has ``dim``.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        sizes: Iterable[int],
        dim: int = 1,
        value: float = 0,
        batch_size: int | None = None,
    ) -> None:
        self._loader, self._sizes = loader, sorted(sizes)
        self._dim, self._value, self._batch_size = dim, value, batch_size
        if not self._sizes or dim < 1:
            raise ValueError(
                f"Bucketed: expected sizes and a dim of at least 1, got {self._sizes} and {dim}"
            )

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yields (batch, mask): ``mask`` is bool, [batch, size], true where the batch had data."""
        for batch in self._loader:
            yield self._fit(batch)

    def _fit(self, batch: Any) -> tuple[Any, torch.Tensor]:
        dim = self._dim
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        lengths = {tensor.shape[dim] for tensor in tensors if tensor.dim() > dim}
        rows = {tensor.shape[0] for tensor in tensors if tensor.dim() > 0}
        if len(lengths) != 1 or len(rows) != 1:
            raise ValueError(
                f"Bucketed: expected tensors of one size along dimensions 0 and {dim}, got shapes "
                f"{[list(tensor.shape) for tensor in tensors]}"
            )
        (length,), (count,) = lengths, rows
        size = _fitting(length, self._sizes, f"a size along dimension {dim}")
        total = count
        if self._batch_size is not None:
            total = _fitting(count, [self._batch_size], "a batch")

        def fit(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
                return leaf
            if leaf.dim() > dim and length != size:
                leaf = _padded(leaf, dim, size, self._value)
            return leaf if count == total else _padded(leaf, 0, total, self._value)

        mask = torch.zeros(total, size, dtype=torch.bool)
        mask[:count, :length] = True
        return tree_map(fit, batch), mask


__all__ = ["Bucketed"]
