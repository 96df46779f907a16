"""What this process runs on, and its place among the replicas."""

from __future__ import annotations

from torch_xla import _XLAC
from torch_xla._internal import replication


def device_type() -> str:
    """Returns the platform in use, for example ``"CPU"``, ``"CUDA"`` or ``"TPU"``.

    Raises:
        RuntimeError: No PJRT plugin could be started.
    """
    return _XLAC._xla_platform()


def addressable_device_count() -> int:
    """Returns how many devices this process can use."""
    return len(_XLAC._xla_get_devices())


def global_device_count() -> int:
    """Returns how many devices all the processes have together."""
    return addressable_device_count() * process_count()


def world_size() -> int:
    """Returns how many replicas take part in the replication; there is one for each process."""
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


def set_collective_timeout(seconds: float) -> None:
    """Sets how long replicas wait for each other, before the first collective.

    The default is ``XLA_COLLECTIVE_TIMEOUT``, or 300 seconds. A replica that waits longer
    raises, and names those it waits for.

    Raises:
        ValueError: ``seconds`` is not above 0.
        RuntimeError: The replicas are connected already.
    """
    replication.set_timeout(seconds)
