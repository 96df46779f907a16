"""What plans predict against what the process takes: the peak of training steps on the CPU.

    python benchmarks/plan_peak.py [names …]

For each model a process of its own runs a few steps. Predicted is the plan's peak (arguments,
outputs, temporaries; docs/platforms.md) of the step's program; real are the arrays held before a
step, and how far the process's resident memory rises during it, the largest of three steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

# The allocator gives back at once what it is given back, so that resident memory means something.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """Four wide layers."""
    layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(2048, 1024)), torch.randn(4096, 1024)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Convolutions with batch norm."""
    layers: list[nn.Module] = []
    for i, o in [(3, 32), (32, 32), (32, 64)]:
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10)), torch.randn(64, 3, 64, 64)


def encoder() -> tuple[nn.Module, torch.Tensor]:
    """Two layers of a transformer."""
    block = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(block, 2, enable_nested_tensor=False), torch.randn(16, 256, 256)


def lstm() -> tuple[nn.Module, torch.Tensor]:
    """A recurrent network."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(256, 512, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    return Last(), torch.randn(512, 24, 256)


def tagger() -> tuple[nn.Module, torch.Tensor]:
    """Words, a recurrent network and as many scores a word as there are words."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(2000, 256)
            self.gru = nn.GRU(256, 256, batch_first=True)
            self.scores = nn.Linear(256, 2000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scores(self.gru(self.words(x))[0]).log_softmax(-1)

    return Scores(), torch.randint(2000, (256, 24))


def autoencoder() -> tuple[nn.Module, torch.Tensor]:
    """Strided and transposed convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.SiLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1),
    ), torch.randn(32, 3, 128, 128)  # fmt: skip


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    model.__name__: model for model in (mlp, cnn, encoder, lstm, tagger, autoencoder)
}


def resident(name: str) -> int:
    """Returns a line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def measure(name: str) -> None:
    """Prints the two numbers of one model, as JSON."""
    import torch_xla
    from torch_xla import aot
    from torch_xla.debug import memory_report

    torch.manual_seed(0)
    model, x = MODELS[name]()
    model, x = model.to("xla"), x.to("xla")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync(wait=True)

    for _ in range(3):
        step()
    predicted = max(plan.peak for plan in aot._programs_since((), None, aot._held()))
    real = 0
    for _ in range(3):
        held = sum(array.bytes for array in memory_report().arrays)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        step()
        real = max(real, held + resident("VmHWM") - before)
    print(json.dumps([predicted, real]))


def main() -> None:
    """Runs the command line."""
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
        return
    print("| model | predicted | real | off |\n|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        result = subprocess.run(
            [sys.executable, __file__, "--measure", name],
            env={**os.environ, **ALLOCATOR, "PJRT_DEVICE": "CPU"},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            sys.exit(result.stderr)
        predicted, real = json.loads(result.stdout)
        mega = [f"{size / 1e6:.1f} MB" for size in (predicted, real)]
        print(f"| {name} | {mega[0]} | {mega[1]} | {predicted / real - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
