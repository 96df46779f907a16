"""torch_xla.debug.metrics: names, values, and the format of the report."""

import gc
import json
import re
import time

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


@pytest.fixture
def device(device: torch.device) -> torch.device:
    met.clear_all()
    return device


def one_step(device: torch.device, size: int = 3) -> torch.Tensor:
    a = torch.ones(size).to(device)
    result = a + a
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    return result


def test_op_counters(device):
    a = torch.ones(3).to(device)
    _ = a + a
    _ = a + a
    assert met.counter_value("xla::add") == 2
    assert "xla::add" in met.counter_names()
    assert not any(name.startswith("aten::") for name in met.counter_names())


def test_compiled_once_then_cached(device):
    one_step(device, 17)
    assert met.metric_data("CompileTime")[0] == 1
    assert met.counter_value("UncachedCompile") == 1
    one_step(device, 17)
    one_step(device, 17)
    assert met.metric_data("CompileTime")[0] == 1
    assert met.counter_value("UncachedCompile") == 1
    assert met.counter_value("CachedCompile") == 2
    assert met.metric_data("ExecuteTime")[0] == 3
    assert met.counter_value("MarkStep") == 3


def test_upstream_s_names(device):
    """What scripts for PyTorch/XLA look for; the events are those of the lines here."""
    gc.collect()  # Nothing that other tests left dies from here on.
    met.clear_all()
    a = torch.ones(19).to(device)
    b = a + 1
    c = b * b
    assert met.counter_value("CreateXlaTensor") == 3
    del b
    assert met.counter_value("DestroyXlaTensor") == 1
    torch_xla.sync()
    count, nodes, _ = met.metric_data("TensorsGraphSize")
    assert count == 1
    assert 2 <= nodes <= 6
    assert c.sum().item() == 76
    assert met.counter_value("aten::_local_scalar_dense") == 1
    assert met.executed_fallback_ops() == []


def test_tracing_is_what_no_part_of_a_step_is(device):
    torch_xla.sync()
    met.clear_all()
    time.sleep(0.05)  # the program's own time
    (torch.ones(20).to(device) + 1).sum().item()  # uploads, compiles and waits
    torch_xla.sync()
    (step,), (traced,) = (met.metric_data(name)[2] for name in ("StepTime", "LazyTracing"))
    transfers = met.metric_data("HostTransferTime")[1]
    assert 5e7 <= traced[1] <= step[1] - transfers


def test_times_are_nanoseconds_and_stamps_are_seconds(device):
    one_step(device, 18)
    count, total, samples = met.metric_data("CompileTime")
    assert count == len(samples) == 1
    assert 1e5 < total < 60e9
    stamp, value = samples[0]
    assert value == pytest.approx(total)
    assert isinstance(stamp, float)


def test_transfers_are_counted_in_bytes(device):
    a = torch.ones(1000).to(device)
    torch_xla.sync(wait=True)
    assert met.metric_data("OutboundData")[1] == 4000
    a.cpu()
    assert met.metric_data("InboundData")[1] == 4000
    assert met.metric_data("TransferToDeviceTime")[0] == 1
    assert met.metric_data("TransferFromDeviceTime")[0] == 1


def test_unknown_names_give_none(device):
    assert met.counter_value("NoSuchCounter") is None
    assert met.metric_data("NoSuchMetric") is None


def test_clear(device):
    one_step(device)
    assert met.counter_names()
    assert met.metric_names()
    met.clear_counters()
    assert met.counter_names() == []
    assert "ExecuteTime" in met.metric_names()
    met.clear_metrics()
    assert met.metric_names() == []
    one_step(device)
    met.clear_all()
    assert met.counter_names() == []
    assert met.metric_names() == []


def test_report_format(device):
    one_step(device, 19)
    report = met.metrics_report()
    block = re.search(
        r"^Metric: ExecuteTime\n"
        r"  TotalSamples: 1\n"
        r"  Accumulator: (?:\d+h)?(?:\d+m)?(?:\d+s)?(?:\d+ms)?\d+\.\d+us\n"
        r"(?:  ValueRate: .* / second\n)?"
        r"(?:  Rate: .* / second\n)?"
        r"  Percentiles: 1%=.*us; 5%=.*; 10%=.*; 20%=.*; 50%=.*; 80%=.*; 90%=.*; 95%=.*; 99%=.*\n",
        report,
        re.MULTILINE,
    )
    assert block, report
    assert re.search(r"^Counter: xla::add\n  Value: 1$", report, re.MULTILINE)
    metrics = [line for line in report.splitlines() if line.startswith("Metric:")]
    assert metrics == sorted(metrics)


def test_short_report_has_what_was_asked_for(device):
    one_step(device, 20)
    report = met.short_metrics_report(["xla::add"], ["ExecuteTime"])
    heads = [line for line in report.splitlines() if not line.startswith(" ")]
    assert heads == ["Metric: ExecuteTime", "Counter: xla::add"]
    assert "Metric: CompileTime" in met.short_metrics_report()


def test_as_json(device):
    for _ in range(3):
        one_step(device, 23)
    found = json.loads(json.dumps(met.metrics_dict()))
    assert found["counters"]["MarkStep"] == 3
    execute = found["metrics"]["ExecuteTime"]
    count, total, samples = met.metric_data("ExecuteTime")
    assert (execute["count"], execute["sum"]) == (count, total) == (3, pytest.approx(total))
    assert execute["p50"] == sorted(value for _, value in samples)[1]
    assert execute["p50"] <= execute["p90"] <= execute["p99"] <= execute["max"]
    assert execute["mean"] == pytest.approx(total / 3)
