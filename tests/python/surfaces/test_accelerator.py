"""torch.accelerator and torch.xla: what device-agnostic programs ask."""

import os

import pytest
import torch
from testing.ops import rand
from testing.processes import python_output

import torch_xla
from torch_xla._internal.patches import accelerator


def test_accelerator(device):
    accelerator = torch.accelerator
    x = torch.ones(256, device=device)
    torch_xla.sync(wait=True)
    assert accelerator.current_accelerator() == torch.device("xla")
    assert accelerator.current_accelerator(check_available=True) == torch.device("xla")
    assert accelerator.is_available() and accelerator.device_count() == torch_xla.device_count()
    assert accelerator.current_device_index() == device.index
    accelerator.set_device_index(device.index)
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    accelerator.synchronize()
    accelerator.synchronize(device)
    accelerator.empty_cache()
    assert accelerator.memory_allocated() == torch.xla.memory_allocated()
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.peak"] == accelerator.max_memory_allocated()
    assert accelerator.memory.memory_reserved(device) == torch.xla.memory_reserved(device)
    if hasattr(accelerator, "get_device_capability"):  # Of a later torch.
        dtypes = accelerator.get_device_capability()["supported_dtypes"]
        assert torch.bfloat16 in dtypes and torch.qint8 not in dtypes
    stream = accelerator.current_stream()
    assert stream.device == device and stream == torch.xla.default_stream()
    accelerator.set_stream(stream)
    assert x.sum().item() == 256


_ASKS = [
    "",
    "import os; os.environ['PJRT_DEVICE'] = 'CPU'",
    "torch_xla and torch.distributed.init_process_group("
    "'xla', store=torch.distributed.HashStore(), rank=0, world_size=1)",
]


@pytest.mark.parametrize("asks", _ASKS)
def test_a_program_that_does_not_ask_for_xla_has_no_accelerator(asks):
    code = "import torch{}\n{}\nprint(torch.accelerator.current_accelerator())"
    environment = {"PJRT_DEVICE": ""} if "PJRT_DEVICE" in os.environ else {}
    without = python_output(code.format("", ""), **environment).strip()
    found = python_output(code.format(", torch_xla", asks), **environment).strip()
    assert found == ("xla" if asks else without)


def test_an_accelerator_of_the_build_that_has_no_device(device, monkeypatch):
    monkeypatch.setattr(accelerator, "_torch_finds", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    accelerator._torch_has_one.cache_clear()
    assert torch.accelerator.current_accelerator() == torch.device("xla")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    accelerator._torch_has_one.cache_clear()
    assert torch.accelerator.current_accelerator() != torch.device("xla")
    accelerator._torch_has_one.cache_clear()


_TRAINS_ON_THE_CPU = """
import torch
{imports}
def train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    x = torch.rand(4, 4)
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=1e-3)
        optimizer.zero_grad()
        with torch.random.fork_rng():
            loss = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum()
        torch.amp.GradScaler("cpu", enabled=False).scale(loss).backward()
        optimizer.step()
train()
accelerator = torch.accelerator
print(accelerator.current_accelerator(check_available=True), accelerator.is_available(),
      accelerator.device_count(), accelerator.current_device_index())
accelerator.synchronize()
accelerator.empty_cache()
accelerator.reset_peak_memory_stats()
print(accelerator.memory_allocated(), accelerator.max_memory_allocated())
data = torch.utils.data.TensorDataset(torch.rand(4, 2))
print(len(list(torch.utils.data.DataLoader(data, 2, pin_memory=True, num_workers=1))))
import os, sys
pid = os.fork()
if not pid:
    train()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
torch_xla = sys.modules.get("torch_xla")
print(torch_xla is not None and torch_xla._XLAC._xla_is_initialized())
"""


def test_a_first_sync_runs_what_has_been_traced() -> None:
    """Though random numbers are all that has been asked of the device."""
    program = """
    import torch, torch_xla
    x = torch.randn(3, device="xla")
    torch_xla.sync()
    print(torch_xla._XLAC._xla_is_initialized(), torch_xla._XLAC._get_xla_tensors_text([x]))
    """
    is_initialized, text = python_output(program).split(" ", 1)
    assert is_initialized == "True" and "device_data" in text


@pytest.mark.parametrize(
    "imports",
    ["import torch_xla", "import torch_xla; torch_xla.sync()", "torch.xla.manual_seed_all(1)"],
)
def test_training_on_the_cpu_starts_no_client(imports):
    """PyTorch asks whether the accelerator is available at each step of Adam, and pipelines of
    diffusers end steps wherever torch_xla is installed."""
    code = _TRAINS_ON_THE_CPU.format(imports=imports)
    said = python_output(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="3").splitlines()
    assert said == ["xla True 3 0", "0 0", "2", "0", "False"]


def test_state_of_a_generator_that_is_not_there():
    code = "import torch\ntry: torch.xla.get_rng_state(3)\nexcept IndexError as error: print(error)"
    assert "there is no device xla:3" in python_output(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="3")


def test_device_that_is_not_there():
    code = (
        "import torch, torch_xla; print(torch.xla.is_available(), torch.accelerator.is_available())"
    )
    assert python_output(code, PJRT_DEVICE="NOSUCH") == "False False"
    missing = {"PJRT_DEVICE": "CPU", "PJRT_CPU_LIBRARY_PATH": "/nonexistent/plugin.so"}
    assert python_output(code, **missing) == "False False"


@pytest.mark.parametrize("imports", ["", "import torch_xla, os; os.environ['XLA_USE_SPMD'] = '1'"])
def test_count_of_devices_is_the_same_before_and_after_the_client(imports):
    code = (
        f"import torch; {imports}\nbefore = torch.xla.device_count(), torch.xla.is_initialized()\n"
        "torch.ones(1, device='xla').item()\n"
        "print(*before, torch.xla.device_count(), torch.xla.is_initialized())"
    )
    count = "1" if imports else "3"
    said = python_output(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="3")
    assert said == f"{count} False {count} True"


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_that_pins_its_samples(device, workers):
    torch.ones(1, device=device).item()
    data = torch.utils.data.TensorDataset(rand(6, 2))
    loader = torch.utils.data.DataLoader(data, 3, pin_memory=True, num_workers=workers)
    batches = [batch.to(device).cpu() for (batch,) in loader]
    torch.testing.assert_close(torch.cat(batches), rand(6, 2))
