"""What a step cannot be faster than on this machine, by its own products and its memory traffic.

The products (matrix products, convolutions and their gradients, attention) are those that eager
PyTorch calls in a step; each is timed alone, at its own shapes and strides, by PyTorch's libraries
(oneDNN, MKL). To that comes the least traffic of an optimizer: it reads and writes parameters and
state, and reads gradients, at the bandwidth of a triad. What is elementwise is taken to cost
nothing, as if it were fused with the products.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from workloads import Job

_PRODUCTS = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}


@dataclasses.dataclass(frozen=True)
class _Like:
    """What a tensor looks like."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        return tensor.normal_() if self.dtype.is_floating_point else tensor.zero_()


class _Products(TorchDispatchMode):
    """Collects the products that are called: how often, and what of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[tuple[Any, str], tuple[int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _PRODUCTS:
            arguments = tree_map_only(
                torch.Tensor,
                lambda x: _Like(tuple(x.shape), x.stride(), x.dtype),
                (args, kwargs or {}),
            )
            key = func, repr(arguments)
            count, _ = self.calls.get(key, (0, None))
            self.calls[key] = count + 1, arguments
        return func(*args, **(kwargs or {}))


def least_time(function: Callable[[], Any], seconds: float = 0.1) -> float:
    """Returns the least seconds of many calls, and of five at least."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def bandwidth() -> float:
    """Returns bytes a second of a = b + c * s over 64 MB each."""
    a, b, c = (torch.ones(1 << 24) for _ in range(3))
    return 3 * a.nbytes / least_time(lambda: torch.add(b, c, alpha=0.5, out=a), 0.5)


def products(job: Job) -> float:
    """Returns the least seconds that the products of an eager step take."""
    with _Products() as found:
        job.step(*next(job.batches))
    total = 0.0
    for (function, _), (count, arguments) in found.calls.items():
        args, kwargs = tree_map_only(_Like, _Like.make, arguments)
        with torch.no_grad():
            total += count * least_time(functools.partial(function, *args, **kwargs))
    return total


def optimizer_bytes(job: Job) -> int:
    """Returns the bytes that the optimizer reads and writes in a step, after one."""
    if job.optimizer is None:
        return 0
    parameters = sum(p.nbytes for p in job.model.parameters())
    state = sum(
        x.nbytes
        for values in job.optimizer.state.values()
        for x in values.values()
        if isinstance(x, torch.Tensor)
    )
    return 2 * (parameters + state) + parameters
