"""Absent devices to compile for: what ``XLA_TOPOLOGY`` names, and data of the chips.

A plugin compiles for a topology without having any of its devices. TPUs are named as their plugin
does, by kind and chips along each axis (``v5e:2x4``); GPUs by kind and count (``h100:8``), or by
hosts and devices of each (``h100:4x8``). In place of a GPU's kind a file may stand, which describes
it as XLA's ``GpuTargetConfigProto`` in text.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from torch_xla._internal.plugins import platform_choice


class Chip(NamedTuple):
    """The abilities of one device by its vendor's data sheet, for dense operands.

    Attributes:
        platform: ``"TPU"`` or ``"CUDA"``.
        flops: Peak of bfloat16 matrix products, per second.
        memory: Bytes.
        bandwidth: The memory's bandwidth, in bytes per second.
        link: The bandwidth to other devices, in bytes per second each way.
    """

    platform: str
    flops: float
    memory: float
    bandwidth: float
    link: float


_GIB = 2**30

# A TPU's memory is the memory that its compiler leaves to programs. For v2, v3, v4 and tpu7x a
# device is one of the chip's two cores, and all numbers are for one core.
CHIPS = {
    "v2": Chip("TPU", 23e12, 7.48 * _GIB, 350e9, 62e9),
    "v3": Chip("TPU", 61.5e12, 15.48 * _GIB, 450e9, 82e9),
    "v4": Chip("TPU", 137.5e12, 15.25 * _GIB, 614e9, 150e9),
    "v5e": Chip("TPU", 197e12, 15.75 * _GIB, 819e9, 200e9),
    "v5p": Chip("TPU", 459e12, 95.73 * _GIB, 2765e9, 600e9),
    "v6e": Chip("TPU", 918e12, 31.24 * _GIB, 1640e9, 448e9),
    "tpu7x": Chip("TPU", 1153e12, 94.74 * _GIB, 3690e9, 600e9),
    "a100": Chip("CUDA", 312e12, 80e9, 2039e9, 300e9),
    "h100": Chip("CUDA", 989e12, 80e9, 3352e9, 450e9),
    "h200": Chip("CUDA", 989e12, 141e9, 4800e9, 450e9),
    "b200": Chip("CUDA", 2250e12, 180e9, 8000e9, 900e9),
    "l4": Chip("CUDA", 121e12, 24e9, 300e9, 32e9),
    "rtx4090": Chip("CUDA", 165e12, 24e9, 1008e9, 32e9),
}

# Devices per chip, for chips on which each core is a device.
_CORES = {"v2": 2, "v3": 2, "v4": 2, "tpu7x": 2}


class _Gpu(NamedTuple):
    """What the compiler needs to know of a GPU."""

    name: str
    capability: tuple[int, int]
    cores: int
    threads_per_core: int
    fpus_per_core: int
    shared_per_core: int
    shared_optin: int
    l2_cache: int
    clock_ghz: float


_GPUS = {
    "a100": _Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2048, 64, 167936, 166912, 41943040, 1.41),
    "h100": _Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 2048, 128, 233472, 232448, 52428800, 1.98),
    "h200": _Gpu("NVIDIA H200", (9, 0), 132, 2048, 128, 233472, 232448, 62914560, 1.98),
    "b200": _Gpu("NVIDIA B200", (10, 0), 148, 2048, 128, 233472, 232448, 132644864, 1.965),
    "l4": _Gpu("NVIDIA L4", (8, 9), 58, 1536, 128, 102400, 101376, 50331648, 2.04),
    "rtx4090": _Gpu(
        "NVIDIA GeForce RTX 4090", (8, 9), 128, 1536, 128, 102400, 101376, 75497472, 2.52
    ),
}

# The cuDNN version to compile for: the oldest one that current plugins support.
_CUDNN = (9, 8, 0)


def _target_config(kind: str) -> str:
    gpu, chip = _GPUS[kind], CHIPS[kind]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_per_core}
  threads_per_core_limit: {gpu.threads_per_core}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.bandwidth)}
  l2_cache_size: {gpu.l2_cache}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {int(chip.memory)}
  shared_memory_per_block_optin: {gpu.shared_optin}
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} patch: {_CUDNN[2]} }}
device_description_str: "{gpu.name}"
"""


class Topology(NamedTuple):
    """A topology, and how its platform's plugin is asked for it.

    Attributes:
        text: The name that the user gave: ``"h100:8"``.
        platform: ``"TPU"`` or ``"CUDA"``.
        name: What the plugin calls it; empty where ``options`` say all.
        options: PJRT create options.
        chip: None for a GPU that a file describes.
        devices: How many.
    """

    text: str
    platform: str
    name: str
    options: dict[str, str]
    chip: Chip | None
    devices: int


def parse(text: str) -> Topology:
    """Returns the topology that ``text`` names.

    Raises:
        ValueError: ``text`` names no topology.
    """
    kind, colon, extent = text.rpartition(":")
    try:
        sizes = [int(size) for size in extent.split("x")]
    except ValueError:
        sizes = []
    if not colon or not sizes or min(sizes) < 1:
        raise ValueError(
            f"XLA_TOPOLOGY: expected a kind of device and how many, as v5e:2x4, h100:8 or "
            f"h100:4x8 (hosts x devices), got {text!r}"
        )
    name = kind.lower()
    is_file = Path(kind).is_file()
    if name not in CHIPS and not is_file:
        raise ValueError(
            f"XLA_TOPOLOGY: expected one of {', '.join(CHIPS)}, or the path of a file with a "
            f"GPU's description, before the colon, got {text!r}"
        )
    if name in CHIPS and CHIPS[name].platform == "TPU":
        devices = math.prod(sizes) * _CORES.get(name, 1)
        return Topology(text, "TPU", f"{name}:{extent}", {}, CHIPS[name], devices)
    if len(sizes) > 2:
        raise ValueError(
            f"XLA_TOPOLOGY: expected devices (h100:8) or hosts x devices (h100:4x8) of a GPU, "
            f"got {text!r}"
        )
    hosts = sizes[0] if len(sizes) == 2 else 1
    config = _target_config(name) if name in CHIPS else Path(kind).read_text()
    options = {"target_config": config, "topology": f"1x{hosts}x{sizes[-1]}"}
    return Topology(text, "CUDA", "", options, CHIPS.get(name), math.prod(sizes))


def requested() -> Topology | None:
    """Returns the topology that the environment asks for, having set what goes with it.

    Raises:
        ValueError: There is no such topology, or ``PJRT_DEVICE`` is another platform.
    """
    text = platform_choice.topology()
    if not text:
        return None
    topology = parse(text)
    if not (platform := platform_choice.platform()):
        platform_choice.set_platform(platform := topology.platform)
    if platform != topology.platform:
        raise ValueError(
            f"XLA_TOPOLOGY={text} needs PJRT_DEVICE={topology.platform}, got {platform!r}"
        )
    if topology.platform == "TPU":
        # Without these variables libtpu asks the cloud's metadata server for its host and slice.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_WORKER_ID", "0")
        # libtpu lets one process of a host use the chips, but here no chip is used.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    return topology
