"""Interfaces that may still change."""

from __future__ import annotations

import importlib
from typing import Any

from torch_xla._internal.names import missing

# The modules that have this package's names; they are imported when somebody asks.
_HOMES = {
    "associative_scan": "torch_xla._internal.compile.control_flow",
    "cond": "torch_xla._internal.compile.control_flow",
    "eager_mode": "torch_xla.experimental.eager",
    "eager_mode_context": "torch_xla.experimental.eager",
    "is_eager_mode": "torch_xla.experimental.eager",
    "map": "torch_xla._internal.compile.control_flow",
}

_KERNELS = "TPU kernels need JAX's Pallas; torch_xla.core.xla_builder.call_jax calls them"
_MARKS = "torch.library and torch_xla.library.register_lowering name what a compiler shall see"

_absent = missing.getter(
    __name__,
    {
        "callback": "xm.add_step_closure runs a function when a step's tensors are there",
        "deprecation": "the warnings module",
        "dynamo_mark_sharding": "torch_xla.distributed.spmd.mark_sharding",
        "dynamo_set_buffer_donor": "buffers that nothing can read any more are donated by itself",
        "gru": "torch.nn.GRU, which is one loop on this device",
        "mark_pattern_utils": _MARKS,
        "pallas_kernels": _KERNELS,
        "pytreeify": "torch.utils._pytree.register_pytree_node",
        "quantized": "torch.ops.quantized_decomposed runs on xla",
        "splash_attention": "torch_xla.experimental.custom_kernel.flash_attention; " + _KERNELS,
        "unbounded_dynamism_export": "torch_xla.stablehlo",
        "xla_dynamic_reshape_ops": "shapes are static",
        "xla_marker": _MARKS,
        "xla_mlir_debuginfo": "XLA_IR_DEBUG=1 puts source lines into programs",
    },
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    return _absent(name)
