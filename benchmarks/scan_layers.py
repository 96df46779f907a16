"""What depth costs: tracing, lowering and compiling a decoder's training step of n layers.

    python benchmarks/scan_layers.py [--width 64] [--layers 6 48] [--update]

Prints a line for each depth and way: layer by layer, and as a loop over layers that are stacked in
each step (torch_xla.experimental.scan_layers.scan_layers) or kept so (StackedLayers).
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.experimental.scan_layers import StackedLayers, scan_layers


class Decoder(nn.Module):
    """A layer of a decoder: causal attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's output; ``x`` is [batch, length, width]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def seconds(name: str) -> float:
    """Returns the sum of a metric of times."""
    data = met.metric_data(name)
    return data[1] * 1e-9 if data else 0.0


def measure(layers: int, width: int, way: str, update: bool) -> None:
    """Prints what the first and a later step cost."""
    torch.manual_seed(0)
    blocks = [Decoder(width, 4) for _ in range(layers)]
    stack = (StackedLayers if way == "stacked" else nn.ModuleList)(blocks).to("xla")
    x = torch.randn(2, 16, width).to("xla")
    torch_xla.sync(wait=True)
    times = []
    for i in range(4):
        if i < 2:
            met.clear_all()
        start = time.perf_counter()
        y = x
        if way == "scan":
            y = scan_layers(stack, y)
        elif way == "stacked":
            y = stack(y)
        else:
            for layer in stack:
                y = layer(y)
        y.square().mean().backward()
        if update:
            with torch.no_grad():
                parameters = list(stack.parameters())
                torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-0.01)
        traced = time.perf_counter() - start
        torch_xla.sync(wait=True)
        stack.zero_grad()
        times.append(
            (traced, time.perf_counter() - start, seconds("LowerTime"), seconds("CompileTime"))
        )
    (_, _, lower, compile), (traced, total, *_) = times[0], times[-1]
    print(
        f"{layers:3} layers {way:9} lower {lower:6.2f} s  compile {compile:6.2f} s  "
        f"trace {traced * 1e3:7.1f} ms  step {total * 1e3:7.1f} ms",
        flush=True,
    )


def main() -> None:
    """Measures each depth in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 48])
    parser.add_argument("--update", action="store_true", help="with plain SGD of each parameter")
    args = parser.parse_args()
    for layers in args.layers:
        for way in ("stacked", "scan", "unrolled"):
            measure(layers, args.width, way, args.update)


if __name__ == "__main__":
    main()
