"""What this process runs on, and its place among the replicas."""

from __future__ import annotations

from torch_xla import _XLAC
from torch_xla._internal import replication, spmd_mode


def device_type() -> str:
    """Returns the platform in use, for example ``"CPU"``, ``"CUDA"`` or ``"TPU"``.

    Raises:
        RuntimeError: No PJRT plugin could be started.
    """
    return _XLAC._xla_platform()


def use_spmd(auto: bool = False) -> None:
    """Makes one device, ``xla:0``, of all those that this process has, from now on.

    Programs are partitioned by XLA over them, as ``torch_xla.distributed.spmd.mark_sharding``
    says. Tensors that are on ``xla:0`` already are on all devices then; those on others can no
    longer be used. ``XLA_USE_SPMD=1`` in the environment does the same from the start. There is
    no way back.

    Args:
        auto: Whether XLA shall choose the shardings of all tensors. Not available: PJRT plugins
            are built without XLA's auto-sharding pass.

    Raises:
        ValueError: ``auto`` is true.
        RuntimeError: This process is one of several replicas, or its current device is not
            ``xla:0``.
    """
    spmd_mode.enter(auto)


def is_spmd() -> bool:
    """Returns whether this process is in SPMD mode: see :func:`use_spmd`."""
    return spmd_mode.is_on()


def addressable_runtime_device_count() -> int:
    """Returns how many devices of the hardware this process has; in SPMD mode, too."""
    count = addressable_device_count()  # Starts the client, on which the mode may depend.
    return _XLAC._xla_spmd_devices() or count


def global_runtime_device_count() -> int:
    """Returns how many devices of the hardware all processes have; in SPMD mode, too."""
    return addressable_runtime_device_count() * process_count()


def addressable_device_count() -> int:
    """Returns how many devices this process can use: in SPMD mode 1, which stands for all."""
    return len(_XLAC._xla_get_devices())


def global_device_count() -> int:
    """Returns how many devices all the processes have together."""
    return addressable_device_count() * process_count()


def world_size() -> int:
    """Returns how many replicas take part in the replication; there is one for each process.

    In SPMD mode that is 1, however many devices there are.
    """
    return process_count()


def global_ordinal() -> int:
    """Returns the ordinal of this replica, from 0 to ``world_size() - 1``."""
    return process_index()


def local_ordinal() -> int:
    """Returns the ordinal of this replica among those of its host."""
    return replication.topology().local_rank


def process_index() -> int:
    """Returns the index of this process, from 0 to ``process_count() - 1``."""
    return replication.topology().rank


def process_count() -> int:
    """Returns how many processes take part in the replication."""
    return replication.topology().world_size


def _init_world_size_ordinal() -> None:
    """Changes nothing: a process's place is known from the start."""


def set_collective_timeout(seconds: float) -> None:
    """Sets how long replicas wait for each other, before the first collective.

    The default is ``XLA_COLLECTIVE_TIMEOUT``, or 300 seconds. A replica that waits longer
    raises, and names those it waits for.

    Raises:
        ValueError: ``seconds`` is not above 0.
        RuntimeError: The replicas are connected already.
    """
    replication.set_timeout(seconds)
