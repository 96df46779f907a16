"""Tensors of every dtype, as several files of tests make and compare them."""

import torch
from torch import nn

XLA = torch.device("xla:0")

INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *FLOAT8]


def bits(tensor):
    """The bytes of a tensor, so that every dtype compares (and NaN equals NaN)."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def sample(dtype, *sizes):
    """Random values of any dtype, extremes of integers included."""
    count = torch.Size(sizes).numel()
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if dtype in INTEGERS:
        raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator)
        raw[: min(dtype.itemsize, raw.numel())] = 255
        return raw.to(torch.uint8).view(dtype).view(sizes)
    if dtype in COMPLEX:
        return torch.randn(sizes, dtype=dtype, generator=generator)
    return (torch.randn(sizes, generator=generator) * 8).to(dtype)


def xla(*args, **kwargs):
    return torch.tensor(*args, device="xla", **kwargs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 4)
        self.two = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.two(torch.relu(self.one(x))) * self.scale


class Marked(torch.Tensor):
    """A subclass, with something of its own."""


def looks(on):
    """Tensors over memory that others may write, each with what writes to that memory."""
    base = torch.arange(12.0).view(3, 4).to(on)
    parameter = nn.Parameter(torch.ones(2, 2).to(on))
    leaf = torch.ones(3).to(on).requires_grad_()
    subclass = torch.arange(3.0).to(on).as_subclass(Marked)
    subclass.note = "kept"
    turned = torch.complex(torch.ones(2), torch.ones(2)).to(on).conj()
    small = torch.tensor([1, 2], dtype=torch.uint16).to(on)
    noted = torch.zeros(2, dtype=torch.int64).to(on)
    noted.note = "kept"
    return {
        "whole": base,
        "row": base[1],
        "transposed": base.t(),
        "every second": base[:, ::2],
        "detached": base.detach(),
        "parameter": parameter,
        "leaf": leaf,
        "subclass": subclass,
        "conj": turned,
        "uint16": small,
        "noted": noted,
        "scalar": torch.tensor(3.0).to(on),
        "empty": torch.empty(0, 2).to(on),
        "buffer": nn.Buffer(torch.ones(2).to(on)),
    }
