"""The cost of a search for NaN, of a printed line and of a call of the host.

    python benchmarks/find_nan.py

Steps of the same model with and without the search take turns. Milliseconds a step and seconds for
the first one; microseconds a call while it is traced. Medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from torch_xla import debug

ROUNDS, STEPS, CALLS = 6, 5, 300


def _model() -> Callable[[], float]:
    layers = (nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(4))
    model = nn.Sequential(*layers).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 64, 128).to("xla")

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    step = _model()
    first = {"plain": _seconds(step)}
    with debug.find_nan():
        first["search"] = _seconds(step)
    times: dict[str, list[float]] = {"plain": [], "search": []}
    for _ in range(ROUNDS):
        times["plain"] += [_seconds(step) for _ in range(STEPS)]
        with debug.find_nan():
            step()
            times["search"] += [_seconds(step) for _ in range(STEPS)]
    for name, values in times.items():
        print(
            f"{name:<8}{1e3 * statistics.median(values):8.1f} ms a step, first {first[name]:.2f} s"
        )
    ratio = statistics.median(times["search"]) / statistics.median(times["plain"])
    print(f"search / plain {ratio:.2f}")

    x = torch.ones((), device="xla")

    def record(array: torch.Tensor) -> None:
        del array

    calls: dict[str, Callable[[], None]] = {
        "callback": lambda: debug.callback(record, x),
        "print": lambda: debug.print("", x),
    }
    for name, call in calls.items():
        call()
        debug.flush()
        print(f"{name:<8}{1e6 * _seconds(lambda: [call() for _ in range(CALLS)]) / CALLS:8.1f} us")  # noqa: B023
        debug.flush()


if __name__ == "__main__":
    main()
