"""Every module of PyTorch's module database on xla against CPU: outputs, gradients, buffers.

The first inputs of each module; `make conformance` runs them all.
"""

import copy
import itertools
from typing import Any

import pytest
import torch
from testing.opinfo_exceptions import MODULE_TOLERANCES
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils._pytree import tree_leaves, tree_map

import torch_xla
import torch_xla.core.xla_model as xm


@pytest.fixture(autouse=True)
def _xla_draws_its_own_numbers() -> None:
    torch_xla.sync(wait=True)


SAMPLES = 2
# How many runs make one program: compiling takes longer than in proportion to its size.
BATCH = 16


def _to(tree: Any, device: Any) -> Any:
    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return copy.deepcopy(x)
        y = x.detach().clone().to(device)
        return y.requires_grad_() if y.is_floating_point() else y

    return tree_map(move, tree)


def _run(module: torch.nn.Module, input: Any, device: Any) -> dict[str, Any]:
    """Output, gradients and state of one training step of a module that lives on ``device``."""
    args, kwargs = _to((list(input.args), dict(input.kwargs)), device)
    torch.manual_seed(1)
    output = module(*args, **kwargs)
    outs = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    found: dict[str, Any] = {"output": output}
    if outs:
        generator = torch.Generator().manual_seed(2)
        cotangents = [torch.randn(x.shape, generator=generator).to(x) for x in outs]
        torch.autograd.backward(outs, cotangents)
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        found["input gradients"] = [x.grad for x in leaves]
        found["gradients"] = {name: p.grad for name, p in module.named_parameters()}
    found["state_dict"] = dict(module.state_dict())
    return found


def _cpu(tree: Any) -> Any:
    def move(x: Any) -> Any:
        return x.detach().cpu() if isinstance(x, torch.Tensor) else x

    return tree_map(move, tree)


def _same(a: Any, b: Any) -> bool:
    try:
        torch.testing.assert_close(_cpu(a), _cpu(b), equal_nan=True)
    except AssertionError:
        return False
    return True


def _shapes(tree: Any) -> list[Any]:
    return [(x.shape, x.dtype) for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
INFO = pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)


@TRAINING
@INFO
def test_module(info: ModuleInfo, training: bool) -> None:
    _check(info, training, SAMPLES)


@pytest.mark.conformance
@pytest.mark.timeout(1800)
@TRAINING
@INFO
def test_module_with_all_inputs(info: ModuleInfo, training: bool) -> None:
    _check(info, training, None)


def _check(info: ModuleInfo, training: bool, limit: int | None) -> None:
    device = xm.xla_device()
    dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=training
    )
    failures, pending = [], []
    inputs = (x for x in inputs if x.forward_input is not None)
    for module_input in itertools.islice(inputs, limit):
        constructor, forward = module_input.constructor_input, module_input.forward_input
        torch.manual_seed(3)
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype)
        module.train(training)
        if info.is_lazy:  # Materializes the parameters.
            with torch.no_grad():
                module(*copy.deepcopy(forward.args), **copy.deepcopy(forward.kwargs))
        # A second one from the same state_dict, the way checkpoints move.
        moved = copy.deepcopy(module).to(device)
        moved.load_state_dict(module.state_dict())
        again = copy.deepcopy(module)
        what = f"{info.name}({module_input.desc})"
        try:
            expected = _run(module, forward, "cpu")
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                _run(moved, forward, device)
            continue
        torch.manual_seed(4)
        state = torch.get_rng_state()
        other = _run_with_other_numbers(again, forward)
        torch.set_rng_state(state)
        pending.append((what, _run(moved, forward, device), expected, _same(expected, other)))
        if len(pending) == BATCH:
            failures += _compare(info.name, pending)
            pending = []
    failures += _compare(info.name, pending)
    assert not failures, "\n".join(failures)


def _compare(name: str, pending: list[tuple[str, Any, Any, bool]]) -> list[str]:
    """What differs, of runs that are compiled together."""
    torch_xla.sync()
    failures = []
    for what, actual, expected, deterministic in pending:
        for part in expected:
            a, e = _cpu(actual[part]), _cpu(expected[part])
            if not deterministic:
                if _shapes(a) != _shapes(e):
                    failures.append(f"{what}: {part}: {_shapes(a)} is not {_shapes(e)}")
                continue
            rtol, atol = MODULE_TOLERANCES.get(name, (None, None, ""))[:2]
            try:
                torch.testing.assert_close(a, e, equal_nan=True, rtol=rtol, atol=atol)
            except AssertionError as error:
                failures.append(f"{what}: {part}: {error}")
    return failures


def _run_with_other_numbers(module: torch.nn.Module, input: Any) -> dict[str, Any]:
    """The same on the CPU with other random numbers: whether any are drawn."""
    seed = torch.manual_seed

    def other(value: int) -> torch.Generator:
        return seed(value + 1000)

    torch.manual_seed = other
    try:
        return _run(module, input, "cpu")
    finally:
        torch.manual_seed = seed
