"""Functions of torch_xla 2.9's ``_XLAC`` that programs call, in terms of ours.

``torch_xla._XLAC`` asks here for names that it has not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_xla import _XLAC
from torch_xla._internal.device import module as device_module
from torch_xla._internal.names import missing
from torch_xla._internal.replicas import replication


def _init_computation_client() -> None:
    device_module.init()


def _xla_runtime_is_initialized() -> bool:
    return _XLAC._xla_is_initialized()


def _xla_computation_cache_is_initialized() -> bool:
    return _XLAC._xla_num_programs() > 0


def _xla_step_marker(
    device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    _XLAC._xla_sync([device] if device else [], wait)


def _xla_num_devices() -> int:
    return len(_XLAC._xla_get_devices())


def _xla_get_all_devices() -> list[str]:
    from torch_xla import runtime

    return [found["name"] for found in runtime.global_runtime_device_attributes()]


def _xla_get_replication_devices_count() -> int:
    count = replication.topology().world_size
    return count if count > 1 else 0


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    _XLAC._xla_set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    _XLAC._xla_sync_multi(list(tensors), [], True)
    return [tensor.detach().cpu() for tensor in tensors]


def _xla_tensors_from_aten(
    tensors: Sequence[torch.Tensor], devices: Sequence[str], shardings: Any = None
) -> list[torch.Tensor]:
    if shardings is not None:
        return [
            _XLAC._xla_send_sharded(t, sharding)
            for t, sharding in zip(tensors, shardings, strict=True)
        ]
    return [tensor.to(device) for tensor, device in zip(tensors, devices, strict=True)]


def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    return hashlib.sha256(_XLAC._get_xla_tensors_text(list(tensors)).encode()).digest()


def _get_stablehlo(
    tensors: Sequence[torch.Tensor],
    devices: str = "",
    options: Sequence[str] = (),
    emit_bytecode: bool = False,
) -> str | bytes:
    from torch_xla.core import xla_model

    if emit_bytecode:
        return xla_model.get_stablehlo_bytecode(tensors)
    return xla_model.get_stablehlo(tensors)


def _get_executed_fallback_ops() -> list[str]:
    from torch_xla.debug import metrics

    return metrics.executed_fallback_ops()


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.tensor(tensor.size(dim), dtype=torch.int32, device=tensor.device)


def _xla_custom_call(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
    from torch_xla.experimental import stablehlo_custom_call

    return stablehlo_custom_call.custom_call(*args, **kwargs)


def OpSharding(  # noqa: N802
    tile_assignment: Any,
    group_assignment: Any = None,
    replication_groups: Any = None,
    sharding_type: int = 3,
    *unused: Any,
) -> _XLAC.Sharding:
    """A sharding by its tiles: see torch_xla.distributed.spmd.ShardingType for its types.

    Raises:
        ValueError: The type is none that tensors here have.
    """
    from torch_xla.distributed.spmd import ShardingType

    kind = ShardingType(sharding_type)
    if kind == ShardingType.REPLICATED:
        return _XLAC.Sharding.replicated()
    if kind not in (ShardingType.TILED, ShardingType.PARTIAL):
        raise ValueError(f"OpSharding(): expected a tiled or replicated sharding, got {kind.name}")
    tiles = np.asarray(tile_assignment)
    # In a partial sharding the last dimension holds the copies of a tile.
    shape = tiles.shape[:-1] if kind == ShardingType.PARTIAL else tiles.shape
    return _XLAC.Sharding.tiled(list(shape), tiles.reshape(-1).tolist())


_BRIDGE = "torch.compile(backend='openxla'), or torch_xla.compile"
_PROTO = "there are no HLO protos without XLA inside; xm.get_stablehlo has StableHLO"
_BUILDER = "write StableHLO with torch_xla.library.stablehlo and torch_xla.library.hlo"
_INSTEAD = {
    "_clear_pending_irs": "torch_xla.sync()",
    "_get_tensors_handle": _BRIDGE,
    "_get_tensors_xla_device_data_node": _BRIDGE,
    "_get_xla_tensor_debug_info": "torch_xla.debug.explain, and _XLAC._get_xla_tensors_text",
    "_get_xla_tensors_hlo_proto": _PROTO,
    "_run_cached_graph": _BRIDGE,
    "_set_xla_custom_op_name_prefix": "torch_xla.debug.profiler.Trace names regions",
    "_xla_annotate_custom_sharding": "torch_xla.distributed.spmd.mark_sharding",
    "_xla_computation_text": _PROTO,
    "_xla_mark_dynamic": "torch_xla.mark_dynamic",
    "_xla_register_custom_call_target": "the plugin's own FFI registry",
    "_xla_set_auto_sharding": "PJRT plugins are built without auto-sharding",
    "_xla_user_computation": _BUILDER,
    "_xla_warm_up_cache": "torch_xla.sync() compiles and runs; programs are kept on disk too",
    "lowering": _BUILDER,
    "profiler": "torch_xla.debug.profiler",
}

_absent = missing.getter("torch_xla._XLAC", _INSTEAD)


def lookup(name: str) -> Any:
    """Returns the function of that name: ``_XLAC.__getattr__``."""
    if name in _PRESENT:
        return globals()[name]
    if name.startswith("_xla_op_"):
        raise AttributeError(
            f"torch_xla._XLAC.{name} of torch_xla 2.9 is not in this package: {_BUILDER} "
            f"(see {missing.PAGE})"
        )
    return _absent(name)


_PRESENT = {
    name
    for name in globals()
    if name.startswith(("_xla_", "_get_", "_init_")) or name == "OpSharding"
}
