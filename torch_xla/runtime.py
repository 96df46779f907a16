"""What this process runs on, and its place among the replicas."""

from __future__ import annotations

import os
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal.files import remote_cache
from torch_xla._internal.names import missing
from torch_xla._internal.plugins import platform_choice
from torch_xla._internal.replicas import replication, spmd_mode


def device_type() -> str:
    """Returns the platform in use, for example ``"CPU"``, ``"CUDA"`` or ``"TPU"``.

    Where ``PJRT_DEVICE`` names it no device is started: launchers ask before they fork.

    Raises:
        RuntimeError: No PJRT plugin could be started.
    """
    named = platform_choice.platform()
    return named if named and not _XLAC._xla_is_initialized() else _XLAC._xla_platform()


def set_device_type(pjrt_device: str) -> None:
    """Sets the platform to use, as ``PJRT_DEVICE`` does; before the first use of a device.

    Args:
        pjrt_device: For example ``"CPU"``, ``"CUDA"`` or ``"TPU"``.

    Raises:
        RuntimeError: Devices of another platform are in use.
    """
    if _XLAC._xla_is_initialized() and device_type().upper() != pjrt_device.upper():
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the devices of {device_type()} are in use already; "
            "call it before the first use of a device"
        )
    platform_choice.set_platform(pjrt_device)


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


def host_index() -> int:
    """Returns the index of this host among those of the replication."""
    place = replication.topology()
    return place.rank // place.local_world_size


def local_process_count() -> int:
    """Returns how many processes of the replication are on this host."""
    return replication.topology().local_world_size


def local_device_count() -> int:
    """Returns how many devices the processes of this host have together."""
    return local_process_count() * addressable_device_count()


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """Returns what is known of a device of the hardware.

    Args:
        device: Its name, for example ``"CPU:0"`` as :func:`torch_xla.real_devices` has it, or
            ``"xla:0"``.

    Returns:
        ``name``, ``platform``, ``kind`` and ``process_index``, and what else the plugin says:
        ``coords`` (place in the torus), ``core_on_chip`` and the like of a TPU.

    Raises:
        IndexError: This process has no such device.
    """
    index = int(device.rpartition(":")[2] or 0)
    devices = global_runtime_device_attributes()
    own = [found for found in devices if found["process_index"] == process_index()]
    if not 0 <= index < len(own):
        raise IndexError(
            f"runtime_device_attributes(): expected one of the {len(own)} devices of this "
            f"process, got {device!r}"
        )
    return own[index]


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """Returns :func:`runtime_device_attributes` of all devices of all processes.

    Processes have devices alike.
    """
    count, platform = addressable_runtime_device_count(), device_type()
    kinds = [_XLAC._xla_device_kind(f"xla:{0 if is_spmd() else i}") for i in range(count)]
    attributes = _XLAC._xla_device_attributes()
    return [
        {
            "name": f"{platform}:{process * count + i}",
            "platform": platform,
            "kind": kinds[i],
            "process_index": process,
            **attributes[i][1],
        }
        for process in range(process_count())
        for i in range(count)
    ]


def is_bf16_supported() -> bool:
    """Returns whether the device computes with bfloat16: XLA does, on every platform."""
    return True


def get_master_ip() -> str:
    """Returns the address of the host of replica 0: ``MASTER_ADDR``, or of a TPU slice.

    A process by itself is on the host of replica 0.
    """
    if address := os.environ.get("MASTER_ADDR"):
        return address
    if platform_choice.platform() == "TPU":
        from torch_xla._internal import tpu

        return tpu.get_worker_ips()[0]
    return "localhost"


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a folder from now on, for all processes that use it.

    Without this call that is ``XLA_PERSISTENT_CACHE_PATH``, or ``torch_xla/programs`` in the
    user's folder for caches; see also ``python -m torch_xla.cache``.

    Args:
        path: The folder, which is made where there is none; an empty string for no cache. One of
            fsspec's places (``gs://bucket/folder``, ``s3://…``) is mirrored in a local folder.
        readonly: Whether to use what is there and write nothing.
    """
    path = os.path.expanduser(os.fspath(path))
    if remote_cache.is_remote(path):
        path = remote_cache.attach(path, readonly)
    _XLAC._xla_initialize_cache(path, readonly)


def get_num_cached_compilation_graph() -> int:
    """Returns how many programs are kept: each graph that was traced and compiled."""
    return _XLAC._xla_num_programs()


def clear_computation_cache() -> None:
    """Drops the programs that are kept in memory, after what is queued has run.

    What needs one again compiles it, or takes it from the cache on disk
    (``python -m torch_xla.cache clear`` empties that). Recordings of
    ``torch_xla.compile(replay=True)`` keep theirs.
    """
    if _XLAC._xla_is_initialized():
        _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
    _XLAC._xla_clear_programs()


def using_pjrt() -> bool:
    """Returns True: there is no other runtime."""
    return True


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


__getattr__ = missing.getter(
    __name__,
    {
        "xla_device": "torch_xla.device()",
        "requires_pjrt": "leave it out",
    },
)
