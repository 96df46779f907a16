"""Tracing a Python function by itself, for control flow, torch.compile and exports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torch_xla import _XLAC
from torch_xla._internal.compile import eager, host_operators


class Function(NamedTuple):
    """A function in StableHLO.

    Attributes:
        text: The function's text.
        inputs: Which of the inputs that were offered are its first parameters.
        captured: The values of its other parameters: tensors from outside, numbers, seeds.
        seeds: For each of ``captured`` the seed's index, -1 for other values.
    """

    text: str
    inputs: list[int]
    captured: list[torch.Tensor]
    seeds: list[int]

    def call(self, inputs: Sequence[Any], captured: Sequence[Any], like: Any) -> Any:
        """Calls the function from another one that is being built, which has all offered inputs.

        ``like`` is any value of that.
        """
        return _XLAC.hlo.call(self.text, [*(inputs[i] for i in self.inputs), *captured], like)


def function(
    capture: Any,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str,
    portable: bool = False,
    numbers: Sequence[int] | None = None,
    effects: torch.Tensor | None = None,
) -> Function:
    """Returns the function from ``inputs`` to ``outputs`` that was traced in ``capture``.

    Its first output waits for ``effects``, and for the calls of the host
    (:func:`torch_xla.debug.print`) that were traced since the last function or the last
    ``capture.take_effects()``. Its text has a second form, which calls this process' library,
    but where it is ``portable``.
    Numbers are captured; with ``numbers`` only those at these places of all that would be, and the
    others are part of the text.
    """
    outputs = list(outputs)
    for made in (effects, capture.take_effects()):
        if outputs and made is not None:
            outputs[0] = _XLAC._xla_optimization_barrier([outputs[0], made])[0]
    made = Function(*capture.function(list(inputs), outputs, name, portable, numbers))
    if portable and host_operators.TARGET in made.text:
        raise NotImplementedError(
            f"{name}: calls an operator that has a CPU kernel alone, which an exported program "
            "cannot; see torch_xla.library.register_lowering"
        )
    return made


_of_thread = threading.local()


def traced() -> str | None:
    """Returns what traces a function in this thread, where one is traced with placeholders."""
    what: str | None = getattr(_of_thread, "what", None)
    return what


@contextlib.contextmanager
def trace(what: str, device: torch.device | str, pure: bool = True) -> Iterator[Any]:
    """A block in which a function is traced with placeholders, and nothing is executed.

    Args:
        what: Names it in the messages of errors.
        device: The device of its tensors.
        pure: Whether it must not change tensors from outside. Where it may, nothing of it runs:
            the state of the random numbers is put back.

    Raises:
        RuntimeError: At the end of the block: a tensor from outside was changed in place. After
            this and any other error such tensors have the values that they had before.
    """
    capture = _XLAC._Capture(what, str(device))
    random_state = _XLAC._xla_get_rng_seed(str(device))
    before = _XLAC._xla_forbid_cuts(f"{what} traces its function")
    is_eager = eager.is_enabled()
    if is_eager:
        eager.set_enabled(False)
    around, _of_thread.what = traced(), what
    try:
        yield capture
        if pure and capture.changed_outside():
            raise RuntimeError(
                f"{what}: the function changes a tensor from outside in place (a running mean, a "
                "counter); it has to return what it computes"
            )
    except BaseException:
        capture.restore_outside()
        raise
    finally:
        _of_thread.what = around
        _XLAC._xla_forbid_cuts(before)
        if not pure:
            _XLAC._xla_set_rng_seed(random_state, str(device))
        if is_eager:
            eager.set_enabled(True)
        capture.close()


def like(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor after which a placeholder of that shape and dtype is made."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def device_of(what: str, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Returns the one xla device of tensors.

    Raises:
        TypeError: A value is no tensor.
        ValueError: A tensor is on another device, or there is no tensor.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: expected tensors, got {type(tensor).__name__}")
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1 or next(iter(devices)).type != "xla":
        found = ", ".join(sorted(map(str, devices))) or "no tensor"
        raise ValueError(f"{what}: expected tensors of one xla device, got {found}")
    return devices.pop()


# The texts of functions that wrap traced functions, by what determines the text.
_built: dict[Any, str] = {}
_MAX_BUILT = 1024


def _text_of(make: Any, operands: list[torch.Tensor]) -> str:
    return _XLAC._stablehlo_of(lambda *values: make(values), operands)


def build(
    key: Any, make: Any, operands: Sequence[torch.Tensor], text_of: Any = _text_of
) -> list[torch.Tensor]:
    """Calls a function that ``make`` builds of values like ``operands``, once for each key."""
    signature = tuple((tuple(tensor.shape), tensor.dtype) for tensor in operands)
    text = _built.get((key, signature))
    if text is None:
        if len(_built) >= _MAX_BUILT:
            _built.clear()
        text = _built[key, signature] = text_of(make, list(operands))
    operands = list(operands)
    if _HOST_CALL not in text:
        return _XLAC._stablehlo_call(text, operands)
    # Host calls within the function come after the calls before it and before the calls after it,
    # even if nobody reads the results.
    token = _XLAC._xla_collective_token(str(operands[0].device))
    operands[0] = _XLAC._xla_optimization_barrier([operands[0], token])[0]
    results = _XLAC._stablehlo_call(text, operands)
    _XLAC._xla_assign(token, _XLAC._xla_optimization_barrier([token, results[0]])[0])
    return results


def loop(
    functions: Sequence[Function],
    operands: Sequence[torch.Tensor],
    carries: int,
    sliced: int = 0,
    length: int = 0,
    sums: int = 0,
    reverse: bool = False,
) -> list[torch.Tensor]:
    """Runs a loop of the program; returns the last carries, the stacked elements and the sums.

    Each turn calls the first of ``functions``, which returns the next carries, elements that are
    stacked, and ``sums`` terms; and before it the second one, if any, its condition. ``operands``
    are the first carries, ``sliced`` tensors with an element for each turn, the last one first in
    ``reverse``, and tensors that are the same in each turn.
    """
    operands = list(operands)
    callees = []
    for function in functions:
        places = range(len(operands), len(operands) + len(function.captured))
        seeds = (-1,) * len(function.inputs) + tuple(function.seeds)
        callees.append((function.text, (*function.inputs, *places), seeds))
        operands += function.captured
    form = (carries, sliced, sums, length, reverse, tuple(callees))
    return build(form, form, operands, _XLAC._loop_text)


# The target of host calls in the text of a function (csrc/cpu/calls.h).
_HOST_CALL = "torch_xla.cpu_host_call"
