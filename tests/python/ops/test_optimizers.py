"""Every optimizer of PyTorch's optimizer database on xla against CPU, three steps each."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from testing.ops import fallbacks
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

import torch_xla
import torch_xla.core.xla_model as xm

STEPS = 3
REFUSED = re.compile("capturable=True, params.* must be on supported devices|fused=True.* requires")


def _cases() -> Iterator[Any]:
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue  # SparseAdam: the device has no sparse tensors
        for impl in ("forloop", "foreach", "fused"):
            if impl == "forloop" or impl in info.supported_impls:
                yield pytest.param(info, impl, id=f"{info.name}-{impl}")


def _parameters(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    # Matrices alone: Muon takes nothing else.
    shapes = [(3, 4), (5, 2), (1, 6)]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def _gradients(dtype: torch.dtype, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return [torch.randn(p.shape, generator=generator, dtype=dtype) for p in _parameters(dtype)]


def _train(info: OptimizerInfo, kwargs: dict[str, Any], device: Any) -> Iterator[list[Any]]:
    """Takes STEPS steps and yields after each; the last yield is the parameters."""
    parameters = [p.to(device).requires_grad_() for p in _parameters(torch.float32)]
    optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs))
    for step in range(STEPS):
        gradients = [g.to(device) for g in _gradients(torch.float32, step)]
        if info.step_requires_closure:

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = sum((p * p).sum() for p in parameters)
                if kwargs.get("maximize"):  # It has a maximum.
                    loss = -loss
                loss.backward()
                return loss

            optimizer.step(closure)
        else:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
        yield parameters


@pytest.mark.parametrize(("info", "impl"), list(_cases()))
def test_three_steps_equal_the_cpus(info: OptimizerInfo, impl: str) -> None:
    device = xm.xla_device()
    flags = {} if info.name in ("LBFGS", "Muon") else {"foreach": impl == "foreach"}
    if impl == "fused":
        flags = {"fused": True}
    runs, expected = [], []
    before = fallbacks()
    for optimizer_input in info.optim_inputs_func(device="cpu"):
        kwargs = {**optimizer_input.kwargs, **flags}
        expected.append([p.detach() for p in list(_train(info, kwargs, "cpu"))[-1]])
        runs.append((optimizer_input.desc, _train(info, kwargs, device)))
        if info.has_capturable_arg and impl != "fused":
            # The state stays on the device: the same numbers as without it on the CPU.
            expected.append(expected[-1])
            desc = f"{optimizer_input.desc}, capturable"
            runs.append((desc, _train(info, {**kwargs, "capturable": True}, device)))
    results: dict[int, list[Any]] = {}
    refused: set[int] = set()
    for _ in range(STEPS):
        for i, (_, run) in enumerate(runs):
            try:
                results[i] = next(run)
            except StopIteration:
                assert i in refused
            except (AssertionError, RuntimeError) as error:
                # torch names the devices that may: xla is not on every optimizer's list.
                if not REFUSED.search(str(error)):
                    raise
                refused.add(i)
        torch_xla.sync()
    assert impl == "fused" or len(refused) < len(runs)
    if not results:
        pytest.skip("torch refuses fused=True for xla tensors")
    for i, actual in results.items():
        desc, wanted = runs[i][0], expected[i]
        for a, e in zip(actual, wanted, strict=True):
            torch.testing.assert_close(
                a.detach().cpu(), e, msg=lambda text, desc=desc: f"{desc}: {text}"
            )
    moved = {name for name, count in fallbacks().items() if count != before.get(name, 0)}
    # LBFGS looks at its loss.
    assert moved <= {"aten::_local_scalar_dense"}, moved


@pytest.mark.parametrize(
    "info",
    [info for info in optim_db if not info.only_supports_sparse_grads],
    ids=lambda info: info.name,
)
def test_state_dict_moves_between_devices(info: OptimizerInfo) -> None:
    """A step, the state saved and loaded on the other device, and a second step."""
    device = xm.xla_device()

    def step(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], n: int) -> None:
        for p, g in zip(parameters, _gradients(torch.float32, n), strict=True):
            p.grad = g.to(p.device)
        if info.step_requires_closure:
            optimizer.step(lambda: sum((p.detach() * p.detach()).sum() for p in parameters))
        else:
            optimizer.step()

    cpu = [p.requires_grad_() for p in _parameters(torch.float32)]
    here = info.optim_cls(cpu)
    step(here, cpu, 0)
    xla = [p.detach().clone().to(device).requires_grad_() for p in cpu]
    there = info.optim_cls(xla)
    there.load_state_dict(copy.deepcopy(here.state_dict()))
    step(here, cpu, 1)
    step(there, xla, 1)
    torch_xla.sync()
    for a, e in zip(xla, cpu, strict=True):
        torch.testing.assert_close(a.detach().cpu(), e.detach())
