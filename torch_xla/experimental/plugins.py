"""Plugins that a program or a vendor's package brings: see ``docs/replication.md`` for devices.

A vendor's package names a subclass of :class:`DevicePlugin` as an entry point of the group
``torch_xla.plugins``; then nothing needs to be called.
"""

from __future__ import annotations

import os
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal.plugins import finder
from torch_xla._internal.replicas import replication

_plugins: dict[str, DevicePlugin] = {}


class DevicePlugin:
    """What is known of a PJRT plugin. A subclass says at least :meth:`library_path`."""

    def library_path(self) -> str:
        """Returns the path of the library that exports ``GetPjrtApi``."""
        raise NotImplementedError(f"{type(self).__name__}.library_path() is not defined")

    def client_create_options(self) -> dict[str, Any]:
        """Returns the PJRT options that its client is made with."""
        return {}

    def host_index(self) -> int:
        """Returns the index of this host."""
        place = replication.topology()
        return place.rank // place.local_world_size

    def configure_single_process(self) -> None:
        """Called when one process uses all devices."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Called in each process where several share the devices of a host."""

    def physical_chip_count(self) -> int:
        """Returns how many devices this host has."""
        return 1

    def requires_xla_coordinator(self) -> bool:
        """Returns whether processes need a key-value store; they have one here anyway."""
        return False


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Makes a plugin known under the name of its platform, before the first use of a device."""
    library = os.fspath(device_plugin.library_path())
    options = dict(device_plugin.client_create_options() or {})
    finder.make_known(finder.PluginSpec(name.upper(), library, options))
    _plugins[name.upper()] = device_plugin


def use_dynamic_plugins() -> None:
    """Changes nothing: installed plugins are always found."""


def using_dynamic_plugins() -> bool:
    """Returns true: all platforms come from plugins."""
    return True


def default() -> DevicePlugin:
    """Returns the plugin of the platform in use, registered by :func:`register_plugin`.

    Raises:
        RuntimeError: It was found otherwise: as an installed package.
    """
    platform = _XLAC._xla_platform().upper()
    if platform not in _plugins:
        raise RuntimeError(f"no plugin of {platform} was registered by register_plugin()")
    return _plugins[platform]


def register_installed_plugins() -> None:
    """Looks for installed plugins again; the import of torch_xla has done so before."""
    finder.register_plugins()
