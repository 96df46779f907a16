"""Training steps and forward passes of models of other packages, replayed: the bits of traced ones.

Tiny configurations with random weights: nothing is downloaded.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree

import torch_xla
from torch_xla._internal.replay import functions as replay

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(300)]

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
T5 = {
    "vocab_size": 64,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
# The names of transformers' configuration and model, and what is other than its defaults.
TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", SMALL),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 64, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
    ),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", {**SMALL, "max_position_embeddings": 40}),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**SMALL, "embedding_size": 16}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**GPT2, "bos_token_id": 1, "eos_token_id": 2}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 1}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SMALL, "num_key_value_heads": 1}),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**SMALL, "num_key_value_heads": 1, "head_dim": 8},
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**SMALL, "num_key_value_heads": 1, "head_dim": 8},
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.1},
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
}
IMAGES: dict[str, dict[str, Any]] = {
    "resnet10t": {},
    "vit_tiny_patch16_224": {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "mobilenetv3_small_050": {},
    "mixer_s16_224": {"img_size": 32},
}


def transformer(config: str, model: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Returns what makes a model of transformers, with its loss on tokens."""

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            package = pytest.importorskip("transformers")
            self.model = getattr(package, model)(getattr(package, config)(**options))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=x, labels=x).loss

    return WithLoss


def of_timm(name: str) -> Callable[[], Any]:
    """Returns what makes a model of timm, with a loss on images."""

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            package = pytest.importorskip("timm")
            self.model = package.create_model(name, pretrained=False, num_classes=5, **IMAGES[name])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).logsumexp(1).mean()

    return WithLoss


def unet() -> Any:
    """Returns diffusers' UNet with the loss of a denoiser."""

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            package = pytest.importorskip("diffusers")
            self.model = package.UNet2DConditionModel(
                sample_size=8,
                in_channels=2,
                out_channels=2,
                block_out_channels=(8, 8),
                layers_per_block=1,
                cross_attention_dim=8,
                attention_head_dim=2,
                norm_num_groups=2,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            times = x[:, 0, 0, 0].abs()
            noise = self.model(x, times, x.reshape(x.shape[0], -1, 8)).sample
            return (noise - x).square().mean()

    return WithLoss()


def train(make: Callable[[], Any], batches: list[torch.Tensor], is_replayed: bool) -> Any:
    """Returns losses and parameters of some steps, and how replay fared."""
    torch.manual_seed(0)
    torch_xla.manual_seed(0)
    model = make().to("xla").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled: Any = torch_xla.compile(step, replay=is_replayed)
    losses = [compiled(batch.to("xla")) for batch in batches]
    state = [*losses, *model.state_dict().values()]
    found = [one.cpu() for one in _pytree.tree_leaves(state)]
    return found, compiled._xla_replay[0].status() if is_replayed else None


def check(make: Callable[[], Any], batches: list[torch.Tensor]) -> None:
    traced, _ = train(make, batches, False)
    replayed, status = train(make, batches, True)
    assert isinstance(status, replay.Status)
    assert status.replayed >= 4, str(status)
    for i, (expected, got) in enumerate(zip(traced, replayed, strict=True)):
        assert torch.equal(expected, got), f"value {i}"


def tokens() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 64, (2, 8), generator=generator) for _ in range(10)]


def images(channels: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, channels, size, size, generator=generator) for _ in range(10)]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", TEXT)
def test_transformers(name: str) -> None:
    check(transformer(*TEXT[name]), tokens())


@pytest.mark.parametrize("name", IMAGES)
def test_timm(name: str) -> None:
    check(of_timm(name), images(3, 32))


def test_diffusers() -> None:
    check(unet, images(2, 8))
