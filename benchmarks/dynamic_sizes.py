"""A training step in a bucket of XLA_DYNAMIC_SIZES against the static program of its bound.

Both run in one process, in turns. The first size that is seen has a program of its own, so the
bound comes first. With ``--cpu`` times are those of the process' threads, which other processes on
the machine disturb less. What a size costs that comes for the first time is the processor time of
the thread that traces, beyond that of the same size's next step. A step whose size is marked where
it was not before is rewritten, although its shapes were traced: this is the cost of binding alone.
``--off`` measures a size's first step in a process without sizes as arguments. With
``XLA_PERSISTENT_CACHE_PATH`` its programs come from disk in a second run.
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ["XLA_DYNAMIC_SIZES"] = "0" if "--off" in sys.argv else "1"
os.environ["XLA_RECOMPILE_WARNING"] = "0"

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
    parser.add_argument("--off", action="store_true", help="programs of their own, from disk")
    parser.add_argument("--replay", action="store_true", help="a step that is replayed")
    args = parser.parse_args()
    now = time.process_time if args.cpu else time.perf_counter
    device = torch_xla.device()
    model = Words(args.width, args.layers, args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def train(words: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model(words), labels).backward()
        optimizer.step()

    if args.replay:
        train = torch_xla.compile(train, replay=True)

    def step(length: int, marked: bool = False) -> tuple[float, float, float]:
        x = torch.randint(0, 1000, (args.batch, length))
        y = torch.randint(0, 10, (args.batch,))
        start, thread = now(), time.thread_time()
        words = x.to(device)
        if marked:
            torch_xla.mark_dynamic(words, 1, max=args.bound)
        train(words, y.to(device))
        torch_xla.sync()
        traced, thread = now(), time.thread_time() - thread
        torch_xla.sync(wait=True)
        return now() - start, traced - start, thread

    lengths = range(args.least, args.bound)
    for _ in range(2):
        step(args.bound)
    # The first graph finds the structure, the next one compiles the bucket's program.
    first, again, fixed = zip(
        *((step(length)[2], step(length)[2], step(args.bound)[2]) for length in lengths),
        strict=True,
    )
    misses = statistics.median(a - b for a, b in zip(first[2:], again[2:], strict=True))
    nodes = metrics.metric_data("TensorsGraphSize")
    assert nodes
    if args.off:
        result = {"a size's first step ms": 1e3 * statistics.median(first[2:])}
        result["us a node for a size's first step"] = 1e6 * misses / (nodes[1] / nodes[0])
        result["compiled"] = metrics.counter_value("PersistentCacheMiss") or 0
        print(json.dumps({k: round(v, 3) for k, v in result.items()}))
        return
    bound = metrics.counter_value("DynamicSizesBound") or 0
    rewritten = []
    for length in [*lengths] * args.rounds:
        step(length)
        rewritten.append(step(length, marked=True)[2] - step(length, marked=True)[2])
    bound = (metrics.counter_value("DynamicSizesBound") or 0) - bound
    static, bucket = [], []
    for _ in range(args.rounds):
        for length in lengths:
            bucket.append(step(length))
            static.append(step(args.bound))
    result = {
        "static ms": 1e3 * statistics.median(t[0] for t in static),
        "bucket ms": 1e3 * statistics.median(t[0] for t in bucket),
        "ratio": statistics.median(t[0] for t in bucket) / statistics.median(t[0] for t in static),
        "trace static ms": 1e3 * statistics.median(t[1] for t in static),
        "trace bucket ms": 1e3 * statistics.median(t[1] for t in bucket),
        "a size's first step ms": 1e3 * statistics.median(first[2:]),
        "its next step ms": 1e3 * statistics.median(again[2:]),
        "a static step ms": 1e3 * statistics.median(fixed),
        "us a node for a size's first step": 1e6 * misses / (nodes[1] / nodes[0]),
        "us a node to bind": 1e6 * statistics.median(rewritten) / (nodes[1] / nodes[0]),
        "rewritten steps": bound,
        "nodes": nodes[1] / nodes[0],
        "refused": metrics.counter_value("DynamicSizesRefused") or 0,
        "bucket steps": metrics.counter_value("DynamicSizes"),
    }
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}))


if __name__ == "__main__":
    main()
