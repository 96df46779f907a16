"""torch_xla.stablehlo: programs of torch.export, saved, loaded and run."""

import os
import warnings

import numpy as np
import pytest
import torch
from testing.ops import rand
from torch import nn
from torch.nn import functional as F  # noqa: N812

import torch_xla
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    VariableType,
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)


@torch.library.custom_op("export_test::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.table = torch.arange(8.0)

    def forward(self, x, scale):
        hidden = self.norm(self.layer(x)).relu() + torch.ones(8)
        return {"out": (hidden * self.table).sum(-1) * scale, "hidden": hidden}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


class TestExport:
    def test_call(self, device, model):
        args = (rand(3, 4), rand(3, seed=1))
        program = exported_program_to_stablehlo(torch.export.export(model, args))
        result = program(*args)
        assert result["out"].device == device
        expected = model(*args)
        for name in ("out", "hidden"):
            torch.testing.assert_close(result[name].cpu(), expected[name].detach())
        assert program.get_stablehlo_text().count("func.func public @main") == 1
        kinds = {where.type_ for where in program._default.meta.input_locations}
        assert {VariableType.PARAMETER, VariableType.INPUT_ARG} <= kinds

    def test_save_and_load(self, model, tmp_path):
        args = (rand(3, 4), rand(3, seed=1))
        save_as_stablehlo(torch.export.export(model, args), tmp_path)
        assert os.path.exists(tmp_path / "functions" / "forward.mlir")
        loaded = StableHLOGraphModule.load(tmp_path)
        expected = model(*args)["out"].detach()
        torch.testing.assert_close(loaded(*args)["out"].cpu(), expected)
        torch.testing.assert_close(loaded.evaluate("forward", args)["out"].cpu(), expected)
        with pytest.raises(KeyError, match="forward"):
            loaded.get_stablehlo_text("nonsense")

    def test_without_weights(self, model, tmp_path):
        args = (rand(3, 4), rand(3, seed=1))
        options = StableHLOExportOptions(save_weights=False)
        save_torch_model_as_stablehlo(model, args, tmp_path, options)
        assert os.listdir(tmp_path / "data") == []

    @pytest.mark.parametrize("saved", [False, True])
    def test_dynamic_batch(self, model, tmp_path, saved):
        batch = torch.export.Dim("batch", min=2)
        exported = torch.export.export(
            model, (rand(3, 4), rand(3)), dynamic_shapes=({0: batch}, {0: batch})
        )
        program = exported_program_to_stablehlo(exported)
        if saved:
            program.save(tmp_path)
            program = StableHLOGraphModule.load(tmp_path)
        for n in (2, 5, 17):
            args = (rand(n, 4, seed=n), rand(n))
            torch.testing.assert_close(
                program(*args)["out"].cpu(), model(*args)["out"].detach(), rtol=1e-5, atol=1e-5
            )
        with pytest.raises(ValueError, match="one size"):
            program(rand(3, 4), rand(2))

    @pytest.mark.parametrize("largest", [None, 9, 100])
    def test_dynamic_size_in_any_place(self, tmp_path, largest):
        class Places(nn.Module):
            def forward(self, x, step, mode):
                h = x @ x.t() + x.t().sum(0)
                parts = (h.unsqueeze(0), x.t().reshape(2, -1), F.pad(h, (1, 2)), x[1:].flip(0))
                return *parts, x.shape[0] * 2 + 1, step, None, mode

        size = torch.export.Dim("size", min=3, max=largest)
        exported = torch.export.export(
            Places(), (rand(5, 4), 3, "sum"), dynamic_shapes=({0: size}, None, None)
        )
        save_as_stablehlo(exported, tmp_path)
        program = StableHLOGraphModule.load(tmp_path)
        for n in (3, 4, 7, 8, 9):
            found, expected = program(rand(n, 4), 3, "sum"), Places()(rand(n, 4), 3, "sum")
            assert found[4:] == expected[4:] == (2 * n + 1, 3, None, "sum")
            for mine, theirs in zip(found[:4], expected[:4], strict=True):
                torch.testing.assert_close(mine.cpu(), theirs)

    def test_a_form_that_depends_on_the_size(self):
        """A text for each size, where there are few; an error where there are many."""

        class Halved(nn.Module):
            def forward(self, x):
                y = x.clone()
                y[::2] += x.sum()
                return y

        def exported(largest):
            size = torch.export.Dim("size", min=3, max=largest)
            return torch.export.export(Halved(), (rand(6, 3),), dynamic_shapes=({0: size},))

        program = exported_program_to_stablehlo(exported(9))
        for n in range(3, 10):
            x = rand(n, 3, seed=n)
            torch.testing.assert_close(program(x).cpu(), Halved()(x))
        with pytest.raises(ValueError, match="of size 3 to 9, got 10"):
            program(rand(10, 3))
        with pytest.raises(ValueError, match="depends on the dynamic dimension"):
            exported_program_to_stablehlo(exported(64))

    def test_bfloat16(self, tmp_path):
        model = nn.Linear(4, 2).bfloat16()
        args = (rand(3, 4).bfloat16(),)
        save_torch_model_as_stablehlo(model, args, tmp_path)
        found = StableHLOGraphModule.load(tmp_path)(*args).cpu()
        torch.testing.assert_close(found, model(*args).detach(), rtol=0.02, atol=0.02)

    def test_wrong_arguments(self, model):
        args = (rand(3, 4), rand(3, seed=1))
        program = exported_program_to_stablehlo(torch.export.export(model, args))
        with pytest.raises(ValueError, match="argument 0 as float32 of shape"):
            program(rand(3, 5), rand(3))
        with pytest.raises(ValueError, match="float64"):
            program(rand(3, 4).double(), rand(3))

    def test_what_has_no_state_is_told(self, model):
        class Changes(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1))

            def forward(self, x):
                self.count.add_(1)
                x.mul_(2)
                return x + self.count + torch.rand(1)

        exported = torch.export.export(Changes(), (torch.ones(1),))
        with pytest.warns(UserWarning, match="changes count, x in place and draws random numbers"):
            program = exported_program_to_stablehlo(exported)
        x = torch.ones(1)
        first = program(x).item()
        assert 3 <= first < 4 and program(x).item() == first and x.item() == 1
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*no state")
            exported_program_to_stablehlo(torch.export.export(model, (rand(3, 4), rand(3))))

    def test_names_at_the_top(self):
        assert torch_xla.stablehlo.save_as_stablehlo is save_as_stablehlo
        assert torch_xla.save_as_stablehlo is save_as_stablehlo


def exported(f, *args, dims=None, options=None):
    """Returns the program of a function, exported with these arguments."""

    class Of(nn.Module):
        def forward(self, *args):
            return f(*args)

    shapes = None if dims is None else (tuple({0: dims} for _ in args),)
    program = torch.export.export(Of(), args, dynamic_shapes=shapes)
    return exported_program_to_stablehlo(program, options)


def test_a_program_that_takes_no_tensor(tmp_path):
    """Such a program was exported, and raised when it was called."""
    folder = str(tmp_path)
    exported(lambda x: (torch.ones(x.shape[0], 2) * 3, torch.arange(2)), rand(4)).save(folder)
    ones, numbers = StableHLOGraphModule.load(folder)(rand(4))
    assert ones.tolist() == [[3, 3]] * 4 and numbers.tolist() == [0, 1]


def test_a_dynamic_size_that_follows_from_another():
    size = torch.export.Dim("size", min=2, max=63)
    model, shapes = torch.nn.Bilinear(4, 4, 2), ({0: size + 1}, {0: size})
    model.forward = lambda x, y: x[1:] + y
    program = torch.export.export(model, (rand(4, 4), rand(3, 4)), dynamic_shapes=shapes)
    with pytest.raises(ValueError, match="dynamic dimensions of one size, got the size"):
        exported_program_to_stablehlo(program)


NUMBERS = [
    lambda x: x * 0.5,
    lambda x: x / 8,
    lambda x: x - 5,
    lambda x: 3 - x,
    lambda x: x + 1,
    lambda x: (x * 0.125).softmax(0),
    lambda x: x.clamp(0.1, 0.7),
    lambda x: x.clamp(min=0.1),
    lambda x: torch.where(x > 0, x, -2.5),
    lambda x: torch.add(x, x, alpha=2.5),
    lambda x: torch.addcmul(x, x, x, value=0.3),
    lambda x: x**2.5 + 2**x,
    lambda x: (x > 0.25) & True,
    lambda x: x.half() * 0.3,
    lambda x: x.bfloat16() / 3,
    lambda x: x.double() * 1e-300 * 1e290,
    lambda x: (x * 10).int() // 3 + 2,
    lambda x: x.masked_fill(x > 0, -1e30),
    lambda x: torch.full_like(x, 0.1) + torch.full((4,), 2, dtype=torch.int64),
    lambda x: x.lerp(x * 2, 0.3),
    lambda x: nn.functional.leaky_relu(x, 0.3) + nn.functional.elu(x, 0.7),
    lambda x: nn.functional.layer_norm(x, (4,), eps=0.1),
    lambda x: nn.functional.pad(x, (1, 1), value=7.5),
    lambda x: torch.tensor(0.5) * x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    lambda x: torch.linalg.vector_norm(x, 3.5, dim=0),
    lambda x: torch.arange(0, 2, 0.5) + x,
    lambda x: x * x.all(),
    lambda x: x * (x > 5).any() + (x > -5).all(),
    lambda x: x.select(0, 1) * 2 + x[0, 0] * 0.5,
    lambda x: x.sum() * 0.25 - 1,
    lambda x: x * True + False,
    lambda x: x * (1 + 2j),
]


class TestNumbers:
    @pytest.mark.parametrize("inlined", [True, False])
    def test_in_all_places(self, inlined, tmp_path):
        options = StableHLOExportOptions(inline_all_constant=inlined)

        def all_of(x):
            return tuple(f(x) for f in NUMBERS)

        program = exported(all_of, rand(3, 4), options=options)
        text = program.get_stablehlo_text()
        # Numbers are in the text, or are parameters.
        assert ("3.000000e-01" in text or "0.3" in text) or not inlined
        program.save(tmp_path)
        for run in program, StableHLOGraphModule.load(tmp_path):
            x = rand(3, 4, seed=1)
            for i, (found, f) in enumerate(zip(run(x), NUMBERS, strict=True)):
                torch.testing.assert_close(
                    found.cpu(),
                    f(x),
                    rtol=2e-3,
                    atol=1e-4,
                    equal_nan=True,
                    msg=lambda m, i=i: f"{i}: {m}",
                )

    def test_of_zero_dimensions(self):
        for value in (
            torch.tensor(1.5),
            torch.tensor(3),
            torch.tensor(True),
            torch.tensor(0.5).half(),
        ):
            found = exported(lambda x: (x * 2, x + 0.5, x == 1), value)(value)
            expected = (value * 2, value + 0.5, value == 1)
            torch.testing.assert_close([x.cpu() for x in found], list(expected))

    def test_that_follow_from_a_size(self, tmp_path):
        batch = torch.export.Dim("batch", min=1, max=64)

        def f(x):
            n = x.shape[0]
            return (
                x / n,
                x.sum(0) * n,
                x * (n * 0.5 + 1) - n // 2,
                x.sum(0) / (n + 1) ** 0.5,
                torch.where(x > n, x, -n * 1.0),
                torch.zeros(n, 2) + n,
                x.mean(0),
            )

        program = exported(f, rand(4, 3), dims=batch)
        program.save(tmp_path)
        for run in program, StableHLOGraphModule.load(tmp_path):
            for n in 4, 7, 1, 64:
                x = rand(n, 3, seed=n)
                found = [result.cpu() for result in run(x)]
                torch.testing.assert_close(found, list(f(x)), rtol=1e-5, atol=1e-5)

    def test_of_an_argument_whose_size_alone_is_used(self):
        batch = torch.export.Dim("batch", min=1, max=64)

        def f(x):
            return torch.full((2,), x.shape[0], dtype=torch.float32), x.shape[0] + 1

        program = exported(f, rand(4, 3), dims=batch)
        for n in 4, 7:
            numbers, size = program(rand(n, 3))
            assert (numbers.tolist(), size) == ([n, n], n + 1)

    def test_that_follow_in_another_way_are_refused(self):
        batch = torch.export.Dim("batch", min=1, max=64)
        for f in lambda x: x.repeat(x.shape[0] % 3 + 1, 1), lambda x: x[: x.shape[0] // 2]:
            with pytest.raises((ValueError, torch._dynamo.exc.UserError)):
                exported(f, rand(4, 3), dims=batch)


class TestOptions:
    def test_unknown_and_unsupported(self):
        options = StableHLOExportOptions()
        with pytest.raises(AttributeError):
            options.inline_all_constants = True
        with pytest.raises(TypeError):
            StableHLOExportOptions(weights=False)
        for one in {"include_human_readable_text": False}, {"export_node_metadata": True}:
            with pytest.raises(ValueError, match=next(iter(one))):
                exported(lambda x: x + 1, rand(2), options=StableHLOExportOptions(**one))

    def test_weights_are_left_out(self, model):
        args = (rand(3, 4), rand(3, seed=1))
        program = torch.export.export(model, args)
        options = StableHLOExportOptions(export_weights=False)
        bundle = exported_program_to_stablehlo(program, options)
        assert bundle._bundle.state_dict == {}
        with pytest.raises(RuntimeError, match="without weights"):
            bundle(*args)

    def test_numbers_are_parameters(self):
        for inlined in True, False:
            options = StableHLOExportOptions(inline_all_constant=inlined)
            program = exported(lambda x: x * 0.123, rand(3), options=options)
            kinds = [where.type_ for where in program._default.meta.input_locations]
            assert (VariableType.CONSTANT in kinds) is not inlined
            torch.testing.assert_close(program(torch.ones(3)).cpu(), torch.full((3,), 0.123))

    def test_custom_calls(self):
        options = StableHLOExportOptions(custom_ops_allowed_in_graph={"export_test"})
        text = exported(lambda x: scaled(x * 2) + 1, rand(3), options=options).get_stablehlo_text()
        assert "custom_call" in text and '"export_test.scaled.default"' in text


class TestJax:
    def test_jax_runs_it(self, model, tmp_path):
        """JAX compiles and runs the saved text with the saved tensors."""
        jax = pytest.importorskip("jax")
        from jax._src.lib import xla_client
        from jax.extend.backend import get_backend

        args = (rand(3, 4), rand(3, seed=1))
        program = exported_program_to_stablehlo(torch.export.export(model, args))
        program.save(tmp_path)
        text = (tmp_path / "functions" / "forward.mlir").read_text()
        meta = program._default.meta
        inputs = []
        for where in meta.input_locations:
            if where.type_ == VariableType.PARAMETER:
                inputs.append(np.load(tmp_path / "data" / where.name))
            elif where.type_ == VariableType.CONSTANT:
                inputs.append(np.load(tmp_path / "constants" / str(where.position)))
            else:
                inputs.append(args[where.position].numpy())
        backend = get_backend("cpu")
        devices = xla_client.DeviceList(tuple(backend.devices()[:1]))
        executable = backend.compile_and_load(text, devices)
        arrays = [jax.device_put(x, backend.devices()[0]) for x in inputs]
        results = executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        found = [np.asarray(shards[0]) for shards in results]
        expected = model(*args)
        assert any(np.allclose(x, expected["out"].detach(), atol=1e-5) for x in found)

    def test_bytecode(self, model):
        pytest.importorskip("jaxlib")
        args = (rand(3, 4), rand(3, seed=1))
        program = exported_program_to_stablehlo(torch.export.export(model, args))
        assert program.get_stablehlo_bytecode("forward")[:4] == b"ML\xefR"

    def test_call_jax(self, device):
        jnp = pytest.importorskip("jax.numpy")
        from torch_xla.core.xla_builder import call_jax

        def f(x, data, factor=2.0):
            return {"a": jnp.sin(x) * factor, "b": (data["i"] + 1, x.sum())}

        x, i = rand(3), torch.arange(3)
        for factor in (2.0, 3.0):
            result = call_jax(f, (x.to(device) + 0, {"i": i.to(device)}), {"factor": factor}, "f")
            torch.testing.assert_close(result["a"].cpu(), x.sin() * factor)
            assert result["b"][0].tolist() == [1, 2, 3] and result["b"][0].dtype == torch.int64
            torch.testing.assert_close(result["b"][1].cpu(), x.sum())

    def test_pallas_kernels(self, device):
        jax = pytest.importorskip("jax")
        from jax.experimental import pallas

        from torch_xla.experimental.custom_kernel import make_kernel_from_pallas

        def add(x, y, out):
            out[...] = x[...] + y[...]

        def kernel(x, y, *, times):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return pallas.pallas_call(add, out_shape=shape, interpret=True)(x, y) * times

        call = make_kernel_from_pallas(kernel, lambda x, y: [(x.shape, x.dtype)])
        x, y = rand(3), rand(3, seed=1)
        result = call(x.to(device), y.to(device), static_argnames=("times",), times=2)
        torch.testing.assert_close(result.cpu(), (x + y) * 2)
