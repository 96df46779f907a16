"""The models of the benchmarks: an MLP, ResNet-18 and a BERT, with their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Workload(NamedTuple):
    """A model, its optimizer, one batch, and how the loss is made of them."""

    model: nn.Module
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    batch: tuple[torch.Tensor, torch.Tensor]  # Input and target, on the CPU.
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def shortcut(channels_in: int, channels: int, stride: int) -> nn.Module:
    """Returns what a residual block adds its input by: nothing done to it, where shapes agree."""
    if stride == 1 and channels_in == channels:
        return nn.Sequential()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
    )


def resnet(blocks: Iterable[nn.Module], channels: int, classes: int) -> nn.Module:
    """Returns a stem, these blocks and a head for their channels: [N, 3, H, W] to [N, classes]."""
    stem = (
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    )
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut(channels_in, channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 1000) -> nn.Module:
    """Returns ResNet-18: [N, 3, H, W] images to [N, classes] logits."""

    def blocks() -> Iterator[nn.Module]:
        channels_in = 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            yield BasicBlock(channels_in, channels, stride)
            yield BasicBlock(channels, channels, 1)
            channels_in = channels

    return resnet(blocks(), 512, classes)


class BertLayer(nn.Module):
    """Self-attention and MLP with post-normalization: [N, T, width] to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attention = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=self.dropout if self.training else 0.0
        )
        attention = self.output(attention.transpose(1, 2).flatten(2))
        x = self.norm1(x + F.dropout(attention, self.dropout, self.training))
        y = self.down(F.gelu(self.up(x)))
        return self.norm2(x + F.dropout(y, self.dropout, self.training))


class Bert(nn.Module):
    """BERT with the masked-word head, tied to the embedding: [N, T] to [N, T, vocabulary].

    Words equal to `padding` are attended to by none.
    """

    def __init__(
        self,
        vocabulary: int = 30522,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        length: int = 512,
        dropout: float = 0.1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.padding = padding
        self.word = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(BertLayer(width, heads, dropout) for _ in range(layers)))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.word(words) + self.position(positions) + self.kind(torch.zeros_like(words))
        x = F.dropout(self.norm(x), self.dropout, self.training)
        mask = None if self.padding is None else (words != self.padding)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(self.transform(x), self.word.weight, self.bias)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def mlp_workload() -> Workload:
    """Four linear layers of 512 on a batch of 128; SGD."""
    sizes = [512, 512, 512, 512]
    layers: list[nn.Module] = []
    for size_in, size in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(size_in, size), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    batch = (torch.randn(128, 512), torch.randint(10, (128,)))
    return Workload(model, sgd, batch, F.cross_entropy)


def resnet18_workload() -> Workload:
    """ResNet-18 on images of 16x3x64x64; SGD."""
    batch = (torch.randn(16, 3, 64, 64), torch.randint(1000, (16,)))
    return Workload(resnet18(), sgd, batch, F.cross_entropy)


def bert_workload() -> Workload:
    """BERT with 4 layers of width 256 on 8 sequences of 128 words; AdamW."""
    return bert_training(Bert(), torch.randint(30522, (8, 128)))


def bert_training(model: Bert, words: torch.Tensor) -> Workload:
    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    return Workload(model, adamw, (words, words.clone()), loss)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp": mlp_workload,
    "resnet18": resnet18_workload,
    "bert": bert_workload,
}
