"""A training step in a bucket of XLA_DYNAMIC_SIZES against the static program of its bound.

Both run in one process, in turns. The first size that is seen has a program of its own, so the
bound comes first. With ``--cpu`` times are those of the process' threads, which other processes on
the machine disturb less.
"""

import argparse
import json
import os
import statistics
import time

os.environ["XLA_DYNAMIC_SIZES"] = "1"

import torch
import torch.nn as nn

import torch_xla
from torch_xla.debug import metrics


class Words(nn.Module):
    """A transformer of `layers` layers that classifies sequences of any length."""

    def __init__(self, width: int, layers: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 10)

    def forward(self, x):
        return self.classify(self.layers(self.embed(x)).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--bound", type=int, default=64)
    parser.add_argument("--least", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    now = time.process_time if args.cpu else time.perf_counter
    device = torch_xla.device()
    model = Words(args.width, args.layers, args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def step(length: int) -> tuple[float, float]:
        x = torch.randint(0, 1000, (args.batch, length))
        y = torch.randint(0, 10, (args.batch,))
        start = now()
        optimizer.zero_grad()
        loss = loss_of(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        traced = now()
        torch_xla.sync(wait=True)
        return now() - start, traced - start

    lengths = range(args.least, args.bound)
    for _ in range(2):
        step(args.bound)
    bound_in = [step(length)[1] for length in lengths][2:]
    for length in lengths:
        step(length)
    static, bucket = [], []
    for _ in range(args.rounds):
        for length in lengths:
            bucket.append(step(length))
            static.append(step(args.bound))
    nodes = metrics.metric_data("TensorsGraphSize")
    result = {
        "static ms": 1e3 * statistics.median(t for t, _ in static),
        "bucket ms": 1e3 * statistics.median(t for t, _ in bucket),
        "ratio": statistics.median(t for t, _ in bucket) / statistics.median(t for t, _ in static),
        "trace static ms": 1e3 * statistics.median(t for _, t in static),
        "trace bucket ms": 1e3 * statistics.median(t for _, t in bucket),
        "trace of a miss that binds ms": 1e3 * statistics.median(bound_in),
        "nodes": nodes and nodes[1] / nodes[0],
        "refused": metrics.counter_value("DynamicSizesRefused") or 0,
        "bucket steps": metrics.counter_value("DynamicSizes"),
    }
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}))


if __name__ == "__main__":
    main()
