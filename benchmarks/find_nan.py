"""The cost of a search for NaN, of anomaly mode, of a printed line and of a call of the host.

    python benchmarks/find_nan.py

Steps of the same model without and with each take turns. Milliseconds of the processor a step and
seconds for the first one; microseconds a call while it is traced. Medians.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from torch_xla import debug

ROUNDS, STEPS, CALLS = 8, 4, 300


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
    """Of the processor: what other work on the machine changes least."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    step = _model()
    modes: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "plain": contextlib.nullcontext,
        "search": debug.find_nan,
        # PyTorch keeps the stack of each operation of the forward pass.
        "stacks": lambda: torch.autograd.detect_anomaly(check_nan=False),
        "anomaly": torch.autograd.detect_anomaly,
    }
    first: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in modes}
    warnings.filterwarnings("ignore", message="Anomaly Detection")
    for _ in range(ROUNDS):
        for name, mode in modes.items():
            with mode():
                first.setdefault(name, _seconds(step))
                step()
                times[name] += [_seconds(step) for _ in range(STEPS)]
    plain = statistics.median(times["plain"])
    for name, values in times.items():
        took = statistics.median(values)
        print(
            f"{name:<8}{1e3 * took:8.1f} ms a step, {took / plain:.2f} x, first {first[name]:.2f} s"
        )

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
