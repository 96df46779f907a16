"""Tiny configurations of architectures of transformers and timm, with a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

VOCABULARY, BATCH, LENGTH = 64, 2, 8


class Architecture(NamedTuple):
    """How a model is made, and its batch."""

    library: str
    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]


# ---------------------------------------------------------------- batches


def _ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (BATCH, length))


def _text() -> dict[str, torch.Tensor]:
    ids = _ids()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _plain_text() -> dict[str, torch.Tensor]:
    ids = _ids()
    return {"input_ids": ids, "labels": ids}


def _pairs() -> dict[str, torch.Tensor]:
    return {
        "input_ids": _ids(),
        "attention_mask": torch.ones(BATCH, LENGTH).long(),
        "labels": _ids(6),
    }


def _images(size: int = 32) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {
        "pixel_values": torch.randn(BATCH, 3, size, size), "labels": torch.arange(BATCH) % 2
    }  # fmt: skip


def _pictures_and_text() -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(), "pixel_values": torch.randn(BATCH, 3, 32, 32)}


def _sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 1600), "labels": torch.arange(BATCH) % 2}


def _spectrum(name: str, *shape: int, labels: int = 0) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {
        name: torch.randn(BATCH, *shape),
        "labels": _ids(labels) if labels else torch.arange(BATCH) % 2,
    }


# ---------------------------------------------------------------- transformers

_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
_STILL = {
    name: 0.0
    for name in (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout",
        "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "activation_dropout",
        "classifier_dropout", "drop_path_rate", "layerdrop", "feat_proj_dropout", "final_dropout",
        "embedding_dropout", "dropout_rate", "decoder_layerdrop", "encoder_layerdrop",
        "classifier_dropout_prob", "mask_time_prob", "resid_dropout", "embed_dropout",
    )
}  # fmt: skip
_GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SPEECH = {
    "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "conv_bias": False,
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16, "apply_spec_augment": False,
}  # fmt: skip
_VISION = {"image_size": 32, "patch_size": 8, "num_channels": 3}
_SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2, **_TOKENS,
}  # fmt: skip


def _hf(
    model: str, batch: Callable[[], dict[str, torch.Tensor]] = _text, config: str = "", **sizes: Any
) -> Architecture:
    def make() -> nn.Module:
        import transformers

        stem = model.split("For")[0].removesuffix("LMHeadModel").removesuffix("Model")
        configuration = getattr(transformers, config or f"{stem}Config")
        arguments = {**_SIZES, **_STILL, **sizes}
        given = {name: value for name, value in arguments.items() if value is not None}
        return getattr(transformers, model)(configuration(**given))

    return Architecture("transformers", make, batch)


TRANSFORMERS = {
    "bert": _hf("BertForMaskedLM"),
    "roberta": _hf("RobertaForMaskedLM"),
    "distilbert": _hf("DistilBertForMaskedLM", dim=32, n_layers=2, n_heads=2, hidden_dim=48),
    "albert": _hf("AlbertForMaskedLM", embedding_size=16),
    "electra": _hf("ElectraForMaskedLM", embedding_size=16),
    "deberta-v2": _hf("DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "mpnet": _hf("MPNetForMaskedLM"),
    "modernbert": _hf("ModernBertForMaskedLM", **_TOKENS, cls_token_id=3, sep_token_id=4),
    "fnet": _hf("FNetForMaskedLM", _plain_text),
    "gpt2": _hf("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "gpt-neo": _hf(
        "GPTNeoForCausalLM", num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]],
    ),
    "gpt-neox": _hf("GPTNeoXForCausalLM"),
    "opt": _hf("OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    "bloom": _hf("BloomForCausalLM", n_layer=2, n_head=2),
    "llama": _hf("LlamaForCausalLM", **_GROUPED),
    "mistral": _hf("MistralForCausalLM", sliding_window=4, **_GROUPED),
    "qwen3": _hf("Qwen3ForCausalLM", **_GROUPED),
    "gemma2": _hf("Gemma2ForCausalLM", **_GROUPED),
    "gemma3": _hf("Gemma3ForCausalLM", config="Gemma3TextConfig", **_GROUPED),
    "phi3": _hf("Phi3ForCausalLM", num_key_value_heads=1, **_TOKENS),
    "falcon": _hf("FalconForCausalLM"),
    "olmo2": _hf("Olmo2ForCausalLM", **_GROUPED),
    "mixtral": _hf("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, **_GROUPED),
    "qwen3-moe": _hf(
        "Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        **_GROUPED,
    ),
    "deepseek-v3": _hf(
        "DeepseekV3ForCausalLM", n_routed_experts=4, num_experts_per_tok=2, n_group=2,
        topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    ),
    "olmoe": _hf("OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2),
    "mamba": _hf("MambaForCausalLM", _plain_text, state_size=8),
    "mamba2": _hf(
        "Mamba2ForCausalLM", _plain_text, state_size=8, num_heads=4, head_dim=16, n_groups=1,
        chunk_size=4,
    ),
    "falcon-mamba": _hf("FalconMambaForCausalLM", _plain_text, state_size=8),
    "jamba": _hf(
        "JambaForCausalLM", num_experts=2, num_experts_per_tok=1, attn_layer_period=2,
        attn_layer_offset=1, mamba_d_state=8, use_mamba_kernels=False, num_key_value_heads=1,
    ),
    "t5": _hf(
        "T5ForConditionalGeneration", _pairs, d_model=32, d_kv=16, d_ff=48, num_layers=1,
        num_heads=2, decoder_start_token_id=0,
    ),
    "bart": _hf("BartForConditionalGeneration", _pairs, **_SEQ2SEQ),
    "pegasus": _hf("PegasusForConditionalGeneration", _pairs, **_SEQ2SEQ),
    "m2m-100": _hf("M2M100ForConditionalGeneration", _pairs, **_SEQ2SEQ),
    "vit": _hf("ViTForImageClassification", _images(), **_VISION),
    "beit": _hf("BeitForImageClassification", _images(), **_VISION),
    "dinov2": _hf("Dinov2ForImageClassification", _images(), **_VISION),
    "swin": _hf(
        "SwinForImageClassification", _images(), image_size=32, patch_size=4, embed_dim=16,
        depths=[2, 1], num_heads=[2, 2], window_size=4, num_attention_heads=None,
        num_hidden_layers=None,
    ),
    "convnext": _hf(
        "ConvNextForImageClassification", _images(), hidden_sizes=[8, 16], depths=[1, 1],
        num_stages=2,
    ),
    "resnet": _hf(
        "ResNetForImageClassification", _images(), embedding_size=8, hidden_sizes=[8, 16],
        depths=[1, 1],
    ),
    "segformer": _hf(
        "SegformerForImageClassification", _images(), num_encoder_blocks=2, depths=[1, 1],
        sr_ratios=[2, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2], patch_sizes=[7, 3],
        strides=[4, 2], mlp_ratios=[2, 2],
    ),
    "clip": _hf(
        "CLIPModel", _pictures_and_text, text_config={**_SIZES, **_TOKENS},
        vision_config={**_SIZES, **_VISION}, projection_dim=16,
    ),
    "siglip": _hf(
        "SiglipModel", _pictures_and_text, text_config={**_SIZES, **_TOKENS, "projection_size": 32},
        vision_config={**_SIZES, **_VISION},
    ),
    "wav2vec2": _hf("Wav2Vec2ForSequenceClassification", _sound, **_SPEECH),
    "hubert": _hf("HubertForSequenceClassification", _sound, **_SPEECH),
    "whisper": _hf(
        "WhisperForConditionalGeneration", _spectrum("input_features", 16, 40, labels=6),
        num_mel_bins=16, max_source_positions=20, max_target_positions=16, **_SEQ2SEQ,
    ),
    "audio-spectrogram-transformer": _hf(
        "ASTForAudioClassification", _spectrum("input_values", 40, 32), config="ASTConfig",
        max_length=40, num_mel_bins=32, patch_size=8, frequency_stride=8, time_stride=8,
    ),
}  # fmt: skip

# ---------------------------------------------------------------- timm


def _timm(name: str, size: int = 64, **sizes: Any) -> Architecture:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=4, **sizes)

    def batch() -> dict[str, torch.Tensor]:
        return {"x": torch.randn(BATCH, 3, size, size), "labels": torch.arange(BATCH) % 4}

    return Architecture("timm", make, batch)


_PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
_TRANSFORMER = {**_PATCHES, "num_heads": 2}
_FOUR = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}

TIMM = {
    "resnet18": _timm("resnet18", layers=(1, 1, 1, 1)),
    "resnet50": _timm("resnet50", layers=(1, 1, 1, 1)),
    "resnext50_32x4d": _timm("resnext50_32x4d", layers=(1, 1, 1, 1)),
    "seresnet50": _timm("seresnet50", layers=(1, 1, 1, 1)),
    "res2net50_26w_4s": _timm("res2net50_26w_4s", layers=(1, 1, 1, 1)),
    "resnest14d": _timm("resnest14d"),
    "resnetv2_50": _timm("resnetv2_50", layers=(1, 1, 1, 1), channels=(32, 32, 32, 32)),
    "densenet121": _timm("densenet121", block_config=(1, 1, 1, 1), growth_rate=8),
    "regnetx_002": _timm("regnetx_002"),
    "regnety_002": _timm("regnety_002"),
    "repvgg_a0": _timm("repvgg_a0"),
    "efficientnet_lite0": _timm("efficientnet_lite0"),
    "mobilenetv2_035": _timm("mobilenetv2_035"),
    "mobilenetv3_small_050": _timm("mobilenetv3_small_050"),
    "mobilenetv4_conv_small_035": _timm("mobilenetv4_conv_small_035"),
    "mnasnet_small": _timm("mnasnet_small"),
    "ghostnet_050": _timm("ghostnet_050"),
    "lcnet_035": _timm("lcnet_035"),
    "tinynet_e": _timm("tinynet_e"),
    "dla46_c": _timm("dla46_c"),
    "ese_vovnet19b_slim_dw": _timm("ese_vovnet19b_slim_dw"),
    "convnext_atto": _timm("convnext_atto", **_FOUR),
    "convnextv2_atto": _timm("convnextv2_atto", **_FOUR),
    "hardcorenas_a": _timm("hardcorenas_a"),
    "nf_resnet26": _timm("nf_resnet26"),
    "edgenext_xx_small": _timm("edgenext_xx_small", depths=(1, 1, 1, 1)),
    "mobilevit_xxs": _timm("mobilevit_xxs"),
    "vit_tiny_patch16_224": _timm("vit_tiny_patch16_224", 32, **_TRANSFORMER),
    "deit3_small_patch16_224": _timm("deit3_small_patch16_224", 32, **_TRANSFORMER),
    "deit_tiny_distilled_patch16_224": _timm("deit_tiny_distilled_patch16_224", 32, **_TRANSFORMER),
    "beit_base_patch16_224": _timm("beit_base_patch16_224", 32, **_TRANSFORMER),
    "eva02_tiny_patch14_224": _timm("eva02_tiny_patch14_224", 32, **_TRANSFORMER),
    "cait_xxs24_224": _timm("cait_xxs24_224", 32, **_TRANSFORMER),
    "xcit_nano_12_p16_224": _timm("xcit_nano_12_p16_224", 32, **{**_TRANSFORMER, "patch_size": 16}),
    "pit_ti_224": _timm("pit_ti_224", 64, img_size=64),
    "swin_tiny_patch4_window7_224": _timm(
        "swin_tiny_patch4_window7_224", 32, img_size=32, embed_dim=16, depths=(2, 1),
        num_heads=(2, 2), window_size=4,
    ),
    "swinv2_tiny_window8_256": _timm(
        "swinv2_tiny_window8_256", 32, img_size=32, embed_dim=16, depths=(2, 1),
        num_heads=(2, 2), window_size=4,
    ),
    "levit_128s": _timm("levit_128s", 64, img_size=64),
    "visformer_tiny": _timm("visformer_tiny", 64, img_size=64),
    "hgnetv2_b0": _timm("hgnetv2_b0"),
    "starnet_s050": _timm("starnet_s050"),
}  # fmt: skip

ALL = {
    **{f"transformers/{n}": a for n, a in TRANSFORMERS.items()},
    **{f"timm/{n}": a for n, a in TIMM.items()},
}
