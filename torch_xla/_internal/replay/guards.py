"""The Python objects that a recorded function can read.

:class:`Walk` goes through all objects that the code which runs (calls.py) can reach and
notes them in an ``_ObjectGuards``, which says later, without Python, whether they are as they were.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import dis
import enum
import functools
import gc
import logging
import operator
import os
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.replay import host_numbers
from torch_xla._internal.replay.calls import family, file_family

# Types whose objects never change.
VALUES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.device,
    torch.Size,
)
# Types compared by identity: their attributes do not matter, or the code leads to them.
LEAVES = (
    torch.dtype,
    torch.layout,
    torch.memory_format,
    types.BuiltinFunctionType,
    types.CodeType,
    types.EllipsisType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.NotImplementedType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    type(vars(collections.namedtuple("_Pair", "a"))["a"]),
    enum.Enum,
    operator.itemgetter,
    range,
    slice,
    re.Pattern,
    type(threading.RLock()),
)
# Objects of classes of these modules of the standard library are not guarded.
_MACHINERY = {
    "importlib",
    "inspect",
    "logging",
    "multiprocessing",
    "pathlib",
    "typing",
    "warnings",
}
_LRU_CACHE = type(functools.lru_cache(len))
_LOCK = type(threading.Lock())
_ABC_CACHES = type(vars(abc.ABC)["_abc_impl"])
_MISSING = object()
# What tells whether another object is still alive: a recording would keep that object alive.
_WEAK = (weakref.ref, weakref.ProxyType, weakref.CallableProxyType, weakref.finalize)
# Code with one of these names may read numbers that host_numbers.py lets change.
_READERS = {"param_groups", "state", "state_dict"}
# Code with one of these names may read attributes whose names do not occur in the code.
_LOOK_UPS = {"getattr", "hasattr", "vars", "globals", "dir", "__dict__", "attrgetter"}
_USER_READERS = {*_READERS, "__dict__", "__getstate__", "__reduce_ex__", "vars", "deepcopy", "copy"}
# Built-in bases whose state is guarded or never changes; other bases hide their state.
_OPEN_BASES = (
    BaseException, bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, type,
    collections.deque, collections.OrderedDict, collections.defaultdict, functools.partial,
    types.GenericAlias, types.SimpleNamespace, property,
)  # fmt: skip
# Of modules and classes of PyTorch and the standard library only code is guarded.
_METHODS = (types.FunctionType, staticmethod, classmethod, property)
_CODE = (*_METHODS, type, types.ModuleType)
_IS_HEAP_TYPE = 1 << 9
_SCHEDULERS = torch.optim.lr_scheduler.__name__
_MAX_OBJECTS = 200_000
_MAX_BYTES = 1 << 16


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the globals that code names, and names that may be attributes of modules."""
    found: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            found[instruction.argval] = None
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    return tuple(found), (*code.co_names, *(text for text in texts if text.isidentifier()))


@functools.lru_cache(maxsize=1024)
def _imports(code: types.CodeType) -> tuple[str, ...]:
    """Returns the modules that code imports when it runs."""
    return tuple(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname == "IMPORT_NAME" and instruction.argval
    )


def _finds_modules(code: dict[tuple[types.CodeType, int], dict[str, Any]]) -> bool:
    """Returns whether code may ask ``sys.modules``, which leads to any object.

    Modules of neural networks have an attribute of that name, too. So code of a library has to name
    both; code of a user may pass ``sys`` on to another function of the user.
    """

    def names_sys(one: types.CodeType, variables: dict[str, Any]) -> bool:
        return "sys" in (*_imports(one), *_names(one)[1]) or any(
            variables.get(name) is sys for name in _names(one)[0]
        )

    asked = {"sys": False, "modules": False}  # By code of users.
    for (one, _), variables in code.items():
        if family(one) == "trusted":
            continue
        has_sys, has_modules = names_sys(one, variables), "modules" in _names(one)[1]
        if has_sys and has_modules:
            return True
        if family(one) == "user":
            asked["sys"] |= has_sys
            asked["modules"] |= has_modules
    return all(asked.values())


@functools.lru_cache(maxsize=4096)
def _hides_state(cls: type) -> bool:
    """Returns whether objects of a class have state that is no attribute of theirs."""
    return any(
        base not in (object, *_OPEN_BASES)
        and isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
        and not issubclass(base, BaseException)
        and not base.__module__.startswith(("torch", "_abc", "typing"))
        for base in cls.__mro__
    )


class Walk:
    """Goes through what a function can reach.

    Attributes:
        guards: The guards of the objects.
        tensors: The device's tensors that it met, in order.
        seen: The ids of all objects that it met; it keeps them alive.
        generators: The generators of random numbers, with the states that they had.
        optimizers: The optimizers whose numbers may change, by id.
        refusal: Why the function cannot be replayed; empty if it can.
        asks_for_life: Whether it can ask if objects are still alive.
    """

    def __init__(self, code: dict[tuple[types.CodeType, int], dict[str, Any]]) -> None:
        self.guards = _XLAC._ObjectGuards()
        self.tensors: list[torch.Tensor] = []
        self.seen: dict[int, Any] = {}
        self.generators: list[tuple[torch.Generator, torch.Tensor, str]] = []
        self.optimizers: dict[int, tuple[Any, list[host_numbers.Group]]] = {}
        self.refusal = ""
        self.asks_for_life = False
        self._owned: set[int] = set()
        self._entering = False
        self._code = code
        self._ran = {one for one, _ in code}
        self._entered: set[types.CodeType] = set()  # Code that ran, and that a function leads to.
        self._classes: set[type] = set()
        self._open: collections.deque[tuple[Any, str]] = collections.deque()
        self._globals: dict[int, set[str]] = {}
        self._asked_by_user: set[int] = set()
        users = [one for one in self._ran if family(one) == "user"]
        others = [one for one in self._ran if family(one) != "trusted"]
        # The names that code of users and libraries reads, and the names that all code reads.
        self._attributes = frozenset(name for one in others for name in _names(one)[1])
        self._all_attributes = frozenset(name for one in self._ran for name in _names(one)[1])
        self._finds_modules = _finds_modules(code)
        self._looks_up = any(not _LOOK_UPS.isdisjoint(sum(_names(one), ())) for one in users)
        if any("_version" in one.co_names for one in users):
            self.refusal = "it reads the version of a tensor, which no guard sees"
        self._reads_optimizers = any(
            not names.isdisjoint(_USER_READERS if family(one) == "user" else _READERS)
            for one, names in ((one, set(sum(_names(one), ()))) for one in others)
        )

    def add(self, value: Any, path: str) -> None:
        """Goes through all objects that can be reached from ``value``."""
        self._push(value, path)
        while self._open and not self.refusal:
            self._visit(*self._open.popleft())

    def add_code(self) -> None:
        """Goes through the objects that the running code names; call it last.

        All that ran has to be a function that something leads to: one that is called by code
        behind C (a registry, a hook) can be another one the next time.
        """
        for (code, _), variables in self._code.items():
            self._add_globals(code, variables)
        for value in (torch.Tensor, torch.nn.Parameter):
            self._push(value, value.__name__)
        for place in (
            "torch.nn.modules.module",
            "torch.optim.optimizer",
            "torch_xla.distributed.spmd.mesh",
        ):
            module = sys.modules.get(place)
            if module is None:
                continue
            names = [name for name in vars(module) if name.startswith("_global_")]
            self.guards.add_names(vars(module), names, module.__name__)
            for name in names:
                self._push(vars(module)[name], f"{module.__name__}.{name}")
        while self._open and not self.refusal:
            self._visit(*self._open.popleft())
        made = {one for code in self._ran for one in code.co_consts if one in self._ran}
        for code in self._ran - self._entered - made:
            if not self.refusal and family(code) != "trusted" and code.co_name != "<module>":
                self.refusal = (
                    f"it runs {code.co_name} ({code.co_filename}:{code.co_firstlineno}), to which "
                    "nothing that is looked at leads"
                )

    def _push(self, value: Any, path: str) -> None:
        if id(value) in self._owned and not self._entering:
            self.refusal = (
                f"{path} is part of an optimizer that steps in it, and may be read there: "
                "take it from the optimizer"
            )
        if type(value) in VALUES or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self._open.append((value, path))
        if len(self.seen) > _MAX_OBJECTS:
            self.refusal = f"it can reach more than {_MAX_OBJECTS} objects"

    def _add_globals(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        kind = family(code)
        names: Iterable[str] = _names(code)[0]
        where = variables.get("__name__", "globals")
        if "globals" in names and kind == "user":
            names = [name for name in variables if not name.startswith("__")]
        for imported in _imports(code):
            parts = imported.split(".")
            for i in range(len(parts)):
                module = sys.modules.get(".".join(parts[: i + 1]))
                if module is not None:
                    self._push(module, imported)
        known = self._globals.setdefault(id(variables), set())
        new = [name for name in names if name not in known]
        known.update(new)
        self.guards.add_names(variables, new, where)
        self.guards.add_names(vars(builtins), [n for n in new if n not in variables], "builtins")
        for name in new:
            if name not in variables:
                continue
            value = variables[name]
            if kind == "user" and isinstance(value, types.ModuleType):
                self._asked_by_user.add(id(value))
            if kind != "trusted" or issubclass(type(value), _CODE):
                self._push(value, f"{where}.{name}")

    def _visit_module(self, module: types.ModuleType, path: str) -> None:
        content = vars(module)  # Not getattr(): the module's __getattr__ may return anything.
        file = content.get("__file__")
        module_name = str(content.get("__name__"))
        kind = "user" if module_name == "__main__" else "trusted"
        if isinstance(file, str):
            kind = file_family(file)
        elif content.get("__spec__") is None:
            kind = "user"  # The module was made by hand.
        asked = self._all_attributes if kind == "trusted" else self._attributes
        asked = asked | {"__getattr__"}
        if module is sys and "modules" in asked:
            if self._finds_modules:
                self.refusal = "it looks modules up in sys.modules"
            asked = asked - {"modules"}
        names = sorted(asked & content.keys())
        others: list[str] = []
        if self._looks_up and (kind == "user" or id(module) in self._asked_by_user):
            others = [name for name in content if not name.startswith("__") and name not in asked]
        self.guards.add_names(content, [*names, *others], module_name)
        # PyTorch's modules are asked by the code of others.
        absent = (self._attributes | {"__getattr__"}).difference(content)
        if kind == "user":
            self.guards.add_instance(module, module_name)
        self.guards.add_absent(content, None if others and kind == "user" else absent, module_name)
        if type(module) is not types.ModuleType:
            self._push(type(module), type(module).__qualname__)
        for name in names:
            value = content[name]
            if kind != "trusted" or issubclass(type(value), _CODE):
                self._push(value, f"{module_name}.{name}")
            elif module is os and name in ("environ", "getenv"):
                self._push(os.environ._data, "os.environ")  # type: ignore[attr-defined]
            elif name in self._attributes and not module_name.startswith("torch"):
                if isinstance(value, (list, dict, set, logging.Logger)):
                    self._push(value, f"{module_name}.{name}")
        for name in others if kind == "user" else ():
            if not isinstance(content[name], (types.FunctionType, types.ModuleType, type)):
                self._push(content[name], f"{module_name}.{name}")

    def _visit(self, value: Any, path: str) -> None:
        if type(value) is torch.utils.hooks.RemovableHandle:
            # It can only remove its hooks, so it does not tell whether somebody else has them.
            self.guards.add_dict(vars(value), path)
            references = (value.hooks_dict_ref, *value.extra_dict_ref)
            self._visit_items([reference() for reference in references], path)
        elif issubclass(type(value), _WEAK):
            if not isinstance(value, weakref.ref) or value() is not None:
                self.asks_for_life = True
                self.refusal = (
                    f"{path} is a weak reference, to an object that a recording would keep alive"
                )
        elif isinstance(value, torch.Tensor):
            self._visit_tensor(value, path)
        elif isinstance(value, dict):
            self.guards.add_dict(value, path)
            if isinstance(value, collections.OrderedDict) and len(value) > 1:
                self.guards.add_items(value, collections.OrderedDict, path)
            for key, item in value.items():
                self._push(key, f"a key of {path}")
                self._push(
                    item, f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[…]"
                )
            if type(value) is not dict:
                self._visit_object(value, path)
        elif isinstance(value, list):
            self.guards.add_list(value, path)
            self._visit_items(value, path)
            if type(value) is not list:
                self._visit_object(value, path)
        elif isinstance(value, (tuple, frozenset)):
            self._visit_items(value, path)
            # Other tuple types are built in, such as sys.version_info.
            if type(value).__flags__ & _IS_HEAP_TYPE and not hasattr(value, "n_sequence_fields"):
                self._visit_object(value, path)
        elif isinstance(value, (set, collections.deque)):
            kind = set if isinstance(value, set) else collections.deque
            self.guards.add_items(value, kind, path)
            self._visit_items(value, path)
            if type(value) is not kind:
                self._visit_object(value, path)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, path)
        elif isinstance(value, types.MethodType):
            self._push(value.__self__, path)
            self._push(value.__func__, path)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.guards.add_attribute(value, name, f"{path}.{name}")
                self._push(getattr(value, name), f"{path}.{name}")
            self._visit_object(value, path)
        elif isinstance(value, (staticmethod, classmethod)):
            self._push(value.__func__, path)
        elif isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                self._push(part, path)
            if type(value) is not property:
                self._visit_object(value, path)
        elif isinstance(value, type):
            self._visit_class(value, path)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            # The state of the module `random` is compared with each call.
            owner = value.__self__
            if owner is not random._inst and not isinstance(owner, (types.ModuleType, type(None))):
                if not type(owner).__qualname__.startswith(("pybind11_", "PyCapsule")):
                    self._push(owner, path)
        elif isinstance(value, types.CellType):
            self._visit_cell(value, path)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value, path)
        elif isinstance(value, enum.Enum):
            self.guards.add_dict(vars(value), path)
            self._visit_items(vars(value).values(), path)
            self._push(type(value), type(value).__qualname__)
        elif isinstance(value, types.GenericAlias):
            self._visit_items((value.__origin__, *value.__args__), path)
        elif isinstance(value, types.UnionType):
            self._visit_items(value.__args__, path)
        elif isinstance(value, slice):
            self._visit_items((value.start, value.stop, value.step), path)
        elif isinstance(value, operator.itemgetter):
            self._visit_items(value.__reduce__()[1], path)
        elif isinstance(value, types.MappingProxyType):
            self._visit_items(gc.get_referents(value), path)
        elif isinstance(value, contextvars.ContextVar):
            self.guards.add_question(value.get, (_MISSING,), path)
            self._push(value.get(_MISSING), path)
        elif isinstance(value, _ABC_CACHES):
            # isinstance() gives the same results until somebody registers a class.
            self.guards.add_question(abc.get_cache_token, (), "the registered subclasses")
        elif isinstance(value, _LOCK):
            self.guards.add_question(value.locked, (), path)
        elif isinstance(value, _LRU_CACHE):
            # Visit its function and the dict with its results.
            if (
                family(getattr(value.__wrapped__, "__code__", _names.__wrapped__.__code__))
                != "trusted"
            ):
                self._visit_items(gc.get_referents(value), path)
        elif isinstance(value, LEAVES) or type(value) is object:
            pass
        elif type(value).__qualname__ == "_lru_list_elem":
            pass  # It never changes, and the cache's dict has it.
        elif isinstance(value, logging.Logger):
            self._visit_logger(value, path)
        elif isinstance(value, threading.local):
            # A recording belongs to one thread.
            self.guards.add_dict(vars(value), path)
            for name, item in vars(value).items():
                self._push(item, f"{path}.{name}")
            self._push(type(value), type(value).__qualname__)
        elif isinstance(value, (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)):
            self._push(value.data, path)  # type: ignore[union-attr]
        elif isinstance(value, torch.Generator):
            self.generators.append((value, value.get_state(), path))
        elif isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            self.refusal = f"{path} is a storage, whose content no guard compares"
        elif type(value) is bytearray:
            if len(value) > _MAX_BYTES:
                self.refusal = f"{path} is a bytearray that is too large to compare"
            else:
                self.guards.add_bytes(value, path)
        elif type(value).__module__ == "numpy":
            self._visit_numpy(value, path)
        else:
            self._visit_object(value, path)

    def _visit_logger(self, logger: logging.Logger, path: str) -> None:
        """Guards what decides whether a logger writes; the rest is guarded if the call used it."""
        names = ["level", "disabled", "propagate", "parent"]
        self.guards.add_names(vars(logger), names, path)
        for items in (logger.handlers, logger.filters):
            self.guards.add_list(items, path)
        self.guards.add_names(vars(logger.manager), ["disable"], "logging")
        if logger.parent is not None:
            self._push(logger.parent, f"{path}.parent")

    def _visit_items(self, items: Iterable[Any], path: str) -> None:
        for i, item in enumerate(items):
            self._push(item, f"{path}[{i}]")

    def _visit_tensor(self, tensor: torch.Tensor, path: str) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            self.refusal = f"{path} is a tensor subclass, {type(tensor).__name__}"
            return
        if tensor.device.type == "xla":
            self.tensors.append(tensor)
        elif refusal := self.guards.add_tensor(tensor, _MAX_BYTES, path):
            self.refusal = f"{path} is {refusal}"
            return
        else:
            self._push(tensor.grad, f"{path}.grad")
        content = vars(tensor)  # This creates the dict, which is guarded from then on.
        self.guards.add_instance(tensor, path)
        self.guards.add_dict(content, path)
        for name, value in content.items():
            self._push(value, f"{path}.{name}")
        for hooks in self.guards.add_hooks(tensor, path):
            self._push(hooks, f"the hooks of {path}")

    def _visit_function(self, function: types.FunctionType, path: str) -> None:
        self.guards.add_function(function, path)
        if function.__code__ not in self._ran:
            return
        self._entered.add(function.__code__)
        self._add_globals(function.__code__, function.__globals__)
        self._push(function.__defaults__, f"{path}.__defaults__")
        self._push(function.__kwdefaults__, f"{path}.__kwdefaults__")
        self._push(vars(function), path)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            self._visit_cell(cell, f"{path}'s {name}", family(function.__code__) == "trusted")

    def _visit_cell(self, cell: types.CellType, path: str, is_trusted: bool = False) -> None:
        self.guards.add_cell(cell, path)
        try:
            content = cell.cell_contents
        except ValueError:
            return  # The cell is empty.
        # Schedulers refer to their optimizer in this way.
        self._push(content() if is_trusted and type(content) is weakref.ref else content, path)

    def _visit_class(self, cls: type, path: str) -> None:
        self._push(type(cls), type(cls).__qualname__)
        for base in cls.__mro__:
            # Built-in classes cannot be written to.
            if base in self._classes or not base.__flags__ & _IS_HEAP_TYPE:
                continue
            self._classes.add(base)
            if base is torch.utils.hooks.RemovableHandle and "next_id" not in self._attributes:
                continue  # The class counts hooks; its objects belong to PyTorch.
            self.guards.add_class(base, base.__qualname__)
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            is_trusted = file is not None and file_family(file) == "trusted"
            for name, value in vars(base).items():
                if isinstance(value, _METHODS):
                    if is_trusted and not self._runs(value):
                        continue
                elif is_trusted or (name.startswith("__") and name != "__dataclass_fields__"):
                    continue
                self._push(value, f"{base.__qualname__}.{name}")

    def _runs(self, method: Any) -> bool:
        parts = (method, *(getattr(method, name, None) for name in ("__func__", "fget", "fset")))
        return any(getattr(part, "__code__", None) in self._ran for part in parts)

    def _visit_object(self, value: Any, path: str) -> None:
        cls = type(value)
        root = cls.__module__.split(".")[0]
        if isinstance(value, logging.LoggerAdapter):
            self._push(value.logger, f"{path}.logger")
        if root in _MACHINERY:
            if cls.__module__ != "multiprocessing.sharedctypes":
                return
            self.refusal = f"{path} is memory that other processes share"
            return
        if _hides_state(cls):  # type: ignore[arg-type]
            self.refusal = f"{path} is an object of type {cls.__name__}, which no guard sees into"
            return
        if isinstance(value, torch.optim.Optimizer):
            self._visit_optimizer(value, path)
        if cls.__module__ == _SCHEDULERS and isinstance(
            value, torch.optim.lr_scheduler.LRScheduler
        ):
            # It is stepped again, or has no effect, unless somebody reads it.
            names = {name for name in dir(value) if not name.startswith("__")}
            if not self._reads_optimizers and not self._attributes & names - {"step", "optimizer"}:
                return
        has_dict = hasattr(value, "__dict__")
        slots = [
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        ]
        builtin = (dict, list, tuple, frozenset)
        if (
            not has_dict
            and not (slots and cls.__flags__ & _IS_HEAP_TYPE)
            and not isinstance(value, builtin)
        ):
            if root == "torch" or cls.__module__.startswith("torch"):
                return  # A handle that belongs to PyTorch.
            self.refusal = f"{path} is an object of type {cls.__name__}, which no guard sees into"
            return
        self._push(cls, cls.__qualname__)
        if has_dict:
            content = vars(value)
            self.guards.add_instance(value, path)
            self.guards.add_dict(content, path)
            self._entering = id(value) in self.optimizers
            for name, item in content.items():
                self._push(item, f"{path}.{name}")
            self._entering = False
        if isinstance(value, BaseException):
            slots += ["args", "__cause__", "__context__"]
        for name in slots:
            self.guards.add_attribute(value, name, f"{path}.{name}")
            self._push(getattr(value, name, None), f"{path}.{name}")

    def _visit_optimizer(self, optimizer: Any, path: str) -> None:
        """Leaves out what may change of an optimizer, where its numbers' sources are known."""
        if self._reads_optimizers or any(
            id(one) in self.seen
            for one in (
                optimizer.param_groups,
                optimizer.state,
                *optimizer.param_groups,
                *optimizer.state.values(),
            )
        ):
            return  # Others can read it, too.
        groups = host_numbers.groups(optimizer)
        if groups is None:
            return
        self.optimizers[id(optimizer)] = optimizer, groups
        counters = {id(counter) for group in groups for counter in group.counters}
        self.guards.add_list(optimizer.param_groups, f"{path}.param_groups")
        self.guards.add_dict(optimizer.state, f"{path}.state")
        owned = [optimizer.param_groups, optimizer.state]
        self.seen.update((id(one), one) for one in owned)
        for i, group in enumerate(groups):
            name = f"{path}.param_groups[{i}]"
            self.seen[id(group.content)] = group.content
            names = [key for key in group.content if key not in group.free]
            self.guards.add_names(group.content, names, name)
            for key in names:
                self._push(group.content[key], f"{name}[{key!r}]")
            owned.append(group.content)
        for parameter, content in optimizer.state.items():
            name = f"{path}.state[…]"
            self._push(parameter, f"a key of {name}")
            self.seen[id(content)] = content
            self.guards.add_dict(content, name)
            for key, value in content.items():
                if id(value) in counters:
                    self.seen[id(value)] = value
                    owned.append(value)
                else:
                    self._push(value, f"{name}[{key!r}]")
            owned.append(content)
        self._owned.update(map(id, owned))

    def _visit_numpy(self, value: Any, path: str) -> None:
        import numpy as np

        if type(value) is np.ndarray:
            if value.nbytes > _MAX_BYTES or value.dtype.hasobject or not value.flags.c_contiguous:
                self.refusal = (
                    f"{path} is a numpy array that is too large to compare, or not in a row"
                )
            else:
                self.guards.add_bytes(value, path)
        elif isinstance(value, np.ufunc):
            if getattr(np, value.__name__, None) is not value:
                self.refusal = f"{path} is a ufunc of Python's functions"
        elif type(value) is type(np.concatenate):
            pass  # A function of numpy, which dispatches to a class's own.
        elif not isinstance(value, (np.generic, np.dtype)) or isinstance(value, np.void):
            self._visit_object(value, path)


def _value_types() -> tuple[type, ...]:
    found: list[type] = [torch.device, torch.Size]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found += [numpy.float64, numpy.float32, numpy.int64, numpy.int32, numpy.bool_]
    return tuple(found)


_XLAC._replay_value_types(_value_types())
