"""Trains an MLP on digits with FSDP2: each replica holds a part of every weight.

    torchrun --nproc-per-node 2 examples/train_fsdp2.py
    torchrun --nproc-per-node 2 examples/train_fsdp2.py --device cpu   # the same by Gloo

``--batch-size`` is that of all replicas together, so their count does not change the losses.
"""

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", choices=("xla", "cpu"), default="xla")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--save", metavar="FILE", help="write the whole model to FILE")
parser.add_argument("--log-losses", metavar="FILE", help="write the result as JSON to FILE")
args = parser.parse_args()

if args.device == "xla":
    import torch_xla

dist.init_process_group("xla" if args.device == "xla" else "gloo")
rank, count = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(args.device, (count,))

torch.manual_seed(0)  # The same weights in all replicas: each keeps its part.
blocks = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)) for _ in range(3)]
model = nn.Sequential(nn.Linear(64, 128), *blocks, nn.Linear(128, 10)).to(args.device)
for block in blocks:
    fully_shard(block, mesh=mesh)  # Gathered when it runs, and freed after.
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
held = sum(parameter.to_local().numel() for parameter in model.parameters())

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
generator = torch.Generator().manual_seed(0)  # All replicas draw one batch, and take their rows.
losses = []
for _ in range(args.steps):
    rows = torch.randint(0, 1500, (args.batch_size,), generator=generator)[rank::count]
    loss = F.cross_entropy(model(images[rows].to(args.device)), labels[rows].to(args.device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    if args.device == "xla":
        torch_xla.sync()  # One program a step, with its collectives.

means = torch.stack(losses)
dist.all_reduce(means)
with torch.no_grad():
    found = model(images[1500:].to(args.device)).argmax(1).cpu()
result = {
    "losses": (means / count).tolist(),
    "accuracy": (found == labels[1500:]).float().mean().item(),
    "held": held,
}
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
result["parameters"] = sum(value.numel() for value in whole.values())
if rank == 0:
    print(f"loss {result['losses'][-1]:.4f}, of new digits {result['accuracy']:.1%} are right")
    if args.save:
        torch.save({name: value.cpu() for name, value in whole.items()}, args.save)
    if args.log_losses:
        with open(args.log_losses, "w") as file:
            json.dump(result, file)
dist.destroy_process_group()
