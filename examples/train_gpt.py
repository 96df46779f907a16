"""Trains a small GPT, letter by letter, on the sources of Python's standard library.

    python examples/train_gpt.py                    # on the xla device
    python examples/train_gpt.py --device cpu       # the same, on eager PyTorch

Ends with the loss on text it has not seen, in nats per character, and a sample.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from tqdm import tqdm

# Big, old modules that every version of Python has; the last one is held out.
MODULES = (
    "argparse.py",
    "ast.py",
    "calendar.py",
    "collections/__init__.py",
    "configparser.py",
    "csv.py",
    "datetime.py",
    "difflib.py",
    "doctest.py",
    "ftplib.py",
    "functools.py",
    "gettext.py",
    "heapq.py",
    "http/client.py",
    "inspect.py",
    "logging/__init__.py",
    "mailbox.py",
    "optparse.py",
    "os.py",
    "pdb.py",
    "pickle.py",
    "platform.py",
    "random.py",
    "shutil.py",
    "smtplib.py",
    "statistics.py",
    "subprocess.py",
    "tarfile.py",
    "tempfile.py",
    "textwrap.py",
    "threading.py",
    "traceback.py",
    "typing.py",
    "unittest/case.py",
    "urllib/parse.py",
    "urllib/request.py",
    "uuid.py",
    "zipfile.py",
)
HELD_OUT = "xml/dom/minidom.py"
VOCABULARY = 128  # ASCII


class Block(nn.Module):
    """A transformer block with pre-normalization: [N, T, width] to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, time_, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attention = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.projection(attention.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A decoder-only transformer: [N, T] characters to [N, T, VOCABULARY] logits."""

    def __init__(self, width: int, heads: int, layers: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.token(characters) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


class TextWindows(Dataset):
    """All windows of a text: characters [context], and those that follow them [context]."""

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return len(self.text) - self.context

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[start : start + self.context + 1]
        return window[:-1], window[1:]


def read_text(*names: str) -> torch.Tensor:
    """Returns the text of modules of the standard library: [length], int64, ASCII codes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [folder / name for name in names]
    data = b"".join(path.read_bytes() for path in paths if path.is_file())
    characters = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    return characters[characters < VOCABULARY]


def learning_rate_factor(step: int, steps: int, warmup: int) -> float:
    """Returns the factor of the learning rate: linear warm-up, then a cosine to one tenth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("xla", "cpu"), default="xla")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=50, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="characters to generate")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--log-steps", type=int, default=10, help="steps between shown losses")
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.device == "xla":
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met
        import torch_xla.distributed.parallel_loader as pl

        device = xm.xla_device()
    else:
        device = torch.device("cpu")

    torch.manual_seed(args.seed)
    train_set = TextWindows(read_text(*MODULES), args.context)
    held_out = read_text(HELD_OUT)
    test_set = torch.utils.data.Subset(
        TextWindows(held_out, args.context),
        range(0, (len(held_out) - args.context) // args.context * args.context, args.context),
    )
    sampler = RandomSampler(
        train_set,
        replacement=True,
        num_samples=args.steps * args.batch_size,
        generator=torch.Generator().manual_seed(args.seed),
    )
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, args.batch_size, drop_last=True)
    if args.device == "xla":
        train_loader = pl.MpDeviceLoader(train_loader, device)
        test_loader = pl.MpDeviceLoader(test_loader, device)

    model = GPT(args.width, args.heads, args.layers, args.context, args.dropout).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, args.steps, args.warmup)
    )

    def loss_of(characters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(characters).flatten(0, 1), following.flatten())

    def train() -> list[float]:
        model.train()
        losses = []
        with tqdm(train_loader, desc="training") as progress:

            def show(loss: torch.Tensor) -> None:
                progress.set_postfix(loss=f"{loss.item():.3f}")

            for step, (characters, following) in enumerate(progress):
                optimizer.zero_grad()
                loss = loss_of(characters, following)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                if args.device == "xla":
                    xm.optimizer_step(optimizer)
                    if step % args.log_steps == 0:
                        xm.add_step_closure(show, args=(loss.detach(),))
                else:
                    optimizer.step()
                    if step % args.log_steps == 0:
                        show(loss)
                scheduler.step()
                losses.append(loss.detach())
        return [loss.item() for loss in losses]

    @torch.no_grad()
    def test_loss() -> float:
        model.eval()
        losses = [loss_of(characters, following) for characters, following in test_loader]
        return sum(loss.item() for loss in losses) / len(losses)

    @torch.no_grad()
    def sample() -> str:
        # The window keeps its shape from character to character: one compile for all of them.
        model.eval()
        window = held_out[: args.context].unsqueeze(0).to(device)
        characters = []
        for _ in tqdm(range(args.sample), desc="sampling"):
            probabilities = F.softmax(model(window)[:, -1] / args.temperature, dim=-1)
            character = torch.multinomial(probabilities, 1)
            window = torch.cat([window[:, 1:], character], dim=1)
            characters.append(character)
            if args.device == "xla":
                torch_xla.sync()
        return "".join(chr(character.item()) for character in characters)

    start = time.perf_counter()
    losses = train()
    seconds = time.perf_counter() - start
    final_loss = test_loss()
    text = sample()

    last = losses[-50:]
    prompt = "".join(map(chr, held_out[: args.context].tolist()))
    print(f"\n{prompt}\033[1m{text}\033[0m\n")
    print(f"training loss: {sum(last) / len(last):.3f} nats/char over the last {len(last)} steps")
    print(f"loss on unseen text: {final_loss:.3f} nats/char")
    print(f"speed: {args.steps / seconds:.2f} steps/s, compiles included")
    compiles = None
    if args.device == "xla":
        # None while all programs came from the cache on disk.
        samples = met.metric_data("CompileTime")
        compiles = samples[0] if samples else 0
        print(f"compiles: {compiles}")
    if args.log_losses:
        result = {
            "losses": losses,
            "test_loss": final_loss,
            "steps_per_second": args.steps / seconds,
            "compiles": compiles,
            "sample": text,
        }
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
