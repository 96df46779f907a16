"""A training with three faults, which docs/debugging.md finds: each option mends one.

python examples/debug_training.py --show compiles   # --pad
python examples/debug_training.py --show time       # --cache
python examples/debug_training.py --show memory     # --no-grad
"""

from __future__ import annotations

import argparse
import contextlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torch_xla
from torch_xla.debug import explain, memory_report, profiler

LONGEST = 24


class Sentences(Dataset):
    """Sixteen sentences of several lengths, from a slow disk."""

    def __init__(self, pad: bool, cache: bool) -> None:
        self._pad = pad
        self._kept: dict[int, torch.Tensor] | None = {} if cache else None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._kept is not None and index in self._kept:
            return self._kept[index]
        time.sleep(0.02)
        words = torch.ones(4 + 5 * index % 11, 32)
        if self._pad:
            words = nn.functional.pad(words, (0, 0, 0, LONGEST - len(words)))
        if self._kept is not None:
            self._kept[index] = words
        return words


def main() -> None:
    """Trains for two epochs, validates, and shows what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", choices=["compiles", "time", "memory"], required=True)
    parser.add_argument("--pad", action="store_true", help="one length for all sentences")
    parser.add_argument("--cache", action="store_true", help="read each sentence once")
    parser.add_argument("--no-grad", action="store_true", help="validate without autograd")
    options = parser.parse_args()

    device = torch_xla.device()
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Sentences(options.pad, options.cache), batch_size=1)
    for _ in range(2):
        for words in loader:
            optimizer.zero_grad()
            # A loop over the words: each length of a sentence is another graph.
            scores = [model(word) for word in words.to(device)[0]]
            loss = torch.stack(scores).square().mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
    if options.show == "compiles":
        print(f"{len(explain.all())} compilations, the last one:")
        print(explain.last())
    elif options.show == "time":
        print(profiler.summary(steps=12))
    else:
        total = torch.zeros((), device=device)
        with torch.no_grad() if options.no_grad else contextlib.nullcontext():
            for words in loader:
                total = total + model(words.to(device)).square().mean()
                torch_xla.sync()
        print(memory_report(3))
        print(f"validation loss {total.item() / len(loader):.4f}")


if __name__ == "__main__":
    main()
