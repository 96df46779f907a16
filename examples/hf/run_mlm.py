"""Trains BERT to fill in masked words of the Python standard library's sources.

    python examples/hf/run_mlm.py --do_train --do_eval                       # one device
    CPU_NUM_DEVICES=4 python examples/hf/run_mlm.py --do_train --do_eval     # four replicas

The job of "Training Transformers on Cloud TPUs with PyTorch / XLA", with options of the same
names: every sequence has the same length, so that one program serves every step; ``MpDeviceLoader``
ends the steps; ``xm.save`` writes from one replica alone. The text and the tokenizer, which is
trained on it, need no download. ``--per_device_train_batch_size`` is that of a replica.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from tqdm import tqdm
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    get_linear_schedule_with_warmup,
)

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr

HELD_OUT = 10  # Each tenth file is for evaluation.


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--do_train", action="store_true")
    parser.add_argument("--do_eval", action="store_true")
    parser.add_argument("--output_dir", type=Path, default=Path("language-modeling"))
    parser.add_argument("--overwrite_output_dir", action="store_true")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--max_steps", type=int, help="instead of --num_train_epochs")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--warmup_ratio", type=float, default=0.06)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--save_steps", type=int, default=500_000)
    parser.add_argument("--logging_steps", type=int, default=10)
    parser.add_argument("--bf16", action="store_true", help="matrix products in bfloat16")
    parser.add_argument("--tpu_metrics_debug", action="store_true", help="print the metrics")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--max_files", type=int, help="of the standard library; all by default")
    parser.add_argument("--vocab_size", type=int, default=4096)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--num_hidden_layers", type=int, default=2)
    parser.add_argument("--num_attention_heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    args = parser.parse_args()
    if not (args.do_train or args.do_eval):
        parser.error("nothing to do: give --do_train, --do_eval or both")
    used = args.output_dir.exists() and any(args.output_dir.iterdir())
    if args.do_train and used and not args.overwrite_output_dir:
        parser.error(f"{args.output_dir} is not empty; --overwrite_output_dir writes over it")
    return args


def source_files(max_files: int | None) -> tuple[list[Path], list[Path]]:
    """Returns the files to train on and those to evaluate on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:max_files]
    held_out = files[HELD_OUT - 1 :: HELD_OUT]
    return [file for file in files if file not in held_out], held_out


def train_tokenizer(files: list[Path], args: argparse.Namespace) -> None:
    """Writes ``vocab.txt`` to the output folder."""
    tokenizer = BertWordPieceTokenizer(lowercase=False)
    tokenizer.train([str(file) for file in files], vocab_size=args.vocab_size, show_progress=False)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(args.output_dir))


class Blocks(Dataset):
    """A text's tokens in blocks: {"input_ids": [length]}, with [CLS] and [SEP] around each."""

    def __init__(self, files: list[Path], tokenizer: BertTokenizerFast, length: int) -> None:
        texts = [file.read_text(encoding="utf-8", errors="ignore") for file in files]
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = torch.tensor(list(itertools.chain.from_iterable(encoded)))
        body = length - 2
        inner = tokens[: len(tokens) // body * body].view(-1, body)
        first = inner.new_full((len(inner), 1), tokenizer.cls_token_id)
        last = inner.new_full((len(inner), 1), tokenizer.sep_token_id)
        self.blocks = torch.cat([first, inner, last], dim=1)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index]}


def make_loader(
    blocks: Blocks, tokenizer: BertTokenizerFast, batch_size: int, args: argparse.Namespace
) -> DataLoader:
    """Returns this replica's batches; all replicas have as many, of the same shape."""
    sampler = DistributedSampler(
        blocks, xr.world_size(), xr.global_ordinal(), seed=args.seed, drop_last=True
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mlm_probability)
    return DataLoader(blocks, batch_size, sampler=sampler, collate_fn=collator, drop_last=True)


def save(model: BertForMaskedLM, state: dict[str, dict], folder: Path) -> None:
    """Writes a checkpoint: every replica calls it, the first one writes."""
    xm.rendezvous("saving")
    if xm.is_master_ordinal():
        model.config.save_pretrained(folder)
    xm.save(model.state_dict(), folder / "pytorch_model.bin")
    for name, value in state.items():
        xm.save(value, folder / f"{name}.pt")


def train(
    model: BertForMaskedLM, loader: DataLoader, device: torch.device, args: argparse.Namespace
) -> tuple[list[float], float]:
    """Returns the mean loss of each step over the replicas, and the seconds it all took."""
    steps = args.max_steps or args.num_train_epochs * len(loader)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay
    )
    scheduler = get_linear_schedule_with_warmup(
        optimizer, math.ceil(args.warmup_ratio * steps), steps
    )
    state = {"optimizer": optimizer, "scheduler": scheduler}
    batches = epochs(pl.MpDeviceLoader(loader, device), loader.sampler)
    losses = []
    start = time.perf_counter()
    model.train()
    with tqdm(total=steps, desc="training", disable=not xm.is_master_ordinal()) as progress:

        def show(loss: torch.Tensor) -> None:
            progress.set_postfix(loss=f"{loss.item():.3f}")

        for step, batch in enumerate(itertools.islice(batches, steps), start=1):
            optimizer.zero_grad()
            with torch.autocast("xla", torch.bfloat16, enabled=args.bf16):
                loss = model(**batch).loss
            loss.backward()
            xm.optimizer_step(optimizer)
            scheduler.step()
            losses.append(loss.detach())
            if step % args.logging_steps == 0:
                xm.add_step_closure(show, args=(losses[-1],))
            if step % args.save_steps == 0:
                contents = {name: part.state_dict() for name, part in state.items()}
                save(model, contents, args.output_dir / f"checkpoint-{step}")
            progress.update()
    means = xm.all_reduce(xm.REDUCE_SUM, torch.stack(losses), scale=1.0 / xr.world_size())
    result = means.tolist()
    seconds = time.perf_counter() - start
    save(model, {name: part.state_dict() for name, part in state.items()}, args.output_dir)
    return result, seconds


def epochs(loader: pl.MpDeviceLoader, sampler: DistributedSampler) -> Iterator[dict]:
    """Yields batches for ever, in another order in each epoch."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


@torch.no_grad()
def evaluate(
    model: BertForMaskedLM, loader: DataLoader, device: torch.device, args: argparse.Namespace
) -> float:
    """Returns the mean loss over all replicas' batches."""
    model.eval()
    torch.manual_seed(args.seed)  # The words that are masked do not depend on what was before.
    total = torch.zeros((), device=device)
    for batch in pl.MpDeviceLoader(loader, device):
        with torch.autocast("xla", torch.bfloat16, enabled=args.bf16):
            total += model(**batch).loss
    scale = 1.0 / (xr.world_size() * len(loader))
    return xm.all_reduce(xm.REDUCE_SUM, total, scale=scale).item()


def replica(index: int, args: argparse.Namespace) -> None:
    device = xm.xla_device()
    train_files, held_out = source_files(args.max_files)
    tokenizer = BertTokenizerFast(str(args.output_dir / "vocab.txt"), do_lower_case=False)
    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.num_attention_heads,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=args.max_seq_length,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    model = BertForMaskedLM(config)
    if not args.do_train:
        weights = args.output_dir / "pytorch_model.bin"
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model = model.to(device)
    xm.broadcast_master_param(model)
    torch.manual_seed(args.seed + 1 + index)  # Each masks other words.

    result: dict[str, object] = {"replicas": xr.world_size()}
    if args.do_train:
        blocks = Blocks(train_files, tokenizer, args.max_seq_length)
        loader = make_loader(blocks, tokenizer, args.per_device_train_batch_size, args)
        losses, seconds = train(model, loader, device, args)
        samples = len(losses) * args.per_device_train_batch_size * xr.world_size()
        result |= {"losses": losses, "seconds": seconds}
        xm.master_print(
            f"trained {len(losses)} steps in {seconds:.1f} s, {samples / seconds:.1f} samples/s, "
            f"compiles included; loss {losses[-1]:.3f}"
        )
    if args.do_eval:
        blocks = Blocks(held_out, tokenizer, args.max_seq_length)
        loader = make_loader(blocks, tokenizer, args.per_device_eval_batch_size, args)
        loss = evaluate(model, loader, device, args)
        result["perplexity"] = math.exp(loss)
        xm.master_print(f"perplexity on files not seen: {math.exp(loss):.2f}")
    for name, metric in {"compiles": "CompileTime", "executions": "ExecuteTime"}.items():
        samples = met.metric_data(metric)  # None: no compile, as the cache on disk had all.
        result[name] = samples[0] if samples else 0
    if args.tpu_metrics_debug:
        xm.master_print(met.metrics_report())
    if args.log_losses and xm.is_master_ordinal(local=False):
        Path(args.log_losses).write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    args = parse_arguments()
    if args.do_train:
        train_tokenizer(source_files(args.max_files)[0], args)
    torch_xla.launch(replica, args=(args,))


if __name__ == "__main__":
    main()
