"""Looks at the installation: ``python -m torch_xla.doctor``.

It shows torch, the extension, the plugins that were found with their version and API, the variables
that are set, the devices, and whether a small program runs on them. For each thing that is wrong it
says in a sentence what to do about it, and its status is 1. What may hang or crash runs in a child
process.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import torch_xla
from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.plugins import finder, platform_choice

_TIMEOUT = 120  # seconds for a child process

# The beginning of a plugin's function table: struct_size, extensions, and the version: struct_size,
# extensions, major, minor.
_API = """
import ctypes, sys

class Table(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extensions", ctypes.c_void_p),
                ("version_size", ctypes.c_size_t), ("version_extensions", ctypes.c_void_p),
                ("major", ctypes.c_int), ("minor", ctypes.c_int)]

library = ctypes.CDLL(sys.argv[1])
library.GetPjrtApi.restype = ctypes.POINTER(Table)
table = library.GetPjrtApi().contents
print(f"{table.major}.{table.minor}", flush=True)
"""

_SMOKE = """
import json, os, time
import torch, torch_xla
from torch_xla import _XLAC
from torch_xla._internal.plugins import platform_choice

start = time.perf_counter()
devices = [str(d) for d in torch_xla.devices()]
kinds = [_XLAC._xla_device_kind(d) for d in devices]
started = time.perf_counter()
x = torch.ones(64, 64).to("xla")
y = (x @ x + x).sum()
if platform_choice.topology():
    torch_xla.sync(wait=True)
    value = None
else:
    value = y.item()
ended = time.perf_counter()
print("REPORT " + json.dumps({
    "platform": _XLAC._xla_platform(), "devices": devices, "kinds": kinds, "value": value,
    "start": started - start, "program": ended - started}), flush=True)
"""
_EXPECTED = 64 * 64 * 65


def _run(code: str, *arguments: str) -> tuple[str, str]:
    """Runs Python code in a child; returns its standard output and its error."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"it did not end within {_TIMEOUT} seconds"
    if result.returncode == 0:
        return result.stdout, ""
    if result.returncode < 0:
        return "", f"the process ended by signal {-result.returncode}"
    return "", (result.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def _distribution(library: str) -> str:
    """The installed distribution that a file belongs to, with its version."""
    name, library = Path(library).name, os.path.realpath(library)
    for distribution in metadata.distributions():
        files = distribution.files or ()
        if any(file.name == name and os.path.realpath(file.locate()) == library for file in files):
            return f"{distribution.metadata['Name']} {distribution.version}"
    return "of no installed package"


def _plugins() -> tuple[list[tuple[str, str]], list[str]]:
    rows, problems = [], []
    found = {spec.platform: spec.library for spec in finder.find_plugins()}
    for name, path in os.environ.items():
        if match := re.fullmatch(r"PJRT_(\w+)_LIBRARY_PATH", name):
            found[match[1]] = path
    for name, library in found.items():
        if not Path(library).is_file():
            rows.append((name, f"{library}: missing"))
            problems.append(
                f"The plugin of {name}, {library}, is not there: reinstall its package, or correct "
                f"PJRT_{name}_LIBRARY_PATH."
            )
            continue
        version, wrong = _run(_API, library)
        rows.append((name, f"{_distribution(library)}, API {version.strip() or '?'}, {library}"))
        if wrong:
            problems.append(
                f"The plugin of {name} cannot be loaded ({wrong}): reinstall its package."
            )
    if not found:
        problems.append(
            "No PJRT plugin is installed: pip install fastatomstruct-xla-cpu gives that of the CPU."
        )
    for device, name, package in (
        ("/dev/nvidia[0-9]*", "CUDA", "jax-cuda13-pjrt"),
        ("/dev/kfd", "ROCM", "jax-rocm7-pjrt"),
        ("/dev/accel*", "TPU", "libtpu"),
    ):
        if glob.glob(device) and name not in found:
            problems.append(
                f"This machine has {glob.glob(device)[0]} and no plugin of {name}: pip install "
                f"{package}."
            )
    return rows, problems


def _variables() -> tuple[list[tuple[str, str]], list[str]]:
    known = variables.known_names()
    rows = [
        (name, os.environ[name])
        for name in sorted(os.environ)
        if re.match(r"(PT_|TORCH_)?XLA_|PJRT_|TPU_", name) or (name in known and name != "HOME")
    ]
    problems = [
        f"torch_xla does not read {name}: unset it; if {near} is meant, set that."
        for name, near in variables.misspelt().items()
    ]
    for variable in variables.ALL.values():
        try:
            variable.value()
        except ValueError as error:
            problems.append(f"{error}: correct it, or unset it.")
    return rows, problems


def _cache() -> tuple[str, list[str]]:
    settings = _XLAC._xla_cache_settings()
    if settings is None:
        return "none", []
    folder, read_only, _ = settings
    existing = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if not read_only and not os.access(existing, os.W_OK | os.X_OK):
        return folder, [
            f"Compiled programs cannot be kept in {folder}: set XLA_PERSISTENT_CACHE_PATH to a "
            "folder that can be written."
        ]
    return folder, []


def _devices() -> tuple[list[tuple[str, str]], list[str]]:
    output, wrong = _run(_SMOKE)
    line = next((x for x in output.splitlines() if x.startswith("REPORT ")), None)
    if line is None:
        return [("program", "does not run")], [
            f"A small program does not run ({wrong}): mend that, or set PJRT_DEVICE=CPU to run on "
            "the CPU."
        ]
    report: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
    rows = [
        ("platform", f"{report['platform']}, started in {report['start']:.2f} s"),
        *zip(report["devices"], report["kinds"], strict=True),
    ]
    if platform_choice.topology():
        rows.append(("program", f"compiled in {report['program']:.2f} s; nothing is there to run"))
        return rows, []
    rows.append(("program", f"runs, {report['program']:.2f} s with its compilation"))
    if report["value"] != _EXPECTED:
        return rows, [
            f"A small program gives {report['value']} and not {_EXPECTED}: do not trust the plugin "
            f"of {report['platform']}; install another version of it."
        ]
    return rows, []


def main() -> int:
    """Prints what is found, and returns 1 where something is wrong."""
    cache, problems = _cache()
    sections = {
        "installation": [
            ("python", f"{platform.python_version()} on {platform.platform()}"),
            ("torch", f"{torch.__version__}, {Path(torch.__file__).parent}"),
            ("torch_xla", f"{torch_xla.__version__}, {_XLAC.__file__}"),
            ("compiled programs", cache),
        ]
    }
    for name, look in (("plugins", _plugins), ("variables", _variables), ("devices", _devices)):
        sections[name], more = look()
        problems += more
    for name, rows in sections.items():
        print(f"{name}:")
        for label, value in rows or [("none", "")]:
            print(f"  {label:<18} {value}".rstrip())
    print()
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        print("All is well.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
