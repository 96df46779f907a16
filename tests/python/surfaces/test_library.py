"""Operators of the user: torch.library and torch_xla.library.register_lowering."""

import numpy as np
import pytest
import torch
from testing.ops import check, check_many, rand

import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.library import register_lowering

X = rand(3, 4)


@torch.library.custom_op("xlatest::half_sine", mutates_args=(), device_types="cpu")
def half_sine(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()) * np.float32(scale))


@half_sine.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _half_sine_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * ctx.scale, None


def _half_sine_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


half_sine.register_autograd(_half_sine_backward, setup_context=_half_sine_context)

LIBRARY = torch.library.Library("xlatest", "DEF")
LIBRARY.define("square_plus(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
LIBRARY.impl("square_plus", lambda x, y, *, alpha=1: x * x + alpha * y, "CPU")
LIBRARY.define("split_sign(Tensor x) -> (Tensor, Tensor)")
LIBRARY.impl("split_sign", lambda x: (x.relu(), (-x).relu()), "CPU")
LIBRARY.define("add_twice_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
LIBRARY.impl("add_twice_", lambda x, y: x.add_(y, alpha=2), "CPU")
LIBRARY.define("two(Tensor x) -> Tensor")
LIBRARY.define("two.scaled(Tensor x, float s) -> Tensor")
LIBRARY.impl("two.scaled", lambda x, s: x * s, "CPU")
LIBRARY.define("cpu_only(Tensor x) -> Tensor")
LIBRARY.impl("cpu_only", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x.sigmoid() * x, "CompositeImplicitAutograd")


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.xlatest.cube(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0] ** 2


LIBRARY.define("cube(Tensor x) -> Tensor")
LIBRARY.impl("cube", lambda x: x**3, "CompositeExplicitAutograd")
LIBRARY.impl("cube", _Cube.apply, "Autograd")


def test_without_lowering_it_runs_on_the_cpu():
    before = met.counter_value("xlatest::cpu_only") or 0
    check(torch.ops.xlatest.cpu_only, X, fallback_ok=True)
    assert met.counter_value("xlatest::cpu_only") == before + 1


def test_composites_are_traced():
    check_many([(torch.ops.xlatest.composite, (X,)), (torch.ops.xlatest.cube, (X,))], grad=True)


def test_custom_op():
    calls = []

    @register_lowering(half_sine)
    def lowering(x, scale):
        calls.append(x.device.type)
        return torch.sin(x) * scale

    check(half_sine, X, 0.5, grad=True)
    assert calls == ["xla"]


def test_library_op():
    def square_plus(x, y, *, alpha=1):
        return torch.addcmul(alpha * y, x, x)

    for op in (
        "xlatest::square_plus",
        torch.ops.xlatest.square_plus,
        torch.ops.xlatest.square_plus.default,
    ):
        assert register_lowering(op, square_plus) is square_plus
    register_lowering("xlatest::split_sign", lambda x: (x.clamp(min=0), (-x).clamp(min=0)))
    check_many(
        [
            (torch.ops.xlatest.square_plus, (X, rand(4)), {"alpha": 3}),
            (torch.ops.xlatest.split_sign, (X,)),
        ]
    )


def test_in_place_op():
    register_lowering("xlatest::add_twice_", lambda x, y: x.add_(y).add_(y))
    check(lambda x, y: torch.ops.xlatest.add_twice_(x, y), X, rand(4))
    # Of a view, what it is a view of changes too.
    check(lambda x, y: (torch.ops.xlatest.add_twice_(x[1], y), x), X, rand(4))


def test_overload_and_replacement():
    with pytest.raises(ValueError, match="one overload"):
        register_lowering(torch.ops.xlatest.two, lambda x: x)
    register_lowering(torch.ops.xlatest.two.scaled, lambda x, s: x - s)
    register_lowering("xlatest::two.scaled", lambda x, s: x * s)
    check(torch.ops.xlatest.two.scaled, X, 3.0)


def test_differentiable():
    register_lowering(
        "xlatest::square_plus", lambda x, y, *, alpha=1: x * x + alpha * y, differentiable=True
    )
    x = X.to(xm.xla_device()).requires_grad_()
    y = rand(4).to(xm.xla_device()).requires_grad_()
    torch.ops.xlatest.square_plus(x, y, alpha=2).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * X)
    torch.testing.assert_close(y.grad.cpu(), torch.full((4,), 6.0))
    register_lowering("xlatest::square_plus", lambda x, y, *, alpha=1: x * x + alpha * y)


def test_bad_arguments():
    with pytest.raises(TypeError, match="operator or its name"):
        register_lowering(torch.sin, torch.cos)
    with pytest.raises(ValueError, match="namespace::operator"):
        register_lowering("half_sine", torch.cos)
    with pytest.raises(ValueError, match="no operator 'xlatest::none'"):
        register_lowering("xlatest::none", torch.cos)
    with pytest.raises(TypeError, match="callable"):
        register_lowering(half_sine, 3)
