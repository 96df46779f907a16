"""Computations written by hand: here through StableHLO, see :mod:`torch_xla.library`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._internal.names import missing

_BUILDER = "write StableHLO with torch_xla.library.stablehlo and torch_xla.library.hlo"

__getattr__ = missing.getter(
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


_jax_functions: dict[Any, tuple[str, Any]] = {}
_JAX_PLATFORMS = {"CPU": "cpu", "CUDA": "cuda", "ROCM": "rocm", "TPU": "tpu"}


def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """Calls a function written for JAX; it becomes part of the graph.

    It is traced by JAX once for each set of shapes, dtypes and other arguments. No gradient goes
    through it.

    Args:
        jax_func: The function, of JAX arrays.
        args: Its arguments: nested data with xla tensors; all else is part of the program.
        kwargs: Those by name.
        name: Of the function in the program.
        override_hash: Stands for ``jax_func`` where each call makes it anew.

    Returns:
        What it returns, with xla tensors in the place of arrays.

    Raises:
        ImportError: jax is not installed.
    """
    try:
        import jax
    except ImportError as error:
        raise ImportError(
            "call_jax() needs jax, which is not installed: pip install jax"
        ) from error
    leaves, spec = pytree.tree_flatten((args, kwargs or {}))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
    types = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    key = (jax_func if override_hash is None else override_hash, name, spec, rest, types)
    try:
        found = _jax_functions.get(key)
    except TypeError as error:
        raise TypeError(f"call_jax(): expected arguments that can be hashed: {error}") from error
    if found is None:
        structure: Any = None

        def flat(*arrays: Any) -> Any:
            nonlocal structure
            given = iter(arrays)
            full = [next(given) if leaf is None else leaf[0] for leaf in rest]
            positional, named = pytree.tree_unflatten(full, spec)
            results, structure = jax.tree.flatten(jax_func(*positional, **named))
            return tuple(results)

        flat.__name__ = str(name or getattr(jax_func, "__name__", "jax_function"))
        with jax.enable_x64(True):
            like = [
                jax.ShapeDtypeStruct(shape, str(dtype)[len("torch.") :])  # type: ignore[no-untyped-call]
                for shape, dtype in types
            ]
            platform = _JAX_PLATFORMS.get(_XLAC._xla_platform(), "cpu")
            lowered = jax.jit(flat, keep_unused=True).trace(*like)
            text = lowered.lower(lowering_platforms=(platform,)).as_text()
        found = _jax_functions[key] = (text, structure)
    text, structure = found
    return jax.tree.unflatten(structure, torch.ops.torch_xla.stablehlo(text, tensors))


def create_placeholder_tensor(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns an xla tensor of a shape and dtype without a content of its own: zeros."""
    return torch.zeros(tuple(shape), dtype=dtype, device="xla")
