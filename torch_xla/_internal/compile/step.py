"""The end of a step: :func:`torch_xla.sync`."""

from __future__ import annotations

from collections.abc import Callable

from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.compile import step_closures, sync_variables

# Called after each cut with whether it waited. Raises errors of host calls.
after_cut: Callable[[bool], object] = bool


def cut(wait: bool = False) -> None:
    """Cuts the graph of the default device, and runs the step closures."""
    _XLAC._xla_sync([], wait)
    step_closures.run_step_closures()
    after_cut(wait)


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Cuts the graph of the default device here, runs it, then runs the step closures.

    The graph is compiled when it was not seen before, and runs asynchronously: only reading
    a value waits for it. Closures added by
    :func:`torch_xla.core.xla_model.add_step_closure` run after the cut.

    Args:
        wait: Whether to return only when the device has finished.
        reset_scope: Changes nothing; taken for scripts that pass it.

    Raises:
        RuntimeError: Compilation failed, or asynchronous work of an earlier step did.
        Exception: Whatever a step closure or a function of ``torch_xla.debug`` raised.
    """
    if not sync_variables.any_set():
        cut(wait)
        return
    cut(wait or variables.is_on("XLA_SYNC_WAIT"))
    sync_variables.after_sync()
