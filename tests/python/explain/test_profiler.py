"""Recordings of the host's timeline."""

import gzip
import json

import pytest
import torch
from testing.plugins import make_toy
from testing.processes import start_python

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


AT_EXIT = """
import sys, threading, torch, torch_xla, torch_xla.debug.profiler as xp
how, folder = sys.argv[1:]
if how == "start_trace":
    xp.start_trace(folder)
elif how == "trace_detached":
    recording, original = threading.Event(), xp._Recording

    def record(*args):
        made = original(*args)
        recording.set()
        return made

    xp._Recording = record
    server = xp.start_server(0)
    address = f"localhost:{server.server_address[1]}"
    xp.trace_detached(address, folder, duration_ms=600_000, timeout_s=60)
    recording.wait()
elif how == "torch.profiler":
    torch.profiler.profile().start()
with xp.Trace("outer"):
    (torch.ones(2, device="xla") + 1).cpu()
print("end", flush=True)
raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["start_trace", "trace_detached", "torch.profiler"])
def test_a_program_that_ends_while_it_is_recorded(tmp_path, how):
    """Its own status is that of the process, and what was recorded is written."""
    result = start_python("-c", AT_EXIT, how, str(tmp_path))
    assert result.returncode == 3 and "end" in result.stdout, result.stderr
    if how != "torch.profiler":
        assert _named(_read(tmp_path), "outer")


def test_a_server_is_started_once(device):
    server = xp.start_server(0)
    try:
        assert xp.start_server(server.server_address[1]) is server
    finally:
        server.shutdown()
        server.server_close()
    again = xp.start_server(server.server_address[1])
    assert again is not server
    again.shutdown()
    again.server_close()


# A profiler that gives one plane, and XLA's zero behind it; with TOY_FAILS one of its functions
# fails.
PROFILER = r"""
static PLUGIN_Profiler_Api profiler{};
static PJRT_Profiler_Extension extension{};
extension.base = {kStructSize<PJRT_Profiler_Extension>, PJRT_Extension_Type_Profiler,
                  real->extension_start};
extension.profiler_api = &profiler;
api.extension_start = &extension.base;
profiler.struct_size = kStructSize<PLUGIN_Profiler_Api>;
profiler.error_message = [](PLUGIN_Profiler_Error_Message_Args* args) {
  args->message = "no such chip";
  args->message_size = 12;
};
profiler.error_destroy = [](PLUGIN_Profiler_Error_Destroy_Args*) {};
profiler.create = [](PLUGIN_Profiler_Create_Args* args) -> PLUGIN_Profiler_Error* {
  args->profiler = reinterpret_cast<PLUGIN_Profiler*>(&profiler);
  return nullptr;
};
static int started = 0;
static const auto fails = [](const char* function) {
  const char* failing = std::getenv("TOY_FAILS");
  return failing && std::strcmp(failing, function) == 0;
};
profiler.start = [](PLUGIN_Profiler_Start_Args*) -> PLUGIN_Profiler_Error* {
  if (fails("start")) return reinterpret_cast<PLUGIN_Profiler_Error*>(&profiler);
  ++started;
  return nullptr;
};
profiler.stop = [](PLUGIN_Profiler_Stop_Args*) -> PLUGIN_Profiler_Error* {
  --started;
  if (fails("stop")) return reinterpret_cast<PLUGIN_Profiler_Error*>(&profiler);
  return nullptr;
};
profiler.collect_data = [](PLUGIN_Profiler_CollectData_Args* args) -> PLUGIN_Profiler_Error* {
  if (fails("collect_data")) return reinterpret_cast<PLUGIN_Profiler_Error*>(&profiler);
  static char plane[] = "\x0a\x0a\x12\x08toy:chip\0";
  args->buffer = reinterpret_cast<uint8_t*>(plane);
  args->buffer_size_in_bytes = started == 0 ? sizeof plane - 1 : 0;
  return nullptr;
};
profiler.destroy = [](PLUGIN_Profiler_Destroy_Args*) -> PLUGIN_Profiler_Error* {
  return nullptr;
};
"""

RECORD = """
import sys, torch, torch_xla, torch_xla.debug.profiler as xp
for device_tracer_level in (1, 0):
    folder = sys.argv[1] + str(device_tracer_level)
    xp.start_trace(folder, device_tracer_level=device_tracer_level)
    (torch.ones(3, device="xla") + 1).tolist()
    xp.stop_trace()
"""


def _record_toy(tmp_path, **environment):
    """What a recording with the toy's profiler and one without hold, and what was printed."""
    library = make_toy(tmp_path, PROFILER)
    result = start_python(
        "-c", RECORD, str(tmp_path / "level"), PJRT_CPU_LIBRARY_PATH=library, **environment
    )
    assert result.returncode == 0, result.stderr
    spaces = [
        next(tmp_path.glob(f"level{level}/plugins/profile/*/*.xplane.pb")).read_bytes()
        for level in (1, 0)
    ]
    return *spaces, result.stderr


def test_the_plugin_s_profiler(tmp_path):
    with_device, without, _ = _record_toy(tmp_path)
    assert with_device.endswith(b"\x0a\x0a\x12\x08toy:chip")
    assert b"/host:CPU" in with_device
    assert b"/host:CPU" in without
    assert b"toy:chip" not in without


@pytest.mark.parametrize("function", ["start", "stop", "collect_data"])
def test_a_profiler_that_fails_leaves_the_host_s_recording(tmp_path, function):
    with_device, _, stderr = _record_toy(tmp_path, TOY_FAILS=function)
    assert b"/host:CPU" in with_device
    assert b"toy:chip" not in with_device
    assert "recording without the device: " in stderr
    assert "no such chip" in stderr
