"""What the host knows of its TPU, asked without starting a PJRT client.

Lightning asks here whether there is a device for ``accelerator="tpu"``, be it for a program that
runs on the CPU.
"""

from __future__ import annotations

import os
import re
import urllib.request

from torch_xla._internal.plugins import device_counts, platform_choice

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
_METADATA_TIMEOUT = 5.0  # Seconds.


def num_available_chips() -> int:
    """Returns how many TPU chips this host has."""
    return device_counts.of_tpu()


def num_available_devices() -> int:
    """Returns how many devices a program that asks for a TPU can use on this host.

    Those of the platform that ``PJRT_DEVICE`` names, be it the CPU; where it names none, the
    chips, so that a machine without a TPU does not offer its CPU as one.
    """
    return device_counts.of_host() if platform_choice.platform() else num_available_chips()


def _metadata(key: str) -> str:
    request = urllib.request.Request(_METADATA + key, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_METADATA_TIMEOUT) as response:
            return str(response.read().decode())
    except OSError as error:
        raise RuntimeError(
            f"the metadata server of Google Cloud did not tell {key!r}: {error}"
        ) from error


def get_tpu_env() -> dict[str, str]:
    """Returns what the machine says of its TPU, for example ``{"ACCELERATOR_TYPE": "v4-16"}``.

    From the environment where ``TPU_ACCELERATOR_TYPE`` is there, else from the metadata server.

    Raises:
        RuntimeError: This is no TPU machine.
    """
    names = {
        "ACCELERATOR_TYPE": "TPU_ACCELERATOR_TYPE",
        "CHIPS_PER_HOST_BOUNDS": "TPU_CHIPS_PER_HOST_BOUNDS",
        "HOST_BOUNDS": "TPU_HOST_BOUNDS",
        "WORKER_ID": "TPU_WORKER_ID",
    }
    if "TPU_ACCELERATOR_TYPE" in os.environ:
        return {key: os.environ[name] for key, name in names.items() if name in os.environ}
    lines = re.findall(r"^(\w+): *'?(.*?)'?$", _metadata("tpu-env"), re.MULTILINE)
    return dict(lines)


def version() -> int:
    """Returns the generation of the TPU, for example 4.

    Raises:
        RuntimeError: This is no TPU machine.
    """
    found = re.match(r"v(\d+)", get_tpu_env().get("ACCELERATOR_TYPE", ""))
    if not found:
        raise RuntimeError("the machine does not say which TPU it has")
    return int(found[1])


def get_worker_ips() -> list[str]:
    """Returns the addresses of the hosts of this TPU slice, in order of their ids.

    Raises:
        RuntimeError: This is no TPU machine.
    """
    if names := os.environ.get("TPU_WORKER_HOSTNAMES"):
        return names.split(",")
    return [endpoint.split(":")[2] for endpoint in _metadata("worker-network-endpoints").split(",")]
