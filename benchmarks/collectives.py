"""All-reduce among replicas on the CPU against plain Gloo, and how training steps scale.

    python benchmarks/collectives.py [--replicas 2] [--max-bytes 268435456] [--json FILE]
    python benchmarks/collectives.py --replicas 0 --models --ranks 8 64

Bandwidth: in each replica, blocks of all-reduces of an array on the xla device (one to a step, as
it is traced from Python) and of ``torch.distributed`` with Gloo on a CPU tensor take turns. The
figure is the median over the blocks, in bytes of the array per second. Bar: 0.9 of Gloo's.

Scaling: a model's training steps, samples per second with 1 and with 2 processes of one batch
each: on the xla device with ``xm.reduce_gradients``, and in eager PyTorch on the CPU with
DistributedDataParallel. They take turns, too.

Coordination: what an all-reduce of four bytes adds to a step of one operation among so many
replicas, which share the cores: the processor's time of a replica, the least of the blocks'. And
what it adds to a step that reduces in a group of its own and sleeps a moment, which is what telling
the others takes: who waits finds the caches full of the others' data when it goes on, whatever it
waited for.
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

import models
import torch
import torch.distributed as dist
import workloads
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

BLOCKS = 9
BLOCK_SECONDS = 0.15
TRAIN_BLOCKS = 5


def spawn(function: Callable[..., Any], count: int, *args: Any) -> list[Any]:
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
    from torch_xla._internal.replicas import replication

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


def digits_workload() -> models.Workload:
    """The net of train_digits.py on 64 images; SGD."""
    from train_digits import DigitsNet, load_data

    images, labels = load_data()[0][:64]
    return models.Workload(DigitsNet(0.25), models.sgd, (images, labels), nn.CrossEntropyLoss())


# With the steps of a block.
MODELS: dict[str, tuple[Callable[[], models.Workload], int]] = {
    "digits": (digits_workload, 30),
    "resnet18": (models.resnet18_workload, 3),
    "bert": (models.bert_workload, 2),
}


def _train(kind: str, name: str) -> list[float]:
    """Samples per second of one process, block by block."""
    torch.manual_seed(0)
    make, steps = MODELS[name]
    workload = make()
    if kind == "xla":
        import torch_xla
        import torch_xla.core.xla_model as xm

        job = workloads.training(workload, torch_xla.device(), lambda model: model)
        job.optimizer.register_step_pre_hook(lambda optimizer, *_: xm.reduce_gradients(optimizer))
        sync, wait = torch_xla.sync, xm.wait_device_ops
    else:
        from torch_xla._internal.replicas import replication

        # The cores are shared as they are between the xla replicas.
        processes = replication.topology().world_size
        torch.set_num_threads(max(1, os.cpu_count() // processes))
        if processes > 1:
            _start_gloo()
            model = nn.parallel.DistributedDataParallel(
                workload.model, gradient_as_bucket_view=True
            )
            workload = workload._replace(model=model)
        job = workloads.training(workload, torch.device("cpu"), lambda model: model)
        sync = wait = lambda: None

    def run(count: int) -> None:
        for _ in range(count):
            job.step(*next(job.batches))
            sync()
        wait()

    run(5)
    speeds = []
    for _ in range(TRAIN_BLOCKS):
        start = time.perf_counter()
        run(steps)
        speeds.append(steps * len(workload.batch[0]) / (time.perf_counter() - start))
    return speeds


def _scaling(name: str, rounds: int) -> dict[str, dict[int, float]]:
    speeds: dict[str, dict[int, list[float]]] = {kind: {1: [], 2: []} for kind in ("xla", "eager")}
    for _ in range(rounds):
        for count in (1, 2):
            for kind in ("xla", "eager"):
                blocks = spawn(_train, count, kind, name)
                speeds[kind][count] += [sum(each) for each in zip(*blocks, strict=True)]
    return {
        kind: {count: statistics.median(values) for count, values in by_count.items()}
        for kind, by_count in speeds.items()
    }


def _coordination(steps: int) -> dict[str, float]:
    """Seconds of this process that an all-reduce takes, by what a step does in its place."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._internal.replicas import replication

    torch.set_num_threads(1)
    x = torch.zeros(1, device=torch_xla.device())
    alone = [[rank] for rank in range(replication.topology().world_size)]

    def reduce(groups: list[list[int]] | None = None) -> None:
        xm.all_reduce(xm.REDUCE_SUM, [x], scale=0.5, groups=groups)

    def reduce_alone_and_sleep() -> None:
        reduce(alone)
        time.sleep(1e-3)

    ends: dict[str, Callable[[], None]] = {
        "reduces": reduce,
        "runs on": lambda: None,
        "reduces alone and sleeps": reduce_alone_and_sleep,
    }

    def run(end: Callable[[], None]) -> float:
        start = time.process_time()
        for _ in range(steps):
            x.add_(1)
            end()
            torch_xla.sync(wait=True)
        return (time.process_time() - start) / steps

    for end in ends.values():
        run(end)
    least = {name: min(run(end) for _ in range(BLOCKS)) for name, end in ends.items()}
    return {name: least["reduces"] - least[name] for name in ends if name != "reduces"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2, help="of the all-reduces; 0: none")
    parser.add_argument("--max-bytes", type=int, default=256 << 20)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["digits"])
    parser.add_argument("--rounds", type=int, default=2, help="of the scaling; 0 leaves it out")
    parser.add_argument("--ranks", type=int, nargs="*", default=[], help="of the coordination")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    found: dict[str, Any] = {"scaling": {}, "coordination": {}}
    if args.replicas:
        sizes = [1 << k for k in range(10, args.max_bytes.bit_length(), 2)]
        found["all_reduce"] = spawn(_bandwidths, args.replicas, sizes)[0]
        print(f"all-reduce, {args.replicas} replicas     gloo MB/s    xla MB/s   xla / gloo")
        for row in found["all_reduce"]:
            gloo, xla = (row["bytes"] / row[name] / 1e6 for name in ("gloo", "xla"))
            print(f"{row['bytes']:>12} bytes {gloo:>17.1f} {xla:>11.1f} {xla / gloo:>12.2f}")
    for name in args.models if args.rounds else []:
        found["scaling"][name] = _scaling(name, args.rounds)
        for kind, speeds in found["scaling"][name].items():
            print(
                f"{name}, {kind}: {speeds[1]:.4g} samples/s with 1 process, "
                f"{speeds[2]:.4g} with 2: {speeds[2] / speeds[1]:.2f} x"
            )
    for ranks in args.ranks:
        found["coordination"][ranks] = replicas = spawn(_coordination, ranks, 30)
        for name in replicas[0]:
            each = sorted(1e3 * replica[name] for replica in replicas)
            print(
                f"an all-reduce of 4 bytes, {ranks} replicas, against a step that {name}: "
                f"{statistics.median(each):.3f} ms of a replica's processor time "
                f"({each[0]:.3f}-{each[-1]:.3f})"
            )
    if args.json:
        Path(args.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
