"""Trains on TFRecords through a cache, with checkpoints that it goes on from: docs/data.md.

    python examples/digits_pipeline.py --folder /tmp/digits              # the whole run
    python examples/digits_pipeline.py --folder /tmp/digits --kill-at 27 # dies as a machine does
    python examples/digits_pipeline.py --folder /tmp/digits              # goes on from step 20

The run that went on gives the losses of one that was never interrupted, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Sampler

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer
from torch_xla.utils import gcsfs
from torch_xla.utils.cached_dataset import CachedDataset
from torch_xla.utils.tf_record_dataset import IndexedTfRecordDataset
from torch_xla.utils.tf_record_writer import TfRecordWriter

SHARDS = 4
BATCH_SIZE = 96


def write_records(folder: str, size: int) -> None:
    """Writes scikit-learn's digits as TFRecord files: what a data team would hand over."""
    digits = load_digits()
    for shard in range(SHARDS):
        path = f"{folder}/digits-{shard}-of-{SHARDS}.tfrecord"
        with TfRecordWriter(path) as writer:
            for index in range(shard, min(size, len(digits.target)), SHARDS):
                image = torch.tensor(digits.images[index], dtype=torch.uint8)
                writer.write_example({"image": image, "label": int(digits.target[index])})


def prepare(image: torch.Tensor) -> torch.Tensor:
    """The work that is worth a cache: [64] bytes from 0 to 16 to [1, 16, 16] floats."""
    image = image.view(1, 1, 8, 8).float() / 16
    image = nn.functional.interpolate(image, scale_factor=2, mode="bicubic")
    return (image[0] - 0.3) / 0.37


def make_dataset(folder: str, size: int) -> CachedDataset:
    """Returns the prepared samples, made at the first run only."""
    if not gcsfs.list(f"{folder}/*.tfrecord"):
        write_records(folder, size)
    records = IndexedTfRecordDataset(
        f"{folder}/*.tfrecord", transforms={"image": prepare, "label": lambda label: label[0]}
    )
    dataset = CachedDataset(records, f"{folder}/cache")
    dataset.warmup()
    return dataset


class EpochSampler(Sampler[int]):
    """A new order for each epoch, which can be entered at any batch."""

    def __init__(self, size: int, epoch: int, first: int) -> None:
        self._size, self._epoch, self._first = size, epoch, first

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._epoch)
        yield from torch.randperm(self._size, generator=generator).tolist()[self._first :]

    def __len__(self) -> int:
        return self._size - self._first


def report(step: int, loss: torch.Tensor) -> None:
    print(f"step {step}: loss {loss.item():.4f} ({loss.item().hex()})", flush=True)


def train(folder: str, size: int, steps: int, save_interval: int, kill_at: int) -> None:
    dataset = make_dataset(folder, size)
    device = xm.xla_device()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
    ).to(device)
    optimizer = prime_optimizer(torch.optim.Adam(model.parameters()))

    def state() -> dict:
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": xm.get_rng_state(),  # Dropout goes on where it was.
        }

    manager = CheckpointManager(f"{folder}/checkpoints", save_interval, max_to_keep=2)
    restored = state()
    last = manager.restore_latest(restored)
    if last is not None:
        model.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
        xm.set_rng_state(restored["random"])
        print(f"going on after step {last}")

    step = 0 if last is None else last + 1
    batches = len(dataset) // BATCH_SIZE
    while step < steps:
        epoch, first = divmod(step, batches)
        sampler = EpochSampler(len(dataset), epoch, first * BATCH_SIZE)
        loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler, drop_last=True)
        for data in pl.MpDeviceLoader(loader, device):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data["image"]), data["label"])
            loss.backward()
            xm.optimizer_step(optimizer)
            xm.add_step_closure(report, (step, loss))
            torch_xla.sync()
            manager.save_async(step, state())
            if step == kill_at:
                manager.join()
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            if step == steps or manager.reached_preemption(step):
                manager.close()
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="records, cache and checkpoints go here")
    parser.add_argument("--size", type=int, default=1797, help="how many of the digits to use")
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--save-interval", type=int, default=10)
    parser.add_argument("--kill-at", type=int, default=-1)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    train(**vars(arguments))


if __name__ == "__main__":
    main()
