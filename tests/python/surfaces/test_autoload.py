"""``import torch`` alone makes the device known; torch_xla is imported when it is used."""

import pytest
from testing.processes import python_output

_LOADED = "\nimport sys; print('torch_xla' in sys.modules)"


@pytest.mark.multiprocess
class TestAutoload:
    @pytest.mark.parametrize(
        "use",
        [
            "torch.ones(2).to('xla')",
            "torch.nn.Linear(2, 2).to(torch.device('xla', 0))",
            "torch.randn(2, device='xla')",
            "torch.tensor([1, 2], device='xla')",
            "torch.empty_strided((2,), (1,), device='xla')",
            "torch.tril_indices(3, 3, device='xla')",
            "torch.xla.device_count()",
            "torch.get_device_module('xla').device_count()",
            "torch.ones(2, requires_grad=True).to('xla').sum().backward()",
            "assert torch.accelerator.current_accelerator() == torch.device('xla')",
            "assert torch.accelerator.is_available() and torch.accelerator.device_count() > 0",
            "torch.accelerator.synchronize(); assert torch.accelerator.current_device_index() == 0",
            "import io; f = io.BytesIO(); torch.save(torch.ones(2), f); f.seek(0); "
            "assert torch.load(f, map_location='xla').tolist() == [1, 1]",
        ],
    )
    def test_first_use_imports(self, use):
        code = f"import torch; {use}; assert torch.arange(3, device='xla').tolist() == [0, 1, 2]"
        assert python_output(code + _LOADED, PJRT_DEVICE="CPU") == "True"

    def test_who_does_not_ask_gets_nothing(self):
        code = (
            "import inspect, torch\n"
            "model = torch.nn.Linear(2, 2)\n"
            "torch.optim.AdamW(model.parameters())\n"
            "model(torch.ones(2, 2)).sum().backward()\n"
            "torch.manual_seed(0)\n"
            "inspect.getmodule(inspect.stack()[0][0])\n"
        )
        assert python_output(code + _LOADED) == "False"

    def test_a_backward_pass_before_the_device_is_used(self):
        code = (
            "import torch\n"
            "model = torch.nn.Linear(2, 1)\n"
            "model(torch.ones(2, 2)).sum().backward()\n"
            "model.to('xla')\n"
            "model(torch.ones(2, 2, device='xla')).sum().backward()\n"
            "print(model.bias.grad.item())\n"
        )
        assert python_output(code) == "4.0"

    def test_what_is_tied_stays_tied(self):
        code = (
            "import torch\n"
            "from torch import nn\n"
            "model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))\n"
            "model[1].weight = model[0].weight\n"
            "model.{move}\n"
            "assert model[1].weight is model[0].weight and model[0].weight.device.type == 'xla'\n"
            "assert len(list(model.parameters())) == 1\n"
            "print(torch.nn.Module.to.__module__)"
        )
        for move in ("to('xla')", "to(device=torch.device('xla'))", "to_empty(device='xla')"):
            assert python_output(code.format(move=move)) == "torch.nn.modules.module", move

    def test_variable_turns_it_off(self):
        code = (
            "import sys, torch\n"
            "assert not hasattr(torch, 'xla') and 'torch_xla_autoload' not in sys.modules\n"
            "import torch_xla\n"
            "print(torch.ones(2).to('xla').tolist(), torch.xla.device_count() > 0)\n"
        )
        assert python_output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[1.0, 1.0] True"

    def test_import_of_the_package_makes_it_the_device_module(self):
        code = (
            "import torch_xla, torch, sys\n"
            "assert torch.xla is sys.modules['torch.xla']\n"
            "print(torch.xla.__name__)\n"
        )
        assert python_output(code) == "torch.xla"

    def test_broken_package_does_not_break_torch(self):
        code = (
            "import sys\n"
            "class Broken:\n"
            "    def find_spec(self, name, *args):\n"
            "        if name == 'torch_xla':\n"
            "            raise ImportError('built for another torch')\n"
            "sys.meta_path.insert(0, Broken())\n"
            "import torch\n"
            "for use in (lambda: torch.ones(2).to('xla'), lambda: torch.ones(2, device='xla')):\n"
            "    try:\n"
            "        use()\n"
            "    except RuntimeError as error:\n"
            "        print(str(error).splitlines()[0])\n"
            "assert torch.ones(2).sum() == 2\n"
        )
        said = python_output(code).splitlines()
        assert len(said) == 2
        for line in said:
            assert "needs torch_xla, which cannot be imported: built for another torch" in line

    @pytest.mark.parametrize(
        "breakage",
        [
            "sys.modules['torch_xla_autoload._preload'] = None",
            "from types import SimpleNamespace as N\n"
            "sys.modules['torch_xla_autoload._preload'] = N(TORCH='1.13.0', release=lambda: None)",
        ],
        ids=["no extension", "another torch"],
    )
    def test_broken_preload_does_not_break_torch(self, breakage):
        code = (
            f"import sys; {breakage}\n"
            "import torch\n"
            "assert not hasattr(torch, 'xla')\n"
            "import torch_xla\n"
            "print(torch.ones(2).to('xla').tolist())\n"
        )
        assert python_output(code) == "[1.0, 1.0]"

    def test_programs_that_ask_for_no_device(self):
        """Who does not ask for xla gets PyTorch's own answers, and its own functions."""
        code = (
            "import torch\n"
            "accelerator, function = torch.accelerator, torch._C._accelerator_getAccelerator\n"
            "print(type(function).__name__, accelerator.current_accelerator())\n"
            "print(accelerator.device_count(), accelerator.is_available())\n"
            "loader = torch.utils.data.DataLoader([1.0, 2.0], pin_memory=True)\n"
            "print([x.tolist() for x in loader])\n"
        )
        ours = python_output(code + _LOADED, PJRT_DEVICE="")
        without = python_output(code + _LOADED, PJRT_DEVICE="", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert ours == without and ours.endswith("False")

    def test_a_broken_package_leaves_the_accelerators_of_torch(self):
        code = (
            "import sys\n"
            "sys.modules['torch_xla'] = None\n"
            "import torch\n"
            "print(torch.accelerator.current_accelerator(), torch.accelerator.is_available())\n"
            "print(type(torch._C._accelerator_getAccelerator).__name__)\n"
        )
        assert python_output(code, PJRT_DEVICE="CPU").split()[-1] == "builtin_function_or_method"
