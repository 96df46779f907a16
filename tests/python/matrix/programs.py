"""The programs of the matrix: small models, each with something that real ones do.

A program is a module. Its ``forward`` takes a batch and a number that changes from step to step; it
draws no random numbers but those of :meth:`Program.inputs`, which come from the CPU. Its docstring
says what it covers. Every program trains, so that gradients are part of what is compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

PROGRAMS: dict[str, type[Program]] = {}


def rand(seed: int, *sizes: int) -> Tensor:
    """Numbers around 0, the same for the same seed everywhere."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def below(limit: int, seed: int, *sizes: int) -> Tensor:
    """Integers from 0."""
    return torch.randint(limit, sizes, generator=torch.Generator().manual_seed(seed))


class Program(nn.Module):
    """What programs have in common: a weight, a batch of rows of four numbers, SGD.

    Attributes:
        rows: Rows of a batch; where the first dimension is no batch, 0.
        max_norm: What the norm of the gradients is clipped to.
        rtol: How far numbers may be from the CPU's, relatively.
        in_threads: Whether two may run at the same time.
    """

    rows = 4
    in_threads = True
    max_norm: float | None = None
    rtol = 2e-4

    def __init_subclass__(cls) -> None:
        PROGRAMS[cls.__name__] = cls

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(rand(99, 4, 4) / 2)
        self.build()

    def build(self) -> None:
        """Makes parameters, buffers and modules besides ``w``."""

    def inputs(self, seed: int, rows: int) -> Any:
        """The batch of a step, on the CPU."""
        return rand(seed, rows, 4)

    def loss(self, out: Any) -> Tensor | None:
        """A loss of all results that have gradients."""
        parts = [
            (t.abs() if t.is_complex() else t.float()).square().sum() / 16
            for t in pytree.tree_leaves(out)
            if isinstance(t, Tensor) and t.requires_grad
        ]
        return sum(parts) if parts else None

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.5)

    def change(self) -> None:
        """What the host changes between two steps, now and then."""


# ------------------------------------------------------------------ numbers and sizes


class Numbers(Program):
    """Python numbers in every place."""

    def forward(self, x, i):
        h = x @ self.w * 0.5 / 8 - 5
        h = torch.add(torch.softmax(h * 0.125, -1), h, alpha=2.5).clamp(-3.5, 0.7)
        h = torch.where(h > -2.5, h, -2.5) + (2 - h) + h.square() ** 1.5 + x // 3 + h % 0.75
        return torch.lerp(h, x, 0.25) + F.leaky_relu(h, 0.01), torch.full_like(h, 0.3), 7


class NumbersOfTheStep(Program):
    """Numbers that are others at each step, and 0, 1 among them."""

    def forward(self, x, i):
        h = x @ self.w * i + (x - i) / (i + 1)
        return h.clamp(min=-i) + torch.full((4,), float(i), device=x.device), h * 10**-i


class Sizes(Program):
    """Sizes used as numbers and as sizes."""

    def forward(self, x, i):
        n = x.shape[0]
        h = x @ self.w / n + x.sum(0) * n - n
        places = torch.arange(n, device=x.device)
        return h.reshape(n, -1) * places[:, None] / (n + 1), torch.zeros(n, 1, device=x.device) + n


class Pads(Program):
    """Padding by an amount that is another at each step: shapes that follow from numbers."""

    def forward(self, x, i):
        h = x @ self.w
        return F.pad(h, (i, 1)), F.pad(h, (1, 0, 0, i), value=0.5), F.pad(h[None], (0, i)).sum(1)


class HostNumber(Program):
    """A tensor on the CPU without dimensions, which the host changes, among the operands."""

    def build(self):
        self.host = {"temperature": torch.tensor(2.0)}

    def change(self):
        self.host["temperature"] = self.host["temperature"] + 1

    def forward(self, x, i):
        return torch.softmax(x @ self.w / self.host["temperature"], -1)


class HostTable(Program):
    """A table in numpy's memory that the forward pass uploads, and the host writes to."""

    def build(self):
        self.table = {"content": np.ones(4, dtype=np.float32)}

    def change(self):
        self.table["content"] += 1

    def forward(self, x, i):
        return x @ self.w * torch.from_numpy(self.table["content"]).to(x.device)


class GrowingCat(Program):
    """A sequence that is longer at each step."""

    def forward(self, x, i):
        h = x @ self.w
        for k in range(i):
            h = torch.cat([h, h[:, -1:] * (k + 1)], 1)
        return h, torch.zeros(i + 1, 2, device=x.device) + h.sum()


# ------------------------------------------------------------------ writes


class SliceWrites(Program):
    """Numbers and tensors written to slices of an activation."""

    def forward(self, x, i):
        y = x @ self.w
        y[0] = 0
        y[:, 1:3] += 1
        y[1].mul_(2)
        y[-1, 2:] = y[0, :2] * 3
        return y


class StridedWrites(Program):
    """Writes through steps, transposes and `narrow`."""

    def forward(self, x, i):
        y = x @ self.w
        y.t()[0].mul_(3)
        y[:, ::2] = x[:, ::2] - 1
        y.narrow(1, 1, 2).copy_(x[:, 2:])
        y[..., None][:, 3] = 2.5
        y.diagonal().add_(1)
        return y


class SliceOfTheStep(Program):
    """Slices and elements at a place that the step's number says."""

    def forward(self, x, i):
        y = x @ self.w
        y[:, i : i + 1] = 0
        y[:, i] += y[:, i - 1]
        y[:, :i] *= 2
        return y, y[:, i : i + 2], x.narrow(1, i, 1) * i


class MaskWrites(Program):
    """A number written where a mask is true, in four ways."""

    def forward(self, x, i):
        y = x @ self.w
        y[x > 0.5] = 0.0
        y = y.masked_fill(x < -1, 2.0)
        y.masked_fill_(y > 1.5, -1)
        y[(x > 0) & (x < 0.25)] += 1
        return torch.where(x > 0, y, 0.5)


class MaskedRows(Program):
    """Tensors written to the rows that a mask chooses, as multimodal models do."""

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 4), "mask": torch.arange(rows) % 2 == 0}

    def forward(self, x, i):
        x, mask = x["x"], x["mask"]
        y = x @ self.w
        y[mask] = x[mask] * 2
        y[mask, 1] += 1
        return y.masked_scatter(mask[:, None].expand_as(y), x * 3), y


class IndexWrites(Program):
    """Writes by tensors of indices, with duplicates where they add up."""

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 4), "at": below(4, seed, rows)}

    def forward(self, x, i):
        x, at = x["x"], x["at"]
        y = x @ self.w
        y[torch.arange(4, device=x.device)[:2]] = x[-2:]
        z = torch.zeros(4, 4, device=x.device).index_add(0, at, y).index_put((at,), y, True)
        y = y.scatter(1, at[:, None], 3.0).scatter_add(1, at[:, None], x[:, :1])
        return y, z.index_copy(0, torch.tensor([2], device=x.device), x[:1])


class CopyToBuffer(Program):
    """`copy_`, `lerp_` and `add_` to buffers, whole and in part."""

    def build(self):
        self.register_buffer("last", torch.zeros(4, 4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, i):
        h = x @ self.w
        rows = h.detach()[:1]
        self.last.copy_(rows.expand(4, 4))
        self.last[:2].copy_(rows.expand(2, 4) + 1)
        self.mean.lerp_(rows[0], 0.1)
        return h + self.mean + self.last[0].clone()


class BufferReplaced(Program):
    """A buffer to which another tensor is assigned."""

    def build(self):
        self.register_buffer("state", torch.ones(4))

    def forward(self, x, i):
        h = x @ self.w + self.state
        self.state = self.state * 0.5 + h.detach().sum(0)
        return h


class ViewsOfViews(Program):
    """Views of views, written to from both sides."""

    def forward(self, x, i):
        base = x @ self.w
        y = base.view(-1, 2, 2)[1:].transpose(1, 2)[:, 1:]
        y.mul_(2)
        base[1:] += 1
        y.squeeze(1)[:, 0].add_(0.5)
        return base, y * 1


class ZerosThenFill(Program):
    """A tensor of zeros that is filled part by part."""

    def forward(self, x, i):
        h = x @ self.w
        z = torch.zeros_like(h)
        z[1] = h[0]
        z[:, 2] = x[:, 0]
        z[2:].fill_(0.25)
        e = h.new_empty(2, 4)
        e[0], e[1] = h[-1], h[-2]
        return z, e, torch.empty_like(h).fill_(3).add_(h)


class RingBuffer(Program):
    """A ring whose position is a Python number."""

    def build(self):
        self.register_buffer("ring", torch.zeros(3, 4))

    def forward(self, x, i):
        h = x @ self.w
        self.ring[i % 3] = h.detach().mean(0)
        return h + self.ring.mean(0)


class CacheOfTheStep(Program):
    """Attention over a cache of keys and values; the position is a Python number."""

    rows = 2

    def build(self):
        self.register_buffer("k", torch.zeros(8, 8, 4))
        self.register_buffer("v", torch.zeros(8, 8, 4))

    def forward(self, x, i):
        n = x.shape[0]
        q = x @ self.w
        self.k[:n, i : i + 1] = q.detach()[:, None]
        self.v[:n, i] = x
        k, v = self.k[:n, : i + 1].clone(), self.v[:n, : i + 1].clone()
        return F.scaled_dot_product_attention(q[:, None], k, v)


class CacheOfATensor(Program):
    """The same with a position that is a tensor, and a mask."""

    rows = 2

    def build(self):
        self.register_buffer("k", torch.zeros(8, 12, 4))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x, i):
        q, n = x @ self.w, x.shape[0]
        self.k[:n].index_copy_(1, self.at, q.detach()[:, None])
        seen = torch.arange(12, device=x.device) <= self.at
        scores = (q[:, None] * self.k[:n]).sum(-1).masked_fill(~seen, float("-inf"))
        self.at.add_(1)
        return torch.softmax(scores, -1)


class RunningMean(Program):
    """Statistics kept by hand: a mean, a count of integers, a maximum without dimensions."""

    def build(self):
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("most", torch.tensor(-1.0))

    def forward(self, x, i):
        h = x @ self.w
        with torch.no_grad():
            self.count += 1
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.most.copy_(torch.maximum(self.most, h.max()))
        return (h - self.mean) / (1 + self.count) + self.most


class BatchNorms(Program):
    """Running statistics of batch norm and instance norm."""

    def build(self):
        self.batch = nn.BatchNorm1d(4)
        self.instance = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def forward(self, x, i):
        h = self.batch(x @ self.w)
        return h, self.instance(torch.stack([h * i, x], 1).sin())


class InPlaceChain(Program):
    """Operators in place one after the other, and `out=`."""

    def forward(self, x, i):
        h = (x @ self.w).add_(1).mul_(x).sub_(0.5).relu_() + 2
        with torch.no_grad():
            o = torch.empty_like(x)
            torch.mul(x, 3, out=o)
            o.zero_().add_(h).clamp_(max=0.5)
        return h, o


class MutatedInput(Program):
    """A batch that the forward pass changes."""

    def forward(self, x, i):
        x.add_(1)
        x[0] = 2
        return x @ self.w, x.sum()


class ParameterClamped(Program):
    """Parameters written to by way of `.data` and under `no_grad`."""

    def forward(self, x, i):
        self.w.data.clamp_(-0.5, 0.5)
        with torch.no_grad():
            self.w[0] *= 0.9
        return x @ self.w


class Averages(Program):
    """A moving average of the parameters, as in EMA and in target networks."""

    def build(self):
        self.register_buffer("shadow", self.w.detach().clone())

    def forward(self, x, i):
        with torch.no_grad():
            self.shadow.lerp_(self.w, 0.2)
        return x @ self.w - (x @ self.shadow).detach()


# ------------------------------------------------------------------ results and aliases


class InputReturned(Program):
    """A batch that is returned as it is, beside results."""

    def forward(self, x, i):
        return x, x @ self.w


class OutputsAlias(Program):
    """Results that share memory with each other and with the batch."""

    def forward(self, x, i):
        y = x @ self.w
        return y, y[1:], y.view(-1), x[:2], x.t()


class StateReturned(Program):
    """Views of a buffer as results."""

    def build(self):
        self.register_buffer("state", torch.arange(8.0).view(2, 4))

    def forward(self, x, i):
        self.state += x.detach()[:1]
        return x @ self.w, self.state[0], self.state.view(-1)


class NestedOutputs(Program):
    """Results in containers, with None, numbers and one tensor twice."""

    def forward(self, x, i):
        h = x @ self.w
        return {"h": h, "all": [h, (x * 2, None)], "i": i + 1, "name": "out", "rows": list(h[:2])}


class ListOfRows(Program):
    """A loop over rows, and lists of tensors."""

    def forward(self, x, i):
        h = x @ self.w
        rows = [row * k for k, row in enumerate(h[:2])]
        left, right = h.split(2, 1)
        a, b = torch.unbind(h[:2])
        return torch.stack(rows), torch.cat([right, left], 1), a + b, h.chunk(2, 1)[1]


# ------------------------------------------------------------------ dtypes and shapes


class Integers(Program):
    """Integers of several widths: division, remainders, shifts, sums, extremes."""

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 4), "n": below(100, seed, rows, 4) - 50}

    def forward(self, x, i):
        x, n = x["x"], x["n"]
        small, byte = n.to(torch.int32), n.abs().to(torch.uint8)
        parts = (n // 7, n % -3, small << 2, byte * 3, small.sum(0), byte.sum(), n.max(1)[1])
        return x @ self.w * (n / 64), *parts, n.float().mean() + 2**31, n ^ 5


class Booleans(Program):
    """Masks: logic, any, all, counting, and arithmetic of them."""

    def forward(self, x, i):
        m = x > 0
        parts = (~m, m & (x < 1), m.any(0), m.all(), m.sum(1), m.cumsum(0), m.logical_xor(m[:1]))
        return x @ self.w * m, *parts, m.float() + 1, m.long().argmax(1)


class Halves(Program):
    """bfloat16 and float16 activations beside float32 weights."""

    rtol = 3e-2

    def forward(self, x, i):
        a = x.bfloat16() @ self.w.bfloat16()
        b = (x * 2).half() * 0.5 + 1
        return a, b, a.float() + b, torch.softmax(a, -1, dtype=torch.float32)


class ComplexNumbers(Program):
    """Rotary embeddings by complex numbers, and a Fourier transform."""

    def forward(self, x, i):
        h = torch.view_as_complex((x @ self.w).view(-1, 2, 2))
        turns = torch.polar(
            torch.ones(2, device=x.device), torch.arange(2.0, device=x.device) * (i + 1)
        )
        y = h * turns + (1 + 2j)
        return torch.view_as_real(y).flatten(1), y.conj() * 2, torch.fft.rfft(x)


class ZeroDim(Program):
    """Tensors without dimensions: parameters, sums, indices, results."""

    def build(self):
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x, i):
        h = (x @ self.w).sum() * self.gain
        return h, h[None] + x[0, 0], x.mean() / 2, torch.stack([h, self.gain]), x[0].max()


class Empties(Program):
    """Tensors without elements: slices, sums, concatenation, matrix products."""

    def forward(self, x, i):
        h = x @ self.w
        e = h[:, :0]
        return torch.cat([e, h], 1), e, e.sum(), e @ e.t(), torch.zeros(0, device=x.device), h[3:3]


class Expanded(Program):
    """Expanded operands, as of grouped queries and broadcast masks."""

    def forward(self, x, i):
        h = (x @ self.w)[:, None].expand(-1, 2, 4)
        k = x.view(-1, 1, 4).expand(-1, 2, 4).reshape(-1, 2, 4)
        mask = (x[:, :1] > 0)[:, :, None].expand_as(h)
        return h * mask, h @ k.transpose(1, 2), x[:1].expand_as(x) + 1, h.sum((0, 1))


class Transposed(Program):
    """Transposed and permuted operands, `contiguous`, `reshape`."""

    def forward(self, x, i):
        h = (x @ self.w).view(-1, 2, 2)
        p = h.permute(2, 0, 1).clone()
        return p, h.transpose(1, 2) @ h, (x @ self.w.t()).mT.clone(), p.flatten(1).sum(0), p.mean(1)


class WhereNaN(Program):
    """`where` and masks on NaN and infinity."""

    def forward(self, x, i):
        h = x @ self.w
        bad = torch.where(x > 0, torch.log(x), 7.0) / torch.where(x > 1, x, 0.0)
        safe = torch.where(h > 0, h, 1.0).sqrt()
        parts = (bad.isnan(), bad.isinf(), torch.nan_to_num(bad, 0.5), bad.nansum())
        return torch.where(h > 0, safe, 0.0), *parts, bad == bad


class Reductions(Program):
    """Reductions over several dimensions, kept or not, with and without correction."""

    def forward(self, x, i):
        h = (x @ self.w).view(-1, 2, 2)
        parts = (h.sum((1, 2)), h.mean(-1, keepdim=True), h.amax((0, 2)), h.norm(dim=1), h.prod(-1))
        return *parts, h.var((1, 2)), h.std(0, correction=0), torch.logsumexp(h, (1, 2))


class Cumulative(Program):
    """Cumulative sums, products and extremes, flips and rolls."""

    def forward(self, x, i):
        h = x @ self.w
        parts = (h.cumsum(1), h.cumprod(1), torch.logcumsumexp(h, 1), h.cummax(1)[0], h.flip(1))
        return *parts, h.roll(i, 1), torch.tril(h), torch.diff(h, dim=1)


class SortTopK(Program):
    """Sorting, the best k, and picking by what they give."""

    def forward(self, x, i):
        h = x @ self.w
        values, at = h.topk(2, 1)
        order = h.argsort(1, descending=True)
        return values, at, order, h.gather(1, order[:, :1]), h.sort(0)[0], h.take_along_dim(at, 1)


class Einsums(Program):
    """Products over several dimensions."""

    def forward(self, x, i):
        h = (x @ self.w).view(-1, 2, 2)
        return (
            torch.einsum("bij,bkj->bik", h, h),
            torch.einsum("bij,jk->bk", h, self.w[:2, :3]),
            torch.tensordot(h, self.w.view(2, 2, 4), 2),
            torch.baddbmm(h, h, h, beta=0.5, alpha=2),
            torch.outer(x[0], self.w[0]),
        )


class LinearAlgebra(Program):
    """Factorizations and solutions of small systems."""

    def forward(self, x, i):
        a = self.w @ self.w.t() + 3 * torch.eye(4, device=x.device)
        low = torch.linalg.cholesky(a)
        return torch.linalg.solve(a, x.t()), low, torch.logdet(a), torch.linalg.inv(a) @ x.t()


# ------------------------------------------------------------------ layers and losses


class DropoutMasks(Program):
    """Dropout by a mask of the batch, and with the probabilities 0 and 1."""

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 4), "keep": below(2, seed, rows, 4)}

    def forward(self, x, i):
        x, keep = x["x"], x["keep"]
        h = F.dropout(x @ self.w, 0.0, self.training) * keep.bool() * 2
        return h, F.dropout(h, 1.0, True) + x, F.dropout(h, 0.5, False) * 2


class TiedWeights(Program):
    """An embedding whose table is the weight of the last layer, too."""

    def build(self):
        self.table = nn.Embedding(6, 4)
        self.table.weight = nn.Parameter(rand(5, 6, 4))
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def inputs(self, seed, rows):
        return below(6, seed, rows, 3)

    def forward(self, x, i):
        return self.head(self.table(x) @ self.w)


class IgnoredLabels(Program):
    """Losses with labels that are ignored, smoothed and weighted."""

    def inputs(self, seed, rows):
        labels = below(4, seed, rows)
        labels[1:2] = -100
        return {"x": rand(seed, rows, 4), "labels": labels}

    def forward(self, x, i):
        h, labels = x["x"] @ self.w, x["labels"]
        weight = torch.arange(1.0, 5.0, device=h.device)
        a = F.cross_entropy(h, labels)
        b = F.cross_entropy(h, labels, weight, label_smoothing=0.1, reduction="sum")
        c = F.cross_entropy(h, torch.full_like(labels, -100), reduction="none")
        return a, b, c, F.binary_cross_entropy_with_logits(h, (x["x"] > 0).float())


class EmbeddingBags(Program):
    """Bags of embeddings, one of them empty."""

    rows = 0

    def build(self):
        self.bag = nn.EmbeddingBag(6, 4, mode="sum")
        self.bag.weight = nn.Parameter(rand(6, 6, 4))

    def inputs(self, seed, rows):
        return {"at": below(6, seed, 7), "offsets": torch.tensor([0, 3, 3])}

    def forward(self, x, i):
        mean = F.embedding_bag(x["at"], self.bag.weight, x["offsets"], mode="mean")
        return self.bag(x["at"], x["offsets"]) @ self.w, mean


class Packed(Program):
    """A recurrent network over a packed sequence."""

    def build(self):
        self.net = nn.LSTM(4, 4, batch_first=True)
        for k, p in enumerate(self.net.parameters()):
            p.data = rand(k, *p.shape) / 2

    def inputs(self, seed, rows):
        return rand(seed, rows, 3, 4)

    def forward(self, x, i):
        lengths = torch.tensor([3] + [1 + k % 2 for k in range(x.shape[0] - 1)])
        packed = pack_padded_sequence(x @ self.w, lengths, batch_first=True, enforce_sorted=False)
        out, (h, _) = self.net(packed)
        return pad_packed_sequence(out, batch_first=True)[0], h


class Recurrent(Program):
    """A GRU whose hidden state is carried from step to step."""

    rows = 2

    def build(self):
        self.net = nn.GRU(4, 4)
        for k, p in enumerate(self.net.parameters()):
            p.data = rand(k, *p.shape) / 2
        self.register_buffer("hidden", torch.zeros(1, 2, 4))

    def inputs(self, seed, rows):
        return rand(seed, rows, 2, 4)

    def forward(self, x, i):
        out, h = self.net(x @ self.w, self.hidden.clone())
        self.hidden.copy_(h.detach())
        return out


class Convolutions(Program):
    """Convolution, pooling, norms of groups, interpolation."""

    rows = 2

    def build(self):
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.conv.weight = nn.Parameter(rand(7, 2, 1, 3, 3))
        nn.init.zeros_(self.conv.bias)
        self.norm = nn.GroupNorm(1, 2)

    def inputs(self, seed, rows):
        return rand(seed, rows, 1, 4, 4)

    def forward(self, x, i):
        h = self.norm(self.conv(x @ self.w)).relu()
        return F.max_pool2d(h, 2), F.interpolate(h, scale_factor=2, mode="nearest"), h.mean((2, 3))


class Block(Program):
    """A transformer's block: norms, attention with a causal mask, a residual, GELU."""

    rows = 2

    def build(self):
        self.norm = nn.LayerNorm(4)
        self.up = nn.Parameter(rand(8, 4, 8) / 2)

    def inputs(self, seed, rows):
        return rand(seed, rows, 3, 4)

    def forward(self, x, i):
        q = self.norm(x) @ self.w
        x = x + F.scaled_dot_product_attention(q, q, x, is_causal=True)
        return x + F.gelu(x @ self.up) @ self.up.t()


class PaddedAttention(Program):
    """`MultiheadAttention` with a mask of padding."""

    rows = 2

    def build(self):
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        for k, p in enumerate(self.attention.parameters()):
            p.data = rand(k, *p.shape) / 2

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 3, 4), "pad": torch.tensor([[False, False, True]] * rows)}

    def forward(self, x, i):
        h = x["x"] @ self.w
        return self.attention(h, h, h, key_padding_mask=x["pad"])


class Routing(Program):
    """Experts chosen by a router: one-hot masks, an accumulating scatter."""

    def forward(self, x, i):
        h = x @ self.w
        gate = torch.softmax(h, -1)
        best, expert = gate.max(-1)
        hot = F.one_hot(expert, 4)
        y = torch.zeros_like(h).index_add_(0, expert % x.shape[0], h * best[:, None])
        return y, hot, hot.sum(0), (hot.float().mean(0) * gate.mean(0)).sum()


class MaskRead(Program):
    """Rows picked by a mask: a shape that the data says."""

    def inputs(self, seed, rows):
        return {"x": rand(seed, rows, 4), "mask": torch.arange(rows) <= seed % 3}

    def forward(self, x, i):
        h = x["x"] @ self.w
        picked = h[x["mask"]]
        return picked, F.mse_loss(picked, x["x"][x["mask"]]), x["mask"].nonzero()


# ------------------------------------------------------------------ autograd


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        sign = x.sign()
        ctx.save_for_backward(sign)
        ctx.mark_non_differentiable(sign)
        return x * factor, sign

    @staticmethod
    def backward(ctx, grad, _):
        (sign,) = ctx.saved_tensors
        return grad * ctx.factor * sign, None


class CustomFunction(Program):
    """A function with a backward pass of its own, and straight-through estimators."""

    def forward(self, x, i):
        h, sign = _Scaled.apply(x @ self.w, 2.0)
        return h + (h.round() - h).detach(), sign


def _half(module, args, output):
    return output * 0.5


def _double(grad):
    return grad * 2


class Hooks(Program):
    """Hooks of modules and of tensors that change what passes."""

    def build(self):
        self.layer = nn.Linear(4, 4)
        self.layer.weight, self.layer.bias = nn.Parameter(rand(3, 4, 4)), nn.Parameter(rand(4, 4))
        self.layer.register_forward_hook(_half)

    def forward(self, x, i):
        h = x @ self.w
        if h.requires_grad:
            h.register_hook(_double)
        return self.layer(h)


class Functional(Program):
    """Gradients inside the forward pass, mapped over rows."""

    in_threads = False  # PyTorch has one level of forward-mode derivatives for all threads.

    def forward(self, x, i):
        def energy(row, w):
            return (row @ w).sin().sum()

        slopes = torch.func.vmap(torch.func.grad(energy), in_dims=(0, None))(x, self.w)
        value, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
        return slopes, value + tangent


class GradientPenalty(Program):
    """A gradient that is part of the loss: a backward pass through a backward pass."""

    def forward(self, x, i):
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            score = (at @ self.w).tanh().sum()
            (slope,) = torch.autograd.grad(score, at, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean(), score


class Checkpointed(Program):
    """Activations that are computed again in the backward pass."""

    def _block(self, x):
        return torch.tanh(x @ self.w).sin()

    def forward(self, x, i):
        h = checkpoint(self._block, x, use_reentrant=False)
        return checkpoint(self._block, h, use_reentrant=False)


class Autocast(Program):
    """Mixed precision within the forward pass."""

    rtol = 3e-2

    def build(self):
        self.norm = nn.LayerNorm(4)

    def forward(self, x, i):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            h = x @ self.w
            y = h @ self.w.tanh()
        return self.norm(h.float()), y, h


class Frozen(Program):
    """Parts without gradients: a frozen parameter, `no_grad`, `detach`."""

    def build(self):
        self.frozen = nn.Parameter(rand(6, 4, 4), requires_grad=False)

    def forward(self, x, i):
        with torch.no_grad():
            target = x @ self.frozen
        h = x @ self.w @ self.frozen
        return h - target, h.detach() * 2, target


class Parametrized(Program):
    """A weight that is computed from others at each use."""

    def build(self):
        layer = nn.Linear(4, 4, bias=False)
        layer.weight = nn.Parameter(rand(8, 4, 4))
        self.layer = nn.utils.parametrizations.weight_norm(layer)

    def forward(self, x, i):
        return self.layer(x @ self.w)


class Conditions(Program):
    """Branches of the device's own."""

    def forward(self, x, i):
        h = x @ self.w
        with torch.no_grad():
            y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return h + y


class EarlyExit(Program):
    """A branch of Python's that asks the device for a value."""

    def forward(self, x, i):
        h = x @ self.w
        if (x[0] > 0).all():
            return h * 2
        if bool((x.abs() < 100).all()):
            h = h + 1
        return h * float(x.shape[1])


class LiteralDevice(Program):
    """A device's name as a literal within the forward pass."""

    def forward(self, x, i):
        name = "cpu" if x.device.type == "cpu" else "xla"
        h = x @ self.w + torch.zeros(4, device=name)
        return h + torch.tensor([1.0, 2.0, 3.0, 4.0], device=name), torch.arange(4, device=name)


@dataclasses.dataclass
class Batch:
    """A batch that is an object."""

    x: Tensor
    scale: Tensor
    name: str = "batch"


torch.export.register_dataclass(Batch, serialized_type_name="matrix.Batch")


class DataClasses(Program):
    """A data class as a batch."""

    def inputs(self, seed, rows):
        return Batch(rand(seed, rows, 4), rand(seed + 1, rows, 1))

    def forward(self, x, i):
        return x.x @ self.w * x.scale


# ------------------------------------------------------------------ optimizers


class ForeachAdamW(Program):
    """AdamW over lists of tensors, clipped by the norm, two groups."""

    max_norm = 0.5

    def build(self):
        self.bias = nn.Parameter(torch.zeros(4))

    def optimizer(self, parameters):
        first, *rest = parameters
        groups = [{"params": [first], "weight_decay": 0.1}]
        if rest:
            groups.append({"params": rest, "lr": 0.02})
        return torch.optim.AdamW(groups, lr=0.05, foreach=True)

    def forward(self, x, i):
        return (x @ self.w + self.bias).tanh()


class FusedAdam(Program):
    """Adam in one operator."""

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=0.05, fused=True)

    def forward(self, x, i):
        return (x @ self.w).sigmoid()


class Capturable(Program):
    """RMSprop whose counter is on the device, and a learning rate that is a tensor."""

    def optimizer(self, parameters):
        return torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True)

    def forward(self, x, i):
        return F.silu(x @ self.w) * 2
