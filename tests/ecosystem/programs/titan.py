"""torchtitan's Trainer and its Llama for debugging, split over replicas, ten steps; torchrun."""

import argparse
import json
import os
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan
from reporting import compiles, report
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.distributed.tensor import DTensor, distribute_tensor

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="xla")
parser.add_argument("--output", required=True)
for way in ("data_parallel_shard", "tensor_parallel", "context_parallel"):
    parser.add_argument(f"--{way}", type=int, default=1)
arguments = parser.parse_args()

# torchtitan finds only devices of PyTorch's list; its modules take the device from here.
if arguments.device == "xla":
    titan.device_type, titan.device_module = "xla", torch.xla
else:
    for name in ("set_device", "reset_peak_memory_stats", "empty_cache"):
        setattr(torch.cpu, name, lambda *_: None)
    torch.cpu.current_device = torch.cpu.device_count = lambda: 0
    torch.cpu.get_device_name = lambda *_: "cpu"
    torch.cpu.memory_stats = lambda *_: {}
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1)
    titan.device_type, titan.device_module = "cpu", torch.cpu
if not hasattr(dist, "set_timeout"):  # Of a later torch.
    dist.set_timeout = lambda timeout, group=None: None

from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402


def write_data(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(0, 7, (100, 600), generator=generator).tolist()
    texts = ["".join(" abcdef"[i] for i in row) for row in letters]
    (folder / "data").mkdir(parents=True)
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "data" / "data.jsonl").write_text("\n".join(lines))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=200, special_tokens=["<bos>", "<eos>"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


rank = int(os.environ["RANK"])
folder = Path(arguments.output) / str(rank)
write_data(folder)
config = llama3_debugmodel()
config.hf_assets_path, config.dump_folder = str(folder), str(folder)
config.dataloader.dataset_path = str(folder / "data")
parallelism, training = config.parallelism, config.training
parallelism.data_parallel_shard_degree = arguments.data_parallel_shard
parallelism.tensor_parallel_degree = arguments.tensor_parallel
parallelism.context_parallel_degree = arguments.context_parallel
parallelism.spmd_backend = "partial_dtensor"  # The others are of a later torch.
training.seq_len, training.local_batch_size, training.steps = 64, 2, 10
training.mixed_precision_param = "float32"
training.disable_cuda_graphs = True
config.checkpoint.enable = config.validator.enable = False
config.model_spec.model.layers = config.model_spec.model.layers[:2]
for layer in config.model_spec.model.layers:
    # The others are flex_attention and kernels of CUDA.
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
trainer = config.build()

model = trainer.model_parts[0]
generator = torch.Generator().manual_seed(3)
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.dim() > 1:
            value = 0.02 * torch.randn(parameter.shape, generator=generator)
            value = value.to(arguments.device)
            if isinstance(parameter, DTensor):
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
            parameter.copy_(value)
for module in model.modules():
    if arguments.device == "cpu" and hasattr(module, "set_force_sum_reduction_for_comms"):
        module.set_force_sum_reduction_for_comms(True)  # Gloo has but sums.

losses, norms, counts = [], [], []


def log(step: int, loss: float, largest: float, norm: float, **_: object) -> None:
    losses.append(loss)
    norms.append(norm)
    counts.append(compiles())


trainer.metrics_processor.log = log
trainer.train()
if rank == 0:
    report(losses=losses, norms=norms, compiles=counts)
trainer.close()
