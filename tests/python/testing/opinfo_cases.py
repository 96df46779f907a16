"""The calls of an operator of PyTorch's database that are made on both devices, and what is held
against what: opinfo.py makes and judges them.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from testing.opinfo_exceptions import CANONICAL, LAYOUT, NO_EMPTY
from testing.ops import WIDE

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
# What each operator is asked to take as the CPU does, or to refuse as the CPU does.
ALL_DTYPES = (*DTYPES, torch.int8, torch.int16, torch.complex128)
CHECKS = ("forward", "noncontiguous", "empty", "out", "inplace", "view", "error", "grad", "dtype")


# Cases in one graph: compiling costs more than linearly in a graph's size.
BATCH = 25


def op_name(op: OpInfo) -> str:
    """ "div.trunc_rounding": unique in op_db."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPS: dict[str, OpInfo] = {op_name(op): op for op in op_db}


def dtypes_of(op: OpInfo) -> list[torch.dtype]:
    """The dtypes to test: those in DTYPES that the op has on CPU, else whatever it has."""
    return [d for d in DTYPES if d in op.dtypes] or sorted(op.dtypes, key=str)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plan(op: OpInfo) -> dict[torch.dtype, tuple[str, ...]]:
    """What is asked of an op in each dtype: the forward in all of them, gradients in those that
    are trained in, and the rest, which does not depend on the dtype, in one float and one other.
    Of dtypes that the database does not name, whether the CPU has them after all."""
    dtypes = dtypes_of(op)
    full = [d for d in dtypes if d.is_floating_point][:1]
    full += [d for d in dtypes if not d.is_floating_point][:1]
    checks: dict[torch.dtype, tuple[str, ...]] = {}
    for dtype in dtypes:
        if dtype in full:
            checks[dtype] = CHECKS
        elif dtype in (torch.bfloat16, torch.complex64):
            checks[dtype] = ("forward", "grad")
        else:
            checks[dtype] = ("forward",)
    for dtype in ALL_DTYPES:
        checks.setdefault(dtype, ("dtype",))
    return checks


# ---------------------------------------------------------------- one case


@dataclasses.dataclass
class Case:
    """A call that is made on both devices. ``run`` returns what to compare."""

    check: str
    sample: str
    run: Callable[[torch.device], Any]
    must_raise: type[BaseException] | None = None
    random: bool = False


@dataclasses.dataclass
class Failure:
    check: str
    kind: str  # "wrong", "raised", "silent" (CPU raises, xla does not)
    sample: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.kind}: {self.sample}: {self.message}"


@dataclasses.dataclass
class Report:
    op: str
    dtype: str
    failures: list[Failure] = dataclasses.field(default_factory=list)
    cases: dict[str, int] = dataclasses.field(default_factory=dict)
    # What the forward reached: ops with a lowering, those taken apart, those run on the CPU.
    lowered: list[str] = dataclasses.field(default_factory=list)
    decompositions: list[str] = dataclasses.field(default_factory=list)
    fallbacks: list[str] = dataclasses.field(default_factory=list)
    # Those of the gradient too: one of an op whose forward is native is a fallback all the same.
    grad_fallbacks: list[str] = dataclasses.field(default_factory=list)
    # Indices of the widening excuses (EXCEPTIONS[op]) without which a case would have failed.
    tolerances_used: list[int] = dataclasses.field(default_factory=list)


def _attempt(run: Callable[[torch.device], Any], device: torch.device, seed: int = 1) -> Any:
    """The results, flattened, or the exception."""
    try:
        # Each device's own generator, at the same place for each case.
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tree_leaves(run(device))
    except Exception as error:  # noqa: BLE001 - it is compared
        return error


_widen = False


def _run_wide(case: Case) -> Any:
    """The case's results on the CPU in double precision, or an exception."""
    global _widen
    _widen = True
    try:
        return _attempt(case.run, torch.device("cpu"))
    finally:
        _widen = False


def _text(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{dtype_name(x.dtype)}{list(x.shape)}"
    if isinstance(x, (list, tuple)):
        inner = ", ".join(_text(y) for y in x)
        return f"[{inner}]"
    return repr(x)


def describe(sample: SampleInput) -> str:
    words = [_text(sample.input), *(_text(x) for x in sample.args)]
    words += [f"{name}={_text(x)}" for name, x in sample.kwargs.items()]
    return f"({', '.join(words)})"


def _move(tree: Any, device: torch.device, change: Callable[[Any], Any] | None = None) -> Any:
    """Copies of the tensors in ``tree`` on ``device``; other devices named in it follow."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            whole = x.detach()
            for dim, stride in enumerate(x.stride() if x.layout == torch.strided else ()):
                if stride == 0 and x.size(dim) > 1:
                    whole = whole.narrow(dim, 0, 1)  # What is expanded stays so.
            y = whole.clone().to("cpu" if hasattr(x, "on_every_device") else device)
            y = y.expand_as(x) if whole.shape != x.shape else y
            if _widen:
                y = y.to(WIDE.get(y.dtype, y.dtype))
            return change(y) if change else y
        if isinstance(x, torch.device) and x.type == "cpu":
            return device
        return str(device) if isinstance(x, str) and x == "cpu" else x

    return tree_map(move, tree)


def _inputs(
    sample: SampleInput, device: torch.device, change: Callable[[Any], Any] | None = None
) -> tuple[Any, list[Any], dict[str, Any]]:
    return _move((sample.input, list(sample.args), sample.kwargs), device, change)


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _cotangent(like: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(like.shape)
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(shape, generator=generator, dtype=dtype).to(like.dtype).to(like.device)


# ---------------------------------------------------------------- the cases of an op


def _on_every_device(op: OpInfo, samples: list[SampleInput]) -> list[SampleInput]:
    if op.name == "tensor_split":  # Wants its indices on the CPU, on every device.
        for x in tree_leaves([sample.args for sample in samples]):
            if isinstance(x, torch.Tensor):
                x.on_every_device = True
    return samples


def _samples(op: OpInfo, dtype: torch.dtype, limit: int | None) -> list[SampleInput]:
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    samples = _on_every_device(op, samples)
    if limit is None or len(samples) <= limit:
        return samples
    # Spread over the list: neighbours are alike.
    return [samples[i * len(samples) // limit] for i in range(limit)]


def _forward(op: OpInfo, sample: SampleInput, change: Any = None) -> Callable[..., Any]:
    canonical = CANONICAL.get(op_name(op))

    def run(device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, device, change)
        # What has no tensor to follow follows the default device.
        here = any(isinstance(x, torch.Tensor) for x in tree_leaves((input, args, kwargs)))
        with contextlib.nullcontext() if here else device:
            result = op(input, *args, **kwargs)
        return canonical(result, input, *args, **kwargs) if canonical else result

    return run


def _empty_sample(sample: SampleInput) -> SampleInput | None:
    """The sample with nothing in the first dimension of its input."""
    first = next((x for x in tree_leaves(sample.input) if isinstance(x, torch.Tensor)), None)
    if first is None or first.dim() == 0 or first.size(0) == 0:
        return None
    size = first.size(0)

    def cut(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dim() == first.dim() and x.size(0) == size:
            return x.narrow(0, 0, 0)
        return x

    input, args, kwargs = tree_map(cut, (sample.input, list(sample.args), sample.kwargs))
    return SampleInput(input, args=tuple(args), kwargs=kwargs)


def _out_cases(op: OpInfo, sample: SampleInput, name: str) -> Iterator[Case]:
    """out= that is strided, that must be resized, and of another dtype."""
    canonical = CANONICAL.get(op_name(op))

    def outs(make: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, torch.device("cpu"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = op(input, *args, **kwargs)
        single = isinstance(expected, torch.Tensor)
        made = [make(x).to(device) for x in ([expected] if single else expected)]
        if make is strided:
            made = [x.transpose(-1, -2) if x.dim() > 1 else x for x in made]
        return made[0] if single else tuple(made)

    def strided(x: torch.Tensor) -> torch.Tensor:
        return (x.transpose(-1, -2) if x.dim() > 1 else x).contiguous().clone().fill_(3)

    def resized(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(0)

    def other(x: torch.Tensor) -> torch.Tensor:
        wide = torch.int64 if x.dtype.is_floating_point or x.dtype.is_complex else torch.float64
        return x.new_empty(x.shape, dtype=wide)

    for make in (strided, resized, other):

        def run(device: torch.device, make: Any = make) -> Any:
            out = outs(make, device)
            input, args, kwargs = _inputs(sample, device)
            result = op(input, *args, **kwargs, out=out)
            same = [r is o for r, o in zip(tree_leaves(result), tree_leaves(out), strict=True)]
            if canonical:
                out = canonical(out, input, *args, **kwargs)
            return [out, same]

        yield Case("out", f"{make.__name__} out={name}", run)


def _inplace_case(op: OpInfo, sample: SampleInput, name: str) -> Case:
    def run(device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, device)
        result = op.inplace_variant(input, *args, **kwargs)
        return [input, result, result is input]

    return Case("inplace", name, run)


def _storages(tree: Any) -> set[int]:
    return {
        x.untyped_storage().data_ptr()
        for x in tree_leaves(tree)
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.numel()
    }


def _aliases(op: OpInfo, sample: SampleInput) -> bool:
    """Whether a result shares the input's memory on the CPU."""
    try:
        input, args, kwargs = _inputs(sample, torch.device("cpu"))
        if not isinstance(input, torch.Tensor):
            return False
        result = op(input, *args, **kwargs)
        return bool(_storages(result) & _storages(input))
    except Exception:  # noqa: BLE001 - the forward check speaks of it
        return False


def _view_cases(op: OpInfo, sample: SampleInput, name: str) -> Iterator[Case]:
    """Writes through the result and through the input, and looks at the other."""

    def through_result(device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, device)
        result = op(input, *args, **kwargs)
        for i, x in enumerate(tree_leaves(result)):
            if isinstance(x, torch.Tensor):
                x.fill_(i + 1)
        return [input, result]

    def through_input(device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, device)
        result = op(input, *args, **kwargs)
        input.fill_(1)
        return [input, result]

    yield Case("view", f"result written, {name}", through_result)
    yield Case("view", f"input written, {name}", through_input)


def _grad_case(op: OpInfo, sample: SampleInput, name: str) -> Case:
    def require(x: torch.Tensor) -> torch.Tensor:
        return x.requires_grad_() if _differentiable(x) else x

    def run(device: torch.device) -> Any:
        input, args, kwargs = _inputs(sample, device, require)
        result = op.gradcheck_wrapper(op.get_op(), input, *args, **kwargs)
        if sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        outs = [x for x in tree_leaves(result) if _differentiable(x) and x.requires_grad]
        leaves = [x for x in tree_leaves((input, args, kwargs)) if _differentiable(x)]
        if not outs or not leaves:
            return []
        cotangents = [_cotangent(x, i + 1) for i, x in enumerate(outs)]
        return list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True))

    return Case("grad", name, run)


def _error_cases(op: OpInfo) -> Iterator[Case]:
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for error in op.error_inputs("cpu"):
        sample = error.sample_input

        def run(device: torch.device, sample: SampleInput = sample) -> Any:
            # As they are: what is wrong may be the strides, or that two are one tensor.
            input, args, kwargs = sample.input, list(sample.args), dict(sample.kwargs)
            if device.type != "cpu":
                input, args, kwargs = _inputs(sample, device)
            return op(input, *args, **kwargs)

        yield Case("error", describe(sample), run, must_raise=error.error_type)


def make_cases(op: OpInfo, dtype: torch.dtype, check: str, limit: int | None) -> Iterator[Case]:
    """The cases of a check, of ``limit`` samples (all with None)."""
    samples = _samples(op, dtype, limit)
    few = samples[: max(1, (limit or 8) // 2)]
    inplace_ok = op.inplace_variant is not None and op.name != "resize_as_"
    if check == "error":
        # Bad input is not of a dtype: once, with the first one.
        if dtype == dtypes_of(op)[0]:
            yield from _error_cases(op)
        return
    if check == "grad" and not (op.supports_autograd and dtype in op.backward_dtypes):
        return
    for sample in samples if check in ("forward", "noncontiguous", "grad") else few:
        name = describe(sample)
        if check in ("forward", "dtype"):
            yield Case(check, name, _forward(op, sample))
        elif check == "noncontiguous":
            if op_name(op) in LAYOUT:
                continue
            yield Case(check, name, _forward(op, sample, noncontiguous_like))
        elif check == "empty":
            empty = None if op_name(op) in NO_EMPTY else _empty_sample(sample)
            if empty is not None:
                yield Case(check, describe(empty), _forward(op, empty))
        elif check == "out" and op.supports_out:
            yield from _out_cases(op, sample, name)
        elif check == "inplace" and inplace_ok and not sample.broadcasts_input:
            yield _inplace_case(op, sample, name)
        elif check == "view" and _aliases(op, sample):
            yield from _view_cases(op, sample, name)
        elif check == "grad" and (dtype.is_floating_point or dtype.is_complex):
            yield _grad_case(op, sample, name)
