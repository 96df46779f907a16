"""profiler.summary(): where steps went; the runtime's rows in recordings of torch.profiler."""

import json

import pytest
import torch
from test_explain import line
from testing.processes import run_python

from torch_xla._internal.insight import timeline, xspace
from torch_xla.debug import profiler

_LOOP = """
import time
from torch_xla.debug import profiler

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(SLEEP)
        return torch.ones(64, 64) * index

weight = torch.randn(64, 64).to(device)
def step(x):
    y = x @ weight  # PRODUCT
    for _ in range(COUNT):
        y = torch.linalg.qr(y).Q @ weight  # SLOW
    return y.sum()

def train(read):
    for x in torch.utils.data.DataLoader(Slow(), batch_size=1):
        loss = step(x[0].to(device))
        torch_xla.sync()
        if read:
            loss.item()
    torch_xla.sync(wait=True)
"""


def _summary(tmp_path, sleep, count, read):
    found, _ = run_python(
        _LOOP.replace("SLEEP", str(sleep)).replace("COUNT", str(count))
        + f"""
nothing = str(profiler.summary())
train({read})
s = profiler.summary(steps=8)
report(
    nothing=nothing, text=str(s), steps=s.steps, seconds=s.seconds, parts=s.parts, busy=s.busy,
    idle=s.idle, lines=[[x.line, x.seconds, x.operations] for x in s.lines],
)
""",
        tmp_path,
    )
    return found


def test_a_loop_that_waits_for_its_input(tmp_path):
    found = _summary(tmp_path, 0.05, 1, read=True)
    assert found["nothing"].startswith("no step yet")
    assert found["steps"] == 8
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert found["busy"] + sum(found["idle"].values()) == pytest.approx(found["seconds"])
    # Eight samples of 50 ms.
    assert found["parts"]["waiting for input"] >= 0.3
    assert found["idle"]["waiting for input"] >= 0.05
    assert "waiting for input\n" in found["text"]


def test_a_loop_that_waits_for_the_device(tmp_path):
    found = _summary(tmp_path, 0, 30, read=True)
    waits = found["parts"]["waiting for the device"]
    assert waits > found["parts"].get("waiting for input", 0)
    assert found["busy"] > 0
    # The dearest line first.
    lines = found["lines"]
    assert lines[0][0] == line(tmp_path, "SLOW")
    assert [one[1] for one in lines] == sorted((one[1] for one in lines), reverse=True)
    assert sum(one[1] for one in lines) == pytest.approx(found["busy"], rel=0.5)
    assert {line(tmp_path, "PRODUCT"), line(tmp_path, "SLOW")} <= {one[0] for one in lines}
    assert f"{lines[0][0]}, {lines[0][2]} operations\n" in found["text"]


def test_steps_that_make_no_sense():
    with pytest.raises(ValueError, match="expected `steps` of at least 1, got 0"):
        profiler.summary(0)


def _samples(monkeypatch, rows):
    def data(name):
        found = [(end, (end - begin) * 1e9) for begin, end in rows.get(name, ())]
        return (len(found), 0.0, found) if found else None

    monkeypatch.setattr(timeline._XLAC, "_xla_metric_data", data, raising=False)


def test_each_instant_counts_once(monkeypatch):
    rows = {
        "HostSyncTime": [(2, 5)],
        "LowerTime": [(2, 3)],
        "HostWaitTime": [(4, 7), (11, 12)],
        "CompileTime": [(4, 6)],
        "HostInputTime": [(8, 9)],
        "HostTransferTime": [(0.5, 1.5)],
        "ExecuteTime": [(1, 2), (6, 8.5)],
    }
    _samples(monkeypatch, rows)
    assert timeline.parts(0, 12) == {
        "tracing, and the rest of the program": 1 + 1 + 2,
        "transfers": 0.5,
        "lowering": 1,
        "cutting graphs": 1,
        "waiting for the compiler": 2,
        "waiting for the device": 0.5 + 1 + 1,
        "waiting for input": 1,
    }
    assert timeline.idle(0, 12) == [
        (0, 0.5, "tracing, and the rest of the program"),
        (0.5, 1, "transfers"),
        (2, 3, "lowering"),
        (3, 4, "cutting graphs"),
        (4, 6, "waiting for the compiler"),
        (8.5, 9, "waiting for input"),
        (9, 11, "tracing, and the rest of the program"),
        (11, 12, "starting"),
    ]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_rows_in_a_profile_of_torch(device, tmp_path, name):
    import gzip

    x = torch.ones(5, 9).to(device)
    (x * 3.25).sum().item()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (x * 3.25).sum().item()
    path = tmp_path / name
    profile.export_chrome_trace(str(path))
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    ours = [event for event in events if event.get("pid") == "torch_xla runtime"]
    assert {"Execute", "TransferFromDevice"} <= {event["name"] for event in ours}
    assert any(event["name"].startswith("device idle: ") for event in ours)
    (read,) = [e for e in events if e.get("name") == "aten::item"]
    (execute,) = [e for e in ours if e["name"] == "Execute"]
    assert read["ts"] - 1e3 <= execute["ts"] <= read["ts"] + read["dur"]


def test_a_profile_without_xla_is_as_it_was(tmp_path):
    found, _ = run_python(
        f"""
torch_xla.sync(wait=True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    torch.ones(3) + 1
profile.export_chrome_trace({str(tmp_path / "trace.json")!r})
events = json.load(open({str(tmp_path / "trace.json")!r}))["traceEvents"]
report(pids=sorted({{str(event.get("pid")) for event in events}}))
""",
        tmp_path,
    )
    assert "torch_xla runtime" not in found["pids"]


def test_xspace_is_what_tensorboard_reads():
    jax = pytest.importorskip("jax.profiler")
    trace = {
        "baseTimeNanoseconds": 1_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
            {"ph": "X", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.5, "dur": 3.0},
            {"ph": "X", "name": "aten::mul", "pid": 1, "tid": 2, "ts": 20.0, "dur": 1.25},
            {"ph": "X", "name": "aten::add", "pid": 1, "tid": 2, "ts": 30.0, "dur": 1.0},
            {"ph": "X", "name": "Execute", "pid": "xla", "tid": "Execute", "ts": 12.0, "dur": 4.0},
            {"ph": "i", "name": "instant", "pid": 1, "tid": 2, "ts": 12.0},
        ],
    }
    space = jax.ProfileData.from_serialized_xspace(xspace.from_chrome(trace, "host"))
    found = {
        (plane.name, row.name): [(e.name, e.start_ns, e.duration_ns) for e in row.events]
        for plane in space.planes
        for row in plane.lines
    }
    base = 1_000_000_000
    assert found == {
        ("/host:CPU", "main"): [
            ("aten::add", base + 10_500, 3_000),
            ("aten::mul", base + 20_000, 1_250),
            ("aten::add", base + 30_000, 1_000),
        ],
        ("/host:xla", "Execute"): [("Execute", base + 12_000, 4_000)],
    }
