"""Attention under the name that programs for TPUs call: PyTorch's own, on any device.

And what programs register kernels of their own with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from torch_xla._internal.jax_workarounds import jax_import_guard, requires_jax
from torch_xla.core import xla_builder

__all__ = [
    "XLA_LIB",
    "FlashAttention",
    "flash_attention",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "requires_jax",
]

XLA_LIB = torch.library.Library("xla", "FRAGMENT")


# Masked scores are finite, so that a row without keys becomes a mean, not NaN.
_MASKED = -0.7 * torch.finfo(torch.float32).max


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """Returns ``softmax((q @ k.mT + ab) * sm_scale) @ v``, differentiable.

    Args:
        q: Queries, of shape ``[batch, heads, q_len, head_dim]`` and any floating dtype.
        k: Keys, of shape ``[batch, heads, kv_len, head_dim]``.
        v: Values, of the shape of ``k``.
        causal: Whether query ``i`` sees the keys up to ``i`` only.
        q_segment_ids: Integers of shape ``[batch, q_len]``: a query sees the keys of its own
            segment only. With ``kv_segment_ids``, or not at all.
        kv_segment_ids: The same of the keys, of shape ``[batch, kv_len]``.
        sm_scale: What the scores are multiplied by: 1, not ``head_dim ** -0.5``, by default.
        ab: A bias that broadcasts to ``[batch, heads, q_len, kv_len]``.
        partition_spec: In SPMD mode, how ``q``, ``k`` and ``v`` lie on the devices.
        mesh: The mesh of ``partition_spec``; the global one when None.

    Returns:
        A tensor of the shape and dtype of ``q``.

    Raises:
        ValueError: One of the segment ids is missing.
    """
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError(
            "flash_attention(): expected both of `q_segment_ids` and `kv_segment_ids`, or none"
        )
    if partition_spec is not None:
        from torch_xla.distributed import spmd

        mesh = mesh or spmd.get_global_mesh()
        for tensor in (q, k, v):
            spmd.mark_sharding(tensor, mesh, partition_spec)
    if ab is None and q_segment_ids is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    bias = q.new_zeros((q.shape[-2], k.shape[-2])) if ab is None else ab * sm_scale
    if q_segment_ids is not None and kv_segment_ids is not None:
        other = q_segment_ids[:, None, :, None] != kv_segment_ids[:, None, None, :]
        bias = bias.masked_fill(other, _MASKED)
    if causal:
        rows, columns = (torch.arange(t.shape[-2], device=q.device) for t in (q, k))
        later = columns > rows[:, None]
        bias = bias.masked_fill(later, _MASKED)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=sm_scale)


class FlashAttention:
    """:func:`flash_attention` as ``FlashAttention.apply``."""

    MIN_BLOCK_SIZE = 128
    DEFAULT_MASK_VALUE = _MASKED
    NUM_LANES = 128
    NUM_SUBLANES = 8
    apply = staticmethod(flash_attention)


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a function of xla tensors that calls one of JAX arrays as part of the graph.

    See :func:`torch_xla.core.xla_builder.call_jax`: Pallas kernels need a device that they are
    written for, or ``interpret=True``.

    Args:
        kernel: The function, which may contain Pallas kernels.
        output_shape_dtype_fn: Not used: JAX tells what the function returns.
    """

    def call(
        *args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any
    ) -> Any:
        # All arguments except tensors are static in any case.
        return xla_builder.call_jax(kernel, args, kwargs)

    return call
