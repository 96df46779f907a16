"""Linear layers whose weights are small integers."""

from __future__ import annotations

import torch
from torch import nn


def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """Returns ``x @ dequantized(w).T``.

    Args:
        x: ``[..., in]``, of a floating dtype.
        w: int8 ``[out, in]``; blockwise ``[in / block_size, block_size, out]``.
        scaler: What the integers are multiplied by: ``[out]``; blockwise
            ``[in / block_size, out]``.
        zero_point: What is subtracted after that, of the scaler's shape: of an asymmetric
            quantization. Not with ``quantize_activation``.
        block_size: How many inputs share a scaler; -1: all of them.
        int4_weight: Whether the integers are from -8 to 7. They are kept in int8.
        quantize_activation: Whether to round each row of ``x`` to int8, too.

    Returns:
        ``[..., out]``, of ``x``'s dtype.

    Raises:
        ValueError: The shapes do not fit, or an integer type is another.
    """
    blockwise = block_size != -1
    if w.dtype != torch.int8 or w.dim() != (3 if blockwise else 2):
        raise ValueError(
            f"quantized_matmul(): expected int8 weights of {3 if blockwise else 2} dimensions, "
            f"got {w.dtype} of shape {list(w.shape)}"
        )
    inputs = w.shape[0] * w.shape[1] if blockwise else w.shape[1]
    if x.shape[-1] != inputs:
        raise ValueError(
            f"quantized_matmul(): expected `x` of {inputs} inputs, got shape {list(x.shape)}"
        )
    if quantize_activation and zero_point is not None:
        raise ValueError("quantized_matmul(): quantize_activation is for symmetric weights alone")
    scale = None
    if quantize_activation:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127
        x, dtype = torch.round(x / scale).clamp(-128, 127), x.dtype
        scale, x = scale.to(dtype), x.to(dtype)
    if blockwise:
        parts = torch.einsum("...bs,bso->...bo", x.unflatten(-1, w.shape[:2]), w.to(x.dtype))
        out = (parts * scaler.to(x.dtype)).sum(-2)
        if zero_point is not None:
            sums = x.unflatten(-1, w.shape[:2]).sum(-1)
            out = out - torch.einsum("...b,bo->...o", sums, zero_point.to(x.dtype))
    else:
        out = nn.functional.linear(x, w.to(x.dtype)) * scaler.to(x.dtype)
        if zero_point is not None:
            out = out - x.sum(-1, keepdim=True) * zero_point.to(x.dtype)
    return out if scale is None else out * scale


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias by :func:`quantized_matmul`.

    Args:
        input_dim: The number of inputs.
        output_dim: The number of outputs.
        is_symmetric: Whether there is no zero point.
        block_size: See :func:`quantized_matmul`.
        int4_weight: The same.
        quantize_activation: The same.
    """

    weight: torch.Tensor
    weight_scaler: torch.Tensor
    zero_point: torch.Tensor | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output_dim
        self.is_symmetric, self.block_size = is_symmetric, block_size
        self.int4_weight, self.quantize_activation = int4_weight, quantize_activation
        weight: tuple[int, ...] = (output_dim, input_dim)
        scaler: tuple[int, ...] = (output_dim,)
        if block_size != -1:
            if input_dim % block_size:
                raise ValueError(
                    f"XlaQuantizedLinear: expected `input_dim` that is a multiple of block_size "
                    f"{block_size}, got {input_dim}"
                )
            weight = (input_dim // block_size, block_size, output_dim)
            scaler = (input_dim // block_size, output_dim)
        self.register_buffer("weight", torch.zeros(weight, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(scaler))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(scaler))

    def load_quantized_weight(
        self,
        weight: torch.Tensor,
        weight_scaler: torch.Tensor,
        zero_point: torch.Tensor | None = None,
    ) -> None:
        """Takes weights, scalers and zero points of :func:`quantized_matmul`'s shapes.

        Raises:
            ValueError: A shape is another, or a zero point is missing, or one too many.
        """
        if (zero_point is None) != self.is_symmetric:
            raise ValueError(
                "load_quantized_weight(): expected a zero point where the layer is not symmetric, "
                "and only there"
            )
        pairs = [("weight", weight), ("weight_scaler", weight_scaler), ("zero_point", zero_point)]
        for name, tensor in pairs:
            own = getattr(self, name)
            if tensor is not None and tensor.shape != own.shape:
                raise ValueError(
                    f"load_quantized_weight(): expected `{name}` of shape {list(own.shape)}, got "
                    f"{list(tensor.shape)}"
                )
            setattr(self, name, None if tensor is None else tensor.detach().to(weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the outputs, ``[..., output_dim]``, of ``x``, ``[..., input_dim]``."""
        return quantized_matmul(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            self.block_size,
            self.int4_weight,
            self.quantize_activation,
        )
