"""What ``all_backends.py`` runs: a step of each job, on any device that PyTorch has.

Sizes are such that a step on two cores takes from one to some hundred milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import models
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Wrap = Callable[[nn.Module], Any]
Batch = Sequence[torch.Tensor]

DECODE_ROWS, DECODE_ROOM = 4, 128  # sequences, and places of their cache


class Job(NamedTuple):
    """One step, what it is given, and what it keeps from step to step."""

    step: Callable[..., torch.Tensor]
    batches: Iterator[Batch]
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    warm_up: int = 3  # steps until nothing is compiled any more


def training(
    workload: models.Workload, device: torch.device, wrap: Wrap, bfloat16: bool = False
) -> Job:
    """Forward, backward and the optimizer on one batch."""
    batches = itertools.repeat(tuple(tensor.to(device) for tensor in workload.batch))
    return training_on(workload, device, wrap, batches, bfloat16)


def training_on(
    workload: models.Workload,
    device: torch.device,
    wrap: Wrap,
    batches: Iterator[Batch],
    bfloat16: bool = False,
) -> Job:
    """The same, each step on the next of these batches; in bfloat16 by autocast."""
    model = workload.model.to(device).train()
    optimizer = workload.make_optimizer(list(model.parameters()))
    forward = wrap(model)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, bfloat16):
            loss = workload.loss(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(step, batches, model, optimizer)


def inference(model: nn.Module, inputs: torch.Tensor, device: torch.device, wrap: Wrap) -> Job:
    """A forward pass without gradients."""
    model = model.to(device).eval()
    forward = wrap(model)

    @torch.no_grad()
    def step(inputs: torch.Tensor) -> torch.Tensor:
        return forward(inputs)

    return Job(step, itertools.repeat((inputs.to(device),)), model)


# ---------------------------------------------------------------- models


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = models.shortcut(channels_in, channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """Returns ResNet-50: [N, 3, H, W] images to [N, classes] logits."""

    def blocks() -> Iterator[nn.Module]:
        channels = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(count):
                yield Bottleneck(channels, width, stride if block == 0 else 1)
                channels = 4 * width

    return models.resnet(blocks(), 2048, classes)


class Block(nn.Module):
    """Pre-normalized attention and MLP: [N, T, width] to the same."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.output(attention.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Vit(nn.Module):
    """A vision transformer: [N, 3, 64, 64] images in patches of 8 to [N, classes] logits."""

    def __init__(self, width: int = 192, layers: int = 6, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 3, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


class Gpt(nn.Module):
    """GPT-2 with a head of its own: [N, T] words to [N, T, vocabulary] logits."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, length: int = 128
    ) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.norm(self.blocks(self.word(words) + self.position(places))))


class LlamaLayer(nn.Module):
    """RMSNorm, rotary attention and a gated MLP; with a cache, on one more word."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor] | None,
        place: torch.Tensor,
    ) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        q, k = (_rotate(part, *rotation) for part in (q, k))
        mask = None
        if cache is not None:
            k, v = (all.index_copy_(2, place, one) for all, one in zip(cache, (k, v), strict=True))
            mask = (torch.arange(k.shape[2], device=x.device) <= place)[None]
        attention = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.output(attention.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """[N, T] words to [N, T, vocabulary] logits."""

    def __init__(
        self, vocabulary: int = 8192, width: int = 256, layers: int = 6, heads: int = 4
    ) -> None:
        super().__init__()
        self.dims = width // heads
        self.word = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, 3 * width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(
        self,
        words: torch.Tensor,
        place: torch.Tensor | None = None,
        caches: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        if place is None:
            place = torch.arange(words.shape[1], device=words.device)
        rate = 10000 ** (-torch.arange(0, self.dims, 2, device=words.device) / self.dims)
        angle = (place[:, None] * rate).repeat(1, 2)
        x = self.word(words)
        rotation = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, caches[i] if caches else None, place)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """Two LSTM layers: [N, T, 64] to [N, 10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Dlrm(nn.Module):
    """Bags of rows of 8 tables and 13 numbers, their products, an MLP: [N, 13 + 8 * 4] to [N]."""

    def __init__(self, rows: int = 20000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width))
        self.top = nn.Sequential(nn.Linear(36 + width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(x[:, :13])
        rows = x[:, 13:].long().unflatten(1, (8, 4))
        features = [dense, *(table(rows[:, i]) for i, table in enumerate(self.tables))]
        each = torch.stack(features, 1)
        products = (each @ each.transpose(1, 2)).flatten(1)
        i, j = torch.triu_indices(9, 9, 1)
        pairs = products.index_select(1, (i * 9 + j).to(x.device))
        return self.top(torch.cat([dense, pairs], 1))[:, 0]


def small_cnn() -> nn.Module:
    """[N, 3, 32, 32] images to [N, 10] logits."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels_in, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


# ---------------------------------------------------------------- jobs


def _next_word(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def _gpt_training(model: nn.Module, vocabulary: int, rows: int, length: int) -> models.Workload:
    words = torch.randint(vocabulary, (rows, length))
    return models.Workload(model, models.adamw, (words, words.clone()), _next_word)


def resnet50_workload() -> models.Workload:
    """ResNet-50 on images of 4x3x64x64; SGD."""
    batch = (torch.randn(4, 3, 64, 64), torch.randint(1000, (4,)))
    return models.Workload(resnet50(), models.sgd, batch, F.cross_entropy)


def vit_workload() -> models.Workload:
    """A vision transformer (6 layers of 192) on images of 8x3x64x64; AdamW."""
    batch = (torch.randn(8, 3, 64, 64), torch.randint(1000, (8,)))
    return models.Workload(Vit(), models.adamw, batch, F.cross_entropy)


def llama_workload() -> models.Workload:
    """Llama (6 layers of 256, vocabulary 8,192) on 4x128 words; AdamW."""
    return _gpt_training(Llama(), 8192, 4, 128)


def lstm_workload() -> models.Workload:
    """Two LSTM layers of 128 on 16x32x64; SGD."""
    batch = (torch.randn(16, 32, 64), torch.randint(10, (16,)))
    return models.Workload(Recurrent(), models.sgd, batch, F.cross_entropy)


def dlrm_workload() -> models.Workload:
    """Embedding bags (8 tables of 20,000x32) and two MLPs on 256 rows; SGD."""
    numbers = torch.cat([torch.rand(256, 13), torch.randint(20000, (256, 32)).float()], 1)
    batch = (numbers, torch.rand(256).round())
    return models.Workload(Dlrm(), models.sgd, batch, F.binary_cross_entropy_with_logits)


def scan48_workload() -> models.Workload:
    """48 decoder layers of 64 on 2x64 words; AdamW."""
    return _gpt_training(Gpt(256, 64, 48, 2), 256, 2, 64)


def _scan48(device: torch.device, wrap: Wrap) -> Job:
    """The same; on xla, as in JAX, one loop over layers that are kept stacked."""
    workload = scan48_workload()
    if device.type == "xla":
        from torch_xla.experimental.scan_layers import StackedLayers

        workload.model.blocks = StackedLayers(workload.model.blocks)
    return training(workload, device, wrap)


def small_cnn_workload() -> models.Workload:
    """The small CNN on batches that are given apart; SGD."""
    return models.Workload(small_cnn(), models.sgd, (), F.cross_entropy)


def batches_of_sizes() -> list[Batch]:
    """Returns batches of 8 to 27 images for the small CNN."""
    return [(torch.randn(n, 3, 32, 32), torch.randint(10, (n,))) for n in range(8, 28)]


class _Images(torch.utils.data.Dataset):
    """Random images that take about as long to make as to decode a small one."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(index))
        image = F.interpolate(image[None], (32, 32), mode="bilinear", antialias=True)[0]
        return (image - 0.5) / 0.25, index % 10


def image_loader() -> torch.utils.data.DataLoader:
    """Returns batches of 64 images for the small CNN, from one worker."""
    return torch.utils.data.DataLoader(_Images(), 64, num_workers=1, drop_last=True)


def resnet50_large_workload() -> models.Workload:
    """ResNet-50 on images of 64x3x224x224; SGD."""
    batch = (torch.randn(64, 3, 224, 224), torch.randint(1000, (64,)))
    return models.Workload(resnet50(), models.sgd, batch, F.cross_entropy)


def gpt2_large_workload() -> models.Workload:
    """GPT-2 (12 layers of 768, vocabulary 50,304) on 8x1024 words; AdamW."""
    return _gpt_training(Gpt(50304, 768, 12, 12, 1024), 50304, 8, 1024)


def bert_large_workload(dropout: float = 0) -> models.Workload:
    """BERT (12 layers of 768) on 32 sequences of 200 to 512 words, padded; AdamW."""
    words = torch.randint(1, 30522, (32, 512))
    for row, length in enumerate(torch.linspace(200, 512, 32).int()):
        words[row, length:] = 0
    model = models.Bert(width=768, layers=12, heads=12, dropout=dropout, padding=0)
    return models.bert_training(model, words)


def _trained(
    make: Callable[[], models.Workload], bfloat16: bool = False
) -> Callable[[torch.device, Wrap], Job]:
    """Returns what makes the job of a workload's training."""
    return lambda device, wrap: training(make(), device, wrap, bfloat16)


def gpt2_inputs() -> tuple[nn.Module, torch.Tensor]:
    """GPT-2 (8 layers of 512, vocabulary 50,257) and 1x128 words."""
    return Gpt(50257, 512, 8, 8), torch.randint(50257, (1, 128))


def gpt2_job(device: torch.device, wrap: Wrap) -> Job:
    """A forward pass of GPT-2, without gradients."""
    return inference(*gpt2_inputs(), device, wrap)


def llama_decode_job(device: torch.device, wrap: Wrap) -> Job:
    """The next word of 4 sequences, by a cache of 128 places, from Llama as above."""
    return _decoding(Llama(), DECODE_ROWS, DECODE_ROOM, device, wrap)


def llama_decode_large_job(device: torch.device, wrap: Wrap) -> Job:
    """That of 8, by 1024 places, from 16 layers of 2048 in bfloat16."""
    return _decoding(Llama(32000, 2048, 16, 16).bfloat16(), 8, 1024, device, wrap)


def _decoding(model: Llama, rows: int, room: int, device: torch.device, wrap: Wrap) -> Job:
    model = model.to(device).eval()
    weights = model.head.weight
    heads = model.layers[0].heads
    caches = [
        tuple(weights.new_zeros(rows, heads, room, model.dims) for _ in range(2))
        for _ in model.layers
    ]
    forward = wrap(model)
    words = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    place = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step() -> torch.Tensor:
        logits = forward(words, place, caches)
        words.copy_(logits[:, -1:].argmax(-1))
        place.add_(1).remainder_(room)
        return words

    return Job(step, itertools.repeat(()), model)


def recompile_job(device: torch.device, wrap: Wrap) -> Job:
    """The small CNN on batches of 20 sizes, in turn: what is compiled is found again."""
    batches = [tuple(tensor.to(device) for tensor in batch) for batch in batches_of_sizes()]
    job = training_on(small_cnn_workload(), device, wrap, itertools.cycle(batches))
    return job._replace(warm_up=3 * len(batches))


def data_bound_job(device: torch.device, wrap: Wrap) -> Job:
    """The small CNN on 64 images a step, from a loader with one worker."""
    loader = image_loader()

    def batches() -> Iterator[Batch]:
        if device.type == "xla":
            from torch_xla.distributed.parallel_loader import MpDeviceLoader

            # As far ahead as the loader's worker: 24 batches by default are 19 MB.
            yield from MpDeviceLoader(
                loader, device, loader_prefetch_size=2, device_prefetch_size=2
            )
        for batch in loader:
            yield [tensor.to(device) for tensor in batch]

    return training_on(small_cnn_workload(), device, wrap, batches())


JOBS: dict[str, Callable[[torch.device, Wrap], Job]] = {
    **{name: _trained(make) for name, make in models.WORKLOADS.items()},
    "resnet50": _trained(resnet50_workload),
    "vit": _trained(vit_workload),
    "gpt2": gpt2_job,
    "llama": _trained(llama_workload),
    "llama_decode": llama_decode_job,
    "lstm": _trained(lstm_workload),
    "dlrm": _trained(dlrm_workload),
    "scan48": _scan48,
    "recompile": recompile_job,
    "data_bound": data_bound_job,
}

# Of a size for accelerators.
LARGE_JOBS: dict[str, Callable[[torch.device, Wrap], Job]] = {
    "resnet50_large": _trained(resnet50_large_workload, bfloat16=True),
    "gpt2_large": _trained(gpt2_large_workload, bfloat16=True),
    "gpt2_large_f32": _trained(gpt2_large_workload),
    "bert_large": _trained(bert_large_workload, bfloat16=True),
    "bert_large_dropout": _trained(lambda: bert_large_workload(0.1), bfloat16=True),
    "llama_decode_large": llama_decode_large_job,
}
