"""What may change around a replayed function: PyTorch's code, modes and flags, its arguments.

Two twins of a program run side by side, one replayed and one traced, before, during and behind a
change. See mutations.py, which runs these, too.
"""

import builtins
import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla

DEVICE = "xla"
Program = Callable[[], Callable[[torch.Tensor], Any]]
Change = Callable[[], AbstractContextManager[Any]]


# ------------------------------------------------------------------------------------ programs


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.tanh()


def methods() -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        found = (x.cos() + x.mul(2) * 3 - x.relu()).softmax(-1)
        return found.view(-1).sum() * math.sqrt(2.0) + found[0].mean() + len(x)

    return function


def functions() -> Callable[[torch.Tensor], Any]:
    weight = torch.ones(4, 4, device=DEVICE)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        found = torch.matmul(torch.cos(x), weight)
        both = torch.cat([found, torch.tanh(x)], 1)
        return [torch.einsum("ij->i", both), F.gelu(F.linear(x, weight)), torch.add(x, 1)]

    return function


def layers() -> Callable[[torch.Tensor], Any]:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)
    )
    model.to(DEVICE).requires_grad_(False)
    return lambda x: model(x)


def images() -> Callable[[torch.Tensor], Any]:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.MaxPool2d(2)).to(DEVICE).eval()
    model.requires_grad_(False)
    return lambda x: model(x.reshape(1, 1, 4, 4))


def attention() -> Callable[[torch.Tensor], Any]:
    layer = nn.MultiheadAttention(4, 2, batch_first=True).to(DEVICE).requires_grad_(False)
    return lambda x: layer(x[None], x[None], x[None], need_weights=False)[0]


def recurrent() -> Callable[[torch.Tensor], Any]:
    layer = nn.LSTM(4, 3).to(DEVICE).requires_grad_(False)
    return lambda x: layer(x[:, None])[0]


def training(make: Callable[[Any], torch.optim.Optimizer]) -> Program:
    def program() -> Callable[[torch.Tensor], Any]:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)).to(DEVICE)
        optimizer = make(model.parameters())
        loss_of = nn.CrossEntropyLoss()

        def step(x: torch.Tensor) -> Any:
            labels = (x[0].abs() * 2).long().clamp(0, 4)
            optimizer.zero_grad()
            loss = loss_of(model(labels), labels) + 0 * x.detach().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return [loss.detach(), *(p.detach() * 1 for p in model.parameters())]

        return step

    return program


def gradients() -> Callable[[torch.Tensor], Any]:
    weight = nn.Parameter(torch.ones(4, device=DEVICE))
    weight.register_hook(lambda grad: grad * 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        found = torch.utils.checkpoint.checkpoint(
            lambda w: (w * x).sin(), weight, use_reentrant=False
        )
        (Own.apply(found) * 2).sum().backward()
        return weight.grad.detach() * 1  # type: ignore[union-attr]

    return function


PROGRAMS: dict[str, Program] = {
    "methods": methods,
    "functions": functions,
    "layers": layers,
    "images": images,
    "attention": attention,
    "recurrent": recurrent,
    "sgd": training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adamw": training(lambda p: torch.optim.AdamW(p, lr=0.1)),
    "foreach": training(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)),
    "gradients": gradients,
}

# ------------------------------------------------------------------------------------ changes


def times(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value + value if value.is_floating_point() else value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value + 1
    if type(value) in (tuple, list):
        return type(value)(map(times, value))
    return value


@contextlib.contextmanager
def patched(owner: Any, name: str, is_skipped: bool = False) -> Iterator[None]:
    """Replaces a function by one that doubles its results, or does nothing."""
    had = name in vars(owner)
    raw = vars(owner).get(name)
    old = getattr(owner, name)

    @functools.wraps(old)
    def mine(*args: Any, **kwargs: Any) -> Any:
        return None if is_skipped else times(old(*args, **kwargs))

    setattr(owner, name, staticmethod(mine) if isinstance(raw, staticmethod) else mine)
    try:
        yield
    finally:
        setattr(owner, name, raw) if had else delattr(owner, name)


SGD, ADAM = sys.modules["torch.optim.sgd"], sys.modules["torch.optim.adam"]
DOUBLED: list[tuple[Any, str]] = [
    *(
        (getattr(nn, name), "forward")
        for name in (
            "Linear",
            "Sequential",
            "LayerNorm",
            "GELU",
            "Dropout",
            "ReLU",
            "Conv2d",
            "BatchNorm2d",
            "MaxPool2d",
            "MultiheadAttention",
            "LSTM",
            "Embedding",
            "CrossEntropyLoss",
        )
    ),
    (nn.Conv2d, "_conv_forward"),
    (nn.Module, "__call__"),
    (nn.Module, "_call_impl"),
    (nn.Module, "_wrapped_call_impl"),
    (nn.Linear, "__call__"),
    (nn.modules.batchnorm._BatchNorm, "forward"),
    *(
        (F, name)
        for name in (
            "linear",
            "relu",
            "gelu",
            "layer_norm",
            "cross_entropy",
            "embedding",
            "dropout",
            "conv2d",
            "batch_norm",
            "scaled_dot_product_attention",
            "multi_head_attention_forward",
            "max_pool2d",
        )
    ),
    *(
        (torch, name)
        for name in (
            "cos",
            "add",
            "matmul",
            "tanh",
            "einsum",
            "cat",
            "lstm",
            "sum",
            "ones",
            "layer_norm",
        )
    ),
    *(
        (torch.Tensor, name)
        for name in (
            "cos",
            "mul",
            "__mul__",
            "__rmul__",
            "__add__",
            "__sub__",
            "relu",
            "softmax",
            "view",
            "sum",
            "mean",
            "__getitem__",
            "detach",
            "sin",
            "tanh",
            "__len__",
            "reshape",
            "long",
            "clamp",
            "abs",
        )
    ),
    (math, "sqrt"),
    (builtins, "len"),
    (Own, "forward"),
    (Own, "backward"),
    (Own, "apply"),
    (clip_grad, "_get_total_norm"),
    (clip_grad, "clip_grad_norm_"),
    (torch.utils.checkpoint, "checkpoint"),
    (nn.Module, "parameters"),
    (nn.Module, "__getattr__"),
]
SKIPPED: list[tuple[Any, str]] = [
    (SGD, "sgd"),
    (SGD, "_single_tensor_sgd"),
    (SGD, "_multi_tensor_sgd"),
    (torch.optim.SGD, "step"),
    (ADAM, "adam"),
    (ADAM, "_single_tensor_adam"),
    (ADAM, "_multi_tensor_adam"),
    (torch.optim.AdamW, "step"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.optim.Optimizer, "_optimizer_step_code"),
    (torch.Tensor, "backward"),
    (torch.autograd, "backward"),
    (nn.utils, "clip_grad_norm_"),
    (clip_grad, "_clip_grads_with_norm_"),
]


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return times(found) if func in (torch.cos, torch.Tensor.cos, F.linear) else found


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.cos.default else found


@contextlib.contextmanager
def setting(put: Callable[[Any], Any], new: Any, old: Any) -> Iterator[None]:
    put(new)
    try:
        yield
    finally:
        put(old)


@contextlib.contextmanager
def hooked(register: Callable[..., Any], hook: Callable[..., Any]) -> Iterator[None]:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def skip_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


MODULES = torch.nn.modules.module
CHANGES: dict[str, Change] = {
    **{f"{o.__name__}.{n}": functools.partial(patched, o, n) for o, n in DOUBLED},
    **{f"no {o.__name__}.{n}": functools.partial(patched, o, n, True) for o, n in SKIPPED},
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("xla", torch.bfloat16),
    "default_dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "precision": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "saved": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x),
    "function_mode": Doubling,
    "dispatch_mode": Counting,
    "default_device": lambda: torch.device("cpu"),
    "sdpa": lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    "forward_hook": lambda: hooked(MODULES.register_module_forward_hook, lambda m, a, r: times(r)),
    "forward_pre_hook": lambda: hooked(
        MODULES.register_module_forward_pre_hook, lambda m, a: times(a)
    ),
    "backward_hook": lambda: hooked(
        MODULES.register_module_full_backward_hook, lambda m, i, o: times(i)
    ),
    "step_pre_hook": lambda: hooked(
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook, skip_step
    ),
    "step_post_hook": lambda: hooked(
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook, skip_step
    ),
    "seed": lambda: setting(torch_xla.manual_seed, 5, 6),
}


def dual(x: torch.Tensor) -> torch.Tensor:
    return forward_ad.make_dual(x, torch.ones_like(x))


def with_hook(x: torch.Tensor) -> torch.Tensor:
    leaf = x.requires_grad_()
    leaf.register_hook(lambda grad: grad * 3)
    return leaf


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found + 1 if func is torch.Tensor.cos else found


ARGUMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "transposed": lambda x: x.t(),
    "view": lambda x: torch.cat([x, x])[2:6],
    "double": lambda x: x.double(),
    "half": lambda x: x.to(torch.bfloat16),
    "shape": lambda x: torch.cat([x, x], 0),
    "expanded": lambda x: x[:1].expand(4, 4),
    "filled": lambda x: torch.ones_like(x),
    "grad": lambda x: x.requires_grad_(),
    "of_grad": lambda x: x.requires_grad_() * 2,
    "hook": with_hook,
    "parameter": lambda x: nn.Parameter(x),
    "subclass": lambda x: x.as_subclass(Sub),
    "host": lambda x: x.cpu(),
    "negative": lambda x: torch._neg_view(x),
    "inference": lambda x: torch.inference_mode()(lambda: x * 1)(),
    "nan": lambda x: x * float("nan"),
    "pending": lambda x: (x * 2).t() + 1,
    "tangent": dual,
    "none": lambda x: None,
    "list": lambda x: [x],
}


@dataclasses.dataclass(frozen=True)
class Around:
    """A program and a change of what is around it, or of its argument."""

    program: str
    change: str
    is_argument: bool

    def __str__(self) -> str:
        return f"{self.program}/{'x ' if self.is_argument else ''}{self.change}"


def pairs() -> list[Around]:
    """Returns all of them."""
    return [
        Around(program, change, is_argument)
        for program in PROGRAMS
        for is_argument, changes in ((False, CHANGES), (True, ARGUMENTS))
        for change in changes
    ]


def run(pair: Around, outcome: Callable[..., Any]) -> tuple[bool, str, str]:
    """Returns whether calls were replayed before the change, why not, and what is wrong."""
    twins = []
    for is_replayed in (False, True):
        torch.manual_seed(2)
        torch_xla.manual_seed(2)
        twins.append(torch_xla.compile(PROGRAMS[pair.program](), replay=is_replayed))
    numbers = torch.linspace(-2, 2, 16).reshape(4, 4)
    (known,) = (twins[1]._xla_replay,)  # type: ignore[attr-defined]

    def tangent(function: Callable[..., Any], x: torch.Tensor) -> Any:
        found = function(x)
        first = found
        while isinstance(first, (list, tuple)):
            first = first[0]
        return found, forward_ad.unpack_dual(first).tangent

    def differs(make: Callable[[torch.Tensor], Any] | None = None) -> bool:
        found = []
        for twin in twins:
            torch_xla.manual_seed(7)
            x = numbers.to(DEVICE)
            if make is dual:
                with forward_ad.dual_level():
                    found.append(outcome(lambda x, twin=twin: tangent(twin, dual(x)), x))
            else:
                found.append(outcome(twin, make(x) if make else x))
        return found[0] != found[1]

    stale = ""
    for _ in range(6):
        if differs():
            stale = "before the change"
    before = known[0].replayed
    if pair.is_argument:
        for i in range(4):
            if differs(ARGUMENTS[pair.change]) and not stale:
                stale = f"call {i} with the other argument"
    else:
        with CHANGES[pair.change]():
            for i in range(4):
                if differs() and not stale:
                    stale = f"call {i} behind the change ({known[0].replayed - before} replayed)"
    for i in range(2):
        if differs() and not stale:
            stale = f"call {i} behind its end"
    return before > 0, known[0].reason, stale
