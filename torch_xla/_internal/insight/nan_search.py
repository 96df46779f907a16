"""Reports of programs that search for NaN, for :class:`torch_xla.debug.find_nan`."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.nn.modules import module as hooks

from torch_xla import _XLAC
from torch_xla._internal.replicas import replication

# The reports that this process has made, without the numbers of their runs.
_told: set[str] = set()
_waiting: list[list[str]] = []  # The blocks that are open, innermost last.


def report(found: tuple[str, bool, list[str], str | None], run: int) -> None:
    """Reports an operation that made a NaN, once: to the innermost block, else to stderr.

    Args:
        found: What ``_XLAC._xla_nan_of`` returned.
        run: The number of the program's run.
    """
    op, is_input, lines, module = found
    if is_input and _told:
        return  # This NaN was reported; now it is an input of the next program.
    what = "an input of a program" if is_input else op
    place = lines[0] if lines else "an unknown line"
    text = f"NaN made first by {what} at {place}" if not is_input else f"NaN in {what}, {place}"
    if module is not None:
        text += f", module {module}"
    replica = replication.topology()
    if replica.world_size > 1:
        text += f", replica {replica.rank}"
    if text in _told:
        return
    _told.add(text)
    text += f", in run {run} of its program"
    text += "".join(f"\n  called at {line}" for line in lines[1:])
    if _waiting:
        _waiting[-1].append(text)
    else:
        print(f"torch_xla: {text}", file=sys.stderr, flush=True)


class ModuleScopes:
    """While it is open, traced operations know the module whose ``forward`` runs."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._running = threading.local()
        self._hooks = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def name_of(self, module: nn.Module) -> str:
        """Its name in the model that was called, or its class if it is no part of one."""
        return self._names.get(module, type(module).__name__)

    def _stack(self) -> list[str]:
        if not hasattr(self._running, "names"):
            self._running.names = []
        names: list[str] = self._running.names
        return names

    def _enter(self, module: nn.Module, args: Any) -> None:
        del args
        # Dynamo reads hooks, and calls its graphs as modules, which cover the whole model.
        if torch.compiler.is_compiling() or isinstance(module, torch.fx.GraphModule):
            return
        module = getattr(module, "_orig_mod", module)
        names = self._stack()
        if not names and module not in self._names:  # A recomputed layer has its name already.
            for name, part in module.named_modules():
                self._names[part] = name or type(module).__name__
        names.append(self.name_of(module))
        _XLAC._xla_set_module(names[-1])

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        del args, result
        if torch.compiler.is_compiling() or isinstance(module, torch.fx.GraphModule):
            return
        names = self._stack()
        if names:  # The block may have been opened within the module.
            names.pop()
        _XLAC._xla_set_module(names[-1] if names else "")

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        _XLAC._xla_set_module("")


def open_block() -> None:
    """Collects the reports until :func:`close_block`."""
    _told.clear()
    _waiting.append([])


def close_block() -> list[str]:
    """Ends the innermost block; returns its reports."""
    return _waiting.pop()
