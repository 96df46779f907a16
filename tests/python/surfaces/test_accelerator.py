"""torch.accelerator and torch.xla: what device-agnostic programs ask."""

import os

import pytest
import torch
from op_testing import rand
from process_testing import python_output

import torch_xla


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


@pytest.mark.parametrize("asks", ["", "import os; os.environ['PJRT_DEVICE'] = 'CPU'"])
def test_a_program_that_does_not_ask_for_xla_has_no_accelerator(asks):
    code = f"import torch, torch_xla\n{asks}\nprint(torch.accelerator.current_accelerator())"
    environment = {"PJRT_DEVICE": ""} if "PJRT_DEVICE" in os.environ else {}
    assert python_output(code, **environment).strip() == ("xla" if asks else "None")


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_that_pins_its_samples(device, workers):
    torch.ones(1, device=device).item()
    data = torch.utils.data.TensorDataset(rand(6, 2))
    loader = torch.utils.data.DataLoader(data, 3, pin_memory=True, num_workers=workers)
    batches = [batch.to(device).cpu() for (batch,) in loader]
    torch.testing.assert_close(torch.cat(batches), rand(6, 2))
