"""What may change between two calls of a replayed function: every pair of a program and a change.

    python tests/python/replay/mutations.py [--count 5000] [--seed 0] [--only NAME]

A program reads a *thing* (a number, a container, an array, a tensor, an object, a function, a
module) from a *place* (a closure, a global, an attribute, a cache, ...) in a *setting* (a plain
function, ``forward`` of a module, a hook, an autograd function, a mode). A *change* is one of all
that Python lets one do to the thing, or puts another thing in its place. Behind the change the
replayed function has to give the bits of the function itself, or raise as it does.
"""

import argparse
import collections
import contextvars
import dataclasses
import decimal
import enum
import fractions
import functools
import itertools
import os
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import mutations_around
import numpy as np
import torch

import torch_xla

DEVICE = "xla"
Get = Callable[[torch.Tensor], Any]
Put = Callable[[Any], None]


# ------------------------------------------------------------------------------------ places


class Box:
    """An object with attributes."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def of_self(self, x: torch.Tensor) -> Any:
        return self.value


class Derived(Box):
    pass


class Slots:
    __slots__ = ("__weakref__", "other", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class Behind:
    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        return self._value


class Dynamic:
    def __init__(self, value: Any) -> None:
        self.__dict__["held"] = {"value": value}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["held"][name]


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Named(collections.namedtuple("Named", ["value", "other"])):  # noqa: PYI024
    __slots__ = ()


class Descriptor:
    def __init__(self, value: Any) -> None:
        self.held = value

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.held


class Holder(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.held = (value,)


HELD: Any = None
WAYS: dict[str, Callable[[Any], tuple[Get, Put]]] = {}


def place(make: Callable[[Any], tuple[Get, Put]]) -> Callable[[Any], tuple[Get, Put]]:
    WAYS[make.__name__] = make
    return make


@place
def closure(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        nonlocal value
        value = new

    return lambda x: value, put


@place
def variable_of_the_module(value: Any) -> tuple[Get, Put]:
    def put(new: Any) -> None:
        global HELD
        HELD = new

    put(value)
    return lambda x: HELD, put


@place
def attribute(value: Any) -> tuple[Get, Put]:
    box = Box(value)
    return lambda x: box.value, lambda new: setattr(box, "value", new)


@place
def attribute_by_name(value: Any) -> tuple[Get, Put]:
    box, name = Box(value), "value"
    return lambda x: getattr(box, name), lambda new: box.__dict__.update(value=new)


@place
def nested_attribute(value: Any) -> tuple[Get, Put]:
    box = Box(Box(Box(value)))
    return lambda x: box.value.value.value, lambda new: setattr(box.value, "value", Box(new))


@place
def slot(value: Any) -> tuple[Get, Put]:
    box = Slots(value)
    return lambda x: box.value, lambda new: setattr(box, "value", new)


@place
def behind_a_property(value: Any) -> tuple[Get, Put]:
    box = Behind(value)
    return lambda x: box.value, lambda new: setattr(box, "_value", new)


@place
def behind_getattr(value: Any) -> tuple[Get, Put]:
    box = Dynamic(value)
    return lambda x: box.value, lambda new: box.held.update(value=new)


@place
def of_a_class(value: Any) -> tuple[Get, Put]:
    cls = type("Mine", (), {"value": staticmethod(value) if callable(value) else value})

    def put(new: Any) -> None:
        cls.value = staticmethod(new) if callable(new) else new  # type: ignore[attr-defined]

    return lambda x: cls.value, put  # type: ignore[attr-defined]


@place
def of_a_base(value: Any) -> tuple[Get, Put]:
    base = type("Base", (), {"held": [value]})
    cls = type("Mine", (base,), {})
    one = cls()
    return lambda x: one.held[0], lambda new: setattr(base, "held", [new])


@place
def behind_a_descriptor(value: Any) -> tuple[Get, Put]:
    descriptor = Descriptor(value)
    one = type("Mine", (), {"value": descriptor})()
    return lambda x: one.value, lambda new: setattr(descriptor, "held", new)


@place
def of_a_metaclass(value: Any) -> tuple[Get, Put]:
    meta = type("Meta", (type,), {"held": (value,)})
    cls = meta("Mine", (), {})
    return lambda x: cls.held[0], lambda new: setattr(meta, "held", (new,))


@place
def entry(value: Any) -> tuple[Get, Put]:
    content = {"value": value}
    return lambda x: content["value"], lambda new: content.update(value=new)


@place
def item(value: Any) -> tuple[Get, Put]:
    content = [0, value]
    return lambda x: content[1], lambda new: content.__setitem__(1, new)


@place
def item_of_a_tuple(value: Any) -> tuple[Get, Put]:
    content = {"all": (0, (value,))}
    return lambda x: content["all"][1][0], lambda new: content.update(all=(0, (new,)))


@place
def of_a_named_tuple(value: Any) -> tuple[Get, Put]:
    box = Box(Named(value, 0))
    return lambda x: box.value.value, lambda new: setattr(box, "value", Named(new, 0))


@place
def item_of_a_deque(value: Any) -> tuple[Get, Put]:
    content = collections.deque([value], maxlen=2)
    return lambda x: content[0], lambda new: content.__setitem__(0, new)


@place
def behind_a_proxy(value: Any) -> tuple[Get, Put]:
    content = {"value": value}
    proxy = types.MappingProxyType(content)
    return lambda x: proxy["value"], lambda new: content.update(value=new)


@place
def default(value: Any) -> tuple[Get, Put]:
    def get(x: torch.Tensor, value: Any = value) -> Any:
        return value

    return get, lambda new: setattr(get, "__defaults__", (new,))


@place
def default_of_a_keyword(value: Any) -> tuple[Get, Put]:
    def get(x: torch.Tensor, *, value: Any = value) -> Any:
        return value

    return get, lambda new: get.__kwdefaults__.update(value=new)


@place
def attribute_of_a_function(value: Any) -> tuple[Get, Put]:
    def get(x: torch.Tensor) -> Any:
        return get.value  # type: ignore[attr-defined]

    get.value = value  # type: ignore[attr-defined]
    return get, lambda new: setattr(get, "value", new)


@place
def argument_of_a_partial(value: Any) -> tuple[Get, Put]:
    def second(x: torch.Tensor, *, value: Any) -> Any:
        return value

    get = functools.partial(second, value=value)
    return get, lambda new: get.keywords.update(value=new)


@place
def of_a_bound_method(value: Any) -> tuple[Get, Put]:
    box = Box(value)
    return box.of_self, lambda new: setattr(box, "value", new)


@place
def of_a_made_module(value: Any) -> tuple[Get, Put]:
    module = types.ModuleType("of_mutations")
    module.value = value  # type: ignore[attr-defined]
    return lambda x: module.value, lambda new: setattr(module, "value", new)


@place
def of_a_namespace(value: Any) -> tuple[Get, Put]:
    space = types.SimpleNamespace(value=value)
    return lambda x: space.value, lambda new: setattr(space, "value", new)


@place
def of_a_torch_module(value: Any) -> tuple[Get, Put]:
    holder = Holder(value)
    return lambda x: holder.held[0], lambda new: setattr(holder, "held", (new,))


@place
def cached(value: Any) -> tuple[Get, Put]:
    held = [value]

    @functools.lru_cache
    def config() -> Any:
        return held[0]

    def put(new: Any) -> None:
        held[0] = new
        config.cache_clear()

    return lambda x: config(), put


@place
def of_a_frozen_data_class(value: Any) -> tuple[Get, Put]:
    one = Frozen(value)
    return lambda x: one.value, lambda new: object.__setattr__(one, "value", new)


@place
def behind_a_weak_reference(value: Any) -> tuple[Get, Put]:
    box = Box(value)
    reference = weakref.ref(box)
    return lambda x: reference().value, lambda new: setattr(box, "value", new)  # type: ignore[union-attr]


@place
def of_the_thread(value: Any) -> tuple[Get, Put]:
    local = threading.local()
    local.value = value
    return lambda x: local.value, lambda new: setattr(local, "value", new)


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


@place
def of_the_context(value: Any) -> tuple[Get, Put]:
    VARIABLE.set(value)
    return lambda x: VARIABLE.get(), VARIABLE.set


@place
def attribute_of_the_argument(value: Any) -> tuple[Get, Put]:
    held = [value]

    def get(x: torch.Tensor) -> Any:
        return x.value  # type: ignore[attr-defined]

    get.held = held  # type: ignore[attr-defined]
    return get, lambda new: held.__setitem__(0, new)


# ------------------------------------------------------------------------------------ things

SAME = object()  # Changed where it is, rather than replaced.


@dataclasses.dataclass
class Thing:
    """Something that a program reads.

    Attributes:
        make: Returns a new one.
        read: Returns what a program makes of it and of a tensor of two.
        changes: By name what is done to it: each returns what comes in its place, or SAME.
    """

    make: Callable[[], Any]
    read: Callable[[Any, torch.Tensor], torch.Tensor]
    changes: dict[str, Callable[[Any], Any]]


def do(*actions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a change of a thing where it is."""

    def change(value: Any) -> Any:
        for action in actions:
            action(value)
        return SAME

    return change


def to(new: Any) -> Callable[[Any], Any]:
    """Returns a change that puts something else in a thing's place."""
    return lambda value: new() if isinstance(new, types.FunctionType) else new


def fold(values: Any) -> float:
    total = 1.0
    for value in values:
        total = total * 1.5 + float(value)
    return total


def at(name: str, *args: Any) -> Callable[[Any], Any]:
    return lambda value: getattr(value, name)(*args)


def put(name: str, new: Any) -> Callable[[Any], Any]:
    return lambda value: setattr(value, name, new)


class Floating(float):
    def __mul__(self, other: Any) -> Any:
        return other * 5

    __rmul__ = __mul__


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 7


class Reversed(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(list.__getitem__(self, slice(None, None, -1)))


@dataclasses.dataclass(eq=True, unsafe_hash=True)
class Field:
    name: str
    scale: float = dataclasses.field(default=1.0, compare=False)


class Number:
    scale = 2.0

    def __init__(self) -> None:
        self.by = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.by

    def __len__(self) -> int:
        return 2


class OtherNumber(Number):
    @property
    def by(self) -> float:  # type: ignore[override]
        return 11.0

    @by.setter
    def by(self, value: float) -> None:
        pass


def new_class() -> type:
    base = type("Grand", (), {"by": 4.0})
    return type("Fresh", (base,), {"scale": 2.0, "make": staticmethod(lambda: 3.0)})


def read_class(cls: Any, x: torch.Tensor) -> torch.Tensor:
    return x * cls.scale + cls.make() + getattr(cls, "by", 0.0) + getattr(cls, "extra", 0.0)


def new_function() -> Any:
    inner = 2.0

    def function(x: torch.Tensor, by: float = 3.0, *, more: float = 0.5) -> torch.Tensor:
        return x * inner + by + more

    return function


def other_function(x: torch.Tensor) -> torch.Tensor:
    return x - 17


def new_cached() -> Any:
    source = {"scale": 2.0}

    @functools.lru_cache
    def config(name: str = "a") -> dict[str, float]:
        return dict(source)

    config.source = source  # type: ignore[attr-defined]
    return config


def array(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype=dtype)


def host(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def write(source: Callable[[Any], Any], new: Any = 9) -> Callable[[Any], Any]:
    return lambda value: source(value).__setitem__(slice(None), new)


def hook_of(by: float) -> Callable[..., Any]:
    return lambda module, inputs, output: output * by


class Scaling:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * self.by


def linear(hooks: tuple[Any, ...] = ()) -> Any:
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.bias.copy_(torch.tensor([0.5, 0.25]))
    for hook in hooks:
        layer.register_forward_hook(hook)
    return layer.to(DEVICE).requires_grad_(False)


def layers() -> Any:
    return torch.nn.Sequential(linear(), torch.nn.Tanh(), linear())


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def masked() -> Any:
    found = np.arange(6, dtype=np.float32)
    found.flags.writeable = True
    return found.reshape(2, 3)


NUMBERS: dict[str, Any] = {
    "other": 2.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "tiny": 1e-310,
    "negative": -1.5,
    "zero": 0.0,
    "negative_zero": -0.0,
    "int": 3,
    "bool": True,
    "complex": 2j,
    "none": None,
    "text": "a",
    "double": np.float64(7.5),
    "single": np.float32(7.5),
    "half": np.float16(7.5),
    "long": np.int64(5),
    "level": Level.HIGH,
    "floating": Floating(3.0),
    "big": 10**40,
    "tensor": lambda: torch.tensor(4.0),
    "on_device": lambda: torch.tensor(4.0, device=DEVICE),
    "fraction": fractions.Fraction(1, 3),
    "decimal": decimal.Decimal("1.5"),
}


def times(value: Any, x: torch.Tensor) -> torch.Tensor:
    return x * value


THINGS: dict[str, Thing] = {
    "float": Thing(lambda: 1.5, times, {name: to(new) for name, new in NUMBERS.items()}),
    "zero": Thing(
        lambda: 0.0, times, {"sign": to(-0.0), "int": to(0), "numpy": to(np.float64(-0.0))}
    ),
    "numpy_zero": Thing(lambda: np.float64(0.0), times, {"sign": to(np.float64(-0.0))}),
    "int": Thing(
        lambda: 2,
        lambda v, x: (x * v + torch.ones(2, device=DEVICE).repeat(int(v)).sum()) / v,
        {
            "other": to(3),
            "float": to(2.0),
            "bool": to(True),
            "level": to(Level.HIGH),
            "negative": to(-1),
            "numpy": to(np.int32(4)),
            "none": to(None),
        },
    ),
    "flag": Thing(
        lambda: True,
        lambda v, x: x * 2 if v else x.sum() - x,
        {
            "false": to(False),
            "none": to(None),
            "zero": to(0),
            "one": to(1),
            "list": to(lambda: []),
            "text": to(""),
        },
    ),
    "text": Thing(
        lambda: "a",
        lambda v, x: x * {"a": 1.0, "b": 2.0}.get(v, len(v)),
        {"b": to("b"), "long": to("ccc"), "bytes": to(b"aa"), "none": to(None)},
    ),
    "fraction": Thing(
        lambda: fractions.Fraction(1, 2),
        lambda v, x: x * float(v),
        {"other": to(fractions.Fraction(1, 3)), "inside": do(put("_numerator", 5))},
    ),
    "dtype": Thing(
        lambda: torch.float32,
        lambda v, x: x.to(v).float() / 3,
        {"half": to(torch.float16), "long": to(torch.int64)},
    ),
    "slice": Thing(
        lambda: slice(0, 1),
        lambda v, x: x[v].sum() + x,
        {"other": to(slice(1, 2)), "step": to(slice(0, 2, 2)), "int": to(1)},
    ),
    "list": Thing(
        lambda: [1.0, 2.0, 3.0],
        lambda v, x: x * fold(v),
        {
            "item": do(at("__setitem__", 1, 9.0)),
            "append": do(at("append", 4.0)),
            "pop": do(at("pop")),
            "reverse": do(at("reverse")),
            "clear": do(at("clear")),
            "insert": do(at("insert", 0, 7.0)),
            "slice": do(at("__setitem__", slice(0, 2), [5.0])),
            "sort": do(lambda v: v.sort(reverse=True)),
            "delete": do(at("__delitem__", 0)),
            "extend": do(at("__iadd__", [1.0])),
            "twice": do(at("__imul__", 2)),
            "tuple": to((3.0, 1.0)),
            "other": to(lambda: [4.0]),
            "sub": to(lambda: Reversed([1.0, 2.0])),
            "array": to(lambda: np.array([3.0, 1.0])),
            "set": to(lambda: {1.0}),
        },
    ),
    "nested": Thing(
        lambda: ([1.0], ({"a": [2.0, 3.0]},)),
        lambda v, x: x * fold(v[0]) + fold(v[1][0]["a"]),
        {
            "first": do(lambda v: v[0].append(2.0)),
            "inner": do(lambda v: v[1][0]["a"].pop()),
            "entry": do(lambda v: v[1][0].update(a=[7.0])),
            "delete": do(lambda v: v[1][0].clear()),
        },
    ),
    "dict": Thing(
        lambda: {"a": 1.0, "b": 2.0},
        lambda v, x: x * fold(v.values()) + fold(map(len, map(str, v))) + v.get("c", 0),
        {
            "set": do(at("update", {"a": 5.0})),
            "add": do(at("__setitem__", "c", 4.0)),
            "delete": do(at("__delitem__", "a")),
            "order": do(lambda v: v.update(a=v.pop("a"))),
            "rename": do(lambda v: v.update(long=v.pop("b"))),
            "clear": do(at("clear")),
            "popitem": do(at("popitem")),
            "or": do(at("__ior__", {"b": 3.0})),
            "ordered": to(lambda: collections.OrderedDict(b=1.0, a=2.0)),
            "none": to(None),
            "default": do(at("setdefault", "c", 3.0)),
            "int": do(at("__setitem__", "a", 2)),
        },
    ),
    "keys": Thing(
        lambda: {1: 2.0, 2: 3.0},
        lambda v, x: x * fold(v.values()) + fold(len(type(key).__name__) for key in v),
        {
            "type": do(lambda v: v.update({2.0: v.pop(2)})),
            "bool": do(lambda v: v.update({True: v.pop(1)})),
        },
    ),
    "ordered": Thing(
        lambda: collections.OrderedDict(a=1.0, b=2.0, c=3.0),
        lambda v, x: x * fold(v.values()),
        {
            "end": do(at("move_to_end", "a")),
            "begin": do(lambda v: v.move_to_end("c", last=False)),
            "set": do(at("__setitem__", "a", 4.0)),
            "pop": do(lambda v: v.popitem(last=False)),
            "below": do(lambda v: dict.__setitem__(v, "b", 9.0)),
            "add": do(at("setdefault", "d", 1.0)),
            "attribute": do(put("hidden", 3.0), at("__delitem__", "b")),
        },
    ),
    "defaultdict": Thing(
        lambda: collections.defaultdict(lambda: 2.0, a=1.0),
        lambda v, x: x * v.default_factory() + v["a"],
        {
            "factory": do(put("default_factory", lambda: 5.0)),
            "set": do(at("update", {"a": 3.0})),
            "none": do(put("default_factory", None)),
        },
    ),
    "counter": Thing(
        lambda: collections.Counter("aab"),
        lambda v, x: x * v.most_common(1)[0][1] + v["b"],
        {"update": do(at("update", "bbb")), "subtract": do(at("subtract", "a"))},
    ),
    "chain": Thing(
        lambda: collections.ChainMap({"a": 1.0}, {"a": 2.0, "b": 3.0}),
        lambda v, x: x * v["a"] + v["b"],
        {
            "front": do(lambda v: v.maps.insert(0, {"b": 9.0})),
            "inner": do(lambda v: v.maps[1].update(b=7.0)),
            "delete": do(lambda v: v.maps[0].clear()),
        },
    ),
    "user_list": Thing(
        lambda: collections.UserList([1.0, 2.0]),
        lambda v, x: x * fold(v),
        {"item": do(at("__setitem__", 0, 3.0)), "data": do(put("data", [7.0]))},
    ),
    "set": Thing(
        lambda: {1.0, 2.0},
        lambda v, x: x * fold(sorted(v)),
        {
            "add": do(at("add", 3.0)),
            "discard": do(at("discard", 1.0)),
            "clear": do(at("clear")),
            "update": do(at("__ior__", {8.0})),
            "frozen": to(frozenset({5.0})),
        },
    ),
    "fields": Thing(
        lambda: {Field("a", 1.0), Field("b", 2.0)},
        lambda v, x: x * fold(one.scale for one in sorted(v, key=lambda one: one.name)),
        {
            "equal": do(at("discard", Field("a")), at("add", Field("a", 5.0))),
            "inside": do(lambda v: setattr(next(iter(v)), "scale", 7.0)),
        },
    ),
    "deque": Thing(
        lambda: collections.deque([1.0, 2.0, 3.0]),
        lambda v, x: x * fold(v),
        {
            "append": do(at("append", 4.0)),
            "left": do(at("appendleft", 4.0)),
            "rotate": do(at("rotate", 1)),
            "pop": do(at("popleft")),
            "item": do(at("__setitem__", 1, 7.0)),
            "reverse": do(at("reverse")),
            "clear": do(at("clear")),
            "type": do(at("__setitem__", 0, True)),
        },
    ),
    "equals": Thing(
        lambda: collections.deque([Field("a", 1.0), 0.0]),
        lambda v, x: x * v[0].scale * (1.0 + v[1]) + x * v[1],
        {
            "equal": do(at("__setitem__", 0, Field("a", 5.0))),
            "sign": do(at("__setitem__", 1, -0.0)),
            "inside": do(lambda v: setattr(v[0], "scale", 3.0)),
        },
    ),
    "bytes": Thing(
        lambda: bytearray(b"\1\2"),
        lambda v, x: x * fold(v),
        {"item": do(at("__setitem__", 0, 9)), "append": do(at("append", 4)), "fixed": to(b"\3")},
    ),
    "array": Thing(
        lambda: array(1, 2),
        lambda v, x: x * torch.as_tensor(v).to(DEVICE),
        {
            "fill": do(at("fill", 9)),
            "item": do(at("__setitem__", 0, 5)),
            "view": do(write(lambda v: v[:1])),
            "buffer": do(lambda v: memoryview(v).cast("B").__setitem__(3, 0x41)),
            "tensor": do(lambda v: torch.from_numpy(v).mul_(2)),
            "sort": do(lambda v: v[::-1].sort()),
            "add": do(at("__iadd__", 1)),
            "put": do(lambda v: np.put(v, 1, 6)),
            "swap": do(lambda v: v.byteswap(inplace=True)),
            "copyto": do(lambda v: np.copyto(v, 3)),
            "out": do(lambda v: np.multiply(v, 4, out=v)),
            "flat": do(lambda v: v.flat.__setitem__(0, 8)),
            "other": to(lambda: array(3, 3)),
            "double": to(lambda: array(3, 3, dtype=np.float64)),
            "shape": do(put("shape", (2, 1))),
            "dtype": do(put("dtype", np.int32)),
            "strided": to(lambda: np.arange(4, dtype=np.float32)[::2]),
            "sign": do(at("fill", -0.0)),
        },
    ),
    "array_of_objects": Thing(
        lambda: np.array([1.0, "a"], dtype=object),
        lambda v, x: x * v[0],
        {"item": do(at("__setitem__", 0, 5.0))},
    ),
    "plane": Thing(
        masked,
        lambda v, x: x * float(v[0, 1]) + v.shape[0],
        {
            "shape": do(put("shape", (3, 2))),
            "item": do(at("__setitem__", (0, 1), 7)),
            "strided": to(lambda: masked().T),
        },
    ),
    "polynomial": Thing(
        lambda: np.poly1d([1.0, 2.0]),
        lambda v, x: x * float(v(2.0)),
        {
            "coefficient": do(lambda v: v.coeffs.__setitem__(0, 5.0)),
            "set": do(at("__setitem__", 1, 4.0)),
        },
    ),
    "vectorized": Thing(
        lambda: np.vectorize(abs),
        lambda v, x: x * float(v(-2.0)),
        {"function": do(put("pyfunc", lambda value: value - 5))},
    ),
    "random_state": Thing(
        lambda: random.Random(3),
        lambda v, x: x * (v.getstate()[1][0] % 7),
        {"seed": do(at("seed", 5))},
    ),
    "host": Thing(
        lambda: host(1.0, 2.0),
        lambda v, x: x * v.to(DEVICE),
        {
            "mul": do(at("mul_", 3)),
            "data": do(lambda v: v.data.mul_(3)),
            "assign": do(put("data", host(7.0, 8.0))),
            "numpy": do(write(lambda v: v.numpy())),
            "set": do(lambda v: v.set_(host(4.0, 4.0))),
            "storage": do(lambda v: v.untyped_storage().copy_(host(4.0, 5.0).untyped_storage())),
            "detached": do(lambda v: v.detach().add_(1)),
            "item": do(at("__setitem__", 0, 6.0)),
            "dlpack": do(lambda v: torch.from_dlpack(v).fill_(2.5)),
            "size": do(at("resize_", 1)),
            "grad": do(at("requires_grad_")),
            "swap": do(lambda v: torch.utils.swap_tensors(v, host(8.0, 1.0))),
            "byte": do(lambda v: v.view(torch.uint8).__setitem__(3, 0x41)),
            "shared": do(at("share_memory_"), lambda v: v.numpy().fill(3)),
            "shape": do(put("data", host(5.0))),
            "double": do(put("data", host(5.0).double())),
            "other": to(lambda: host(5.0, 6.0)),
            "strided": do(put("data", host(1.0, 2.0, 3.0, 4.0)[::2])),
            "copy": do(lambda v: v.copy_(host(9.0, 1.0))),
            "out": do(lambda v: torch.add(v, 1, out=v)),
            "foreach": do(lambda v: torch._foreach_mul_([v], 2)),
            "sign": do(at("fill_", -0.0)),
            "grad_of": do(at("requires_grad_"), put("grad", host(1.0, 1.0))),
            "conj": to(lambda: host(1.0, 2.0).neg()),
        },
    ),
    "host_view": Thing(
        lambda: host(1.0, 2.0, 3.0, 4.0)[1:3],
        lambda v, x: x * v.to(DEVICE),
        {
            "base": do(lambda v: v._base.mul_(2)),
            "numpy": do(lambda v: v._base.numpy().fill(3)),
            "stride": do(lambda v: v.as_strided_((2,), (2,))),
        },
    ),
    "host_scalar": Thing(
        lambda: torch.tensor(1.0),
        lambda v, x: x * v + (x if v > 1 else 0),
        {
            "fill": do(at("fill_", 2.0)),
            "data": do(lambda v: v.data.fill_(3)),
            "numpy": do(lambda v: v.numpy().fill(4)),
            "assign": do(put("data", torch.tensor(5.0))),
        },
    ),
    "indices": Thing(
        lambda: torch.tensor([0, 1]),
        lambda v, x: x[v] * 2 + x,
        {
            "flip": do(lambda v: v.copy_(torch.tensor([1, 0]))),
            "numpy": do(lambda v: v.numpy().fill(1)),
            "bad": do(at("fill_", 7)),
            "mask": to(lambda: torch.tensor([True, True])),
        },
    ),
    "inference": Thing(
        lambda: torch.inference_mode()(lambda: host(1.0, 2.0) * 1)(),
        lambda v, x: x * v.to(DEVICE),
        {
            "write": do(lambda v: torch.inference_mode()(v.mul_)(3)),
            "numpy": do(lambda v: v.numpy().fill(3)),
        },
    ),
    "tensor": Thing(
        lambda: host(1.0, 2.0).to(DEVICE),
        lambda v, x: x * v + getattr(v, "scale", 0.0),
        {
            "mul": do(at("mul_", 3)),
            "data": do(lambda v: v.data.add_(3)),
            "assign": do(put("data", host(7.0, 8.0).to(DEVICE))),
            "item": do(at("__setitem__", 0, 6.0)),
            "set": do(lambda v: v.set_(host(4.0, 4.0).to(DEVICE))),
            "attribute": do(put("scale", 3.0)),
            "grad": do(at("requires_grad_")),
            "other": to(lambda: host(5.0, 6.0).to(DEVICE)),
            "cpu": to(lambda: host(5.0, 6.0)),
            "shape": do(put("data", host(5.0).to(DEVICE))),
            "fill": do(at("fill_", 2)),
            "double": to(lambda: host(5.0, 6.0).double().to(DEVICE)),
            "view": to(lambda: host(1.0, 2.0, 3.0).to(DEVICE)[1:]),
            "swap": do(lambda v: torch.utils.swap_tensors(v, host(8.0, 1.0).to(DEVICE))),
            "zero": do(at("zero_")),
        },
    ),
    "object": Thing(
        Number,
        lambda v, x: (
            x * v.scale
            + v.by
            + getattr(v, "extra", 0.0)
            + len(v)
            + (5 if hasattr(v, "fast") else 0)
        ),
        {
            "set": do(put("by", 5.0)),
            "add": do(put("extra", 2.0)),
            "fast": do(put("fast", 1)),
            "shadow": do(put("scale", 9.0)),
            "delete": do(lambda v: delattr(v, "by")),
            "dict": do(lambda v: v.__dict__.update(by=8.0)),
            "replace": do(put("__dict__", {"by": 6.0})),
            "class": do(put("__class__", OtherNumber)),
            "other": to(OtherNumber),
            "length": do(put("__class__", type("Long", (Number,), {"__len__": lambda self: 5}))),
            "getattr": do(
                put("__class__", type("Any", (Number,), {"__getattr__": lambda self, name: 6.0}))
            ),
            "clear": do(lambda v: v.__dict__.clear()),
            "type": do(put("by", 3)),
        },
    ),
    "slots": Thing(
        lambda: Slots(2.0),
        lambda v, x: x * v.value + getattr(v, "other", 0.0),
        {
            "set": do(put("value", 5.0)),
            "add": do(put("other", 5.0)),
            "delete": do(lambda v: delattr(v, "value")),
        },
    ),
    "error": Thing(
        lambda: ValueError(2.0),
        lambda v, x: x * v.args[0],
        {"args": do(put("args", (5.0,))), "other": to(lambda: KeyError(3.0))},
    ),
    "class": Thing(
        new_class,
        read_class,
        {
            "set": do(put("scale", 5.0)),
            "method": do(put("make", staticmethod(lambda: 7.0))),
            "add": do(put("extra", 5.0)),
            "base": do(lambda v: setattr(v.__base__, "by", 6.0)),
            "hide": do(put("by", 1.0)),
            "delete": do(lambda v: delattr(v, "scale")),
            "bases": do(lambda v: setattr(v, "__bases__", (type("G", (), {"by": 9.0}),))),
            "of_base": do(lambda v: setattr(v.__base__, "extra", 6.0)),
            "remove": do(lambda v: delattr(v.__base__, "by")),
            "other": to(new_class),
        },
    ),
    "function": Thing(
        new_function,
        lambda v, x: v(x),
        {
            "other": to(lambda: other_function),
            "code": do(lambda v: setattr(v, "__code__", closed().__code__)),
            "defaults": do(put("__defaults__", (7.0,))),
            "keywords": do(put("__kwdefaults__", {"more": 6.0})),
            "keyword": do(lambda v: v.__kwdefaults__.update(more=4.0)),
            "cell": do(lambda v: setattr(v.__closure__[0], "cell_contents", 5.0)),
            "none": do(put("__kwdefaults__", None)),
            "object": to(Number),
            "partial": to(lambda: functools.partial(new_function(), by=9.0)),
            "module": to(lambda: Double()),
            "builtin": to(lambda: torch.neg),
        },
    ),
    "callable": Thing(
        Number,
        lambda v, x: v(x),
        {
            "call": do(put("__class__", type("C", (Number,), {"__call__": lambda self, x: x - 3}))),
            "state": do(put("by", 7.0)),
            "class": do(put("__class__", OtherNumber)),
        },
    ),
    "partial": Thing(
        lambda: functools.partial(new_function(), by=2.0),
        lambda v, x: v(x),
        {
            "keyword": do(lambda v: v.keywords.update(by=5.0)),
            "more": do(lambda v: v.keywords.update(more=5.0)),
            "state": do(lambda v: v.__setstate__((other_function, (), {}, None))),
            "cell": do(lambda v: setattr(v.func.__closure__[0], "cell_contents", 6.0)),
        },
    ),
    "cache": Thing(
        new_cached,
        lambda v, x: x * v()["scale"] + v("b")["scale"],
        {
            "inside": do(lambda v: v().update(scale=5.0)),
            "clear": do(lambda v: (v.source.update(scale=3.0), v.cache_clear())),
            "source": do(lambda v: v.source.update(scale=3.0)),
            "one": do(lambda v: v("b").update(scale=4.0)),
        },
    ),
    "linear": Thing(
        lambda: linear((hook_of(2.0), Scaling(3.0))),
        lambda v, x: v(x),
        {
            "weight": do(lambda v: v.weight.data.mul_(2)),
            "bias": do(put("bias", None)),
            "parameter": do(
                put(
                    "weight",
                    torch.nn.Parameter(torch.ones(2, 2, device=DEVICE), requires_grad=False),
                )
            ),
            "data": do(lambda v: setattr(v.weight, "data", torch.ones(2, 2, device=DEVICE))),
            "forward": do(put("forward", lambda x: x + 9)),
            "hook": do(lambda v: v.register_forward_hook(hook_of(5.0))),
            "pre_hook": do(lambda v: v.register_forward_pre_hook(lambda m, a: (a[0] * 3,))),
            "hook_state": do(lambda v: setattr(list(v._forward_hooks.values())[1], "by", 7.0)),
            "no_hooks": do(lambda v: v._forward_hooks.clear()),
            "order": do(lambda v: v._forward_hooks.move_to_end(next(iter(v._forward_hooks)))),
            "replaced": do(
                lambda v: v._forward_hooks.__setitem__(next(iter(v._forward_hooks)), hook_of(7.0))
            ),
            "class": do(
                put(
                    "__class__",
                    type("L", (torch.nn.Linear,), {"forward": lambda self, x: x - self.bias}),
                )
            ),
            "parametrized": do(
                lambda v: torch.nn.utils.parametrize.register_parametrization(v, "weight", Double())
            ),
            "pruned": do(lambda v: v.weight.data.masked_fill_(v.weight.data > 2, 0)),
            "cpu": do(lambda v: v.cpu()),
            "load": do(
                lambda v: v.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
            ),
            "assign": do(
                lambda v: v.load_state_dict(
                    {
                        "weight": torch.ones(2, 2, device=DEVICE),
                        "bias": torch.ones(2, device=DEVICE),
                    },
                    assign=True,
                )
            ),
            "grad": do(lambda v: v.requires_grad_()),
            "half": do(lambda v: v.double()),
            "other": to(lambda: Double()),
            "instance_call": do(put("_call_impl", lambda x: x * 11)),
            "backward_hook": do(
                lambda v: v.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
            ),
        },
    ),
    "layers": Thing(
        layers,
        lambda v, x: v(x),
        {
            "append": do(lambda v: v.append(Double())),
            "pop": do(at("pop", 1)),
            "swap": do(lambda v: v.__setitem__(1, torch.nn.ReLU())),
            "insert": do(lambda v: v.insert(0, Double())),
            "order": do(lambda v: v._modules.update({"0": v._modules.pop("0")})),
            "tied": do(lambda v: setattr(v[2], "weight", v[0].weight)),
            "inner": do(lambda v: v[0].weight.data.mul_(2)),
            "delete": do(at("__delitem__", 0)),
            "name": do(at("add_module", "more", Double())),
        },
    ),
    "norm": Thing(
        lambda: torch.nn.BatchNorm1d(1).eval().to(DEVICE).requires_grad_(False),
        lambda v, x: v(x.reshape(2, 1)).reshape(2),
        {
            "mean": do(lambda v: v.running_mean.add_(1)),
            "eps": do(put("eps", 0.5)),
            "variance": do(put("running_var", torch.full((1,), 4.0, device=DEVICE))),
            "affine": do(put("weight", None)),
        },
    ),
    "dropout": Thing(
        lambda: torch.nn.Dropout(0.0),
        lambda v, x: v(x) * (2 if v.training else 3),
        {"eval": do(at("eval")), "one": do(put("p", 1.0)), "in_place": do(put("inplace", False))},
    ),
    "namespace": Thing(
        lambda: types.SimpleNamespace(scale=2.0),
        lambda v, x: x * v.scale + getattr(v, "extra", 0.0),
        {
            "set": do(put("scale", 5.0)),
            "add": do(put("extra", 5.0)),
            "delete": do(lambda v: delattr(v, "scale")),
        },
    ),
    "module": Thing(
        lambda: types.ModuleType("made"),
        lambda v, x: x * getattr(v, "scale", 2.0) + (3 if hasattr(v, "fast") else 0),
        {
            "add": do(put("scale", 5.0)),
            "flag": do(put("fast", True)),
            "getattr": do(put("__getattr__", lambda name: 7.0)),
        },
    ),
    "lock": Thing(
        threading.Lock, lambda v, x: x * (2 if v.locked() else 3), {"acquire": do(at("acquire"))}
    ),
    "event": Thing(
        threading.Event, lambda v, x: x * (2 if v.is_set() else 3), {"set": do(at("set"))}
    ),
    "weak_set": Thing(
        lambda: [weakref.WeakSet(), Box(3.0)],
        lambda v, x: x * (1 + sum(one.value for one in v[0])),
        {"add": do(lambda v: v[0].add(v[1]))},
    ),
    "dead": Thing(
        lambda: (lambda box: [weakref.ref(box), box])(Box(3.0)),
        lambda v, x: x * (2.0 if v[0]() is None else v[0]().value),
        {"dies": do(lambda v: v.pop()), "changes": do(lambda v: setattr(v[1], "value", 5.0))},
    ),
}


def closed() -> Callable[..., Any]:
    inner = 1.0
    return lambda x: x / 7 + inner


# ------------------------------------------------------------------------------------ settings

SETTINGS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Callable[..., Any]]] = {}


def setting(make: Any) -> Any:
    SETTINGS[make.__name__] = make
    return make


@setting
def plainly(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return lambda x: read(x)


@setting
def in_forward(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    class Reading(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return read(x)

    return Reading()


@setting
def in_a_hook(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        if hasattr(x, "value"):
            leaf.value = x.value  # type: ignore[attr-defined]
        product = leaf * 2
        product.register_hook(lambda grad: read(x).detach() + grad)
        return torch.autograd.grad(product.sum(), leaf)[0]

    return function


@setting
def in_a_custom_backward(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, leaf: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            ctx.x = x
            return leaf * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * read(ctx.x).detach(), None

    def function(x: torch.Tensor) -> torch.Tensor:
        leaf = torch.ones(2, device=DEVICE, requires_grad=True)
        return torch.autograd.grad(Own.apply(leaf, x).sum(), leaf)[0]

    return function


@setting
def without_grad(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    @torch.no_grad()
    def function(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = read(x)
        return found, {"sum": found.sum(), "given": x}

    return function


class Reader(torch.overrides.TorchFunctionMode):
    """What it reads is added to each result of ``torch.tanh``."""

    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found + self.read(args[0]) if func is torch.tanh else found


@setting
def in_a_mode(read: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    mode = Reader(read)

    def function(x: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.tanh(x)

    return function


# ------------------------------------------------------------------------------------ pairs


@dataclasses.dataclass(frozen=True)
class Pair:
    """A program and a change of what it reads."""

    place: str
    thing: str
    change: str
    setting: str

    def __str__(self) -> str:
        return f"{self.place}/{self.thing}/{self.change}/{self.setting}"


@dataclasses.dataclass
class Outcome:
    """What became of a pair.

    Attributes:
        replayed: Whether calls before the change were replayed.
        reason: Why the last call that was traced was not replayed.
        stale: What is wrong; empty: nothing.
    """

    replayed: bool
    reason: str
    stale: str


def pairs() -> list[Pair]:
    """Returns all pairs, each in one of the settings, taken in turns."""
    turns = itertools.cycle(SETTINGS)
    return [
        Pair(way, name, change, next(turns))
        for name, thing in THINGS.items()
        for change in thing.changes
        for way in WAYS
    ]


def bits(value: Any) -> Any:
    """Returns all that a caller can see of a result."""
    if isinstance(value, torch.Tensor):
        found = value.detach().cpu()
        if found.dtype == torch.bfloat16:
            found = found.float()
        content = found.resolve_neg().numpy().tobytes()
        return (
            str(value.dtype),
            tuple(value.shape),
            str(value.device),
            value.requires_grad,
            content,
        )
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *map(bits, value)]
    if isinstance(value, dict):
        return [(key, bits(one)) for key, one in value.items()]
    return value


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return bits(function(*args))
    except Exception as error:
        return type(error).__name__


def run(pair: Pair | mutations_around.Around) -> Outcome:
    """Runs a pair."""
    if isinstance(pair, mutations_around.Around):
        return Outcome(*mutations_around.run(pair, outcome))
    thing = THINGS[pair.thing]
    value = thing.make()
    get, put_value = WAYS[pair.place](value)
    function = SETTINGS[pair.setting](lambda x: thing.read(get(x), x))
    replayed = torch_xla.compile(function, replay=True)
    numbers = torch.tensor([1.25, -2.0])

    def argument() -> torch.Tensor:
        x = numbers.to(DEVICE)
        if hasattr(get, "held"):
            x.value = get.held[0]  # type: ignore[attr-defined]
        return x

    def differs() -> bool:
        return outcome(replayed, argument()) != outcome(function, argument())

    stale = ""
    for _ in range(5):
        if differs():
            stale = "before the change"
    (state,) = replayed._xla_replay  # type: ignore[attr-defined]
    before = state.replayed
    try:
        new = thing.changes[pair.change](value)
    except Exception as error:
        return Outcome(before > 0, "", f"the change itself raises {error!r}")
    if new is not SAME:
        put_value(new)
    del new
    for i in range(4):
        if differs() and not stale:
            stale = f"call {i} behind the change ({state.replayed - before} replayed)"
    return Outcome(before > 0, state.reason, stale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1 << 30, help="how many pairs, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--around", action="store_true", help="changes around functions alone")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th of them, from the i-th on")
    parser.add_argument("--reasons", action="store_true", help="show why calls were not replayed")
    options = parser.parse_args()
    every: list[Any] = [*([] if options.around else pairs()), *mutations_around.pairs()]
    chosen = [pair for pair in every if options.only in str(pair)]
    random.Random(options.seed).shuffle(chosen)
    first, step = map(int, options.part.split("/"))
    chosen = chosen[first : options.count : step]
    start = time.monotonic()
    stale = replayed = 0
    reasons: collections.Counter[str] = collections.Counter()
    for pair in chosen:
        found = run(pair)
        replayed += found.replayed
        if not found.replayed:
            program = "/".join(str(pair).split("/")[:2])
            reasons[f"{program}: {found.reason[:150]}"] += 1
        if found.stale:
            stale += 1
            print(f"STALE {pair}: {found.stale}", flush=True)
    if options.reasons:
        for reason, count in reasons.most_common(300):
            print(f"{count:5d} {reason}")
    seconds = time.monotonic() - start
    print(f"{len(chosen)} pairs, {replayed} replayed before the change, {stale} stale")
    print(f"{seconds:.0f} s")
    return int(stale > 0)


if __name__ == "__main__":
    os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")
    sys.exit(main())
