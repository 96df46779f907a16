"""Compile time against depth: the first training step of n layers of one kind, for 15 kinds.

    python benchmarks/compile_depth.py [--kinds lstm scan] [--depths 3 6 12 24] [--json FILE]

Prints, for each kind, the processor seconds that the first step took at each depth, a straight line
fitted to them (a part that every program has, and a part a layer), and the growth: the last depth's
seconds beside those that the first and the third let expect. 1 is linear, above 1.4 is marked.

Processor time is what other work on the machine changes least. The cache on disk is off.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""

import torch
from torch import nn

import torch_xla
from torch_xla.experimental.scan_layers import scan_layers

WIDTH = 64
MARKED = 1.4


class Residual(nn.Module):
    """Adds what the modules make of an input to the input."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the input's shape."""
        return x + self.inner(x)


class Attention(nn.Module):
    """Causal attention of 4 heads, [N, T, width] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the words see of each other."""
        parts = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """An LSTM or a GRU that gives its sequence alone."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the states of the sequence."""
        return self.inner(x)[0]


class Gated(nn.Module):
    """A SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the input's shape."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Four experts, of which each word takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the weighted results of the experts."""
        weights, chosen = self.router(x).softmax(-1).topk(2)
        shares = torch.zeros_like(x[..., :4]).scatter(-1, chosen, weights)
        results = torch.stack([expert(x) for expert in self.experts], -1)
        return (results * shares.unsqueeze(-2)).sum(-1)


class Squeezed(nn.Module):
    """Channels weighted by what the whole picture has of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the weighted channels."""
        return x * self.weigh(x)


class Scanned(nn.Module):
    """Pre-norm layers in one loop."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the last layer's output."""
        return scan_layers(self.layers, x)


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def _encoder(norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
    )


def _convolution(*after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), *after, nn.ReLU())


WORDS, PICTURES = (2, 16, WIDTH), (2, 8, 12, 12)
# What a layer is, and the shape of its input.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(_linear(), nn.GELU()), WORDS),
    "dropout": (lambda: nn.Sequential(_linear(), nn.ReLU(), nn.Dropout(0.1)), WORDS),
    "layer norm": (lambda: nn.Sequential(Residual(_linear()), nn.LayerNorm(WIDTH)), WORDS),
    "rms norm": (lambda: nn.Sequential(Residual(_linear()), nn.RMSNorm(WIDTH)), WORDS),
    "gated": (lambda: Residual(nn.LayerNorm(WIDTH), Gated()), WORDS),
    "attention": (lambda: Residual(Attention()), WORDS),
    "encoder, post-norm": (lambda: _encoder(norm_first=False), WORDS),
    "encoder, pre-norm": (lambda: _encoder(norm_first=True), WORDS),
    "mixture": (lambda: Residual(Mixture()), WORDS),
    "lstm": (lambda: Recurrent(nn.LSTM), WORDS),
    "gru": (lambda: Recurrent(nn.GRU), WORDS),
    "convolution, batch norm": (lambda: _convolution(nn.BatchNorm2d(8)), PICTURES),
    "convolution, group norm": (lambda: Residual(_convolution(nn.GroupNorm(2, 8))), PICTURES),
    "squeeze": (lambda: Residual(_convolution(Squeezed())), PICTURES),
    "scan": (lambda: Residual(nn.LayerNorm(WIDTH), Attention()), WORDS),
}


def first_step(kind: str, depth: int) -> float:
    """Returns the processor seconds of a first step: forward, backward and SGD."""
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    model: nn.Module = nn.Sequential(*(make() for _ in range(depth)))
    if kind == "scan":
        model = Scanned(model)
    model = model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(shape).to("xla")
    torch_xla.sync(wait=True)
    start = time.process_time()
    model(x).square().mean().backward()
    optimizer.step()
    torch_xla.sync(wait=True)
    return time.process_time() - start


def line_of(depths: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Returns the fitted line's start and slope, and the growth."""
    x, y = sum(depths) / len(depths), sum(seconds) / len(seconds)
    slope = sum((d - x) * (s - y) for d, s in zip(depths, seconds, strict=True)) / sum(
        (d - x) ** 2 for d in depths
    )
    early = (seconds[2] - seconds[0]) / (depths[2] - depths[0])
    expected = seconds[0] + early * (depths[-1] - depths[0])
    return y - slope * x, slope, seconds[-1] / max(expected, seconds[0])


def main() -> None:
    """Measures each kind at each depth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 6, 12, 24])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if len(args.depths) < 4:
        parser.error("--depths: four or more are needed for a growth")
    found = {}
    print(f"{'s of processor':26}" + "".join(f"{d:8}" for d in args.depths) + "   line, growth")
    for kind in args.kinds:
        first_step(kind, 1)  # what the kind loads
        seconds = [first_step(kind, depth) for depth in args.depths]
        start, slope, growth = line_of(args.depths, seconds)
        found[kind] = {
            "depths": args.depths, "seconds": seconds, "slope": slope, "growth": growth
        }  # fmt: skip
        times = "".join(f"{s:8.2f}" for s in seconds)
        mark = "  superlinear" if growth > MARKED else ""
        print(f"{kind:26}{times}   {start:.2f} + {slope:.3f} n, {growth:.1f}{mark}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
