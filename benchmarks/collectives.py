"""All-reduce among replicas on the CPU against plain Gloo, and how a training step scales.

    python benchmarks/collectives.py [--replicas 2] [--max-bytes 268435456] [--json FILE]

Bandwidth: in each replica, blocks of all-reduces of an array on the xla device (one to a step, as
it is traced from Python) and of ``torch.distributed`` with Gloo on a CPU tensor take turns. The
figure is the median over the blocks, in bytes of the array per second. Bar: 0.9 of Gloo's.

Scaling: the training step of train_digits.py, images per second with 1 and with 2 processes of
one batch each: on the xla device with ``xm.optimizer_step``, and in eager PyTorch on the CPU with
DistributedDataParallel. They take turns, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

BLOCKS = 9
BLOCK_SECONDS = 0.15
TRAIN_BLOCKS = 5
TRAIN_STEPS = 30
BATCH = 64


def _spawn(function: Callable[..., Any], count: int, *args: Any) -> list[Any]:
    """Returns what ``function(*args)`` returned in each of ``count`` replicas."""
    import torch_xla.distributed.xla_multiprocessing as xmp

    with tempfile.TemporaryDirectory() as folder:
        os.environ["CPU_NUM_DEVICES"] = str(count)
        if count == 1:
            _save(0, function, folder, args)
        else:
            xmp.spawn(_save, (function, folder, args))
        return [torch.load(f"{folder}/{i}", weights_only=False) for i in range(count)]


def _save(index: int, function: Callable[..., Any], folder: str, args: tuple[Any, ...]) -> None:
    torch.save(function(*args), f"{folder}/{index}")


def _start_gloo() -> None:
    from torch_xla._internal import replication

    place = replication.topology()
    store = dist.PrefixStore("benchmark", replication.store())
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world_size)


def _bandwidths(sizes: list[int]) -> list[dict[str, float]]:
    import torch_xla
    import torch_xla.core.xla_model as xm

    _start_gloo()
    results = []
    for size in sizes:
        cpu = torch.zeros(size // 4)
        xla = torch.zeros(size // 4, device=xm.xla_device())

        def run_gloo(count: int, cpu: torch.Tensor = cpu) -> None:
            for _ in range(count):
                dist.all_reduce(cpu)

        def run_xla(count: int, xla: torch.Tensor = xla) -> None:
            for _ in range(count):
                xm.all_reduce(xm.REDUCE_SUM, [xla])
                torch_xla.sync()
            xm.wait_device_ops()

        run_xla(3)
        start = time.perf_counter()
        run_gloo(3)
        # As many on every replica.
        count = torch.tensor([max(1, int(BLOCK_SECONDS * 3 / (time.perf_counter() - start)))])
        dist.broadcast(count, 0)
        times: dict[str, list[float]] = {"gloo": [], "xla": []}
        for _ in range(BLOCKS):
            for name, run in (("gloo", run_gloo), ("xla", run_xla)):
                dist.barrier()
                start = time.perf_counter()
                run(int(count))
                times[name].append((time.perf_counter() - start) / int(count))
        results.append(
            {"bytes": size, **{name: statistics.median(values) for name, values in times.items()}}
        )
    dist.destroy_process_group()
    return results


def _train(kind: str) -> list[float]:
    """Images per second of one process, block by block."""
    from torch import nn
    from train_digits import DigitsNet, load_data

    torch.manual_seed(0)
    model = DigitsNet(0.25)
    images, labels = load_data()[0][:BATCH]
    if kind == "xla":
        import torch_xla.core.xla_model as xm

        device = xm.xla_device()
        model, images, labels = model.to(device), images.to(device), labels.to(device)
    else:
        from torch_xla._internal import replication

        # The cores are shared as they are between the xla replicas.
        torch.set_num_threads(max(1, os.cpu_count() // replication.topology().world_size))
        if replication.topology().world_size > 1:
            _start_gloo()
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(model(images), labels).backward()
            if kind == "xla":
                xm.optimizer_step(optimizer, barrier=True)
            else:
                optimizer.step()
        if kind == "xla":
            xm.wait_device_ops()

    run(5)
    speeds = []
    for _ in range(TRAIN_BLOCKS):
        start = time.perf_counter()
        run(TRAIN_STEPS)
        speeds.append(TRAIN_STEPS * BATCH / (time.perf_counter() - start))
    return speeds


def _scaling(rounds: int) -> dict[str, dict[int, float]]:
    speeds: dict[str, dict[int, list[float]]] = {kind: {1: [], 2: []} for kind in ("xla", "eager")}
    for _ in range(rounds):
        for count in (1, 2):
            for kind in ("xla", "eager"):
                blocks = _spawn(_train, count, kind)
                speeds[kind][count] += [sum(each) for each in zip(*blocks, strict=True)]
    return {
        kind: {count: statistics.median(values) for count, values in by_count.items()}
        for kind, by_count in speeds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--max-bytes", type=int, default=256 << 20)
    parser.add_argument("--rounds", type=int, default=2, help="of the scaling; 0 leaves it out")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    sizes = []
    size = 1 << 10
    while size <= args.max_bytes:
        sizes.append(size)
        size *= 4
    results = _spawn(_bandwidths, args.replicas, sizes)[0]
    print(f"all-reduce, {args.replicas} replicas     gloo MB/s    xla MB/s   xla / gloo")
    for row in results:
        gloo, xla = (row["bytes"] / row[name] / 1e6 for name in ("gloo", "xla"))
        print(f"{row['bytes']:>12} bytes {gloo:>17.1f} {xla:>11.1f} {xla / gloo:>12.2f}")
    found: dict[str, Any] = {"all_reduce": results}
    if args.rounds:
        scaling = found["scaling"] = _scaling(args.rounds)
        for kind, speeds in scaling.items():
            print(
                f"digits step, {kind}: {speeds[1]:.0f} images/s with 1 process, "
                f"{speeds[2]:.0f} with 2: {speeds[2] / speeds[1]:.2f} x"
            )
    if args.json:
        Path(args.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
