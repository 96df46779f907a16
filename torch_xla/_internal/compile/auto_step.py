"""Steps of loops that call no ``mark_step``: tells tensor/auto_step.h where loops and steps are."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_xla import _XLAC

# The names of the functions that end a step.
_SYNCS = frozenset({"mark_step", "sync", "optimizer_step"})


def register() -> None:
    """Makes the runtime learn of the end of each optimizer step from now on."""
    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    parameters = optimizer.param_groups[0]["params"]
    device = parameters[0].device if parameters else None
    if device is not None and device.type == "xla":
        _XLAC._xla_optimizer_stepped(device.index)


def _names_in_loop(code: CodeType, offset: int) -> set[str] | None:
    """The names in the innermost loop around an instruction; None where there is no loop."""
    instructions = list(dis.get_instructions(code))
    loops = [
        (each.argval, each.offset)
        for each in instructions
        if "JUMP" in each.opname and each.argval <= offset <= each.offset
    ]
    if not loops:
        return None
    first, last = min(loops, key=lambda loop: loop[1] - loop[0])
    return {
        each.argval
        for each in instructions
        if first <= each.offset <= last and isinstance(each.argval, str)
    }


def syncs_in_loop() -> bool:
    """Whether the loop that runs now, or what it has called, calls a sync by name."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "torch_xla"):
            names = _names_in_loop(frame.f_code, frame.f_lasti)
            if not _SYNCS.isdisjoint(frame.f_code.co_names if names is None else names):
                return True
            if names is not None:
                return False
        frame = frame.f_back
    return False
