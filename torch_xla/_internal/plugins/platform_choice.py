"""The platform and the absent devices for which the environment asks."""

from __future__ import annotations

import os


def platform() -> str:
    """Returns the platform of ``PJRT_DEVICE`` in upper case; empty where it names none."""
    return os.environ.get("PJRT_DEVICE", "").upper()


def set_platform(name: str) -> None:
    """Makes the environment ask for a platform."""
    os.environ["PJRT_DEVICE"] = name


def topology() -> str:
    """Returns ``XLA_TOPOLOGY``, with which nothing runs; empty if devices are to run."""
    return os.environ.get("XLA_TOPOLOGY", "")


def set_topology(text: str) -> None:
    """Makes the environment ask for absent devices, to compile for."""
    os.environ["XLA_TOPOLOGY"] = text
