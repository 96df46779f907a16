"""Joining the sharded checkpoints of XlaFullyShardedDataParallel."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_xla._internal.files.atomic_file import atomic_write

# The name under which a wrapper has the wrapped module.
WRAPPED = "_fsdp_wrapped_module"


# The same name of wrappers with flat parameters, in checkpoints of torch_xla up to 2.9.
_FLATTENED = "_fpw_module"


def clean_name(name: str) -> str:
    """Returns a parameter's name without those of the wrappers around it."""
    return ".".join(part for part in name.split(".") if part not in (WRAPPED, _FLATTENED, ""))


def _from_older(metadata: dict[str, Any], buffers: Iterable[str]) -> dict[str, Any]:
    """Returns what torch_xla up to 2.9 writes as shard metadata in the form of today's."""
    shards = []
    for prefix, infos in metadata["shard_info"].items():
        prefix = prefix and prefix + "."
        for shard_name, info in infos.items():
            name = prefix + info["_orig_name"]
            names, shapes = [name], [info["_orig_size"]]
            if name in metadata["flatten_info"]:
                names, shapes, _ = metadata["flatten_info"][name]
                outer = name.rpartition(".")[0]
                names = [f"{outer}.{inner}" for inner in names]
            shards.append({"shard_name": prefix + shard_name, "names": names, "shapes": shapes})
    found = {shard["shard_name"] for shard in shards}
    return {
        **metadata,
        "shards": shards,
        "buffers": [name for name in buffers if name not in found],
    }


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[dict[str, torch.Tensor]], shard_metadata: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Joins the replicas' ``state_dict()``.

    Args:
        state_dict_list: In order of the replicas.
        shard_metadata: What ``get_shard_metadata()`` returned on any of them, also that of
            torch_xla 2.9.

    Returns:
        The state of the module that was wrapped, with its own names.

    Raises:
        ValueError: There is not one for each replica.
    """
    metadata = shard_metadata
    if len(state_dict_list) != metadata["world_size"]:
        raise ValueError(
            f"expected the state dicts of {metadata['world_size']} replicas, got "
            f"{len(state_dict_list)}"
        )
    if "shards" not in metadata:
        metadata = _from_older(metadata, state_dict_list[0])
    state = {}
    for shard in metadata["shards"]:
        parts = [state_dict[shard["shard_name"]].cpu() for state_dict in state_dict_list]
        flat = torch.cat([part.reshape(-1) for part in parts])
        begin = 0
        for name, shape in zip(shard["names"], shard["shapes"], strict=True):
            size = torch.Size(shape).numel()
            state[clean_name(name)] = flat[begin : begin + size].view(shape).clone()
            begin += size
    for name in metadata["buffers"]:
        if name in state_dict_list[0]:
            state[clean_name(name)] = state_dict_list[0][name].cpu()
    return state


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str,
    ckpt_suffix: str = "*.pth",
    save_path: str = "",
    save_model: bool = True,
    weights_only: bool = True,
) -> tuple[dict[str, torch.Tensor], str]:
    """Joins checkpoints that each replica has saved.

    Each is ``{"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}``.

    Args:
        ckpt_prefix: What the files' names begin with.
        ckpt_suffix: A pattern that they end with.
        save_path: The file to write; ``ckpt_prefix`` and ``_consolidated.pth`` when empty.
        save_model: Whether to write ``{"model": state}`` there.
        weights_only: Whether the files hold tensors and plain Python objects alone. With False,
            any object is loaded, and a file from a stranger may run any code.

    Returns:
        The state of the module that was wrapped, and the file's name.

    Raises:
        ValueError: There are no such files, or not one for each replica.
        pickle.UnpicklingError: A file has other objects than ``weights_only`` admits.
    """
    paths = sorted(glob.glob(ckpt_prefix + ckpt_suffix))
    checkpoints = [
        torch.load(path, map_location="cpu", weights_only=weights_only) for path in paths
    ]
    if not checkpoints:
        raise ValueError(f"there are no files {ckpt_prefix}{ckpt_suffix}")
    checkpoints.sort(key=lambda checkpoint: checkpoint["shard_metadata"]["rank"])
    state = consolidate_sharded_state_dicts(
        [checkpoint["model"] for checkpoint in checkpoints], checkpoints[0]["shard_metadata"]
    )
    path = save_path or f"{ckpt_prefix}_consolidated.pth"
    if save_model:
        with atomic_write(path) as file:
            torch.save({"model": state}, file)
    return state, path
