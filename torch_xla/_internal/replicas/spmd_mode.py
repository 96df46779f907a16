"""SPMD mode: one device that stands for all that the process has."""

from __future__ import annotations

from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.replicas import replication


def _is_wanted() -> bool:
    """Whether the environment asks for it; the client, once made, has looked there, too."""
    return variables.is_on("XLA_USE_SPMD")


def is_on() -> bool:
    """Returns whether the process is in SPMD mode, or will be when it starts its devices."""
    if _XLAC._xla_is_initialized():
        return _XLAC._xla_spmd_devices() > 0
    return _is_wanted()


def _check_single_process() -> None:
    count = replication.topology().world_size
    if count > 1:
        raise RuntimeError(
            "SPMD mode: expected one process, which has all devices, but this is one of "
            f"{count} replicas with one device each; start the script once, without torchrun "
            "or spawn"
        )


def enter(auto: bool = False) -> None:
    """See :func:`torch_xla.runtime.use_spmd`."""
    if auto:
        raise ValueError(
            "use_spmd(auto=True): XLA's auto-sharding is not available, since PJRT plugins are "
            "built without it; use use_spmd() and mark_sharding()"
        )
    _check_single_process()
    if _XLAC._xla_spmd_devices() > 0:
        return
    if _XLAC._xla_is_initialized():
        # Running programs are for one device, so wait for them.
        _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
    _XLAC._xla_enter_spmd_mode()


def register() -> None:
    """At import: refuses an environment that asks for replicas and for SPMD mode."""
    if _is_wanted():
        _check_single_process()
