"""Calls of what a compiler knows by name, and memory of other kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from torch_xla import _XLAC

_functions: dict[tuple[Any, ...], str] = {}


def custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> list[torch.Tensor]:
    """The same as :func:`stablehlo_custom_call`; returns a list in any case."""
    pairs = ", ".join(f'{key} = "{value}"' for key, value in (frontend_attributes or {}).items())
    attributes = f"mhlo.frontend_attributes = {{{pairs}}}" if pairs else ""
    results = [
        (list(map(int, shape)), dtype)
        for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
    ]
    key = (
        *((tuple(tensor.shape), tensor.dtype) for tensor in args),
        (call_target, str(results), has_side_effect, backend_config, api_version, attributes),
    )
    if key not in _functions:
        _functions[key] = _XLAC._stablehlo_of(
            lambda *values: _XLAC.hlo.custom_call(
                call_target,
                values,
                results,
                # Upstream's version 0 is XLA's first version with an opaque text.
                api_version or 1,
                backend_config,
                has_side_effect,
                attributes,
            ),
            list(args),
        )
    return _XLAC._stablehlo_call(_functions[key], list(args))


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """Calls a target that the plugin's compiler knows, as part of the graph.

    Args:
        args: XLA tensors of any shapes and dtypes, at least one.
        call_target: The name of the target.
        output_shapes: The shapes of the results.
        output_dtypes: Their dtypes.
        has_side_effect: Whether the call must not be left out.
        backend_config: The target's own text; for ``api_version`` 4 the inside of an MLIR
            dictionary.
        api_version: Of the calling convention: 1 to 4.
        frontend_attributes: Names and values for the compiler.

    Returns:
        The result, or a tuple of several.

    Raises:
        RuntimeError: At the sync: the compiler does not know the target.
    """
    results = custom_call(
        args,
        call_target,
        output_shapes,
        output_dtypes,
        has_side_effect,
        backend_config,
        api_version,
        frontend_attributes,
    )
    return results[0] if len(results) == 1 else tuple(results)


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, kind: str, back: str) -> torch.Tensor:
        ctx.kinds = kind, back
        return custom_call(
            [tensor],
            "annotate_device_placement",
            [tensor.shape],
            [tensor.dtype],
            has_side_effect=True,
            frontend_attributes={"_xla_buffer_placement": kind},
        )[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        kind, back = ctx.kinds
        return _Place.apply(gradient, back, kind), None, None  # type: ignore[no-untyped-call]


def _has_host_memory() -> bool:
    return _XLAC._xla_platform() in ("TPU", "CUDA", "ROCM")


def _placed(t: torch.Tensor, to: str, back: str) -> torch.Tensor:
    if not _has_host_memory():
        return t
    return cast(torch.Tensor, _Place.apply(t, to, back))  # type: ignore[no-untyped-call]


def place_to_host(t: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same values that XLA keeps in the host's memory; differentiable.

    Computing with it needs :func:`place_to_device` first. Where the device's memory is the
    host's (the CPU), it is the same memory, and the tensor itself is returned.

    Args:
        t: An XLA tensor of any shape and dtype.
    """
    return _placed(t, "pinned_host", "device")


def place_to_device(t: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of :func:`place_to_host` in the device's memory again; differentiable.

    Args:
        t: An XLA tensor of any shape and dtype.
    """
    return _placed(t, "device", "pinned_host")
