"""``torch.autograd.set_detect_anomaly`` without a wait for each node of a backward pass.

PyTorch's engine asks of each gradient ``isnan(gradient)._is_any_true().item()``. The answer here is
no, at once: the program of the backward pass keeps the flags, and calls the host with all of them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torch_xla._internal.insight import host_calls


class _Found:
    """Raises the error of the first flag that is set, unless an earlier error waits."""

    _last: RuntimeError | None = None

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts

    def __call__(self, flags: torch.Tensor) -> None:
        # A NaN in the body of a loop or in a checkpoint reaches the passes around it, too.
        if any(error is _Found._last for error in host_calls.errors):
            return
        for text, flag in zip(self._texts, flags.tolist(), strict=True):
            if flag:
                _Found._last = RuntimeError(text)
                raise _Found._last


class _Pass:
    """The flags of a backward pass; the callback at the pass's end keeps this alive."""

    def __init__(self) -> None:
        self._flags: dict[torch.device, list[tuple[torch.Tensor, str]]] = {}

    def add(self, flag: torch.Tensor, text: str) -> None:
        self._flags.setdefault(flag.device, []).append((flag, text))

    def end(self) -> None:
        for found in self._flags.values():
            flags, texts = zip(*found, strict=True)
            key = ("anomaly", texts)
            number = host_calls.number_of(key, _Found(texts))
            with torch.no_grad():
                host_calls.run([torch.stack(flags)], number)


_OWN_FILES = tuple(f'File "{folder}' for folder in host_calls.OWN_FOLDERS)
_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()


def _text(node: Any) -> str:
    """The text of PyTorch's error, and the line of the forward pass."""
    place = "its forward pass ran without the mode"
    for line in reversed(node.metadata.get("traceback_", [])):
        if not line.lstrip().startswith(_OWN_FILES):
            place = f"in the forward pass: {line.strip().splitlines()[0]}"
            break
    return f"Function {node.name()!r} returned nan values in its gradients; {place}"


def is_any_true(x: torch.Tensor) -> torch.Tensor:
    """``torch._is_any_true``; only the engine's check calls it while a node runs."""
    node = torch._C._current_autograd_node()
    if node is None or not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        return x.any()
    task = torch._C._current_graph_task_id()
    flags = _passes.get(task)
    if flags is None:
        flags = _passes[task] = _Pass()
        torch.autograd.Variable._execution_engine.queue_callback(flags.end)
    flags.add(x.any(), _text(node))
    return torch.zeros((), dtype=torch.bool, device="cpu")
