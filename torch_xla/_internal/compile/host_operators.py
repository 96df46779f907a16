"""Programs that call the host for custom operators which only have a CPU kernel."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla import _XLAC

TARGET = "torch_xla.cpu_host_operator"  # csrc/cpu/host_calls.h
_TENSOR = object()
_CONSTANTS = (bool, int, float, complex, str, torch.dtype, type(None))


class _Call(NamedTuple):
    operator: Any
    spec: Any
    leaves: list[Any]  # _TENSOR stands for an operand.

    def of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.leaves]
        args, named = tree_unflatten(leaves, self.spec)
        with torch.no_grad():
            results = self.operator(*args, **named)
        return [results] if isinstance(results, torch.Tensor) else list(results)


# By number. The number is a hash of the call, since it is part of programs on disk.
_calls: dict[int, _Call] = {}


def of(operator: Any) -> Callable[..., Any] | None:
    """Returns a function that traces an operator; None if a program cannot contain the operator."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not all(has_kernel(operator.name(), key) for key in ("CPU", "Meta")):
        return None
    returns = operator._schema.returns
    if not returns or any(str(one.type) != "Tensor" for one in returns):
        return None
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return None  # It draws random numbers, whose order must be the order of the calls.
    if not _XLAC._xla_can_call_host() or _XLAC._xla_spmd_devices() > 0:
        return None
    return functools.partial(_trace, operator)


def _type(tensor: torch.Tensor) -> str:
    sizes = [str(size) for size in tensor.shape]
    return f"tensor<{'x'.join([*sizes, _XLAC._stablehlo_element(tensor.dtype)])}>"


def _layouts(tensors: Sequence[torch.Tensor]) -> str:
    found = []
    for tensor in tensors:
        order = list(range(tensor.dim()))[::-1]
        found.append(f"dense<{order if order else ''}> : tensor<{len(order)}xindex>")
    return f"[{', '.join(found)}]"


def _trace(operator: Any, *args: Any, **named: Any) -> Any:
    leaves, spec = tree_flatten((args, named))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if not tensors or any(tensor.device.type != "xla" for tensor in tensors):
        return NotImplemented
    if not all(leaf is _TENSOR or isinstance(leaf, _CONSTANTS) for leaf in rest):
        return NotImplemented
    call = _Call(operator, spec, rest)
    # This raises for sizes that depend on values; then the CPU runs the operator.
    results = call.of([torch.empty_like(tensor, device="meta") for tensor in tensors])
    key = (operator.name(), str(spec), ["tensor" if x is _TENSOR else (x,) for x in rest])
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "little")
    _calls[number] = call
    operands = [*tensors, torch.empty((), dtype=torch.int64, device="meta")]
    types = [_type(tensor) for tensor in operands]
    made = [_type(result) for result in results]
    name = "".join(c if c.isalnum() else "_" for c in operator.name())
    text = f"""
    func.func @{name}({", ".join(f"%a{i}: {one}" for i, one in enumerate(types[:-1]))}) -> ({", ".join(made)}) {{
      %a{len(tensors)} = stablehlo.constant dense<{number}> : tensor<i64>
      %r:{len(made)} = "stablehlo.custom_call"({", ".join(f"%a{i}" for i in range(len(types)))}) {{
        call_target_name = "{TARGET}", api_version = 4 : i32, has_side_effect = true,
        operand_layouts = {_layouts(operands)}, result_layouts = {_layouts(results)}
      }} : ({", ".join(types)}) -> ({", ".join(made)})
      return {", ".join(f"%r#{i}" for i in range(len(made)))} : {", ".join(made)}
    }}
    """  # noqa: E501
    found = _XLAC._stablehlo_call(text, tensors)
    return found[0] if len(operator._schema.returns) == 1 else tuple(found)


def run(number: int, operands: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    """Runs an operator and writes its results; programs call this.

    Raises:
        RuntimeError: The results are not what its fake kernel said.
        Exception: What the operator raises.
    """
    call = _calls[number]
    for i, (made, result) in enumerate(zip(call.of(operands), results, strict=True)):
        if made.shape != result.shape or made.dtype != result.dtype:
            raise RuntimeError(
                f"{call.operator.name()}: result {i} is {made.dtype} of shape {list(made.shape)}, "
                f"but its fake kernel said {result.dtype} of shape {list(result.shape)}"
            )
        result.copy_(made)
