"""Models of transformers, split and sharded by transformers and accelerate over two replicas."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from testing.replicas import run_replicas

pytestmark = pytest.mark.multiprocess


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def tokens(step: int) -> torch.Tensor:
    return torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(step))


def train(model: Any, batches: Any, backward: Any = None, optimizer: Any = None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for batch in batches:
        loss = model(input_ids=batch, labels=batch).loss
        (backward or torch.Tensor.backward)(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def run_split(folder: str) -> Any:
    from transformers import LlamaForCausalLM

    dist.init_process_group("xla", init_method="xla://")
    model = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    weight = model.model.layers[0].self_attn.q_proj.weight
    shape = tuple(weight.to_local().shape)
    return str(weight.device), shape, train(model, [tokens(i).to("xla") for i in range(3)])


def test_transformers_plan_splits_a_model(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "model")
    expected = train(model, [tokens(i) for i in range(3)])
    for device, shape, losses in run_replicas(run_split, 2, tmp_path, str(tmp_path / "model")):
        assert (device, shape) == ("xla:0", (16, 32))
        assert losses == pytest.approx(expected, rel=1e-5)


def run_sharded() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.cat([tokens(i) for i in range(3)])
    loader = torch.utils.data.DataLoader(batches, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    weight = model.model.layers[0].self_attn.q_proj.weight
    shape = tuple(weight.to_local().shape)
    losses = train(model, loader, accelerator.backward, optimizer)
    mean = accelerator.reduce(torch.tensor(losses, device="xla"), "mean").tolist()
    state = accelerator.get_state_dict(model)
    return str(accelerator.distributed_type), shape, mean, state


def test_accelerate_shards_a_model(tmp_path: Path) -> None:
    model = llama()
    expected = train(model, [tokens(i) for i in range(3)])
    results = run_replicas(run_sharded, 2, tmp_path)
    for kind, shape, losses, _ in results:
        assert (kind, shape) == ("DistributedType.FSDP", (16, 32))
        assert losses == pytest.approx(expected, rel=1e-5)
    state = results[0][3]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name].cpu(), value, rtol=1e-4, atol=1e-5)
