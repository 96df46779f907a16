"""``torch.xla.memory``: how much of a device's memory is taken, and by what.

The names are those of ``torch.cuda.memory``. ``_snapshot()`` is what https://pytorch.org/memory_viz
and ``torch.cuda._memory_viz`` read.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import memory_owners

Device = torch.device | str | int | None


def device_name(device: Device) -> str:
    """Returns the name of ``device`` with its ordinal, as ``"xla:0"``."""
    if device is None:
        return _XLAC._xla_get_default_device()
    if isinstance(device, int):
        return f"xla:{device}" if device >= 0 else _XLAC._xla_get_default_device()
    device = torch.device(device)
    if device.type != "xla":
        raise ValueError(f"expected an xla device, got {device}")
    return _XLAC._xla_get_default_device() if device.index is None else str(device)


def _used(device: Device) -> dict[str, int]:
    if not _XLAC._xla_is_initialized():  # Programs on the CPU ask, too, and start no client.
        return {"bytes_used": 0, "peak_bytes_used": 0}
    return _XLAC._xla_memory_info(device_name(device))


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes of device memory that live buffers take."""
    return _used(device)["bytes_used"]


def max_memory_allocated(device: Device = None) -> int:
    """Returns the largest :func:`memory_allocated` since :func:`reset_peak_memory_stats`."""
    return _used(device)["peak_bytes_used"]


# PJRT does not report memory that a plugin reserves.
memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def memory_stats(device: Device = None) -> dict[str, int]:
    """Returns what the device tells of its memory, by torch.cuda's names, in bytes."""
    info = _used(device)
    used, peak = info["bytes_used"], info["peak_bytes_used"]
    return {
        f"{kind}_bytes.all.{when}": value
        for kind in ("active", "allocated", "reserved")
        for when, value in (("current", used), ("peak", peak))
    }


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns :func:`memory_stats` as a table; ``abbreviated`` changes nothing."""
    rows = (f"{name:32}{value:>20,} bytes" for name, value in memory_stats(device).items())
    return "\n".join((f"Memory of {device_name(device)}", *rows))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Does nothing: PJRT does not accumulate allocations."""


def reset_peak_memory_stats(device: Device = None) -> None:
    """Makes :func:`max_memory_allocated` begin again, with what is taken now.

    A plugin that counts the peak itself (GPUs, TPUs) cannot be told to: until that is exceeded, the
    peak is what live arrays took, without the temporaries of programs.
    """
    if _XLAC._xla_is_initialized():
        _XLAC._xla_reset_peak_memory(device_name(device))


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total bytes of a device's memory; for the CPU, of the host's.

    Raises:
        RuntimeError: The plugin does not tell how much there is.
    """
    name = device_name(device)
    info = _XLAC._xla_memory_info(name)
    if info["bytes_limit"] < 0 and _XLAC._xla_platform() == "CPU":
        pages = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PHYS_PAGES")
        return pages[0] * os.sysconf("SC_PAGE_SIZE"), pages[1] * os.sysconf("SC_PAGE_SIZE")
    if info["bytes_limit"] < 0:
        raise RuntimeError(f"mem_get_info(): the plugin does not tell how much memory {name} has")
    return info["bytes_limit"] - info["bytes_used"], info["bytes_limit"]


def empty_cache() -> None:
    """Gives back the memory that running steps still hold, by waiting for them.

    And what is kept for the next step, where the device's memory is the host's. Of another device
    the plugin owns the allocator, and PJRT has no call that trims it.
    """
    if _XLAC._xla_is_initialized():
        _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
        _XLAC._xla_give_back_freed_memory()


# ---------------------------------------------------------------- for memory_viz


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = 100_000,
    **kwargs: Any,
) -> None:
    """Records allocations and releases of device memory for :func:`_snapshot`.

    Args:
        enabled: None stops the recording; anything else starts it.
        context: Changes nothing: the line is always there.
        stacks: The same.
        max_entries: How many of the last events are kept.
        **kwargs: As ``context``.
    """
    _XLAC._record_memory_events(max_entries if enabled else 0)


def _frames(array: dict[str, Any], holder: memory_owners.Holder | None) -> list[dict[str, Any]]:
    frames = []
    if holder:
        frames.append({"filename": holder.kind, "line": 0, "name": holder.name or holder.kind})
    if array["file"]:
        name = array["function"] + (" (backward)" if array["backward"] else "")
        frames.append({"filename": array["file"], "line": array["number"], "name": name})
    return frames


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Returns what is in device memory, as ``torch.cuda.memory._snapshot`` does.

    Each array is a segment of one block, at an address that is made up; its frames are who holds
    it and the line that made it. ``device_traces`` has events where
    :func:`_record_memory_history` was called before.
    """
    _XLAC._xla_wait_device_ops(_XLAC._xla_get_devices())
    known = memory_owners.find()
    only = None if device is None else torch.device(device_name(device)).index
    segments = []
    for array in _XLAC._live_arrays():
        if only is not None and array["device"] != only:
            continue
        block = {
            "address": array["address"],
            "size": array["bytes"],
            "requested_size": array["bytes"],
            "state": "active_allocated",
            "frames": _frames(array, known.get(array["id"])),
        }
        segments.append(
            {
                "device": array["device"],
                "address": array["address"],
                **dict.fromkeys(("total_size", "allocated_size"), array["bytes"]),
                **dict.fromkeys(("active_size", "requested_size"), array["bytes"]),
                "stream": 0,
                "segment_type": "large" if array["bytes"] > 1 << 20 else "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [block],
            }
        )
    traces: list[list[dict[str, Any]]] = [[] for _ in _XLAC._xla_get_devices()]
    for event in _XLAC._memory_events():
        if only is not None and event["device"] != only:
            continue
        actions = ["segment_alloc", "alloc"]
        if not event["came"]:
            actions = ["free_requested", "free_completed", "segment_free"]
        for action in actions:
            traces[event["device"]].append(
                {
                    "action": action,
                    "addr": event["address"],
                    "size": event["bytes"],
                    "stream": 0,
                    "time_us": event["time_us"],
                    "frames": _frames(event, None),
                }
            )
    return {
        "segments": sorted(segments, key=lambda segment: segment["address"]),
        "device_traces": traces,
        "allocator_settings": {},
    }


def _dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes :func:`_snapshot` to a file that https://pytorch.org/memory_viz takes."""
    write_file(filename, pickle.dumps(_snapshot()))
