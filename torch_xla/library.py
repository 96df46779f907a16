"""Lowerings for operators of your own.

An operator that PyTorch's :mod:`torch.library` defines runs on the ``xla`` device as soon as
PyTorch can compose it of others, or its CPU kernel can run it. :func:`register_lowering` makes
it part of the graph where neither is what you want.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])

# One library per operator keeps its kernels registered, until the next one replaces them.
_libraries: dict[str, torch.library.Library] = {}


def _overload_name(op: Any) -> str:
    """The name "namespace::operator.overload" that the dispatcher knows ``op`` by."""
    if isinstance(op, torch._ops.OpOverload):
        return op.name()
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            raise ValueError(
                f"register_lowering(): expected one overload of {op}, it has {overloads}: "
                f"name one, for example {op}.{overloads[0]}"
            )
        return getattr(op, overloads[0]).name()
    if isinstance(op, torch.library.CustomOpDef):
        return op._opoverload.name()
    if not isinstance(op, str):
        raise TypeError(
            "register_lowering(): expected `op` to be an operator or its name, "
            f"got {type(op).__name__}"
        )
    if "::" not in op:
        raise ValueError(
            f'register_lowering(): expected a name like "namespace::operator", got {op!r}'
        )
    return op


def register_lowering(op: Any, fn: _F | None = None, *, differentiable: bool = False) -> Any:
    """Says what an operator is on the ``xla`` device.

    ``fn`` is called with the operator's arguments, tensors of the device among them, whenever
    the operator is called with some. The PyTorch operators that it calls become part of the
    graph in the operator's place, so it costs what they cost. It must not read a value of a
    tensor (``item()``, ``cpu()``, control flow on elements), which would cut the graph there.

    Use it as a function or as a decorator::

        @torch.library.custom_op("mine::scaled_tanh", mutates_args=(), device_types="cpu")
        def scaled_tanh(x: torch.Tensor, scale: float) -> torch.Tensor:
            return torch.from_numpy(my_c_kernel(x.numpy(), scale))

        @torch_xla.library.register_lowering(scaled_tanh)
        def _(x, scale):
            return torch.tanh(x * scale)

    Registering again for the same operator replaces ``fn``.

    Args:
        op: What :func:`torch.library.custom_op` returned, an operator
            (``torch.ops.mine.scaled_tanh.default``; without overload where there is only one),
            or its name (``"mine::scaled_tanh"``). It must be defined already.
        fn: The lowering, with the operator's signature. It returns new tensors where the
            operator does, and changes those arguments that the operator says it mutates.
            ``None`` returns a decorator.
        differentiable: Whether gradients go through the operators that ``fn`` calls. By default
            they are those that the operator has
            (:func:`torch.library.register_autograd`, an ``Autograd`` kernel).

    Returns:
        ``fn``, or the decorator.

    Raises:
        TypeError: ``op`` is no operator, or ``fn`` cannot be called.
        ValueError: ``op`` is not defined, or is several overloads.
    """
    name = _overload_name(op)
    if fn is None:
        return lambda function: register_lowering(op, function, differentiable=differentiable)
    if not callable(fn):
        raise TypeError(f"register_lowering(): expected `fn` to be callable, got {fn!r}")
    try:
        base, _, overload = name.partition(".")
        torch._C._dispatch_find_schema_or_throw(base, overload)
    except RuntimeError:
        raise ValueError(f"register_lowering(): there is no operator {name!r}") from None
    namespace, _, rest = name.partition("::")
    if previous := _libraries.pop(name, None):
        previous._destroy()
    library = torch.library.Library(namespace, "IMPL")
    library.impl(rest, fn, "XLA")
    if differentiable:
        library.impl(rest, fn, "AutogradXLA")
    _libraries[name] = library
    return fn


__all__ = ["register_lowering"]
