"""Discovery of PJRT plugins."""

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from testing.processes import start_python

from torch_xla import _XLAC
from torch_xla._internal.plugins import finder


@pytest.fixture(autouse=True)
def no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREALLOCATE", "FRACTION", "CUDA_ASYNC"):
        monkeypatch.delenv(f"PJRT_ALLOCATOR_{name}", raising=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, before all others."""
    before = sys.modules.pop("jax_plugins", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    # It knows the folder, and jax would look there.
    sys.modules.pop("jax_plugins", None)
    if before is not None:
        sys.modules["jax_plugins"] = before


def install(site: Path, name: str, files: dict[str, str], entry_points: str = "") -> None:
    """Makes a distribution with files and entry points, as pip would."""
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def found() -> dict[str, finder.PluginSpec]:
    return {spec.platform: spec for spec in finder.find_plugins()}


def test_default_cpu_wheel():
    spec = found()["CPU"]
    assert Path(spec.library).is_file()
    assert spec.options == {}


@pytest.mark.parametrize(
    "code",
    [
        "plugin = '/lib/chip.so'",
        "def plugin(): return '/lib/chip.so'",
        "class plugin:\n  def library_path(self): return '/lib/chip.so'",
        "class Plugin:\n  def library_path(self): return '/lib/chip.so'\nplugin = Plugin()",
    ],
)
def test_entry_point_forms(site, code):
    module = f"chip_plugin_{abs(hash(code))}"
    install(site, module, {f"{module}.py": code}, f"[torch_xla.plugins]\nchip = {module}:plugin\n")
    assert found()["CHIP"] == ("CHIP", "/lib/chip.so", {})


def test_entry_point_options(site):
    code = (
        "class Plugin:\n"
        "  def library_path(self): return '/lib/opt.so'\n"
        "  def client_create_options(self): return {'cores': 2, 'name': 'x', 'on': True}\n"
    )
    install(
        site,
        "opt_plugin",
        {"opt_plugin.py": code},
        "[torch_xla.plugins]\nopt = opt_plugin:Plugin\n",
    )
    assert found()["OPT"].options == {"cores": 2, "name": "x", "on": True}


def test_broken_entry_point_is_left_out_with_a_warning(site):
    install(
        site,
        "broken_plugin",
        {"broken_plugin.py": "raise OSError('driver is missing')"},
        "[torch_xla.plugins]\nbroken = broken_plugin:Plugin\n",
    )
    with pytest.warns(UserWarning, match="'broken'.*OSError: driver is missing"):
        specs = found()
    assert "BROKEN" not in specs
    assert "CPU" in specs


def test_entry_point_wins_over_a_known_wheel(site):
    install(
        site,
        "own_cpu",
        {"own_cpu.py": "path = '/lib/own_cpu.so'"},
        "[torch_xla.plugins]\ncpu = own_cpu:path\n",
    )
    assert found()["CPU"].library == "/lib/own_cpu.so"


IMPORTS_JAX = "raise AssertionError('imported')"


def test_jax_plugin_is_found_without_import(site):
    install(
        site,
        "jax_plugin_for_test",
        {
            "jax_plugins/xla_cuda13/__init__.py": IMPORTS_JAX,
            "jax_plugins/xla_cuda13/xla_cuda_plugin.so": "",
            "jax_plugins/mychip/__init__.py": IMPORTS_JAX,
            "jax_plugins/mychip/pjrt_mychip.so": "",
            "jax_plugins/mychip/helper.so": "",
        },
        "[jax_plugins]\nxla_cuda13 = jax_plugins.xla_cuda13\nmychip = jax_plugins.mychip\n",
    )
    specs = found()
    assert specs["CUDA"].library == str(site / "jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    assert specs["MYCHIP"].library == str(site / "jax_plugins/mychip/pjrt_mychip.so")
    assert list(specs).index("CUDA") < list(specs).index("CPU")


def test_cuda_wheel_is_found_without_entry_point(site, monkeypatch):
    # That of CUDA 13 comes first, where it is installed (requirements-platforms.txt).
    folder = finder._module_folder
    monkeypatch.setattr(finder, "_module_folder", lambda name: "13" not in name and folder(name))
    install(site, "cuda12", {"jax_plugins/xla_cuda12/xla_cuda_plugin.so": ""})
    (site / "jax_plugins/xla_cuda12/__init__.py").write_text(IMPORTS_JAX)
    assert found()["CUDA"].library.endswith("xla_cuda12/xla_cuda_plugin.so")


def test_tpu_wheel_needs_a_chip(site, monkeypatch):
    install(
        site, "libtpu", {"libtpu/__init__.py": "def get_library_path(): return '/lib/libtpu.so'"}
    )
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    monkeypatch.setattr(finder.glob, "glob", lambda pattern: [])
    assert "TPU" not in found()
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    assert found()["TPU"].library == "/lib/libtpu.so"

    # A chip that is not there needs no other variable.
    monkeypatch.setattr(os, "environ", {"XLA_TOPOLOGY": "v5e:2x2"})
    monkeypatch.setattr(finder, "_known", {})
    calls = []
    monkeypatch.setattr(_XLAC, "_xla_add_plugin", lambda *args: calls.append(args))
    finder.register_plugins()
    assert calls[-1][:2] == ("TPU", "/lib/libtpu.so")


def test_registration_passes_everything_on(monkeypatch):
    calls = []
    monkeypatch.setattr(_XLAC, "_xla_add_plugin", lambda *args: calls.append(args))
    finder.register_plugins()
    assert calls == [tuple(spec) for spec in finder.find_plugins()]


def test_the_environment_says_how_a_gpu_allocates(monkeypatch):
    specs = [
        finder.PluginSpec("CUDA", "/lib/cuda.so", {"memory_fraction": 0.9}),
        finder.PluginSpec("CPU", "/lib/cpu.so", {}),
    ]
    calls = []
    monkeypatch.setattr(finder, "find_plugins", lambda: specs)
    monkeypatch.setattr(_XLAC, "_xla_add_plugin", lambda *args: calls.append(args))
    monkeypatch.setenv("PJRT_ALLOCATOR_PREALLOCATE", "false")
    monkeypatch.setenv("PJRT_ALLOCATOR_FRACTION", "0.5")
    monkeypatch.setenv("PJRT_ALLOCATOR_CUDA_ASYNC", "1")
    finder.register_plugins()
    # A plugin's own options hold.
    options = {"preallocate": False, "memory_fraction": 0.9, "allocator": "cuda_async"}
    assert calls == [("CUDA", "/lib/cuda.so", options), ("CPU", "/lib/cpu.so", {})]


SHOW_DEVICES = "import torch_xla; print(torch_xla.real_devices())"


def test_number_of_cpu_devices():
    result = start_python("-c", SHOW_DEVICES, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2")
    assert result.stdout == "['CPU:0', 'CPU:1']\n", result.stderr


def test_unknown_platform_is_an_exception():
    result = start_python("-c", SHOW_DEVICES, PJRT_DEVICE="NOSUCH")
    assert result.returncode == 1
    assert "NOSUCH" in result.stderr.splitlines()[-1] or "RuntimeError" in result.stderr


def test_wrong_library_path_is_an_exception():
    result = start_python(
        "-c", SHOW_DEVICES, PJRT_DEVICE="CPU", PJRT_CPU_LIBRARY_PATH="/no/such/file.so"
    )
    assert result.returncode == 1
    assert "/no/such/file.so" in result.stderr
    assert "RuntimeError" in result.stderr


# Each makes the client. Reading the library from a pipe, that waits for somebody to write to it:
# another thread, which needs the GIL.
BINDINGS_THAT_WAIT = """
import os, threading
import torch
from torch_xla import _XLAC

capsule = torch.utils.dlpack.to_dlpack(torch.ones(3))
storage = torch.ones(3).untyped_storage()
calls = {
    "platform": lambda: _XLAC._xla_platform(),
    "devices": lambda: _XLAC._xla_get_devices(),
    "memory_info": lambda: _XLAC._xla_memory_info("xla:0"),
    "from_dlpack": lambda: _XLAC._xla_from_dlpack(capsule, "xla:0", 0),
    "dlpack_device": lambda: _XLAC._xla_dlpack_device("xla:0"),
    "external_stream": lambda: _XLAC._xla_external_stream("xla:0"),
    "storage_from_host": lambda: _XLAC._xla_storage_from_host(storage, "xla:0"),
}
pipe = os.environ["PJRT_CPU_LIBRARY_PATH"]
for name, call in calls.items():
    print(name, flush=True)
    writer = threading.Thread(target=lambda: open(pipe, "wb").close())
    writer.start()
    try:
        call()
    except RuntimeError as error:
        assert "Cannot load" in str(error), error
    else:
        raise AssertionError(name)
    writer.join()
print("done")
"""


def test_bindings_that_may_make_the_client_release_the_gil(tmp_path):
    os.mkfifo(tmp_path / "plugin.so")
    result = start_python(
        "-c",
        BINDINGS_THAT_WAIT,
        PJRT_DEVICE="CPU",
        PJRT_CPU_LIBRARY_PATH=str(tmp_path / "plugin.so"),
    )
    assert result.stdout.endswith("done\n"), result.stdout + result.stderr[-2000:]


VENDOR = """
import os
from torch_xla.experimental.plugins import DevicePlugin

class Plugin(DevicePlugin):
    def library_path(self):
        return os.environ["REAL_PLUGIN"]
    def client_create_options(self):
        return {"cpu_device_count": 2}
"""
USE_VENDOR = "import torch; print(torch.ones(3, device='xla:1').sum().item())"


def test_a_vendor_s_wheel_is_found_and_used(tmp_path):
    info = "mychip-1.0.dist-info/"
    with zipfile.ZipFile(tmp_path / "mychip-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mychip.py", VENDOR)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: mychip\nVersion: 1.0\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(info + "entry_points.txt", "[torch_xla.plugins]\nmychip = mychip:Plugin\n")
        wheel.writestr(info + "RECORD", "")
    site = tmp_path / "site"
    pip = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
    installed = start_python(*pip, wheel.filename)
    assert installed.returncode == 0, installed.stderr
    result = start_python(
        "-c",
        USE_VENDOR,
        PYTHONPATH=str(site),
        PJRT_DEVICE="MYCHIP",
        REAL_PLUGIN=found()["CPU"].library,
    )
    assert result.stdout == "3.0\n", result.stderr
