"""Switches of the compiler."""

from __future__ import annotations

from torch_xla import _XLAC

_PRECISIONS = ("default", "high", "highest")


def set_mat_mul_precision(precision: str) -> None:
    """Sets how exactly float32 matrices are multiplied, by programs that are compiled from now on.

    Args:
        precision: ``"default"`` (the fastest: one pass in bfloat16 on a TPU, TF32 on a GPU),
            ``"high"`` or ``"highest"`` (float32). CPUs know the last one only. Until this is
            called GPUs do as ``torch.set_float32_matmul_precision`` says, which is ``"highest"`` at
            first, and others ``"default"``.

    Raises:
        ValueError: ``precision`` is none of these.
    """
    if precision not in _PRECISIONS:
        raise ValueError(
            f"set_mat_mul_precision(): expected `precision` to be one of "
            f"{', '.join(map(repr, _PRECISIONS))}, got {precision!r}"
        )
    _XLAC._xla_set_mat_mul_precision(precision)


def get_mat_mul_precision() -> str:
    """Returns what :func:`set_mat_mul_precision` has set, or what holds without it."""
    precision = _XLAC._xla_get_mat_mul_precision()
    if precision != "platform":
        return precision
    return "default" if _XLAC._xla_rounds_products() else "highest"
