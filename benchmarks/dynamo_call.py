"""What the host does in a call of a function compiled by torch.compile(backend="openxla").

python benchmarks/dynamo_call.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.core import dynamo_bridge


def best(call: Callable[[], Any]) -> float:
    """Returns the least time of a call, in microseconds; the device is idle before each few."""
    times = []
    for _ in range(50):
        xm.wait_device_ops()
        start = time.perf_counter()
        for _ in range(4):
            call()
        times.append((time.perf_counter() - start) / 4)
    return min(times) * 1e6


def measure(inputs: list[torch.Tensor], made: list[Any]) -> None:
    """Prints the line of a number of inputs."""
    run = torch.compile(lambda *xs: sum(x[0] for x in xs), backend="openxla", dynamic=False)
    run(*inputs)
    graph = made[-1]
    print(
        f"{len(inputs):3} inputs: call {best(lambda: run(*inputs)):5.1f} us, "
        f"bridge {best(lambda: graph(inputs)):5.1f} us, "
        f"program {best(lambda: graph._program(inputs)):5.1f} us"
    )


def main() -> None:
    """Prints a line for each number of inputs."""
    made = []
    make = dynamo_bridge._Program.__init__

    def note(self: Any, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    dynamo_bridge._Program.__init__ = note
    for count in (1, 10, 100):
        inputs = [torch.ones(2, device="xla") for _ in range(count)]
        torch_xla.sync(wait=True)
        with torch.no_grad():
            measure(inputs, made)


if __name__ == "__main__":
    main()
