"""Joining the sharded checkpoints of XlaFullyShardedDataParallel."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from typing import Any

import torch

# A wrapper's name for what it wraps.
WRAPPED = "_fsdp_wrapped_module"


def clean_name(name: str) -> str:
    """Returns a parameter's name without those of the wrappers around it."""
    return ".".join(part for part in name.split(".") if part not in (WRAPPED, ""))


def consolidate_sharded_state_dicts(
    state_dicts: Sequence[dict[str, torch.Tensor]], metadata: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Joins the replicas' ``state_dict()``.

    Args:
        state_dicts: In order of the replicas.
        metadata: What ``get_shard_metadata()`` returned on any of them.

    Returns:
        The state of the module that was wrapped, with its own names.

    Raises:
        ValueError: There is not one for each replica.
    """
    if len(state_dicts) != metadata["world_size"]:
        raise ValueError(
            f"expected the state dicts of {metadata['world_size']} replicas, got {len(state_dicts)}"
        )
    state = {}
    for shard in metadata["shards"]:
        flat = torch.cat([state_dict[shard["shard_name"]].cpu() for state_dict in state_dicts])
        begin = 0
        for name, shape in zip(shard["names"], shard["shapes"], strict=True):
            size = torch.Size(shape).numel()
            state[clean_name(name)] = flat[begin : begin + size].view(shape).clone()
            begin += size
    for name in metadata["buffers"]:
        if name in state_dicts[0]:
            state[clean_name(name)] = state_dicts[0][name].cpu()
    return state


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", ckpt_name: str = "", save_model: bool = True
) -> tuple[dict[str, torch.Tensor], str]:
    """Joins checkpoints that each replica has saved.

    Each is ``{"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}``.

    Args:
        ckpt_prefix: What the files' names begin with.
        ckpt_suffix: A pattern that they end with.
        ckpt_name: The file to write; ``ckpt_prefix`` and ``_consolidated.pth`` when empty.
        save_model: Whether to write ``{"model": state}`` there.

    Returns:
        The state of the module that was wrapped, and the file's name.

    Raises:
        ValueError: There are no such files, or not one for each replica.
    """
    paths = sorted(glob.glob(ckpt_prefix + ckpt_suffix))
    checkpoints = [torch.load(path, map_location="cpu", weights_only=False) for path in paths]
    if not checkpoints:
        raise ValueError(f"there are no files {ckpt_prefix}{ckpt_suffix}")
    checkpoints.sort(key=lambda checkpoint: checkpoint["shard_metadata"]["rank"])
    state = consolidate_sharded_state_dicts(
        [checkpoint["model"] for checkpoint in checkpoints], checkpoints[0]["shard_metadata"]
    )
    path = ckpt_name or f"{ckpt_prefix}_consolidated.pth"
    if save_model:
        torch.save({"model": state}, path)
    return state, path
