"""torch.xla: streams, events, memory and random state, by torch.cuda's names."""

import pytest
import torch
from testing.ops import rand

from torch_xla._internal.device import module as device_module


def test_events(device):
    start, end = (torch.xla.Event(enable_timing=True) for _ in range(2))
    x = rand(64, 64).to(device)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    y = x @ x
    end.record(torch.xla.current_stream())
    end.wait()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    torch.testing.assert_close(y.cpu(), rand(64, 64) @ rand(64, 64), rtol=1e-4, atol=1e-4)


def test_streams(device):
    stream = torch.xla.current_stream()
    assert stream == torch.xla.Stream() == torch.xla.Stream(device, priority=-1)
    assert isinstance(stream, torch.xla.Stream) and stream.device == device
    with torch.xla.stream(stream), torch.xla.device_of(torch.ones(1, device=device)):
        assert torch.xla.current_device() == device.index
    with torch.xla.stream(None), torch.xla.device_of(torch.ones(1)):
        assert torch.xla.current_device() == device.index
    with pytest.raises(ValueError, match="xla"):
        torch.xla.set_stream(torch.Stream(stream_id=0, device_index=0, device_type=0))


def test_random_states(device):
    torch.manual_seed(5)
    states = torch.xla.get_rng_state_all()
    assert len(states) == torch.xla.device_count() and torch.xla.initial_seed() == 5
    first = torch.rand(3, device=device).cpu()
    torch.xla.seed()
    assert not torch.equal(torch.rand(3, device=device).cpu(), first)
    torch.xla.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device=device).cpu(), first)
    torch.xla.seed_all()
    generator = torch.Generator("xla").manual_seed(5)
    assert generator.device == device
    with torch.random.fork_rng(device_type="xla"):
        torch.rand(1, device=device)


def test_memory_that_a_plugin_does_not_tell(device, monkeypatch):
    info = {"bytes_limit": -1, "bytes_used": 0, "peak_bytes_used": 0}
    monkeypatch.setattr(device_module._XLAC, "_xla_memory_info", lambda name: info)
    assert 0 < torch.xla.mem_get_info()[0] < torch.xla.mem_get_info()[1]  # The host's.
    monkeypatch.setattr(device_module._XLAC, "_xla_platform", lambda: "TPU")
    with pytest.raises(RuntimeError, match="xla:0"):
        torch.xla.mem_get_info()
    info.update(bytes_limit=10, bytes_used=4)
    assert torch.xla.mem_get_info() == (6, 10)


def test_device_module(device):
    assert torch.get_device_module("xla") is torch.get_device_module(device) is torch.xla
    assert rand(2).xla().device == device
