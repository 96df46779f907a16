"""PyTorch's DeviceMesh and DTensor over replicas: the code of PyTorch itself, without its branches.

For a mesh of ``"xla"`` PyTorch makes no groups, and hands tensors to
``torch_xla.distributed.spmd``: it was written when one process had all devices. That holds in SPMD
mode; replicas have groups of the backend ``xla``, like those of any other device.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_xla._internal.device import module as device_module
from torch_xla._internal.replicas import spmd_mode

_Result = TypeVar("_Result")


@functools.cache
def without_branch(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Returns ``function`` with its comparisons to ``"xla"`` never true.

    Raises:
        RuntimeError: There is no such comparison: PyTorch has changed.
    """
    code = function.__code__
    if "xla" not in code.co_consts:
        raise RuntimeError(f"torch_xla: {function.__qualname__} has no branch for xla anymore")
    constants = tuple("no device" if value == "xla" else value for value in code.co_consts)
    changed = types.FunctionType(
        code.replace(co_consts=constants),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed


def init_mesh(original: Callable[..., None]) -> Callable[..., None]:
    """Makes a ``DeviceMesh.__init__`` that gives a mesh of xla its groups outside SPMD mode."""

    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if device_type == "xla" and not spmd_mode.is_on():
            if kwargs.get("_init_backend", True):
                # If no device were in use, PyTorch would select device LOCAL_RANK, but a replica
                # has xla:0.
                if not dist.is_initialized():
                    dist.init_process_group()
                device_module.init()
            without_branch(original)(self, device_type, *args, **kwargs)
        else:
            original(self, device_type, *args, **kwargs)

    return __init__


def move_states(original: Callable[..., None]) -> Callable[..., None]:
    """Makes the function by which ``fully_shard`` moves a model to xla; its own sets ``data``."""

    def move(params: list[nn.Parameter], buffers: list[torch.Tensor], device: torch.device) -> None:
        for tensor in [*params, *buffers] if device.type == "xla" else ():
            there = tensor.device.type in ("xla", "meta")
            if not there and not is_traceable_wrapper_subclass(tensor):
                with torch.no_grad():
                    moved = tensor.to(device)
                    if isinstance(tensor, nn.Parameter):
                        moved = nn.Parameter(moved, tensor.requires_grad)
                    if tensor.grad is not None:
                        moved.grad = tensor.grad.to(device)
                torch.utils.swap_tensors(tensor, moved)
        original(params, buffers, device)

    return move
