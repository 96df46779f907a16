"""PyTorch's higher-order operators on the device: its own branches and loops in the program.

``torch.cond``, ``while_loop`` and ``scan`` lead here with functions of tensors, their gradients
made by PyTorch. Within ``torch.autocast("xla")`` all of PyTorch's operators do what they do within
that of other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention
from torch._higher_order_ops.while_loop import while_loop_op

_AUTOCAST = torch._C._dispatch_key_parse("AutocastXLA")


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any]) -> Any:
    from torch_xla._internal.compile.control_flow import cond

    with torch.no_grad():
        return cond(pred, true_fn, false_fn, tuple(operands))


def _while_loop(
    cond_fn: Any,
    body_fn: Any,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any],
    *rest: Any,
    **named: Any,
) -> Any:
    from torch_xla._internal.compile.control_flow import while_loop

    return tuple(while_loop(cond_fn, body_fn, tuple(carried_inputs), tuple(additional_inputs)))


def _scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any) -> Any:
    from torch_xla._internal.compile.scan import scan

    count = len(init)

    def fn(carry: Any, x: Any) -> Any:
        results = combine_fn(*carry, *x, *additional_inputs)
        return tuple(results[:count]), tuple(results[count:])

    with torch.no_grad():
        last, ys = scan(fn, tuple(init), tuple(xs))
    return [*last, *ys]


def _flex_attention_autocast(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    dtype = torch.get_autocast_dtype("xla")
    query, key, value = (
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
        for x in (query, key, value)
    )
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
        return flex_attention(query, key, value, *rest)


def _register_autocast() -> None:
    """PyTorch's operators pass over the autocast of the devices of a list."""
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_AUTOCAST)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(_AUTOCAST)
    flex_attention.py_impl(_AUTOCAST)(_flex_attention_autocast)


def register() -> None:
    """At import: makes them the operators' kernels."""
    _register_autocast()
    kernels: list[tuple[Any, Callable[..., Any]]] = [
        (cond_op, _cond),
        (while_loop_op, _while_loop),
    ]
    for operator, kernel in kernels:
        operator.py_impl(DispatchKey.XLA)(kernel)
    from torch._higher_order_ops.scan import scan_op

    scan_op.py_impl(DispatchKey.XLA)(_scan)
