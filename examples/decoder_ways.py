"""A small GPT, and what a decoder is traced, looked at and made smaller with.

    python examples/decoder_ways.py plain
    python examples/decoder_ways.py eager      # each operator runs at once, as to debug
    python examples/decoder_ways.py profile    # a timeline for Perfetto, and where the time went
    python examples/decoder_ways.py scan       # the program has one block, in a loop
    python examples/decoder_ways.py offload    # what backward needs waits in the host's memory
    python examples/decoder_ways.py flash      # the attention that programs for TPUs call

All give the losses of the plain loop; several may be named at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from train_gpt import GPT, VOCABULARY, Block, TextWindows, read_text

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
from torch_xla.experimental.custom_kernel import flash_attention
from torch_xla.experimental.eager import eager_mode_context
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host

CONTEXT = 32
BATCH = 16


class FlashBlock(Block):
    """A block whose attention is the kernel's, which scales nothing by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attention = flash_attention(q, k, v, causal=True, sm_scale=q.shape[-1] ** -0.5)
        x = x + self.projection(attention.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm_2(x))


class Scanned(nn.Sequential):
    """Blocks of which the program has one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scan_layers(self, x)


class Offloaded(nn.Sequential):
    """Blocks of which no more than one has what its backward pass needs on the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            with torch.autograd.graph.saved_tensors_hooks(place_to_host, place_to_device):
                x = block(x)
        return x


def network(how: str, layers: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(width=64, heads=2, layers=layers, context=CONTEXT, dropout=0.0)
    if how == "flash":
        for block in model.blocks:
            block.__class__ = FlashBlock
    elif how in ("scan", "offload"):
        model.blocks = (Scanned if how == "scan" else Offloaded)(*model.blocks)
    return model


def train(how: str, args: argparse.Namespace) -> list[float]:
    """Returns the loss of each step."""
    device = torch_xla.device()
    model = network(how, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = TextWindows(read_text("ast.py"), CONTEXT)
    losses = []
    with eager_mode_context(how == "eager"):
        for step in range(args.steps):
            rows = [windows[(step * BATCH + i) * 7] for i in range(BATCH)]
            inputs, targets = (torch.stack(part).to(device) for part in zip(*rows, strict=True))
            region = contextlib.nullcontext()
            if how == "profile":
                region = xp.StepTrace("train", step_num=step)
            with region:
                optimizer.zero_grad()
                logits = model(inputs)
                loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
                loss.backward()
                optimizer.step()
                torch_xla.sync()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()


def profile(args: argparse.Namespace) -> list[float]:
    xp.start_trace(args.trace)
    try:
        losses = train("profile", args)
    finally:
        xp.stop_trace()
    print(f"the timeline is in {args.trace}; {xp.summary(max(1, args.steps - 2))}")
    return losses


def main() -> None:
    ways = ("plain", "eager", "profile", "scan", "offload", "flash")
    description, epilog = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("how", choices=ways, nargs="+")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--trace", metavar="FOLDER", default=None, help="for the timeline")
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    args = parser.parse_args()
    args.trace = args.trace or tempfile.mkdtemp(prefix="trace-")
    results, compiles = {}, {}
    for how in args.how:
        before = met.counter_value("UncachedCompile") or 0
        losses = results[how] = profile(args) if how == "profile" else train(how, args)
        compiles[how] = (met.counter_value("UncachedCompile") or 0) - before
        print(
            f"{how}: loss {losses[0]:.4f} to {losses[-1]:.4f} in {args.steps} steps, "
            f"{compiles[how]} programs"
        )
    if args.log_losses:
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump({"losses": results, "compiles": compiles}, file)


if __name__ == "__main__":
    main()
