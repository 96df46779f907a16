"""Changes of accelerate, and of functions of PyTorch, made when their modules are imported.

docs/torch_patches.md lists them with the reasons. Without those modules nothing happens.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

import torch
import torch.distributed as dist

from torch_xla import _XLAC
from torch_xla._internal.patches import pytorch, replica_mesh
from torch_xla._internal.replicas import replication, spmd_mode
from torch_xla._internal.tensors import is_xla


def _respect_cpu(state: types.ModuleType) -> None:
    """Makes ``PartialState`` pass over xla when it is told ``cpu=True``."""
    original = getattr(state.PartialState, "_prepare_backend", None)
    if original is None or not hasattr(state, "is_torch_xla_available"):
        return  # An unknown version of accelerate stays as it is.

    facts = vars(state)  # The module's own globals.

    @functools.wraps(original)
    def prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
        if not cpu:
            return original(self, cpu, *args, **kwargs)
        asked = facts["is_torch_xla_available"]
        facts["is_torch_xla_available"] = lambda *args, **kwargs: False
        try:
            return original(self, cpu, *args, **kwargs)
        finally:
            facts["is_torch_xla_available"] = asked

    state.PartialState._prepare_backend = prepare_backend


def _number_processes(state: types.ModuleType) -> None:
    """Makes ``PartialState`` know which process of its host this is."""
    original = state.PartialState.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, "backend", None) != "xla":
            return
        _name_compiled_parameters()
        if self.local_process_index == -1:
            self.local_process_index = replication.topology().local_rank

    state.PartialState.__init__ = init


def _name_compiled_parameters() -> None:
    """Makes ``Accelerator`` call a compiled model's parameters as the model itself does."""
    # The module may not have run yet: it may be accelerate that imports this package.
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    original = getattr(accelerator, "_get_named_parameters", None)
    if accelerator is None or original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def named(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = original(self, *args, **kwargs)
        return {name.replace("_orig_mod.", ""): value for name, value in found.items()}

    accelerator._get_named_parameters = named


def _take_fsdp2(state: types.ModuleType) -> None:
    """Makes ``AcceleratorState`` take the plugin of FSDP2, as for several processes on GPUs."""
    kinds, original = state.DistributedType, state.AcceleratorState.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        version = getattr(fsdp_plugin, "fsdp_version", 0)
        if self.distributed_type == kinds.XLA and version == 2 and not spmd_mode.is_on():
            if not dist.is_initialized():
                dist.init_process_group("xla", init_method="xla://")
            self.distributed_type = kinds.FSDP
            state.PartialState._shared_state["distributed_type"] = kinds.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    state.AcceleratorState.__init__ = init


def _gather_objects(operations: types.ModuleType) -> None:
    """Makes ``gather_object`` join the lists of the replicas."""
    original = getattr(operations, "gather_object", None)
    if original is None:
        return

    @functools.wraps(original)
    def gather_object(object: Any) -> Any:
        state = operations.PartialState()
        if state.distributed_type != operations.DistributedType.XLA:
            return original(object)
        if state.num_processes == 1:
            return object
        gathered = replication.rendezvous("accelerate.gather_object", pickle.dumps(object))
        return [item for objects in gathered for item in pickle.loads(objects)]

    operations.gather_object = gather_object  # type: ignore[attr-defined]


def _offload(original: Callable[..., Any]) -> Callable[..., Any]:
    def offload(self: Any, x: torch.Tensor, memo: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
        if type(x) in (torch.Tensor, torch.nn.Parameter) and is_xla(x):
            if _XLAC._xla_get_layout(x) != (list(x.stride()), x.storage_offset()):
                memo[id(x)] = x.detach().cpu()
                return memo[id(x)]
        return original(self, x, memo, *args, **kwargs)

    return offload


def _stage_views(stager: types.ModuleType) -> None:
    """Makes ``dcp.async_save`` copy views first, since it reads memory by a tensor's strides."""
    pytorch.replace(stager.StateDictStager, "_offload_tensor", _offload)


def _take_xla(original: Callable[..., None]) -> Callable[..., None]:
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "xla":  # torch.compile traces this function.
            original(query, key, value)

    return validate_device


def _validate_flex_attention(attention: types.ModuleType) -> None:
    """Makes ``flex_attention`` take xla tensors, too; PyTorch has a list of devices."""
    pytorch.replace(attention, "_validate_device", _take_xla)


def _move_states(sharding: types.ModuleType) -> None:
    """Makes ``fully_shard`` move parameters to xla in place, where PyTorch would set ``data``."""
    pytorch.replace(sharding, "_move_states_to_device", replica_mesh.move_states)


_TORCH_CHANGES = {
    "torch.distributed.checkpoint._state_dict_stager": _stage_views,
    "torch.distributed.fsdp._fully_shard._fsdp_init": _move_states,
    "torch.nn.attention.flex_attention": _validate_flex_attention,
}
_CHANGES = {
    "accelerate.state": (_respect_cpu, _number_processes, _take_fsdp2),
    "accelerate.utils.operations": (_gather_objects,),
}


class _Finder:
    """Finds the modules as usual, once, and changes them after they were executed."""

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = self._changes.pop(name, None)
        if changes is None:
            return None
        if not self._changes:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            for change in changes:
                change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Waits for the imports, once."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    awaited = dict(_CHANGES) if sys.modules.keys().isdisjoint(_CHANGES) else {}
    for name, change in _TORCH_CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            awaited[name] = (change,)
    if awaited:
        sys.meta_path.insert(0, _Finder(awaited))
