"""Toy device plugins: the CPU's, with other functions."""

import shutil
import subprocess
from pathlib import Path

import pytest

from torch_xla._internal.plugins import finder

SOURCES = Path(__file__).parents[3] / "torch_xla" / "csrc"

# The CPU's plugin, with another table.
TOY = """
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "runtime/pjrt_abi.h"
using namespace torch_xla::runtime::pjrt;
static PJRT_Api api;
static const PJRT_Api* real;
extern "C" const PJRT_Api* GetPjrtApi() {
  if (real) return &api;
  void* library = dlopen(REAL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  real = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  std::memcpy(&api, real, std::min(real->struct_size, sizeof api));
  api.struct_size = std::min(real->struct_size, sizeof api);
  CHANGE
  return &api;
}
"""


def cpu_plugin() -> str:
    (library,) = (spec.library for spec in finder.find_plugins() if spec.platform == "CPU")
    return library


def make_toy(folder: Path, change: str) -> str:
    """Makes a plugin whose table ``api`` a statement of C++ changes; returns its path."""
    if not shutil.which("c++") or not SOURCES.is_dir():
        pytest.skip("needs a compiler and the sources")

    library = folder / "toy.so"
    source = TOY.replace("REAL_PLUGIN", f'"{cpu_plugin()}"').replace("CHANGE", change)
    (folder / "toy.cpp").write_text(source)
    command = ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{SOURCES}", "toy.cpp", "-o"]
    subprocess.run([*command, library], cwd=folder, check=True, timeout=100)
    return str(library)
