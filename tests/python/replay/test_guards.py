"""What a guard has to notice, by name: replayed before the change, and right behind it."""

import collections
import dataclasses
import functools
import math
import sys
import types

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from testing.replay import status
from torch import nn
from torch.overrides import TorchFunctionMode

import torch_xla

SCALE = 1.0


def ones(**options):
    return torch.ones(2, device="xla", **options)


def notices(function, change, *arguments, is_replayed=True):
    """Asserts that calls are replayed, and that those behind ``change`` are as ``function`` is."""
    replayed = torch_xla.compile(function, replay=True)
    for _ in range(5):
        expected = function(*arguments)
        assert replayed(*arguments).tolist() == expected.tolist()
    if is_replayed:
        assert status(replayed).replayed > 0, str(status(replayed))
    change()
    expected = function(*arguments)
    for _ in range(4):
        found = replayed(*arguments)
        assert found.tolist() == expected.tolist() and found.device == expected.device


def step(parameter):
    """Returns what a backward pass leaves as the gradient."""

    def function(x):
        parameter.grad = None
        (parameter * x).sum().backward()
        return parameter.grad * 1

    return function


@dataclasses.dataclass
class Field:
    name: str
    scale: float = dataclasses.field(default=1.0, compare=False)


class TestTensorsOfTheHost:
    def write_to(self, write, value=None):
        tensor = torch.ones(2) if value is None else value
        notices(lambda x: x * tensor.to("xla"), lambda: write(tensor), ones())

    def test_past_their_version(self):
        memory = np.ones(2, dtype=np.float32)
        self.write_to(lambda w: memory.fill(5), torch.from_numpy(memory))
        self.write_to(lambda w: w.numpy().fill(5))
        self.write_to(lambda w: w.data.mul_(3))
        self.write_to(lambda w: w.detach().mul_(3))
        self.write_to(lambda w: setattr(w, "data", torch.full((2,), 7.0)))
        self.write_to(lambda w: w.untyped_storage().copy_(torch.zeros(2).untyped_storage()))
        self.write_to(lambda w: torch.from_dlpack(w).fill_(2))
        self.write_to(lambda w: memoryview(w.numpy()).cast("B").__setitem__(3, 1))

    def test_scalars(self):
        scalar = torch.tensor(1.0)
        notices(lambda x: x * scalar, lambda: scalar.data.fill_(2), ones())
        notices(lambda x: x * scalar, lambda: scalar.numpy().fill(3), ones())
        notices(lambda x: x + float(scalar), lambda: scalar.numpy().fill(4), ones())

    def test_of_inference_mode(self):
        with torch.inference_mode():
            weight = torch.ones(2)
        notices(lambda x: x * weight.to("xla"), lambda: weight.numpy().fill(2), ones())
        with torch.inference_mode():
            state = ones()
        function = torch_xla.compile(lambda x: x * state, replay=True)
        for _ in range(5):
            assert function(ones()).tolist() == [1, 1]


class TestArguments:
    def test_attributes(self):
        x = ones()
        x.scale = 1.0
        notices(lambda x: x * x.scale, lambda: setattr(x, "scale", 2.0), x)
        notices(lambda x: x * getattr(x, "special", 3.0), lambda: setattr(x, "special", 2.0), x)

    def test_hooks(self):
        x = ones(requires_grad=True)
        handles = [x.register_hook(lambda grad: grad * 2)]

        def swap():
            handles.pop().remove()
            handles.append(x.register_hook(lambda grad: grad * 5))

        notices(lambda y: step(x)(y), swap, ones())
        scaling = Field("a")
        handles.append(x.register_hook(lambda grad: grad * scaling.scale))
        notices(lambda y: step(x)(y), lambda: setattr(scaling, "scale", 7.0), ones())

    def test_hooks_of_the_accumulator(self):
        parameter = nn.Parameter(ones())
        accumulator = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        handles = [accumulator.register_prehook(lambda grads: (grads[0] * 2,))]

        def swap():
            handles.pop().remove()
            handles.append(accumulator.register_prehook(lambda grads: (grads[0] * 5,)))

        notices(step(parameter), swap, ones())

    def test_tangents(self):
        function = torch_xla.compile(lambda x: x * 3, replay=True)
        for _ in range(5):
            function(ones())
        for _ in range(3):
            with forward_ad.dual_level():
                found = function(forward_ad.make_dual(ones(), ones() * 2))
                assert forward_ad.unpack_dual(found).tangent.tolist() == [6, 6]
        assert status(function).replayed > 0

    def test_containers_that_are_returned(self):
        for given, pick in (({"a": ones()}, lambda d: d), ([ones()], lambda d: (d[0] + 1, d)[1])):
            function = torch_xla.compile(pick, replay=True)
            assert all(function(given) is given for _ in range(8))


class TestPython:
    def test_caches(self):
        @functools.lru_cache
        def config():
            return {"scale": 1.0, "object": Field("a")}

        def read(x):
            return x * config()["scale"] + config()["object"].scale

        notices(read, lambda: config().update(scale=2.0), ones())
        notices(read, lambda: setattr(config()["object"], "scale", 3.0), ones())
        notices(read, lambda: config.cache_clear(), ones())

    @pytest.mark.parametrize(
        "make",
        [
            types.SimpleNamespace,
            lambda: types.ModuleType("m"),
            lambda: type("C", (), {}),
            nn.Module,
        ],
    )
    def test_names_that_come_later(self, make):
        config = make()
        reads = [
            lambda x: x * (2.0 if getattr(config, "fast", False) else 1.0),
            lambda x: x * (2.0 if hasattr(config, "fast2") else 1.0),
        ]

        def caught(x):
            try:
                return x * config.fast3
            except AttributeError:
                return x * 1

        for name, read in zip(("fast", "fast2", "fast3"), (*reads, caught), strict=True):
            notices(read, functools.partial(setattr, config, name, 4.0), ones())

    def test_order(self):
        steps = collections.OrderedDict(a=lambda x: x + 1, b=lambda x: x * 3)
        notices(
            lambda x: functools.reduce(lambda y, f: f(y), steps.values(), x),
            lambda: steps.move_to_end("a"),
            ones(),
        )
        layer = nn.Identity()
        layer.register_forward_hook(lambda m, a, r: r + 1)
        layer.register_forward_hook(lambda m, a, r: r * 3)
        first = next(iter(layer._forward_hooks))
        notices(lambda x: layer(x), lambda: layer._forward_hooks.move_to_end(first), ones())
        numbers = collections.OrderedDict(a=2.0, b=3.0)
        notices(
            lambda x, n: x * n["a"] + next(iter(n.values())),
            lambda: numbers.move_to_end("a"),
            ones(),
            numbers,
        )

    def test_items_that_are_equal(self):
        fields = collections.deque([Field("a")])
        notices(
            lambda x: x * fields[0].scale, lambda: fields.__setitem__(0, Field("a", 2.0)), ones()
        )
        zeros = collections.deque([0.0])
        notices(
            lambda x: x * math.copysign(1.0, zeros[0]), lambda: zeros.__setitem__(0, -0.0), ones()
        )
        for base in (collections.deque, set, list, dict):
            one = type("Own", (base,), {})()
            one.scale = 1.0
            notices(
                lambda x, one=one: x * one.scale, lambda one=one: setattr(one, "scale", 3.0), ones()
            )

    def test_numpy(self):
        array = np.arange(4.0)
        notices(lambda x: x * array.shape[0], lambda: setattr(array, "shape", (2, 2)), ones())
        notices(
            lambda x: x * array.dtype.itemsize, lambda: setattr(array, "dtype", np.int16), ones()
        )
        polynomial = np.poly1d([1.0, 0.0])
        notices(
            lambda x: x * float(polynomial(2.0)),
            lambda: polynomial.coeffs.__setitem__(0, 2.0),
            ones(),
        )
        vectorized = np.vectorize(abs)
        notices(
            lambda x: x * float(vectorized(-1.0)),
            lambda: setattr(vectorized, "pyfunc", lambda value: value * 5),
            ones(),
        )
        box = types.SimpleNamespace(zero=np.float64(0.0))
        notices(
            lambda x: x * float(np.copysign(1.0, box.zero)),
            lambda: setattr(box, "zero", np.float64(-0.0)),
            ones(),
        )

    def test_state_of_a_mode(self):
        class Scaling(TorchFunctionMode):
            by = 1.0

            def __torch_function__(self, func, types, args=(), kwargs=None):
                found = func(*args, **(kwargs or {}))
                return found * self.by if func is torch.cos else found

        mode = Scaling()
        with mode:
            notices(lambda x: torch.cos(x * 0), lambda: setattr(mode, "by", 5.0), ones())

    def test_hook_that_reads_a_global(self, monkeypatch):
        parameter = nn.Parameter(ones())
        parameter.register_hook(lambda grad: grad * SCALE)
        with torch.autograd.set_multithreading_enabled(True):
            notices(step(parameter), lambda: monkeypatch.setitem(globals(), "SCALE", 3.0), ones())


@pytest.mark.parametrize("every", [2, 5])
def test_attempts_end(every, monkeypatch):
    def search(*objects):
        raise AssertionError("a recording searches all objects of the process")

    monkeypatch.setattr("gc.get_referrers", search)
    monkeypatch.setattr("gc.get_objects", search)
    box = Field("a")
    function = torch_xla.compile(lambda x: x * box.scale, replay=True)
    for i in range(150):
        box.scale = float(i // every)
        assert function(ones()).tolist() == [box.scale] * 2
    found = status(function)
    assert found.state == "refused" and "too few calls are replayed" in found.reason


norm, chain = nn.LayerNorm(2).requires_grad_(False), nn.Sequential(nn.ReLU())
PATCHES = {
    "LayerNorm.forward": (nn.LayerNorm, "forward", lambda x: norm.to("xla")(x)),
    "Module.__call__": (nn.Module, "__call__", lambda x: chain(x)),
    "Module._call_impl": (nn.Module, "_call_impl", lambda x: chain(x)),
    "Sequential.forward": (nn.Sequential, "forward", lambda x: chain(x)),
    "Tensor.cos": (torch.Tensor, "cos", lambda x: x.cos()),
    "F.relu": (nn.functional, "relu", lambda x: chain(x)),
    "torch.cos": (torch, "cos", lambda x: torch.cos(x)),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patched_functions(name, monkeypatch):
    owner, attribute, function = PATCHES[name]
    notices(
        function,
        lambda: monkeypatch.setattr(owner, attribute, lambda *args, **kwargs: args[-1] * 9),
        ones(),
    )


def test_patched_optimizers(monkeypatch):
    module = sys.modules["torch.optim.sgd"]
    for owner, name in ((module, "sgd"), (module, "_multi_tensor_sgd"), (torch.optim.SGD, "step")):
        parameter = nn.Parameter(ones())
        optimizer = torch.optim.SGD([parameter], lr=1.0, foreach=True)

        @functools.partial(torch_xla.compile, replay=True)
        def update(x, parameter=parameter, optimizer=optimizer):
            parameter.grad = x * 1
            optimizer.step()
            return parameter.detach() * 1

        for _ in range(6):
            before = update(ones())
        assert status(update).replayed > 0
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *args, **kwargs: None)
            for _ in range(3):
                assert update(ones()).tolist() == before.tolist()
        assert update(ones()).tolist() == (before - 1).tolist()


@pytest.mark.parametrize(
    "transform", ["grad", "vjp", "jvp", "hessian", "jacfwd", "jacrev", "linearize", "vmap"]
)
def test_transforms(transform):
    def cubes(x):
        return (x**3).sum()

    def transformed(function):
        x = ones() * 2
        if transform == "vjp":
            return torch.func.vjp(function, x)[1](torch.ones((), device="xla"))[0]
        if transform == "jvp":
            return torch.func.jvp(function, (x,), (x,))[1]
        if transform == "linearize":
            return torch.func.linearize(function, x)[1](x)
        if transform == "vmap":
            return torch.func.vmap(function)(x[None])
        return getattr(torch.func, transform)(function)(x)

    expected = transformed(cubes).tolist()
    function = torch_xla.compile(cubes, replay=True)
    for _ in range(6):
        assert transformed(function).tolist() == expected
        assert function(ones()).tolist() == 2
    assert status(function).replayed > 0
