"""How busy MpDeviceLoader keeps the device: steps with a loader against those without.

    python benchmarks/loader.py [--models small_cnn resnet18] [--device-cores 1] [--json FILE]

One worker of a DataLoader gives a batch in the time of a step: one that waits sleeps for it, as if
it read from a disk or a network, one that computes is busy for it, as if it decoded. Where the
device has all cores (the default) the worker takes its time from the step: "at best" is what the
cores could do of both. All, and the same by eager PyTorch, take turns in one process; the numbers
are medians over rounds of ``--steps`` steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import models
import torch
import workloads

import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader

Batch = tuple[torch.Tensor, ...]

AHEAD = 8  # batches that may have been read while others had their turn
CORES = len(os.sched_getaffinity(0))


def small_cnn() -> models.Workload:
    """The small CNN on 64 images of 3x32x32."""
    workload = workloads.small_cnn_workload()
    return workload._replace(batch=(torch.randn(64, 3, 32, 32), torch.randint(10, (64,))))


MODELS: dict[str, Callable[[], models.Workload]] = {
    "small_cnn": small_cnn,
    "mlp": models.WORKLOADS["mlp"],
    "resnet18": models.WORKLOADS["resnet18"],
}


class Batches(torch.utils.data.Dataset):
    """The same batch again and again, one in so many seconds."""

    def __init__(self, batch: Batch, seconds: float, is_busy: bool) -> None:
        self.batch, self.seconds, self.is_busy = batch, seconds, is_busy
        self.due = 0.0  # of the last batch; the worker has this object to itself

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Batch:
        # From when the last one was due, so that what it takes to send it is not added.
        self.due = max(time.perf_counter(), self.due + self.seconds)
        while self.is_busy and time.perf_counter() < self.due:
            self.batch[0].flatten()[:4096].exp()
        batch = tuple(tensor.clone() for tensor in self.batch)
        time.sleep(max(0.0, self.due - time.perf_counter()))
        return batch


class Runner:
    """Trains one model on one device, from batches that it is given."""

    def __init__(self, name: str, device: str) -> None:
        workload = MODELS[name]()
        self.batch = tuple(workload.batch)
        self.device = torch.device(device)
        self.step = workloads.training(workload, self.device, lambda model: model).step
        if device == "xla":
            self.step = torch_xla.compile(self.step, replay=True)
        batch = tuple(tensor.to(self.device) for tensor in self.batch)
        self.sources: dict[str, Iterator[Batch]] = {"without": itertools.repeat(batch)}

    def run(self, source: str, steps: int) -> tuple[float, float]:
        """Returns seconds of a step, of so many, and those of the processors."""
        batches = self.sources[source]
        for _ in range(AHEAD):
            self.step(*next(batches))
        self._wait()
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step(*next(batches))
        self._wait()
        return (time.perf_counter() - start) / steps, (time.process_time() - busy) / steps

    def _wait(self) -> None:
        if self.device.type == "xla":
            torch_xla.sync(wait=True)

    def load(self, seconds: float) -> None:
        """Starts the workers, which take so long for a batch."""
        for name, is_busy in (("waits", False), ("computes", True)):
            data = Batches(self.batch, seconds, is_busy)
            loader = torch.utils.data.DataLoader(data, None, num_workers=1)
            self.sources[name] = self._on_device(loader)

    def _on_device(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        if self.device.type == "xla":
            yield from MpDeviceLoader(
                loader, self.device, loader_prefetch_size=2, device_prefetch_size=2
            )
        yield from loader


def measure(name: str, rounds: int, steps: int, cores: int) -> dict[str, dict[str, float]]:
    """Returns ms of a step, by backend and source of batches."""
    devices = {"eager": "cpu", "xla": "xla"}
    runners = {backend: Runner(name, device) for backend, device in devices.items()}
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for runner in runners.values():
        runner.run("without", steps)
        runner.load(statistics.median(runner.run("without", steps)[0] for _ in range(3)))
    for _ in range(rounds):
        for backend, runner in runners.items():
            for source in runner.sources:
                taken.setdefault((backend, source), []).append(runner.run(source, steps))
    result: dict[str, dict[str, float]] = {}
    for (backend, source), values in taken.items():
        wall, busy = (1e3 * statistics.median(column) for column in zip(*values, strict=True))
        result.setdefault(backend, {})[source] = wall
        if source == "without":
            shared = cores == CORES
            result[backend]["at best"] = max(wall, (busy + wall) / CORES) if shared else wall
    return result


def main() -> None:
    """Prints a table: ms of a step, and the part of the rate without a loader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=["small_cnn", "resnet18"]
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device-cores", type=int, default=CORES)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    # XLA's threads, and eager's, are as many as the cores that they find when they begin.
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(everywhere)[: arguments.device_cores]))
    torch.set_num_threads(arguments.device_cores)
    torch.ones(2, device="xla").add(1).cpu()
    os.sched_setaffinity(0, everywhere)
    results = {
        name: measure(name, arguments.rounds, arguments.steps, arguments.device_cores)
        for name in arguments.models
    }
    print("| ms a step | without | a worker that waits | one that computes | at best |")
    print("|---|---|---|---|---|")
    for name, backends in results.items():
        for backend, ms in backends.items():
            parts = [f"{ms[x]:.3g} ({ms['without'] / ms[x]:.0%})" for x in list(ms)[2:]]
            columns = [f"{name}, {backend}", f"{ms['without']:.3g}", *parts, f"{ms['at best']:.3g}"]
            print("|", " | ".join(columns), "|")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
