"""torch_xla.compile, torch_xla.step, compile options and eager mode."""

import os

import pytest
import torch
from testing.ops import rand
from testing.processes import python_output

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode


class TestFullGraph:
    @pytest.mark.parametrize("cut", ["item", "print", "sync", "cpu", "branch"])
    def test_cut_raises_where_it_is(self, device, cut):
        reached = []

        @torch_xla.compile(full_graph=True, name="train")
        def step(x):
            y = x * 2
            reached.append("before")
            if cut == "item":
                y.sum().item()
            elif cut == "print":
                str(y)
            elif cut == "sync":
                torch_xla.sync()
            elif cut == "cpu":
                y.cpu()
            elif bool(y.sum() > 0):
                pass
            reached.append("after")

        with pytest.raises(RuntimeError, match=r"compile\(train\) with full_graph=True.*cut here"):
            step(torch.ones(3, device=device))
        assert reached == ["before"]
        assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]  # It may cut again.

    def test_whole_graph(self, device):
        @torch_xla.compile(full_graph=True)
        def step(x):
            return x * 2 + 1

        assert step(torch.ones(2, device=device)).tolist() == [3, 3]

    def test_other_errors_pass_through(self, device):
        with pytest.raises(ZeroDivisionError):
            with torch_xla.compile(full_graph=True):
                1 / 0  # noqa: B018
        assert torch.ones(2, device=device).add(1).tolist() == [2, 2]


class TestDifferentGraphs:
    def test_raises_and_says_what_differs(self, device):
        @torch_xla.compile(max_different_graphs=2)
        def f(x):
            return x.cos().sum()

        for n in (3, 4, 3, 4):
            f(torch.ones(n, device=device))
        with pytest.raises(RuntimeError, match="at most 2 different graphs") as info:
            f(torch.ones(5, device=device))
        assert "f32[4]" in str(info.value) and "f32[5]" in str(info.value)
        f(torch.ones(4, device=device))

    def test_at_least_one(self):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            torch_xla.compile(max_different_graphs=0)


class TestNameAndOptions:
    def test_name_counts(self, device):
        @torch_xla.compile(name="my_step")
        def f(x):
            return (x * 3).sinh()

        x = rand(7).to(device)
        for _ in range(3):
            f(x)
        assert met.counter_value("CompiledGraph::my_step") == 1
        assert met.counter_value("ExecutedGraph::my_step") == 3

    def test_name_is_the_modules(self, device, tmp_path):
        code = (
            "import torch, torch_xla\n"
            "f = torch_xla.compile(lambda x: x.exp() * 2, name='named_step')\n"
            "f(torch.ones(3, device='xla')).cpu()\n"
        )
        python_output(code, XLA_FLAGS=f"--xla_dump_to={tmp_path}")
        assert any("named_step" in name for name in os.listdir(tmp_path))

    def test_options_reach_the_compiler(self, device):
        f = torch_xla.compile(
            lambda x: x.cosh().sum(), custom_compile_options={"xla_no_such_option": True}
        )
        with pytest.raises(RuntimeError, match="xla_no_such_option"):
            f(torch.ones(6, device=device)).item()
            torch_xla.sync(wait=True)
        g = torch_xla.compile(
            lambda x: x.cosh().sum(), custom_compile_options={"xla_cpu_enable_fast_math": False}
        )
        assert g(torch.zeros(6, device=device)).item() == 6

    def test_options_for_all(self, device):
        x = torch.ones(5, device=device)
        try:
            torch_xla.set_custom_compile_options({"xla_no_such_option": 1})
            with pytest.raises(RuntimeError, match="xla_no_such_option"):
                x.cosh().sinh().cpu()
            torch_xla.set_custom_compile_options({})
            assert x.cosh().sinh().cpu() is not None
            with pytest.raises(TypeError, match="'a': \\[\\]"):
                torch_xla.set_custom_compile_options({"a": []})
        finally:
            torch_xla.set_custom_compile_options({})

    def test_another_option_is_another_program(self, device):
        x = torch.ones(5, device=device)
        met.clear_all()
        for options in ({}, {"xla_cpu_enable_fast_math": True}, {}):
            with torch_xla.compile(custom_compile_options=options):
                y = x.tan().tanh()
        assert met.counter_value("UncachedCompile") == 2 and y is not None


class TestEagerMode:
    def test_runs_each_operator(self, device):
        x = rand(3).to(device)
        torch_xla.sync()
        met.clear_all()
        with eager_mode_context(True):
            assert is_eager_mode()
            y = x * 2
            z = y.exp()
            z += 1
            assert _XLAC._xla_pending_text("").count("aten::") == 0
        assert not is_eager_mode()
        assert met.counter_value("UncachedCompile") + (met.counter_value("CachedCompile") or 0) == 3
        torch.testing.assert_close(z.cpu(), (x.cpu() * 2).exp() + 1)

    def test_compile_within(self, device):
        @torch_xla.compile
        def f(x):
            y = x * 2
            assert "aten::mul" in _XLAC._xla_pending_text("")
            return y.exp()

        eager_mode(True)
        try:
            x = torch.ones(4, device=device)
            met.clear_all()
            f(x)
            assert is_eager_mode()
            assert met.counter_value("UncachedCompile") == 1
        finally:
            eager_mode(False)

    def test_training(self, device):
        """Backward passes and optimizers, too, step by step as on the CPU."""

        def train(on):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
            ).to(on)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            losses = []
            for i in range(3):
                optimizer.zero_grad()
                loss = model(rand(5, 4, seed=i).to(on)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        with eager_mode_context(True):
            losses = train(device)
        torch.testing.assert_close(losses, train("cpu"))

    def test_only_bools(self):
        with pytest.raises(TypeError, match="enable"):
            eager_mode(1)


class TestRegions:
    def test_reset_scope(self, device):
        for cut in (lambda: torch_xla.sync(reset_scope=False), lambda: xm.mark_step(True, False)):
            x = torch.ones(2, device=device) * 3
            assert "aten::mul" in _XLAC._get_xla_tensors_text([x])
            cut()
            assert "aten::mul" not in _XLAC._get_xla_tensors_text([x])

    def test_nested_calls_of_one_function(self, device):
        @torch_xla.compile
        def f(x, depth):
            return x if depth == 0 else f(x * 2, depth - 1)

        assert f(torch.ones(1, device=device), 3).item() == 8
