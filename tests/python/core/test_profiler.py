"""Recordings of the host's timeline."""

import gzip
import json

import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp


def _read(folder):
    (file,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def _named(events, name):
    return [event for event in events if event.get("name") == name and event.get("ph") == "X"]


@pytest.mark.parametrize("level", [2, 3])
def test_trace(device, tmp_path, level):
    @xp.trace_me("inner")
    def inner(x):
        return (x + 77.125).sum()

    before = torch.ones(5, 5 + level).to(device)
    inner(before).item()  # Compiled before the recording, and so not in it.
    xp.start_trace(str(tmp_path), host_tracer_level=level)
    with pytest.raises(RuntimeError, match="on already"):
        xp.start_trace(str(tmp_path))
    with xp.StepTrace("train_step", step_num=3), xp.Trace("outer", kind="x"):
        inner(before * 3.5).item()
    torch_xla.sync(wait=True)
    xp.stop_trace()
    with pytest.raises(RuntimeError, match="no recording"):
        xp.stop_trace()

    events = _read(tmp_path)
    (step,), (outer,) = _named(events, "train_step"), _named(events, "outer")
    assert _named(events, "inner")
    assert bool(_named(events, "aten::mul")) == (level == 3)
    (compile_event,) = _named(events, "Compile")
    for event in (compile_event, outer, *_named(events, "Execute")[:1]):
        assert step["ts"] - 1e3 < event["ts"] < step["ts"] + step["dur"]
    assert compile_event["dur"] < step["dur"]


def test_trace_without_a_recording(device):
    with xp.Trace("a"), xp.StepTrace("b", step_num=1):
        assert xp.Trace("c")(lambda x: x + 1)(1) == 2


def test_server(device, tmp_path):
    server = xp.start_server(0)
    address = f"localhost:{server.server_address[1]}"
    try:
        (torch.ones(3).to(device) + 1).tolist()
        xp.trace(address, str(tmp_path), duration_ms=50)
        assert _read(tmp_path)
        xp.start_trace(str(tmp_path))
        with pytest.raises(RuntimeError, match="on already"):
            xp.trace(address, str(tmp_path), duration_ms=1)
        xp.stop_trace()
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(RuntimeError, match="does not answer"):
        xp.trace(address, str(tmp_path), duration_ms=1, num_tracing_attempts=1, timeout_s=1)
