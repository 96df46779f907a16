"""Operators in Python: PyTorch's that call the host, and torch_xla 2.9's (``torch.ops.xla``)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._higher_order_ops

_library = torch.library.Library("xla", "FRAGMENT")
_library.define("dynamo_set_buffer_donor_(Tensor(a!) t, bool donor) -> Tensor(a!)")
_library.define(
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, "
    "str partition_spec) -> Tensor"
)
_library.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor"
)


def _set_buffer_donor(t: torch.Tensor, donor: bool) -> torch.Tensor:
    # Buffers that nobody can read any more are donated in any case.
    return t


def _mark_sharding(
    input: torch.Tensor,
    device_ids: Sequence[int],
    mesh_shape: Sequence[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    from torch_xla.distributed.spmd.marking import mark_sharding_with_gradients
    from torch_xla.distributed.spmd.mesh import Mesh

    names = ast.literal_eval(axis_names) if axis_names not in ("", "None") else None
    mesh = Mesh(list(device_ids), tuple(mesh_shape), names)
    return mark_sharding_with_gradients(input, mesh, ast.literal_eval(partition_spec))


def _mark_tensor(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: object = None
) -> torch.Tensor:
    raise NotImplementedError(
        f"torch.ops.xla.mark_tensor: composites ({name!r}) are not in this package; an operator of "
        "one's own (torch_xla.library) stands for a pattern (see docs/migration.md)"
    )


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.lies = inputs[1:]


def _mark_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return torch.ops.xla.dynamo_mark_sharding(gradient, *ctx.lies), None, None, None, None


# An opaque operator: a graph would lose the mark otherwise.
_NAME = "xla::dynamo_mark_sharding"
_library.impl("dynamo_mark_sharding", _mark_sharding, "XLA")
torch.library.register_fake(_NAME, lambda t, *_: torch.empty_like(t), lib=_library)
torch.library.register_autograd(_NAME, _mark_gradient, setup_context=_keep_arguments, lib=_library)
for _name, _function in {
    "dynamo_set_buffer_donor_": _set_buffer_donor,
    "mark_tensor": _mark_tensor,
}.items():
    _library.impl(_name, _function, "CompositeImplicitAutograd")


def _of_host_calls(name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **named: Any) -> Any:
        from torch_xla._internal.insight import host_calls

        return getattr(host_calls, name)(*args, **named)

    return kernel


def _is_any_true(x: torch.Tensor) -> torch.Tensor:
    from torch_xla._internal.insight import anomaly

    return anomaly.is_any_true(x)


_aten = torch.library.Library("aten", "IMPL")
_aten.impl("_assert_async", _of_host_calls("assert_async"), "XLA")
_aten.impl("_assert_async.msg", _of_host_calls("assert_async"), "XLA")
_aten.impl("_functional_assert_async.msg", _of_host_calls("functional_assert_async"), "XLA")
_aten.impl("_is_any_true", _is_any_true, "XLA")
if hasattr(torch._higher_order_ops, "print"):
    torch._higher_order_ops.print.py_impl(torch._C.DispatchKey.XLA)(_of_host_calls("print"))
    torch._higher_order_ops.print.fallthrough(torch._C.DispatchKey.AutogradXLA)
