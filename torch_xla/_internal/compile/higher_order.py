"""PyTorch's higher-order operators on the device: its own branches and loops in the program.

``torch.cond``, ``while_loop`` and ``scan`` lead here with functions of tensors, their gradients
made by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op


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


def register() -> None:
    """At import: makes them the operators' kernels."""
    kernels: list[tuple[Any, Callable[..., Any]]] = [
        (cond_op, _cond),
        (while_loop_op, _while_loop),
    ]
    for operator, kernel in kernels:
        operator.py_impl(DispatchKey.XLA)(kernel)
    from torch._higher_order_ops.scan import scan_op

    scan_op.py_impl(DispatchKey.XLA)(_scan)
