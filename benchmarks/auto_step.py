"""Training loops without ``mark_step`` against the same loops with it.

    python benchmarks/auto_step.py [--models digits gpt] [--steps 400] [--json FILE]

Two processes, one whose loop calls ``torch_xla.sync()`` after each step and one whose loop is plain
PyTorch, train in turn, block by block, with the loss read at the end of each block (50 steps). The
times are medians over blocks; ``compiles`` and ``compile_s`` are of the whole run, the first steps
among it, and ``first_s`` is how long the first block took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

BLOCK = 50


def digits() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A convolutional network for 8x8 images, with a batch of them."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    return model, torch.rand(64, 1, 8, 8), torch.randint(10, (64,))


class GPT(nn.Module):
    """A small decoder."""

    def __init__(self, words: int = 512, width: int = 128, length: int = 64, depth: int = 4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(x).flatten(0, 1)


def gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A decoder of four layers, with a batch of sequences."""
    return GPT(), torch.randint(512, (8, 64)), torch.randint(512, (8 * 64,))


class Block(nn.Module):
    """Of a residual network."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.skip = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A residual network of 18 convolutions for 32x32 images, with a batch of them."""
    widths = [16, 16, 16, 32, 32, 64, 64]
    blocks = [Block(a, b, 1 + (a < b)) for a, b in zip(widths, widths[1:], strict=False)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, *ends)
    return model, torch.rand(32, 3, 32, 32), torch.randint(10, (32,))


MODELS = {"digits": digits, "gpt": gpt, "resnet": resnet}


def _work(connection: Connection, name: str, marks: bool) -> None:
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    import torch_xla
    import torch_xla.debug.metrics as met

    device = torch.device("xla")
    model, x, y = MODELS[name]()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # The plain loop must not name what it does not call: it would be waited for.
    end_step = torch_xla.sync if marks else lambda: None
    while connection.recv():
        start = time.perf_counter()
        for _ in range(BLOCK):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            end_step()
        value = loss.item()
        seconds = time.perf_counter() - start
        _, nanoseconds, _ = met.metric_data("CompileTime")
        connection.send(
            {
                "seconds": seconds,
                "loss": value,
                "compiles": met.counter_value("UncachedCompile"),
                "compile_s": nanoseconds / 1e9,
                "auto_steps": met.counter_value("AutoStep") or 0,
            }
        )


def measure(name: str, steps: int) -> dict[str, Any]:
    """Returns what both loops of a model took."""
    context = multiprocessing.get_context("spawn")
    ends = {}
    for kind in ("marked", "plain"):
        ends[kind], other = context.Pipe()
        context.Process(target=_work, args=(other, name, kind == "marked"), daemon=True).start()
    blocks: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ends}
    for _ in range(steps // BLOCK):
        for kind, end in ends.items():
            end.send(True)
            blocks[kind].append(end.recv())
    result: dict[str, Any] = {}
    for kind, end in ends.items():
        end.send(False)
        rows = blocks[kind]
        result[kind] = {
            "step_ms": 1e3 * statistics.median(row["seconds"] for row in rows[1:]) / BLOCK,
            "first_s": rows[0]["seconds"],
            **{key: rows[-1][key] for key in ("compiles", "compile_s", "auto_steps", "loss")},
        }
    pairs = zip(blocks["plain"][1:], blocks["marked"][1:], strict=True)
    result["ratio"] = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    results = {}
    for name in args.models:
        result = results[name] = measure(name, args.steps)
        for kind in ("marked", "plain"):
            row = result[kind]
            print(
                f"{name:<8}{kind:<8}{row['step_ms']:8.2f} ms/step, first block "
                f"{row['first_s']:.2f} s, {row['compiles']} compiles ({row['compile_s']:.2f} s), "
                f"{row['auto_steps']} cuts, loss {row['loss']:.5f}"
            )
        print(f"{name:<8}plain / marked: {result['ratio']:.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
