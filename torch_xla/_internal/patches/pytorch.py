"""Replacements in PyTorch for which it has no registration, made by the import.

Each function is replaced by one that asks whether xla is meant, and else calls the original.
docs/torch_patches.md lists them with the reasons.
"""

from __future__ import annotations

import copy as copying
import functools
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import torch
import torch.utils.checkpoint
import torch.utils.dlpack
from torch import nn
from torch._subclasses import fake_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import UninitializedParameter
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.data import dataloader
from torch.utils.data._utils import collate as collating

from torch_xla import _XLAC
from torch_xla._internal import dynamo_backend, tensors
from torch_xla._internal.compile import recomputation
from torch_xla._internal.device import (
    dlpack,
    storage_location,
)
from torch_xla._internal.device import (
    memory as device_memory,
)
from torch_xla._internal.device import (
    module as device_module,
)
from torch_xla._internal.patches import accelerator, replica_mesh
from torch_xla._internal.tensors import is_xla

_MARK = "_torch_xla_replaces"

# The names of what was replaced.
replaced: list[str] = []


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
    """Replaces a function by ``make(original)``, once; returns the replacement."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return original
    replacement = functools.wraps(original)(make(original))
    setattr(replacement, _MARK, True)
    setattr(owner, name, replacement)
    replaced.append(name)
    return replacement


# ---------------------------------------------------------------- nn.Module.to
#
# PyTorch moves a parameter in place only if the old and the new tensor are of the same kind. CPU
# and xla tensors are not, so the module would get a new nn.Parameter for each place that holds the
# old one. Then, without an error, an optimizer that was made before would go on with the old
# parameters, tied weights would train apart, and the parameters of lazy modules would keep shape 0.


class _Conversion:
    """The function that a conversion of a module applies, on its way through the modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.moved: dict[nn.Parameter, nn.Parameter] = {}

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def _moved_in_place(old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
    """Returns ``old`` with the content of ``new``, or ``new`` itself where ``old`` is in use.

    ``old`` is in use while an autograd graph of it or a weak reference to it is alive.
    """
    if isinstance(old, UninitializedParameter) and not isinstance(new, UninitializedParameter):
        make: Any = UninitializedParameter  # The type stub has a tensor's arguments.
        new = make(new.requires_grad, device=new.device, dtype=new.dtype)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return new
    return old


def _module_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        conversion = fn if isinstance(fn, _Conversion) else _Conversion(fn)
        before = list(self._parameters.items())
        result = original(self, conversion, *args, **kwargs)
        for name, old in before:
            new = self._parameters[name]
            if old is None or new is None or new is old:
                continue
            if is_xla(old) != is_xla(new):
                if old not in conversion.moved:
                    conversion.moved[old] = _moved_in_place(old, new)
                self._parameters[name] = conversion.moved[old]
        return result

    return apply


# ---------------------------------------------------------------- torch.optim


def _with_xla(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Adds xla to a list of device types with `_foreach_` kernels, each one node of a graph."""

    def devices(*args: Any, **kwargs: Any) -> list[str]:
        names = original(*args, **kwargs)
        return names if "xla" in names else [*names, "xla"]

    return devices


def _replace_optimizer_lists() -> None:
    # The optimizers' modules have already imported these functions by name.
    importers = [m for n, m in list(sys.modules.items()) if n.startswith("torch.optim.")]
    for owner, name in (
        (_foreach_utils, "_get_foreach_kernels_supported_devices"),
        (_foreach_utils, "_get_fused_kernels_supported_devices"),
        (optimizer, "_get_capturable_supported_devices"),
    ):
        function = replace(owner, name, _with_xla)
        for module in importers:
            if hasattr(module, name):
                setattr(module, name, function)


# ---------------------------------------------------------------- profiles and data loaders


def _export_with_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    def export_chrome_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        if device_module.is_initialized():
            from torch_xla._internal.insight import profiles

            profiles.add_rows(path)
        return result

    return export_chrome_trace


def _timed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    # An observer of the loader's ranges (at::addGlobalCallback) would avoid this patch, but slows
    # down each backward pass.
    def __next__(self: Any) -> Any:  # noqa: N807
        start = time.perf_counter_ns()
        data = original(self)
        _XLAC._note_input_time(time.perf_counter_ns() - start)
        return data

    return __next__


# ---------------------------------------------------------------- DLPack
#
# PyTorch's own function exports xla tensors of a GPU only.


def _dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    def export(
        self: torch.Tensor,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if not is_xla(self):
            return original(
                self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
            )
        return dlpack._protocol_export(self, stream, max_version, dl_device, copy)

    return export


def _dlpack_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if not is_xla(self):
            return cast(tuple[Any, int], original(self))
        return dlpack._protocol_device(self)

    return dlpack_device


def _to_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor) -> Any:
        if not is_xla(tensor):
            return original(tensor)
        return dlpack.to_dlpack(tensor)

    return to_dlpack


# ---------------------------------------------------------------- pickle, torch.save, deepcopy
#
# PyTorch believes that xla tensors have no storage: it copies each tensor by itself, so that
# tensors no longer share memory. They do have a storage (csrc/aten/torch_storage.h), which is read
# when it is written to a file; `copy.copy` makes a tensor that shares it.


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(self: torch.Tensor, proto: int) -> Any:
        if not is_xla(self):
            return original(self, proto)
        torch.utils.hooks.warn_if_has_hooks(self)
        if is_traceable_wrapper_subclass(self):  # A DTensor: its attributes have the memory.
            layout = (self.stride(), self.storage_offset(), self.layout)
            wrapper = (type(self), self.dtype, tuple(self.size()), *layout)
            rebuild: Any = torch._utils._rebuild_wrapper_subclass
            return rebuild, (*wrapper, self.device, self.requires_grad)
        metadata = torch._utils.get_tensor_metadata(self)
        look = self.detach()
        look = look.conj() if look.is_conj() else look
        look = torch._neg_view(look) if look.is_neg() else look
        found = tensors.memory(look)
        memory, strides, offset = found or (look.clone(), look.stride(), 0)
        storage: Any = memory.untyped_storage()
        no_hooks: OrderedDict[str, Any] = OrderedDict()
        arguments: Any = (offset, tuple(self.size()), tuple(strides), self.requires_grad, no_hooks)
        if self.dtype in torch.storage._new_dtypes():
            function: Any = torch._utils._rebuild_tensor_v3
            arguments = (*arguments, self.dtype)
        else:
            function = torch._utils._rebuild_tensor_v2
            storage = torch.storage.TypedStorage(
                wrap_storage=storage, dtype=self.dtype, _internal=True
            )
        return function, (storage, *arguments, *([metadata] if metadata else []))

    return reduce


def _deepcopy(original: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def deepcopy(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        if not is_xla(self) or type(self) is not torch.Tensor or not self.is_leaf:
            return original(self, memo)
        if id(self) in memo:
            return cast(torch.Tensor, memo[id(self)])
        found = tensors.memory(self)
        if found is None:
            return original(self, memo)
        memory, strides, offset = found
        copies = memo.setdefault("torch_xla", {})
        key = _XLAC._xla_get_tensor_id(self)
        with torch.no_grad():
            if key not in copies:
                copies[key] = memory.clone()
            # Autograd must not see a view: it refuses writes to views that were made in this mode.
            copy = torch.empty((0,), dtype=self.dtype, device=self.device)
            copy.set_(copies[key].untyped_storage(), offset, self.size(), tuple(strides))
        copy.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        copy.__dict__ = copying.deepcopy(self.__dict__, memo)
        memo[id(self)] = copy
        return copy

    return deepcopy


# ---------------------------------------------------------------- multiprocessing and loaders
#
# Both look up functions by type in a table, so its entries are replaced.


def _replace_entry(table: dict[Any, Any], key: Any, make: Callable[[Any], Any]) -> None:
    """Replaces an entry of a dict as :func:`replace` does a function."""
    if not hasattr(original := table[key], _MARK):
        table[key] = functools.wraps(original)(make(original))
        setattr(table[key], _MARK, True)


def _sent_as_pickled(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce(tensor: torch.Tensor) -> Any:
        if not is_xla(tensor):
            return original(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "a tensor on xla that is no leaf and requires a gradient cannot go to another "
                "process, where there is no autograd graph of it: send tensor.detach()"
            )
        function, arguments = tensor.__reduce_ex__(2)
        if function is torch._utils._rebuild_tensor_v3:  # It only loads from a typed storage.
            typed = torch.storage.TypedStorage(
                wrap_storage=arguments[0], dtype=torch.uint8, _internal=True
            )
            arguments = (typed, *arguments[1:])
        return function, arguments

    return reduce


def _collate(original: Callable[..., Any]) -> Callable[..., Any]:
    """Loader workers collate samples in shared host memory."""

    def collate(batch: Any, **kwargs: Any) -> Any:
        return torch.stack(batch) if is_xla(batch[0]) else original(batch, **kwargs)

    return collate


# ---------------------------------------------------------------- Tensor.data_ptr


def _data_ptr(original: Callable[..., int]) -> Callable[..., int]:
    """An address by which libraries recognize shared memory; nobody can read there.

    PyTorch's own kernels get an error instead, as they call no method of Python.
    """

    def data_ptr(self: torch.Tensor) -> int:
        address = _XLAC._xla_data_ptr(self) if is_xla(self) else None
        return original(self) if address is None else address

    return data_ptr


# ---------------------------------------------------------------- torch.compile


def _inductor(original: Callable[..., Any]) -> Callable[..., Any]:
    """The default backend of torch.compile, which does not know xla."""

    def call(self: Any, graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.Tensor) and x.device.type == "xla" for x in inputs):
            return dynamo_backend.xla(graph, inputs)
        return original(self, graph, inputs, *args, **kwargs)

    return call


# ---------------------------------------------------------------- names


def _xla(
    self: torch.Tensor,
    device: torch.device | str | int | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Returns the tensor on an xla device, the current one unless ``device`` names another."""
    name = device_memory.device_name(device)
    return self.to(name, non_blocking=non_blocking, memory_format=memory_format)


def _with_index(original: Callable[[str], bool]) -> Callable[[str], bool]:
    """Puts fake tensors of ``device="xla"`` on the current device, as real ones are."""

    def is_indexed_device_type(device_type: str) -> bool:
        return device_type == "xla" or original(device_type)

    return is_indexed_device_type


def _replace_stream_of_dynamo() -> None:
    extension = cast(Any, torch._C._dynamo).utils
    if not hasattr(extension, "get_current_stream"):  # torch 2.15
        return
    function = replace(extension, "get_current_stream", accelerator.stream_for_dynamo)
    for name in ("torch._dynamo.utils", "torch._dynamo.guards"):  # They import it by name.
        if name in sys.modules:
            setattr(sys.modules[name], "get_current_stream", function)  # noqa: B010


# ------------------------------------------------------- replicas


def _resize_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "xla":
            return cast(torch.UntypedStorage, original(self, size))
        _XLAC._xla_resize_storage(self, size)
        return self

    return resize_


def _sync_batch_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        if not is_xla(input):
            return cast(torch.Tensor, original(self, input))
        from torch_xla._internal.replicas import sync_batch_norm

        return sync_batch_norm.forward(self, input)

    return forward


def apply() -> None:
    """Replaces the functions, once."""
    replace(nn.Module, "_apply", _module_apply)
    _replace_optimizer_lists()
    replace(torch.Tensor, "__dlpack__", _dlpack)
    replace(torch.Tensor, "__dlpack_device__", _dlpack_device)
    to_dlpack = replace(torch.utils.dlpack, "to_dlpack", _to_dlpack)
    setattr(torch, "to_dlpack", to_dlpack)  # noqa: B010  Stubs lack this and the next.
    replace(torch.Tensor, "_reduce_ex_internal", _reduce)
    replace(torch.Tensor, "__deepcopy__", _deepcopy)
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    _replace_entry(reducers, torch.Tensor, _sent_as_pickled)
    _replace_entry(reducers, nn.Parameter, _sent_as_pickled)
    _replace_entry(reducers, torch.UntypedStorage, storage_location.sent_by_value)
    _replace_entry(collating.default_collate_fn_map, torch.Tensor, _collate)
    replace(torch.Tensor, "data_ptr", _data_ptr)
    for name, make in accelerator.replacements().items():
        replace(torch._C, name, make)
    for name, make in accelerator.memory_replacements().items():
        function = replace(torch.accelerator.memory, name, make)
        setattr(torch.accelerator, name, function)
    _replace_stream_of_dynamo()
    replace(fake_tensor, "_is_indexed_device_type", _with_index)
    if hasattr(torch.accelerator, "Graph"):  # torch 2.13
        replace(torch.accelerator.Graph, "__new__", accelerator.make_graph)
    replace(torch.accelerator.device_index, "__new__", accelerator.make_device_index)
    checkpoint = torch.utils.checkpoint
    replace(checkpoint.CheckpointFunction, "backward", recomputation.backward)
    generator = "_checkpoint_without_reentrant_generator"
    if hasattr(checkpoint, generator + "_impl"):  # torch 2.15; the one without calls it.
        generator += "_impl"
    replace(checkpoint, generator, recomputation.generator)
    replace(torch._TorchCompileInductorWrapper, "__call__", _inductor)
    replace(torch.profiler.profiler._KinetoProfile, "export_chrome_trace", _export_with_rows)
    replace(dataloader._BaseDataLoaderIter, "__next__", _timed_next)
    replace(torch.UntypedStorage, "resize_", _resize_storage)
    replace(DeviceMesh, "__init__", replica_mesh.init_mesh)
    replace(nn.SyncBatchNorm, "forward", _sync_batch_norm)
    setattr(torch.Tensor, "xla", _xla)  # noqa: B010
