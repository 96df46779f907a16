"""An accelerate loop of one's own; run by python, or by `accelerate launch` as several replicas."""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from reporting import compiles, report
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()

accelerator = Accelerator(
    cpu=options.cpu,
    mixed_precision="bf16" if options.bf16 else "no",
    gradient_accumulation_steps=options.accumulate,
    dynamo_backend="inductor" if options.compile else "no",
    step_scheduler_with_optimizer=False,
)
set_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(32, 6, generator=generator)
targets = (inputs[:, :3] * inputs[:, 3:]).sum(1).gt(0).long()
training = torch.utils.data.TensorDataset(inputs, targets)
held_out = torch.utils.data.TensorDataset(inputs[:13], torch.arange(13))
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
model, optimizer, loader, evaluation, schedule = accelerator.prepare(
    model,
    optimizer,
    torch.utils.data.DataLoader(training, batch_size=options.batch_size),
    torch.utils.data.DataLoader(held_out, batch_size=options.batch_size),
    schedule,
)
losses, counts = [], []


def train(epochs: int) -> None:
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            counts.append(compiles())
        schedule.step()


def weights() -> str:
    state = accelerator.unwrap_model(model).state_dict()
    data = b"".join(value.float().cpu().numpy().tobytes() for value in state.values())
    return hashlib.sha256(data).hexdigest()


train(2)
accelerator.save_state(options.output)
saved = weights()
train(1)
accelerator.load_state(options.output)
restored = weights()
train(1)

model.eval()
seen, logits = [], []
with torch.no_grad():
    for x, numbers in evaluation:
        out, numbers = accelerator.gather_for_metrics((model(x), numbers))
        seen += numbers.tolist()
        logits += out[:, 0].tolist()
# In order, as two replicas write to one stream.
for rank in range(accelerator.num_processes):
    accelerator.wait_for_everyone()
    if rank == accelerator.process_index:
        report(
            rank=rank,
            replicas=accelerator.num_processes,
            local_main=accelerator.is_local_main_process,
            device=accelerator.device.type,
            losses=losses,
            seen=seen,
            logits=[value for _, value in sorted(zip(seen, logits, strict=True))],
            restored=restored == saved,
            weights=weights(),
            compiles=counts,
        )
