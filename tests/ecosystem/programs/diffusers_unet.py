"""diffusers: a small UNet trained whole, then by LoRA, and a pipeline that draws."""

import argparse

import numpy as np
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMScheduler, UNet2DConditionModel, UNet2DModel
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from reporting import compiles, end_step, report

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--device", default="xla")
options = parser.parse_args()
if options.device == "xla":
    import torch_xla  # noqa: F401

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


def train(model: torch.nn.Module, rate: float, *context: torch.Tensor) -> tuple[list, list]:
    """Trains what has gradients to tell noise; returns losses and compiles of each step."""
    noises = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    images = torch.randn(4, 3, 16, 16)
    losses, counts = [], []
    for _ in range(6):
        noise, times = torch.randn_like(images), torch.randint(0, 100, (4,))
        noisy = noises.add_noise(images, noise, times)
        predicted = model(noisy.to(options.device), times.to(options.device), *context).sample
        loss = torch.nn.functional.mse_loss(predicted, noise.to(options.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        end_step()
        losses.append(loss.item())
        counts.append(compiles())
    return losses, counts


torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=16,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
    **BLOCKS,
).to(options.device)
losses, counts = train(unet, 1e-3)
DDIMPipeline(unet, DDIMScheduler(num_train_timesteps=100)).save_pretrained(options.output)
pipeline = DDIMPipeline.from_pretrained(options.output).to(options.device)
pipeline.set_progress_bar_config(disable=True)
drawn, drawing = [], []
for _ in range(3):
    generator = torch.Generator().manual_seed(1)
    result = pipeline(2, generator, num_inference_steps=4, output_type="np")
    drawn.append(np.asarray(result.images))
    drawing.append(compiles())

torch.manual_seed(2)
conditional = UNet2DConditionModel(
    sample_size=16,
    in_channels=3,
    out_channels=3,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=8,
    **BLOCKS,
)
conditional.requires_grad_(False)
names = ["to_q", "to_k", "to_v", "to_out.0"]
conditional.add_adapter(LoraConfig(r=4, lora_alpha=4, target_modules=names))
words = torch.randn(4, 5, 16)
low_rank, low_rank_counts = train(conditional.to(options.device), 1e-2, words.to(options.device))
adapter = get_peft_model_state_dict(conditional)
report(
    losses=losses,
    compiles=counts,
    drawn=drawn[0].flatten()[::101].tolist(),
    same=bool((drawn[0] == drawn[2]).all()),
    drawing=drawing,
    low_rank=low_rank,
    low_rank_compiles=low_rank_counts,
    adapter=[float(value.square().sum()) for _, value in sorted(adapter.items())],
)
