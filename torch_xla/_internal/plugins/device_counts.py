"""How many devices there are, without starting a PJRT client."""

from __future__ import annotations

import os
from collections.abc import Iterator

from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.plugins import finder, platform_choice, topologies


def of_host() -> int:
    """Returns how many devices this host has, without starting a PJRT client.

    Raises:
        ValueError: ``CPU_NUM_DEVICES`` is no positive integer, or too large.
    """
    if wanted := topologies.requested():
        return wanted.devices
    platform = platform_choice.platform()
    counts = {
        "CUDA": _of_cuda,
        "TPU": of_tpu,
        "CPU": _of_cpu,
    }
    if platform in counts:
        return counts[platform]()
    if platform:  # Other plugins are asked through a client.
        return len(_XLAC._xla_get_devices())
    return next((count for count in (of_tpu(), _of_cuda()) if count), 0) or _of_cpu()


def startable_platforms() -> list[str]:
    """Returns the platforms that the runtime would try and whose library and devices are there.

    GPUs and TPUs need a visible device, other platforms only the library. Starts nothing.
    """
    seen = {"CUDA": _of_cuda, "TPU": of_tpu}
    if platform_choice.topology():  # The devices are not there.
        seen = {}
    return [
        platform
        for platform, library in _XLAC._xla_known_libraries()
        if os.path.isfile(library) and (platform not in seen or seen[platform]())
    ]


def without_client() -> int | None:
    """Returns how many devices the runtime will give this process, None if that is uncertain."""
    if startable_platforms() != ["CPU"]:
        return None
    return 1 if variables.is_on("XLA_USE_SPMD") else _of_cpu()


def use_one() -> None:
    """Makes the CPU platform give this process one device, as each replica has."""
    if not _XLAC._xla_is_initialized():
        finder.set_cpu_options({"cpu_device_count": 1})


def _of_cpu() -> int:
    return finder.cpu_options.get("cpu_device_count") or _XLAC._xla_cpu_device_count()


def _numbered(folder: str, prefix: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name.startswith(prefix) and name[len(prefix) :].isdigit():
            yield name


# No test runs on an accelerator: these two read what the vendors' documentation says.


def _of_cuda() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(_numbered("/dev", "nvidia")))


def of_tpu() -> int:
    """Returns how many TPU chips this host has."""
    return len(list(_numbered("/dev", "accel"))) or len(list(_numbered("/dev/vfio", "")))
