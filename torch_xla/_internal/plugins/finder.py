"""Finds the PJRT plugins that are installed, without starting or importing anything heavy.

A plugin comes, in this order, from

1. an entry point of the group ``torch_xla.plugins``;
2. an entry point of the group ``jax_plugins``, whose library is found without importing jax;
3. a wheel known by name (:data:`_KNOWN_WHEELS`).

The first one found for a platform is used. ``PJRT_<PLATFORM>_LIBRARY_PATH`` wins over all of
them; the runtime reads it itself.

A vendor's entry point has the platform for its name and resolves to a path, or to an object
(or a callable without arguments that returns one) with the methods of :class:`DevicePlugin`::

    [project.entry-points."torch_xla.plugins"]
    mychip = "my_pjrt_plugin:Plugin"
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.plugins import platform_choice, topologies


class DevicePlugin(Protocol):
    """What an entry point of ``torch_xla.plugins`` resolves to."""

    def library_path(self) -> str | os.PathLike[str]:
        """Returns the path of the shared library that exports ``GetPjrtApi``."""

    def client_create_options(self) -> dict[str, str | int | bool | float | list[int]]:
        """Returns the PJRT options for making the client. This method may be missing."""


class PluginSpec(NamedTuple):
    """A plugin that was found: its upper-case platform, library and PJRT create options."""

    platform: str
    library: str
    options: dict[str, str | int | bool | float | list[int]]


def _module_folder(name: str) -> Path | None:
    """Returns the folder of package ``name`` without importing it (its parents only)."""
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:  # A parent package is missing.
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _platform_of_jax_plugin(name: str) -> str:
    """Returns the platform behind a jax plugin's name: ``xla_cuda13`` is ``CUDA``."""
    return re.sub(r"\d+$", "", name.removeprefix("xla_")).upper()


def _library_of_jax_plugin(folder: Path) -> str | None:
    """Returns the one PJRT library in ``folder``, or None when that is not clear."""
    libraries = sorted(folder.glob("*.so")) + sorted(folder.glob("*.dylib"))
    if len(libraries) > 1:
        libraries = [file for file in libraries if re.search("pjrt|plugin", file.name)]
    return str(libraries[0]) if len(libraries) == 1 else None


def _from_entry_points() -> Iterator[PluginSpec]:
    entry_points = metadata.entry_points()
    for entry_point in entry_points.select(group="torch_xla.plugins"):
        try:
            plugin = entry_point.load()
            if callable(plugin):
                plugin = plugin()
            if isinstance(plugin, (str, os.PathLike)):
                library, options = plugin, dict[str, Any]()
            else:
                library = plugin.library_path()
                options = getattr(plugin, "client_create_options", dict)()
        except Exception as error:  # A bug in one vendor's plugin must not break other devices.
            warnings.warn(
                f"torch_xla: the PJRT plugin {entry_point.name!r} ({entry_point.value}) could not "
                f"be loaded and is left out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            continue
        yield PluginSpec(entry_point.name.upper(), os.fspath(library), dict(options))
    for entry_point in entry_points.select(group="jax_plugins"):
        folder = _module_folder(entry_point.module)
        found = folder and _library_of_jax_plugin(folder)
        if found:
            yield PluginSpec(_platform_of_jax_plugin(entry_point.name), str(found), {})


def _has_tpu() -> bool:
    # On a machine without a TPU libtpu would wait for one.
    return (
        platform_choice.platform() == "TPU"
        or bool(glob.glob("/dev/accel*"))
        or bool(glob.glob("/dev/vfio/[0-9]*"))
    )


def _cuda_library() -> str | None:
    for module in ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"):
        folder = _module_folder(module)
        if folder and (folder / "xla_cuda_plugin.so").is_file():
            return str(folder / "xla_cuda_plugin.so")
    return None


def _tpu_library() -> str | None:
    # No test loads libtpu: without a TPU it waits for one.
    if not _has_tpu() or importlib.util.find_spec("libtpu") is None:
        return None
    return str(importlib.import_module("libtpu").get_library_path())


def _cpu_library() -> str | None:
    if importlib.util.find_spec("fastatomstruct_xla_cpu") is None:
        return None
    return str(importlib.import_module("fastatomstruct_xla_cpu").library_path())


# Each platform and the function that finds its library, accelerators first: without PJRT_DEVICE the
# runtime tries platforms in the order of registration.
_KNOWN_WHEELS = (("CUDA", _cuda_library), ("TPU", _tpu_library), ("CPU", _cpu_library))


def find_plugins() -> list[PluginSpec]:
    """Returns one plugin for each platform that has one installed, in order of preference."""
    found: dict[str, PluginSpec] = {}
    # As torch_xla 2.9: this variable names the library of the platform that is asked for.
    platform, library = platform_choice.platform(), os.environ.get("PJRT_LIBRARY_PATH")
    if platform and library:
        found[platform] = PluginSpec(platform, os.path.expanduser(library), {})
    for spec in _from_entry_points():
        found.setdefault(spec.platform, spec)
    for platform, find_library in _KNOWN_WHEELS:
        if platform not in found and (library := find_library()):
            found[platform] = PluginSpec(platform, library, {})
    return list(found.values())


def _gpu_options() -> dict[str, str | bool | float]:
    """Returns a GPU allocator's settings in the environment as create options of the plugins."""
    named = {
        "PJRT_ALLOCATOR_PREALLOCATE": "preallocate",
        "PJRT_ALLOCATOR_FRACTION": "memory_fraction",
    }
    options = {
        option: variables.ALL[name].value()
        for name, option in named.items()
        if variables.ALL[name].is_set()
    }
    if variables.is_on("PJRT_ALLOCATOR_CUDA_ASYNC"):
        options["allocator"] = "cuda_async"
    return options


# The plugins that were registered with the runtime, by platform.
_known: dict[str, PluginSpec] = {}

# Options of the CPU platform for any plugin.
cpu_options: dict[str, int] = {}


def make_known(spec: PluginSpec) -> None:
    """Makes a plugin known to the runtime; it is not loaded by this."""
    own = _gpu_options() if spec.platform in ("CUDA", "ROCM") else {}
    if spec.platform == "CPU":
        own |= cpu_options
    _XLAC._xla_add_plugin(spec.platform, spec.library, own | spec.options)
    _known[spec.platform] = spec


def set_cpu_options(options: dict[str, int]) -> None:
    """Sets the options with which the CPU platform starts."""
    cpu_options.update(options)
    make_known(_known.get("CPU", PluginSpec("CPU", "", {})))


def register_plugins() -> None:
    """Makes every installed plugin known to the runtime; none is loaded by this."""
    topology = topologies.requested()  # first, as it says which platform is asked for
    for spec in find_plugins():
        make_known(spec)
    if topology:
        known = _known.get(topology.platform)
        library = known.library if known else ""
        _XLAC._xla_add_plugin(topology.platform, library, topology.options, topology.name)


def may_have_accelerator() -> bool:
    """Returns whether the runtime may start on another platform than the CPU."""
    platform = platform_choice.platform()
    return any(name != "CPU" for name in ([platform] if platform else _known))
