"""Sums over the threads of a process that train on a device each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

_local = threading.local()


class ThreadGroup:
    """As many threads as there are devices, which make the same calls in the same order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: list[Sequence[torch.Tensor]] = [()] * size

    @contextlib.contextmanager
    def member(self, index: int) -> Iterator[None]:
        """Makes this thread member ``index`` inside the block."""
        _local.place = (self, index)
        try:
            yield
        finally:
            _local.place = None

    def abort(self) -> None:
        """Makes the calls of all members raise threading.BrokenBarrierError."""
        self._barrier.abort()

    def combine(
        self,
        index: int,
        tensors: Sequence[torch.Tensor],
        operation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> list[torch.Tensor]:
        """Returns the combined tensors of all members, on the devices of this member's tensors.

        All combine them in the same order, and get the same bits.
        """
        # A copy to another device cuts the graph of the tensor.
        self._given[index] = [tensor.detach().cpu() for tensor in tensors]
        self._barrier.wait()
        results = []
        for position, own in enumerate(tensors):
            total, *others = [given[position] for given in self._given]
            for other in others:
                total = operation(total, other)
            results.append(total.to(own.device))
        self._barrier.wait()  # Nobody may give new tensors before all have taken these.
        return results


def current() -> tuple[ThreadGroup, int] | None:
    """Returns the group of this thread and the thread's index in it; None if there is no group."""
    place: tuple[ThreadGroup, int] | None = getattr(_local, "place", None)
    return place
