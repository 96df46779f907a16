"""Plans a training step of a Llama-3-shaped model for chips that are not there.

    pip install -r requirements-platforms.txt
    python examples/plan_llama.py --model 8b --topology h100:8 --fsdp 8

bfloat16 weights and AdamW, layers as one loop (scan) whose backward pass computes them again,
weights split over ``fsdp`` and ``tensor``. Nothing is allocated: the tensors have shapes alone. The
step is traced, partitioned and compiled by the chip's own compiler, and its plan printed: memory of
a device, operations, collectives, the least time by each of the chip's peaks.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Shape(NamedTuple):
    """Sizes of a model."""

    layers: int
    width: int
    hidden: int
    heads: int
    groups: int
    vocabulary: int = 128256


MODELS = {
    "8b": Shape(32, 4096, 14336, 32, 8),
    "70b": Shape(80, 8192, 28672, 64, 8),
    "tiny": Shape(2, 256, 512, 4, 2, 1024),
}
# Dimensions of each weight; a stacked one has its layer first.
DATA, TENSOR = "fsdp", "tensor"


def weights_of(shape: Shape) -> dict[str, tuple[tuple[int, ...], tuple[str | None, ...]]]:
    """Returns sizes and axes of the mesh of each weight."""
    head = shape.width // shape.heads
    n, width = shape.layers, shape.width
    return {
        "embedding": ((shape.vocabulary, width), (TENSOR, DATA)),
        "norm1": ((n, width), (None, None)),
        "query": ((n, width, width), (None, TENSOR, DATA)),
        "key": ((n, shape.groups * head, width), (None, TENSOR, DATA)),
        "value": ((n, shape.groups * head, width), (None, TENSOR, DATA)),
        "out": ((n, width, width), (None, DATA, TENSOR)),
        "norm2": ((n, width), (None, None)),
        "gate": ((n, shape.hidden, width), (None, TENSOR, DATA)),
        "up": ((n, shape.hidden, width), (None, TENSOR, DATA)),
        "down": ((n, width, shape.hidden), (None, DATA, TENSOR)),
        "norm": ((width,), (None,)),
        "head": ((shape.vocabulary, width), (TENSOR, DATA)),
    }


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Returns ``x`` over its root mean square, computed in float32."""
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    return (x.float() * scale).to(x.dtype) * weight


def rotate(x: Tensor) -> Tensor:
    """Returns ``x``, [batch, heads, length, size], turned by its positions."""
    length, size = x.shape[-2:]
    frequency = 500000.0 ** (-torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
    angle = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer(x: Tensor, w: dict[str, Tensor], shape: Shape) -> Tensor:
    """Returns what one layer makes of ``x``, [batch, length, width]."""
    normed = rms_norm(x, w["norm1"])
    query = rotate(F.linear(normed, w["query"]).unflatten(-1, (shape.heads, -1)).transpose(1, 2))
    key = rotate(F.linear(normed, w["key"]).unflatten(-1, (shape.groups, -1)).transpose(1, 2))
    value = F.linear(normed, w["value"]).unflatten(-1, (shape.groups, -1)).transpose(1, 2)
    key, value = (t.repeat_interleave(shape.heads // shape.groups, 1) for t in (key, value))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + F.linear(attended.transpose(1, 2).flatten(2), w["out"])
    normed = rms_norm(x, w["norm2"])
    return x + F.linear(F.silu(F.linear(normed, w["gate"])) * F.linear(normed, w["up"]), w["down"])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="8b")
    parser.add_argument("--topology", default="h100:8", help="docs/platforms.md")
    parser.add_argument("--fsdp", type=int, default=8, help="devices along the batch")
    parser.add_argument(
        "--tensor", type=int, default=1, help="devices along heads and hidden units"
    )
    parser.add_argument("--batch", type=int, help="sequences in all; default: one for each of fsdp")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a sequence")
    args = parser.parse_args()
    os.environ["XLA_HLO_DEBUG"] = "1"  # Arrays of the plan have their lines.

    from torch_xla import aot
    from torch_xla.distributed import spmd
    from torch_xla.experimental.scan import scan
    from torch_xla.utils.checkpoint import checkpoint

    shape = MODELS[args.model]
    batch = args.batch or args.fsdp
    weights: dict[str, torch.nn.Parameter] = {}

    def split(x: Tensor, *axes: str | None) -> Tensor:
        spmd.mark_sharding(x, spmd.get_global_mesh(), axes)
        return x

    def loss_of(tokens: Tensor) -> Tensor:
        stacked = {k: w for k, w in weights.items() if k not in ("embedding", "norm", "head")}

        def body(x: Tensor, w: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            x = checkpoint(layer, x, w, shape, use_reentrant=False)
            return x, x[0, 0, 0]

        x = split(F.embedding(tokens, weights["embedding"]), DATA, None, None)
        x, _ = scan(body, x, stacked)
        logits = split(F.linear(rms_norm(x, weights["norm"]), weights["head"]), DATA, None, TENSOR)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    def make() -> None:
        # Computed, since zeros would be constants of the step.
        value = torch.randn((), device="xla").to(torch.bfloat16)
        for name, (sizes, axes) in weights_of(shape).items():
            weight = value.expand(sizes).clone()
            weights[name] = torch.nn.Parameter(split(weight, *axes))
        optimizer = torch.optim.AdamW(weights.values(), lr=3e-4, foreach=False)
        for name, (_, axes) in weights_of(shape).items():
            # What its first step would make, split as the weight is.
            optimizer.state[weights[name]] = {
                "step": torch.zeros(()),
                "exp_avg": split(value.expand_as(weights[name]).clone(), *axes),
                "exp_avg_sq": split(value.expand_as(weights[name]).clone(), *axes),
            }
        tokens = torch.randint(shape.vocabulary, (batch, args.length), device="xla")
        made.append((split(tokens, DATA, None), optimizer))

    def step() -> Tensor:
        ((tokens, optimizer),) = made
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    start = time.perf_counter()
    made: list[tuple[Tensor, torch.optim.Optimizer]] = []
    aot.compile(make, topology=args.topology, mesh={DATA: args.fsdp, TENSOR: args.tensor})
    plan = aot.compile(step)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    parameters = sum(weight.numel() for weight in weights.values())
    tokens = batch * args.length
    print(f"{args.model}: {parameters / 1e9:.2f} billion parameters, {tokens} tokens a step")
    print(plan)
    needed = 6 * parameters * tokens / plan.devices
    print(f"6 x parameters x tokens are {needed:.4g} operations a device")
    print(f"planned in {seconds:.0f} s, {memory:.1f} GB of this machine's memory")
    sys.exit(plan.fits is False)


if __name__ == "__main__":
    main()
