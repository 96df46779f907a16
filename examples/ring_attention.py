"""Attention over a sequence that is split over all devices: keys and values go round the ring.

python examples/ring_attention.py                                     # 4 devices of the CPU
XLA_TOPOLOGY=h100:8 python examples/ring_attention.py --plan          # compiled without a chip
"""

import argparse
import os

import torch

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before torch_xla makes its devices

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr


def ring_attention(q, k, v):
    """Softmax attention of the device's queries to all keys, block by block."""
    size = xs.axis_size("ring")
    ring = [(i, (i + 1) % size) for i in range(size)]
    largest = q.new_full(q.shape[:-1], -torch.inf)
    total, result = torch.zeros_like(largest), torch.zeros_like(q)
    for turn in range(size):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        larger = torch.maximum(largest, scores.amax(-1))
        weights = (scores - larger[..., None]).exp()
        shrink = (largest - larger).exp()
        total = total * shrink + weights.sum(-1)
        result, largest = result * shrink[..., None] + weights @ v, larger
        if turn < size - 1:
            k, v = xs.ppermute(k, "ring", ring), xs.ppermute(v, "ring", ring)
    return result / total[..., None]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--plan", action="store_true", help="compile, and tell what it needs")
args = parser.parse_args()
xr.use_spmd()
mesh = xs.get_1d_mesh("ring")
spec = (None, None, "ring", None)
attend = xs.shard_map(ring_attention, mesh, [spec] * 3, spec)
q, k, v = (torch.randn(2, 4, 64 * mesh.size(), 32) for _ in range(3))
on_devices = [xs.mark_sharding(t.to("xla"), mesh, spec) for t in (q, k, v)]
if args.plan:
    from torch_xla import aot

    print(aot.compile(attend, on_devices))
else:
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    difference = (attend(*on_devices).cpu() - whole).abs().max().item()
    print(f"largest difference to attention on one device: {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("it is too large")
