"""Trains a small CNN on scikit-learn's 1,797 images of handwritten digits.

    python examples/train_digits.py                 # on the xla device
    python examples/train_digits.py --device cpu    # the same, on eager PyTorch

Both give the same losses with ``--dropout 0``; the random numbers of dropout differ.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

TEST_IMAGES = 360
TEST_BATCH_SIZE = 90  # A divisor of TEST_IMAGES: one shape, so one compile.


class DigitsNet(nn.Module):
    """Two convolution blocks and two linear layers; [N, 1, 8, 8] floats to [N, 10] logits."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the test set: images [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("xla", "cpu"), default="xla")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-steps", type=int, default=10, help="steps between shown losses")
    parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.device == "xla":
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met
        import torch_xla.distributed.parallel_loader as pl

        device = xm.xla_device()
    else:
        device = torch.device("cpu")

    torch.manual_seed(args.seed)
    train_set, test_set = load_data()
    train_loader = DataLoader(
        train_set,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(args.seed),
    )
    test_loader = DataLoader(test_set, TEST_BATCH_SIZE)
    if args.device == "xla":
        train_loader = pl.MpDeviceLoader(train_loader, device)
        test_loader = pl.MpDeviceLoader(test_loader, device)

    model = DigitsNet(args.dropout).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    def train_epoch(epoch: int) -> list[float]:
        model.train()
        losses = []
        with tqdm(train_loader, desc=f"epoch {epoch}/{args.epochs}") as progress:

            def show(loss: torch.Tensor) -> None:
                progress.set_postfix(loss=f"{loss.item():.4f}")

            for step, (images, labels) in enumerate(progress):
                optimizer.zero_grad()
                loss = loss_fn(model(images), labels)
                loss.backward()
                if args.device == "xla":
                    xm.optimizer_step(optimizer)
                    if step % args.log_steps == 0:
                        xm.add_step_closure(show, args=(loss.detach(),))
                else:
                    optimizer.step()
                    if step % args.log_steps == 0:
                        show(loss)
                losses.append(loss.detach())
        return [loss.item() for loss in losses]

    @torch.no_grad()
    def test_accuracy() -> float:
        model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=device)
        for images, labels in test_loader:
            correct += (model(images).argmax(dim=1) == labels).sum()
        return correct.item() / TEST_IMAGES

    def compile_count() -> int | None:
        if args.device != "xla":
            return None
        # None while all programs came from the cache on disk.
        samples = met.metric_data("CompileTime")
        return samples[0] if samples else 0

    losses, compiles, accuracy = [], [], 0.0
    seconds = steps = 0
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        epoch_losses = train_epoch(epoch)
        if epoch > 1 or args.epochs == 1:  # The first epoch compiles.
            seconds += time.perf_counter() - start
            steps += len(epoch_losses)
        losses += epoch_losses
        accuracy = test_accuracy()
        compiles.append(compile_count())

    print(f"test accuracy: {100 * accuracy:.2f} %")
    print(f"speed: {steps / seconds:.1f} steps/s with batches of {args.batch_size}")
    if args.device == "xla":
        print(
            f"compiles: {compiles[-1]}, of these after the first epoch: "
            f"{compiles[-1] - compiles[0]}"
        )
    if args.log_losses:
        result = {
            "losses": losses,
            "accuracy": accuracy,
            "steps_per_second": steps / seconds,
            "compiles": compiles,
        }
        with open(args.log_losses, "w", encoding="utf-8") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
