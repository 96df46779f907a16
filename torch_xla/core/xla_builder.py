"""Computations written by hand: here through StableHLO, see :mod:`torch_xla.library`."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._internal import absent

_BUILDER = "write StableHLO with torch_xla.library.stablehlo and torch_xla.library.hlo"

__getattr__ = absent.getter(
    __name__,
    dict.fromkeys(
        (
            "Op",
            "Shape",
            "Type",
            "computation_from_module_proto",
            "create_builder",
            "create_computation",
            "get_computation_hlo",
            "mkleaf",
            "mkop",
            "mkparam",
            "mkshape",
            "tensor_shape",
            "xla_computation_as_func",
        ),
        "there are no HLO protos without XLA inside; " + _BUILDER,
    )
    | {
        name: "call_jax is here without its parts"
        for name in (
            "CompiledCallableWithCache",
            "FlattenedInputFunc",
            "JaxCallable",
            "JaxFlattenedInputFunc",
            "XlaCallable",
        )
    },
)


def create_placeholder_tensor(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns an xla tensor of a shape and dtype without a content of its own: zeros."""
    return torch.zeros(tuple(shape), dtype=dtype, device="xla")
