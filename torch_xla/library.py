"""Lowerings for operators of your own.

An operator that PyTorch's :mod:`torch.library` defines runs on the ``xla`` device as soon as
PyTorch can compose it of others, or its CPU kernel can run it. :func:`register_lowering` makes
it part of the graph where neither is what you want, in terms of other operators or, with
:func:`stablehlo`, of StableHLO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from torch_xla import _XLAC

# StableHLO's operations on the values of a function that :func:`stablehlo` traces.
hlo = _XLAC.hlo

_F = TypeVar("_F", bound=Callable[..., Any])

# One library per operator keeps its kernels registered, until the next one replaces them.
_libraries: dict[str, torch.library.Library] = {}


def _overload_name(op: Any) -> str:
    """The name "namespace::operator.overload" that the dispatcher knows ``op`` by."""
    if isinstance(op, torch._ops.OpOverload):
        return str(op.name())
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            raise ValueError(
                f"register_lowering(): expected one overload of {op}, it has {overloads}: "
                f"name one, for example {op}.{overloads[0]}"
            )
        return str(getattr(op, overloads[0]).name())
    if isinstance(op, torch.library.CustomOpDef):  # type: ignore[attr-defined]
        return str(op._opoverload.name())
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
    graph in the operator's place, so it costs what they cost; :func:`stablehlo` is one of them.
    It must not read a value of a tensor (``item()``, ``cpu()``, control flow on elements), which
    would cut the graph there.

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


def stablehlo_type(shape: torch.Tensor | Sequence[int], dtype: torch.dtype | None = None) -> str:
    """The StableHLO type of tensors of a shape and dtype, to be put into the text of a function.

    Args:
        shape: The sizes, or a tensor that has them.
        dtype: The dtype; ``None``: the tensor's.

    Returns:
        For example ``"tensor<2x3xf32>"``, or ``"tensor<i64>"`` without dimensions.

    Raises:
        TypeError: There is no dtype, or XLA has none like it.
    """
    if isinstance(shape, torch.Tensor):
        dtype, shape = dtype or shape.dtype, shape.shape
    try:
        element = _XLAC._stablehlo_element(cast(torch.dtype, dtype))
    except (NotImplementedError, TypeError):
        raise TypeError(f"stablehlo_type(): expected a dtype that XLA has, got {dtype}") from None
    return f"tensor<{'x'.join([*(str(int(n)) for n in shape), element])}>"


def stablehlo(
    function: str | Callable[..., Any], *inputs: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Calls a function written in StableHLO; it becomes part of the graph.

    Use it in a function given to :func:`register_lowering`. Called by itself it works too, but
    has no gradient. With the builder, whose operations are those of :data:`hlo`::

        @torch_xla.library.register_lowering("mine::gated")
        def _(x, gate, scale):
            return stablehlo(
                lambda x, gate, scale: hlo.logistic(gate) * x * scale,
                x, gate, torch.scalar_tensor(scale, dtype=x.dtype, device=x.device),
            )

    or as text, whose types are static: it is written for the tensors that come
    (:func:`stablehlo_type`)::

        t = stablehlo_type(x)
        return stablehlo(
            f'''
            func.func @square(%x: {t}) -> {t} {{
              %y = stablehlo.multiply %x, %x : {t}
              return %y : {t}
            }}
            ''',
            x,
        )

    A function that was seen before costs no more than an operator: graphs that differ in it are
    different programs, all else is cached as ever. A number that changes from call to call is
    better an input (``torch.scalar_tensor(number, ...)``) than part of the function.

    Args:
        function: A ``func.func`` of tensors of static shape; behind it may come others, which it
            calls, and around them a ``module``, as other tools print it. Or a Python function of
            as many values (``hlo.Value``: ``shape``, ``dtype``, operators), which is called once
            and returns one or a tuple of them. Operands are broadcast together and numbers take
            the dtype of the other operand; dtypes have to agree (``hlo.convert``).
        inputs: xla tensors of the shapes and dtypes that the function takes, at least one.

    Returns:
        What the function returns: one tensor, or a tuple of several.

    Raises:
        ValueError: The text is no such function, or the compiler refuses it; an operation of the
            Python function refuses its operands.
        TypeError: The function takes other types than those of ``inputs``, or returns no values.
        NotImplementedError: ``inputs`` are on another device.
    """
    if not isinstance(function, str) and not callable(function):
        raise TypeError(
            "stablehlo(): expected `function` to be its text or a Python function, "
            f"got {type(function).__name__}"
        )
    if not inputs:
        raise TypeError("stablehlo(): expected at least one tensor, got none")
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"stablehlo(): expected input {i} to be a tensor, got {x!r}")
    text = function if isinstance(function, str) else _XLAC._stablehlo_of(function, list(inputs))
    results = torch.ops.torch_xla.stablehlo(text, list(inputs))
    return results[0] if len(results) == 1 else tuple(results)


__all__ = ["hlo", "register_lowering", "stablehlo", "stablehlo_type"]
