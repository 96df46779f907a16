"""Programs that run traced and replayed, and have to give the same bits."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

import torch_xla
from torch_xla._internal.replay import functions as replay
from torch_xla.debug import metrics

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def status(function: Callable[..., Any]) -> replay.Status:
    """Returns how a function fares on the one thread that called it."""
    (state,) = function._xla_replay  # type: ignore[attr-defined]
    return state.status()


def clipped_step(compile: Compile, model: Any, optimizer: Any, scheduler: Any = None) -> Any:
    """Returns a training step, compiled: the gradients clipped, the scheduler stepped if given."""

    @compile
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss

    return step


def both(program: Callable[[Compile, torch.device], Any], device: torch.device) -> replay.Status:
    """Runs a program traced and replayed, and asserts that all it returns is the same, bit by bit.

    Sums over sizes that are arguments may round otherwise than those of a size's own program.

    Args:
        program: Is called with what compiles functions, and with the device.
        device: The device.

    Returns:
        How the function that was compiled last fared.
    """
    found = []
    functions: list[Callable[..., Any]] = []
    padded = metrics.counter_value("DynamicSizes") or 0
    for is_replayed in (False, True):
        torch.manual_seed(3)
        torch_xla.manual_seed(3)

        def compile(function: Callable[..., Any], is_replayed: bool = is_replayed) -> Any:
            functions.append(torch_xla.compile(function, replay=is_replayed))
            return functions[-1]

        leaves = _pytree.tree_leaves(program(compile=compile, device=device))
        found.append(
            [leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        )
    traced, again = found
    is_padded = (metrics.counter_value("DynamicSizes") or 0) > padded
    assert len(traced) == len(again)
    for i, (expected, got) in enumerate(zip(traced, again, strict=True)):
        if not isinstance(expected, torch.Tensor):
            assert expected == got, f"result {i}"
            continue
        assert expected.dtype == got.dtype and expected.shape == got.shape, f"result {i}"
        same = torch.equal(expected, got) or (
            expected.is_floating_point()
            and (
                torch.allclose(expected, got, rtol=1e-5, atol=1e-6, equal_nan=True)
                if is_padded
                else torch.equal(expected.nan_to_num(7.5), got.nan_to_num(7.5))
            )
        )
        assert same, f"result {i}: {(expected - got).abs().max() if expected.numel() else ''}"
    return status(functions[-1])


def right(
    program: Callable[[Compile, torch.device], Any], device: torch.device, least: int = 1
) -> None:
    """The same, and asserts that at least so many calls were replayed."""
    found = both(program, device)
    assert found.replayed >= least, str(found)


def refused(
    program: Callable[[Compile, torch.device], Any], device: torch.device, match: str
) -> None:
    """The same, and asserts that none was, for this reason."""
    found = both(program, device)
    assert found.replayed == 0, str(found)
    assert match in found.reason, str(found)


def _as_test(program: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., None]:
    """Makes a test of a program of ``compile``, ``device`` and any fixtures."""

    @functools.wraps(program)
    def test(*args: Any, device: torch.device, **fixtures: Any) -> None:
        check(functools.partial(program, *args, **fixtures), device)

    signature = inspect.signature(program)
    kept = [one for name, one in signature.parameters.items() if name != "compile"]
    test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return test


def is_right(program: Callable[..., Any]) -> Callable[..., None]:
    """Decorates a program that is a test: see :func:`both`."""
    return _as_test(program, both)


def is_replayed(program: Callable[..., Any] | int) -> Callable[..., Any]:
    """Decorates a program that is a test: see :func:`right`; ``least`` may come before it."""
    if isinstance(program, int):
        return functools.partial(_as_test, check=functools.partial(right, least=program))
    return _as_test(program, right)


def is_refused(match: str) -> Callable[..., Callable[..., None]]:
    """Decorates a program that is a test: see :func:`refused`."""
    return functools.partial(_as_test, check=functools.partial(refused, match=match))


def mlp(device: torch.device, dropout: float = 0.0) -> torch.nn.Sequential:
    """Returns a small model."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 3)
    ).to(device)


def batches(device: torch.device, count: int, size: int = 4) -> list[tuple[torch.Tensor, ...]]:
    """Returns inputs and targets for :func:`mlp`."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 6, generator=generator).to(device),
            torch.randn(size, 3, generator=generator).to(device),
        )
        for _ in range(count)
    ]
