"""The package's own functions, torch.xla, and what an import costs."""

import io
import shutil
import sys
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from testing.executor import executed_on_device
from testing.processes import python_output
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._internal.device import module as device_module


class TestImport:
    def test_version(self):
        assert torch_xla.__version__ == "2.13.0"

    @pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cu130", "2.15.0a0+git123"])
    def test_supported_torch(self, version):
        torch_xla._check_torch_version(version)

    @pytest.mark.parametrize("version", ["2.9.1", "2.10.0", "2.16.0", "3.0"])
    def test_other_torch_is_one_clear_line(self, version):
        with pytest.raises(ImportError, match="works with torch 2.11 to 2.15") as info:
            torch_xla._check_torch_version(version)
        assert version in str(info.value)
        assert "\n" not in str(info.value)

    @pytest.mark.parametrize(
        ("files", "told"),
        [
            ([], "its extension torch_xla._XLAC is not built; run `pip install .`"),
            (["_XLAC/__init__.pyi"], "its extension torch_xla._XLAC is not built; run"),
            (["_XLAC.cpython-39-x86_64-linux-gnu.so"], "was built for another Python than 3."),
            ([f"_XLAC{EXTENSION_SUFFIXES[0]}"], "its extension is refused: "),
        ],
        ids=["none", "stubs", "another Python's", "damaged"],
    )
    def test_without_its_extension_says_what_is_wrong(self, tmp_path, files, told):
        package = tmp_path / "torch_xla"
        package.mkdir()
        shutil.copy(Path(torch_xla.__file__), package)
        for name in files:
            (package / name).parent.mkdir(exist_ok=True)
            (package / name).write_text("# nothing")
        code = (
            "import sys\n"
            "sys.meta_path = [x for x in sys.meta_path if x.__module__.startswith('_frozen')]\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\n"
            "import torch\n"
            "try:\n"
            "    import torch_xla\n"
            "except ImportError as error:\n"
            "    print(error)\n"
        )
        message = python_output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert f"torch_xla {torch_xla.__version__} cannot be loaded: " in message
        assert told in message and "another torch" not in message

    def test_an_undefined_symbol_is_of_another_torch(self):
        told = torch_xla._why_not_loaded(ImportError("_XLAC.so: undefined symbol: _ZN3c10"))
        assert f"built for another torch than {torch.__version__}; reinstall" in told

    def test_requires_the_torch_it_was_built_with(self):
        minor = ".".join(torch.__version__.split(".")[:2])
        assert f"torch=={minor}.*" in metadata.requires("torch_xla")

    def test_import_is_light(self):
        """It loads a few modules of its own and the plugin's wheel, no other package."""
        code = (
            "import sys, torch\n"
            "before = set(sys.modules)\n"
            "import torch_xla\n"
            "print(*set(sys.modules) - before)\n"
        )
        modules = python_output(code).split()
        packages = {name.rpartition(".")[0] for name in modules}
        assert len(set(modules) - packages) < 50
        packages = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
        # Asked where its library is.
        plugins = {
            name for name in packages if "xla_cpu" in name or "pjrt" in name or "_plugins" in name
        }
        assert packages <= {"torch", "torch_xla", "_XLAC"} | plugins

    def test_import_starts_nothing(self):
        code = (
            "import sys, torch, torch_xla\n"
            "torch.manual_seed(0)\n"
            "assert not torch.xla.is_initialized()\n"
            "assert 'jax' not in sys.modules\n"
            "torch_xla.devices()\n"
            "assert torch.xla.is_initialized()\n"
        )
        python_output(code)

    def test_asking_for_the_platform_starts_nothing(self):
        """Launchers ask (Lightning's does) before they fork the replicas."""
        code = (
            "import torch, torch_xla, torch_xla.runtime as xr\n"
            "print(xr.device_type(), torch.xla.is_initialized())\n"
            "torch_xla.devices()\n"
            "print(xr.device_type())\n"
        )
        assert python_output(code, PJRT_DEVICE="cpu").splitlines() == ["CPU False", "CPU"]

    def test_all_names_exist(self):
        assert all(hasattr(torch_xla, name) for name in torch_xla.__all__)


class TestDevices:
    def test_devices(self, device):
        assert torch_xla.devices()[0] == torch.device("xla:0")
        assert torch_xla.device_count() == len(torch_xla.devices()) == len(torch_xla.real_devices())
        assert torch_xla.device() == device
        assert torch_xla.device(0) == torch.device("xla:0")
        assert torch_xla.real_devices()[0] == f"{xr.device_type()}:0"

    def test_unknown_device(self):
        with pytest.raises(RuntimeError, match="n=77"):
            xm.xla_device(77)
        with pytest.raises(RuntimeError, match="devkind=NOSUCH"):
            xm.xla_device(devkind="NOSUCH")

    def test_kinds(self, device):
        hardware = xm.xla_device_hw(device)
        assert hardware in ("CPU", "GPU", "TPU")
        assert xm.xla_device_hw("cpu") == "CPU"
        assert xm.get_xla_supported_devices(hardware) == xm.get_xla_supported_devices()
        assert xm.get_xla_supported_devices(hardware, max_devices=1) == ["xla:0"]
        assert xm.get_xla_supported_devices("NOSUCH") == []
        assert xm.xla_real_devices([device]) == torch_xla.real_devices()[:1]

    def test_several_devices(self):
        code = (
            "import torch, torch_xla, torch_xla.core.xla_model as xm\n"
            "assert torch_xla.device_count() == 2\n"
            "assert torch.xla.current_device() == 0\n"
            "with torch.xla.device(1):\n"
            "  assert torch.ones(1, device='xla').device == torch.device('xla:1')\n"
            "assert torch.ones(1, device='xla').device == torch.device('xla:0')\n"
            "device = xm.xla_device(1)\n"
            "assert torch.xla.current_device() == 1\n"
            "a = torch.ones(3, device=device) + 1\n"
            "xm.mark_step()\n"
            "print(a.tolist())\n"
        )
        output = python_output(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2")
        assert output == "[2.0, 2.0, 2.0]"

    def test_single_replica(self):
        assert xr.world_size() == xr.process_count() == xm.xrt_world_size() == 1
        assert xr.global_ordinal() == xr.local_ordinal() == xr.process_index() == 0
        assert xm.get_ordinal() == xm.get_local_ordinal() == 0
        assert xm.get_ordinal(7) == xm.get_local_ordinal(7) == 7
        assert xm.xrt_world_size(5) == 5
        assert xm.is_master_ordinal()
        assert xm.is_master_ordinal(local=False)
        assert xr.addressable_device_count() == xr.global_device_count() == torch_xla.device_count()

    def test_master_print(self, capsys):
        xm.master_print("a", 1)
        assert capsys.readouterr().out == "a 1\n"
        file = io.StringIO()
        xm.master_print("b", fd=file)
        assert file.getvalue() == "b\n"

    def test_memory_info(self, device):
        torch_xla.sync(wait=True)
        before = xm.get_memory_info(device)
        a = torch.ones(1 << 20).to(device)
        torch_xla.sync(wait=True)
        info = xm.get_memory_info(device)
        assert info["bytes_used"] - before["bytes_used"] == a.nbytes
        assert info["peak_bytes_used"] >= info["bytes_used"]
        assert info["kb_total"] >= info["kb_free"] > 0
        assert torch.xla.memory_allocated() == info["bytes_used"]
        assert torch.xla.max_memory_allocated(device) == info["peak_bytes_used"]


class TestSteps:
    def test_sync_cuts_the_graph(self, device):
        a = torch.ones(2).to(device) + 1
        assert "aten::add" in torch_xla._XLAC._get_xla_tensors_text([a])
        torch_xla.sync()
        assert "aten::add" not in torch_xla._XLAC._get_xla_tensors_text([a])

    def test_unlazy(self, device):
        a = torch.ones(2).to(device) + 1
        b = torch.ones(2).to(device) + 2
        xm.unlazy([a])
        assert "aten::add" not in torch_xla._XLAC._get_xla_tensors_text([a])
        assert "aten::add" in torch_xla._XLAC._get_xla_tensors_text([b])

    def test_wait_device_ops(self, device):
        for devices in ((), [device], [str(device)], ["xla"]):
            before = executed_on_device()
            a = torch.ones(2).to(device) + 1
            torch_xla.sync()
            xm.wait_device_ops(devices)
            assert executed_on_device() == before + 1 and a.tolist() == [2, 2]

    @pytest.mark.parametrize("style", ["call", "decorator", "context", "step", "empty call"])
    def test_compile(self, device, style):
        def double(x):
            """Doubles."""
            return x * 2

        a = torch.ones(2).to(device) + 1
        if style == "call":
            result = torch_xla.compile(double)(a)
        elif style == "decorator":
            decorated = torch_xla.compile(double)
            assert decorated.__doc__ == "Doubles."
            result = decorated(x=a)
        elif style == "empty call":
            result = torch_xla.compile()(double)(a)
        else:
            with torch_xla.compile() if style == "context" else torch_xla.step():
                # The region begins with a graph of its own.
                assert "aten::add" not in torch_xla._XLAC._get_xla_tensors_text([a])
                result = double(a)
        assert "aten::mul" not in torch_xla._XLAC._get_xla_tensors_text([result])
        assert result.tolist() == [4.0, 4.0]

    def test_compile_wants_a_callable(self):
        with pytest.raises(TypeError, match="callable"):
            torch_xla.compile(3)

    def test_error_in_a_region_passes(self, device):
        with pytest.raises(KeyError), torch_xla.step():
            raise KeyError

    def test_optimizer_step(self, device):
        parameter = torch.nn.Parameter(torch.ones(2).to(device))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        parameter.grad = torch.ones_like(parameter)
        assert xm.optimizer_step(optimizer) is None
        assert xm.optimizer_step(optimizer, optimizer_args={"closure": lambda: 3}) == 3
        xm.optimizer_step(optimizer, barrier=True, groups=[[0]])
        assert parameter.tolist() == [-0.5, -0.5]
        with pytest.raises(ValueError, match="groups"):
            xm.optimizer_step(optimizer, groups=[[0, 1]])


class TestSave:
    def test_nested(self, device, tmp_path):
        model = torch.nn.Linear(2, 2).to(device)
        data = {
            "state": model.state_dict(),
            "list": [torch.arange(3).to(device), "text", (torch.ones(1).to(device) + 1,)],
            "parameter": model.weight,
        }
        path = tmp_path / "data.pt"
        xm.save(data, path)
        loaded = torch.load(path)
        assert loaded["state"]["weight"].device.type == "cpu"
        torch.testing.assert_close(loaded["state"]["weight"], model.weight.detach().cpu())
        assert loaded["list"][0].tolist() == [0, 1, 2]
        assert loaded["list"][2][0].item() == 2
        assert isinstance(loaded["parameter"], torch.nn.Parameter)
        assert model.weight.device == device

    def test_file_object(self, device):
        file = io.BytesIO()
        xm.save([torch.ones(2).to(device)], file, master_only=False)
        file.seek(0)
        assert torch.load(file)[0].tolist() == [1.0, 1.0]


class TestDeviceModule:
    def test_registered(self):
        assert torch.xla is torch.get_device_module("xla") is device_module
        device_module.register()  # A second time changes nothing.
        assert torch.xla is device_module

    def test_queries(self, device):
        assert torch.xla.is_available()
        assert torch.xla.is_initialized()
        assert torch.xla.device_count() == torch_xla.device_count()
        assert torch.xla.current_device() == device.index
        assert isinstance(torch.xla.get_device_name(), str)
        assert torch.bfloat16 in torch.xla.get_amp_supported_dtype()
        assert not torch.xla._is_in_bad_fork()

    def test_devices_by_any_name(self, device):
        for name in (None, 0, -1, "xla", "xla:0", device):
            torch.xla.synchronize(name)
            torch.xla.set_device(name)
            with torch.xla.device(name):
                assert torch.xla.current_device() == 0
        with pytest.raises(ValueError, match="cpu"):
            torch.xla.synchronize("cpu")
        torch.xla.empty_cache()

    def test_fork(self):
        code = (
            "import os, torch, torch_xla\n"
            "torch_xla.devices()\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "  ok = torch.xla._is_in_bad_fork()\n"
            "  torch.manual_seed(1)\n"
            "  os._exit(0 if ok else 1)\n"
            "print(os.waitpid(pid, 0)[1])\n"
        )
        assert python_output(code) == "0"


class TestSeeds:
    @pytest.mark.parametrize(
        "seed",
        [torch.manual_seed, torch.random.manual_seed, torch.xla.manual_seed, torch_xla.manual_seed],
    )
    def test_seed_repeats(self, device, seed):
        seed(5)
        first = torch.rand(4, device=device).tolist()
        second = torch.rand(4, device=device).tolist()
        assert first != second
        seed(5)
        assert torch.rand(4, device=device).tolist() == first
        assert torch.rand(4, device=device).tolist() == second
        seed(6)
        assert torch.rand(4, device=device).tolist() != first

    @pytest.mark.parametrize("value", [0, -1, 2**63, 2**64 - 1])
    def test_seeds_of_64_bits(self, device, value):
        torch.manual_seed(value)
        assert xm.get_rng_state() == value % 2**64

    def test_nothing_but_seeds_takes_the_module_of_private_use(self):
        name = torch._C._get_privateuse1_backend_name()
        assert not torch._utils._is_privateuse1_backend_available()
        assert torch._utils._get_available_device_type() != name
        assert torch.get_device_module(name).device_count() == 0

    def test_random_seed_reaches_the_device(self, device):
        seed = torch.seed()
        assert xm.get_rng_state(device) == seed

    def test_states(self, device):
        xm.set_rng_state(9)
        assert xm.get_rng_state() == 9
        xm.set_rng_state(10, str(device))
        assert xm.get_rng_state(device) == 10
        state = torch.xla.get_rng_state()
        assert state.dtype == torch.uint8
        expected = torch.rand(3, device=device).tolist()
        torch.xla.set_rng_state(state)
        assert torch.rand(3, device=device).tolist() == expected
        with pytest.raises(ValueError, match="uint8"):
            torch.xla.set_rng_state(torch.zeros(8))

    def test_fork_rng(self, device):
        torch.manual_seed(3)
        with torch.random.fork_rng(devices=[0], device_type="xla"):
            inner = torch.rand(3, device=device).tolist()
        assert torch.rand(3, device=device).tolist() == inner

    def test_checkpoint_repeats_dropout(self, device):
        x = torch.ones(64, requires_grad=True)
        x = x.to(device).detach().requires_grad_()
        torch.manual_seed(0)
        y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())
