"""Names of torch_xla 2.9: that they do what they say."""

import importlib.util
import os
import time

import pytest
import torch
from testing.ops import rand
from testing.processes import python_output

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu
from torch_xla import _XLAC
from torch_xla._internal.compile import mlir
from torch_xla._internal.jax_workarounds import requires_jax
from torch_xla.backends import get_mat_mul_precision, set_mat_mul_precision
from torch_xla.debug import metrics_compare_utils, metrics_saver, model_comparator
from torch_xla.debug.graph_saver import save_tensors_graph
from torch_xla.experimental import plugins
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.custom_kernel import XLA_LIB
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear, quantized_matmul
from torch_xla.test import test_utils
from torch_xla.utils import serialization as xser


class TestXlaModel:
    def test_optimization_barrier(self, device):
        a, b = rand(2, 3).to(device), rand(4, seed=1).to(device)
        view, before = a[0], a.cpu()
        xm.optimization_barrier_([a, b, view])
        assert "optimization_barrier" in xm.get_stablehlo([a])
        torch.testing.assert_close(a.cpu(), before)
        torch.testing.assert_close(view.cpu(), before[0])

    def test_barrier_is_no_change_to_autograd(self, device):
        x = rand(3).to(device).requires_grad_()
        y = x.exp()
        xm.optimization_barrier_([y])
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), x.detach().cpu().exp())

    def test_stablehlo(self, device):
        x = rand(2).to(device) + 1
        assert "stablehlo.add" in xm.get_stablehlo([x])
        assert "stablehlo.add" in xm.get_stablehlo()
        pytest.importorskip("jaxlib")
        assert xm.get_stablehlo_bytecode([x])[:4] == b"ML\xefR"
        # Operations that are CHLO's, of which a portable artifact has none.
        y = torch.randn(4, 5, device=device).erf().topk(2).values
        assert "chlo." in xm.get_stablehlo([y])
        text = mlir.text(xm.get_stablehlo_bytecode([y]))
        assert "chlo." not in text and "rng_bit_generator" in text and "tensor<4x2xf32>" in text

    def test_fork_rng(self, device):
        xm.set_rng_state(7)
        with xm.fork_rng():
            first = torch.rand(3, device=device).cpu()
        assert xm.get_rng_state() == 7
        with xm.fork_rng(enabled=False):
            again = torch.rand(3, device=device).cpu()
        assert torch.equal(first, again) and xm.get_rng_state() != 7

    def test_devices(self, device):
        assert xm.xla_device_kind() and xm.xla_device_kind(device) == xm.xla_device_kind()
        assert xm.xla_replication_devices() == xm.xla_real_devices([device])
        assert xm.get_xla_supported_devices(1) == ["xla:0"]
        assert xm.get_xla_supported_devices(xm.xla_device_hw(device), 1) == ["xla:0"]

    def test_rendezvous(self):
        assert xm.xla_rendezvous(b"a", tag="t") == [b"a"]

    def test_rate_tracker(self):
        tracker = xm.RateTracker(smooth_factor=0.5)
        time.sleep(0.01)
        tracker.add(100)
        first = tracker.rate()
        assert 0 < first <= 100 / 0.01
        time.sleep(0.01)
        assert 0 < tracker.rate() < first and tracker.global_rate() > 0

    def test_tensor_arena(self, device):
        class Holder:
            def __init__(self, t):
                self.t = t

        data = {"a": [torch.ones(2), "x"], "b": Holder(torch.zeros(3))}
        batches = []

        def convert(tensors):
            batches.append(len(tensors))
            return [t.to(device) for t in tensors]

        result = xm.ToXlaTensorArena(convert, torch.is_tensor).transform(data)
        assert batches == [2]
        assert result["a"][0].device == device and result["b"].t.device == device
        assert result["a"][1] == "x" and data["b"].t.device.type == "cpu"


class TestRuntime:
    def test_place(self):
        assert xr.host_index() == 0 and xr.local_process_count() == 1
        assert xr.local_device_count() == xr.addressable_device_count()
        assert xr.is_bf16_supported()

    def test_master_ip(self, monkeypatch):
        monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
        assert xr.get_master_ip() == "10.1.2.3"
        monkeypatch.delenv("MASTER_ADDR")
        assert xr.get_master_ip()

    def test_device_attributes(self, device):
        found = xr.global_runtime_device_attributes()
        assert len(found) == xr.global_runtime_device_count()
        assert xr.runtime_device_attributes(found[0]["name"]) == found[0]
        assert found[0]["name"] == xm.xla_real_devices([device])[0]
        with pytest.raises(IndexError, match="CPU:99"):
            xr.runtime_device_attributes("CPU:99")

    def test_device_type(self, device, monkeypatch):
        monkeypatch.setenv("PJRT_DEVICE", xr.device_type())
        xr.set_device_type(xr.device_type())
        with pytest.raises(RuntimeError, match="NOSUCH"):
            xr.set_device_type("NOSUCH")

    def test_num_cached_graphs(self):
        """In a process of its own: what is kept is bounded, and other tests may have filled it."""
        script = """
        import torch, torch_xla, torch_xla.runtime as xr
        x = torch.rand(3).to("xla")
        torch_xla.sync()
        before = xr.get_num_cached_compilation_graph()
        for _ in range(2):
            x = (x.cosh() * 3).erf().sinh()
            torch_xla.sync()
        print(xr.get_num_cached_compilation_graph() - before)
        """
        assert python_output(script).split()[-1] == "1"

    def test_initialize_cache(self, device, request, tmp_path):
        request.addfinalizer(lambda: xr.initialize_cache(""))

        def compile_one(n):
            (torch.ones(n, device=device).cosh() * n).sum().item()

        xr.initialize_cache(tmp_path / "a", readonly=True)
        compile_one(11)
        assert not (tmp_path / "a").exists()
        xr.initialize_cache(tmp_path / "b")
        compile_one(12)
        assert len(os.listdir(tmp_path / "b")) > 0


class TestPrecision:
    def test_set_and_get(self, device):
        before = _XLAC._xla_get_mat_mul_precision()
        a = rand(4, 4).to(device)
        assert torch_xla.backends.get_mat_mul_precision() in ("default", "highest")
        try:
            torch_xla.backends.set_mat_mul_precision("high")
            assert torch_xla.backends.get_mat_mul_precision() == "high"
            assert "HIGH" in xm.get_stablehlo([a @ a])
            with pytest.raises(ValueError, match="'exact'"):
                torch_xla.backends.set_mat_mul_precision("exact")
        finally:
            _XLAC._xla_set_mat_mul_precision(before)
        assert "HIGH" not in xm.get_stablehlo([a @ a]) or before != "platform"


class TestMetrics:
    def test_fallback_ops(self, device):
        met.clear_all()
        torch.ones(2, device=device).exp()
        _XLAC._xla_increment_counter("mine::op", 1)
        assert met.executed_fallback_ops() == ["mine::op"]
        assert met.counter_value(name="nonsense") is None

    def test_compare(self, device):
        met.clear_all()
        x = rand(3).to(device)
        for _ in range(3):
            x = x + 1
            torch_xla.sync(wait=True)
        report = met.metrics_report()
        parsed = metrics_compare_utils.parse_metrics_report(report)
        assert parsed["ExecuteTime"]["TotalSamples"] == met.metric_data("ExecuteTime")[0]
        assert 0 < parsed["ExecuteTime"]["Percentile_50"] < 60
        assert parsed["MarkStep"]["Value"] == met.counter_value("MarkStep")
        points = metrics_compare_utils.get_data_points_from_metrics_reports([report] * 3)
        config = {"base_expression": None, "MarkStep__Value_expression": "v <= v_mean + 1"}
        assert metrics_compare_utils.compare_metrics(points, report, config) == ""
        for _ in range(2):
            torch_xla.sync()
        told = metrics_compare_utils.compare_metrics(points, met.metrics_report(), config)
        assert told.startswith("MarkStep__Value failed")

    def test_units(self):
        report = "Metric: T\n  TotalSamples: 2\n  Accumulator: 01s500ms000.000us\nMetric: B\n"
        report += "  TotalSamples: 1\n  Accumulator: 1.50MB\n"
        parsed = metrics_compare_utils.parse_metrics_report(report)
        assert parsed["T"]["Accumulator"] == pytest.approx(1.5)
        assert parsed["B"]["Accumulator"] == 1.5 * 2**20

    def test_saver(self, tmp_path, monkeypatch, device):
        monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "m"))
        torch_xla.sync()
        metrics_saver.save_metrics()
        text = (tmp_path / "m").read_text()
        assert text.count("[MetricsData; step=") == 2 and "Counter: MarkStep" in text


class TestVariables:
    @pytest.mark.parametrize(
        "form, word", [("text", "aten::mul"), ("hlo", "stablehlo.multiply"), ("dot", "digraph")]
    )
    def test_save_tensors(self, device, tmp_path, monkeypatch, form, word):
        monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
        monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", form)
        x = rand(3).to(device) * 2.5
        torch_xla.sync()
        torch_xla.sync()  # Nothing is pending.
        (path,) = tmp_path.iterdir()
        assert path.read_text().count("BEGIN_GRAPH") == 1 and word in path.read_text()
        (x + 1).sum().item()
        assert path.read_text().count("BEGIN_GRAPH") == 2 and ".item() at " in path.read_text()

    def test_step_log(self, device, monkeypatch, capsys):
        monkeypatch.setenv("XLA_EMIT_STEPLOG", "1")
        torch_xla.sync()
        assert capsys.readouterr().err == "torch_xla.torch_xla::sync\n"

    def test_sync_wait(self, device, monkeypatch):
        monkeypatch.setenv("XLA_SYNC_WAIT", "1")
        met.clear_all()
        x = rand(64, 64).to(device)
        x = x @ x
        torch_xla.sync()
        assert met.metric_data("ExecuteTime")[0] == 1

    def test_library_path(self, monkeypatch):
        from torch_xla._internal.plugins import finder

        monkeypatch.setenv("PJRT_DEVICE", "mychip")
        monkeypatch.setenv("PJRT_LIBRARY_PATH", "/opt/mychip.so")
        assert finder.find_plugins()[0] == finder.PluginSpec("MYCHIP", "/opt/mychip.so", {})

    def test_hlo_debug(self):
        code = "import torch_xla; print(torch_xla._XLAC._get_ir_debug())"
        for value in ("1", "0"):
            printed = python_output(code, XLA_HLO_DEBUG=value, XLA_IR_DEBUG="")
            assert printed == str(value == "1")


class TestGraphsAndModels:
    def test_graph_saver(self, device, tmp_path):
        save_tensors_graph(str(tmp_path), "loss", [rand(2).to(device) * 3])
        (path,) = (tmp_path / "0").iterdir()
        assert path.name.endswith("-loss") and "aten::mul" in path.read_text()

    def test_model_comparator(self, device, tmp_path):
        for run, scale in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
            model_comparator.configure(str(tmp_path / run))
            for _ in range(2):
                model_comparator.save("layer/1", torch.ones(3, device=device) * scale)
        paths = [str(tmp_path / run) for run in "abc"]
        assert model_comparator.compare(*paths[:2]) is None
        told = model_comparator.compare(paths[0], paths[2], max_diffs=1)
        assert "layer_1.0.0.pt" in told and "3 of 3 elements differ" in told
        assert "[0]: 1.0 vs. 2.0" in told and "and 2 more" in told
        assert "shapes differ" in model_comparator.compare_tensors(torch.ones(1), torch.ones(2))


class TestExtension:
    def test_names(self, device):
        x = rand(2, 2).to(device)
        assert _XLAC._xla_num_devices() == xr.addressable_device_count()
        assert _XLAC._xla_runtime_is_initialized()
        assert _XLAC._xla_get_replication_devices_count() == 0
        (cpu,) = _XLAC._xla_get_cpu_tensors([x + 1])
        torch.testing.assert_close(cpu, x.cpu() + 1)
        (sent,) = _XLAC._xla_tensors_from_aten([torch.ones(2)], ["xla:0"])
        assert sent.device == device
        assert _XLAC._get_graph_hash([x + 1]) == _XLAC._get_graph_hash([x + 1])
        assert _XLAC._get_graph_hash([x + 1]) != _XLAC._get_graph_hash([x * 2])
        assert "stablehlo.add" in _XLAC._get_stablehlo([x + 1], "", [])
        assert _XLAC._get_xla_tensor_dimension_size(x, 1).item() == 2
        _XLAC._xla_increment_counter("mine", 3)
        assert met.counter_value("mine") == 3
        _XLAC._xla_sync_multi([x + 2], devices=[], wait=True, sync_xla_data=False)
        _XLAC._xla_step_marker("xla:0", [], True)

    def test_ir_debug(self, device):
        before = _XLAC._get_ir_debug()
        _XLAC._set_ir_debug(True)
        try:
            assert _XLAC._get_ir_debug()
            assert "test_names.py" in xm.get_stablehlo([torch.ones(2, device=device).exp()])
        finally:
            _XLAC._set_ir_debug(before)

    def test_all_numbers_special(self, device):
        x = rand(2).to(device)
        _XLAC._set_xla_all_numbers_special_scalars(True)
        try:
            assert "2.5" in xm.get_stablehlo([x * 2.5])
        finally:
            _XLAC._set_xla_all_numbers_special_scalars(False)
        assert "2.5" not in xm.get_stablehlo([x * 2.5])

    def test_op_sharding(self):
        assert str(_XLAC.OpSharding([], [], [], 0)) == str(_XLAC.Sharding.replicated())
        tiled = _XLAC.OpSharding([[0, 1], [2, 3]], [], [], 3)
        assert tiled.tiles == [2, 2] and tiled.devices == [0, 1, 2, 3]
        assert _XLAC.OpSharding([[0, 1], [2, 3]], [], [], 5).tiles == [2]
        with pytest.raises(ValueError, match="MANUAL"):
            _XLAC.OpSharding([0], [], [], 4)


class TestUtils:
    def test_environment(self, monkeypatch):
        monkeypatch.setenv("NUMBER", "3")
        monkeypatch.setenv("FLAG", "0")
        assert xu.getenv_as("NUMBER", int) == 3 and xu.getenv_as("NO_SUCH", int, 5) == 5
        assert xu.getenv_as("FLAG", bool) is False and not xu.check_env_flag("FLAG")
        assert xu.check_env_flag("NO_SUCH", "yes")

    def test_instances(self):
        data = {"a": (1, [2, "x"]), "b": 3}
        found = []
        xu.for_each_instance(data, lambda x: isinstance(x, int), found.append)
        assert found == [1, 2, 3]
        new = xu.for_each_instance_rewrite(data, lambda x: isinstance(x, int), lambda x: -x)
        assert new == {"a": (-1, [-2, "x"]), "b": -3} and data["b"] == 3

    def test_generators(self):
        generator = xu.SampleGenerator("batch", 2)
        assert next(generator) == "batch" and generator.next() == "batch"
        with pytest.raises(StopIteration):
            next(generator)
        assert list(generator) == ["batch"] * 2 and len(generator) == 2
        made = list(xu.FnDataGenerator(torch.sum, 2, torch.ones, dims=[3], count=2))
        assert [(x.shape, y.item()) for x, y in made] == [((2, 3), 6.0)] * 2

    def test_small_things(self, capsys):
        assert len(set(xu.get_free_tcp_ports(3))) == 3
        assert xu.parallel_work(2, lambda a, b: a + b, [1, 2], [3, 4]) == [4, 6]
        assert xu.timed(lambda: 5, "took ", print) == 5
        assert capsys.readouterr().out.startswith("took 0.")
        assert xu.shape([[1, 2], [3, 4]]) == [2, 2] and xu.as_list((1,)) == [1]
        assert xu.flatten_nested_tuple((1, (2, (3,)))) == (1, 2, 3)
        with xu.TmpFolder() as folder:
            assert os.path.isdir(folder)
        assert not os.path.exists(folder)
        assert xu.LazyProperty(lambda: 7).value == 7

    def test_training_update(self, device, capsys):
        test_utils.print_training_update(device, 3, torch.tensor(0.5, device=device), 10, 9, 1)
        test_utils.print_test_update(device, 97.5)
        training, test = capsys.readouterr().out.splitlines()
        assert "Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=9.00" in training
        assert "Accuracy=97.50" in test
        assert test_utils.get_summary_writer(None) is None


class TestSerialization:
    def test_parts(self, tmp_path, device):
        path = str(tmp_path / "checkpoint")
        torch.save({"w": xser.TensorReference(0), "n": 1}, path)
        folder = xser._get_tensors_folder(path)
        os.mkdir(folder)
        with open(xser._get_tensor_file(folder, 0), "wb") as file:
            torch.save(torch.arange(3), file)
        loaded = xser.load(path, map_location="xla")
        assert loaded["n"] == 1 and loaded["w"].tolist() == [0, 1, 2]
        assert loaded["w"].device == device


class TestExperimental:
    def test_plugin_class(self):
        class Mine(plugins.DevicePlugin):
            def library_path(self):
                return "/nowhere/libmine.so"

        plugins.register_plugin("names_test", Mine())
        assert plugins.using_dynamic_plugins()
        with pytest.raises(NotImplementedError, match="library_path"):
            plugins.DevicePlugin().library_path()

    def test_places(self, device):
        x = rand(3).to(device).requires_grad_()
        place_to_device(place_to_host(x)).square().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())

    @pytest.mark.parametrize("block_size", [-1, 4])
    @pytest.mark.parametrize("symmetric", [True, False])
    def test_quantized_linear(self, device, block_size, symmetric):
        layer = XlaQuantizedLinear(8, 3, is_symmetric=symmetric, block_size=block_size)
        shape = (2, 4, 3) if block_size == 4 else (3, 8)
        scales = (2, 3) if block_size == 4 else (3,)
        torch.manual_seed(0)
        weight = torch.randint(-128, 127, shape, dtype=torch.int8)
        scaler, zero = rand(*scales), None if symmetric else rand(*scales, seed=1)
        layer.load_quantized_weight(weight, scaler, zero)
        if block_size == 4:
            full = weight * scaler[:, None] - (0 if symmetric else zero[:, None])
            full = full.reshape(8, 3)
        else:
            full = (weight * scaler[:, None] - (0 if symmetric else zero[:, None])).T
        x = rand(5, 8, seed=2)
        found = layer.to(device)(x.to(device)).cpu()
        torch.testing.assert_close(found, x @ full, rtol=1e-5, atol=1e-3)

    def test_quantized_activation(self, device):
        x, w = rand(4, 8), torch.randint(-128, 127, (3, 8), dtype=torch.int8)
        result = quantized_matmul(x, w, torch.ones(3), quantize_activation=True)
        torch.testing.assert_close(result, x @ w.float().T, rtol=0.05, atol=8)
        with pytest.raises(ValueError, match="int8"):
            quantized_matmul(x, w.float(), torch.ones(3))


class TestSyncFree:
    def test_found_inf(self, device):
        from torch_xla.amp.syncfree.adamw import AdamW

        from torch_xla.amp.syncfree import SGD

        for make in (lambda p: SGD(p, lr=1.0), lambda p: AdamW(p, lr=1.0)):
            parameter = torch.nn.Parameter(torch.ones(2).to(device))
            optimizer = make([parameter])
            parameter.grad = torch.ones_like(parameter)
            optimizer.step(found_inf=torch.tensor(1.0, device=device))
            assert parameter.tolist() == [1, 1]
            optimizer.step(found_inf=torch.tensor(0.0, device=device))
            assert parameter.tolist() != [1, 1]


class TestAssumePure:
    def test_a_function_and_a_module(self, device):
        layer = torch.nn.Linear(2, 3).to(device)
        x = rand(4, 2).to(device).requires_grad_()
        pure = assume_pure(lambda x: PureModule(layer)(x).sin())
        torch.testing.assert_close(pure(x).cpu(), layer(x).sin().cpu())
        pure(x).sum().backward()
        assert x.grad is not None and layer.weight.grad is not None

    def test_a_seed(self, device):
        @assume_pure(add_rng_seed_argument=True)
        def noise(x):
            return x + torch.rand(3, device=device)

        x = torch.zeros(3, device=device)
        first = noise(x, rng_seed=1).cpu()
        assert torch.equal(noise(x, rng_seed=1).cpu(), first)
        assert not torch.equal(noise(x, rng_seed=torch.tensor(2)).cpu(), first)


class TestKernelNames:
    def test_requires_jax(self, monkeypatch):
        assert requires_jax(lambda: 3)() == 3 or importlib.util.find_spec("jax") is None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match="needs jax, which is not installed"):
            requires_jax(lambda: 3)()

    def test_library(self, device):
        XLA_LIB.define("test_names_scale(Tensor a, float s) -> Tensor")
        torch.library.impl(XLA_LIB, "test_names_scale", "XLA")(lambda a, s: a * s)
        assert torch.ops.xla.test_names_scale(torch.ones(2, device=device), 3.0).tolist() == [3, 3]

    def test_full_precision(self):
        before = get_mat_mul_precision()
        try:
            _XLAC._xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision=True)
            assert get_mat_mul_precision() == "highest"
        finally:
            set_mat_mul_precision(before)
