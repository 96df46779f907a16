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
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
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
