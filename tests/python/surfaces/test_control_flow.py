"""Loops and branches that are part of the program."""

import copy
import functools
import gc
import os
import threading
import weakref

import pytest
import torch
import torch._dynamo  # noqa: F401 - the first checkpoint() would, in cycles that keep its arguments
from testing.ops import rand
from testing.processes import python_output
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental import associative_scan, cond, eager_mode_context, map
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import StackedLayers, scan_layers
from torch_xla.utils.checkpoint import checkpoint


def unrolled(fn, init, xs):
    ys = []
    for i in range(len(xs)):
        init, y = fn(init, xs[i])
        ys.append(y)
    return init, torch.stack(ys)


_WRITES = {
    "add_": lambda tensor, x: tensor.add_(x.detach()),
    "zero_": lambda tensor, x: tensor.zero_(),
    "copy_ of the host": lambda tensor, x: tensor.copy_(torch.full((2,), 7.0)),
    "data": lambda tensor, x: tensor.data.mul_(x.detach()),
    "view": lambda tensor, x: tensor[:1].fill_(9.0),
    "uniform_": lambda tensor, x: tensor.uniform_(),
}


@pytest.mark.parametrize("write", _WRITES.values(), ids=_WRITES)
@pytest.mark.parametrize("pending", [False, True])
def test_a_function_that_changes_a_tensor_from_outside(write, pending):
    """It is refused, and the tensor keeps its value, also where the function raises itself."""
    ones = torch.ones(2, device="xla")
    tensor = ones * 1 if pending else torch.ones(2).to("xla")
    if not pending:
        torch_xla.sync(wait=True)

    def body(carry, x):
        write(tensor, x)
        return carry + x, None

    def fails(carry, x):
        write(tensor, x)
        return carry, x.sum().item()

    def branch(x):
        write(tensor, x)
        return x + 1

    xs = torch.full((3, 2), 2.0, device="xla")
    programs = {
        "changes a tensor from outside": [
            lambda: scan(body, ones, xs),
            lambda: cond(ones.sum() > 5, branch, torch.cos, (xs[0],)),
            lambda: while_loop(lambda x: x.sum() < 9, lambda x: (branch(x),), (ones,)),
        ],
        "traces its function": [lambda: scan(fails, ones, xs)],
    }
    for message, calls in programs.items():
        for call in calls:
            with pytest.raises(RuntimeError, match=message):
                call()
            assert tensor.tolist() == [1.0, 1.0]
    copy = tensor.clone()  # Its memory is its own.
    result, _ = scan(lambda carry, x: (carry + tensor.clone().add_(x), None), ones, xs)
    assert result.tolist() == [10.0] * 2 and copy.tolist() == [1.0] * 2


def test_second_derivatives_are_refused_where_they_need_a_loop():
    def loss(x):
        return scan(lambda carry, v: (carry * v + v.sin(), None), torch.ones((), device="xla"), x)[
            0
        ]

    def branch(x):
        return cond(x.sum() > 0, lambda v: v**3, torch.sin, (x,)).sum()

    def layers(x):
        return scan_layers(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to("xla"), x).sum()

    for function in (loss, branch, layers):
        x = torch.tensor([1.0, 2.0, 3.0], device="xla", requires_grad=True)
        value = function(x)
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        (expected,) = torch.autograd.grad(function(x), x) if function is not layers else (gradient,)
        torch.testing.assert_close(gradient.detach().cpu(), expected.detach().cpu())
        value.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="second derivatives do not go through"):
            (value + gradient.square().sum()).backward()


class TestScan:
    def test_values(self, device):
        def fn(carry, x):
            return carry * 0.5 + x, carry - x

        init, xs = rand(3), rand(5, 3, seed=1)
        expected = unrolled(fn, init, xs)
        last, ys = scan(fn, init.to(device), xs.to(device))
        torch.testing.assert_close(last.cpu(), expected[0])
        torch.testing.assert_close(ys.cpu(), expected[1])

    def test_nested_data_and_none(self, device):
        def fn(carry, x):
            count, total = carry["n"] + 1, carry["sum"] + x["v"]
            return {"n": count, "sum": total}, None

        init = {"n": torch.tensor(0, device=device), "sum": torch.zeros(2, device=device)}
        last, ys = scan(fn, init, {"v": torch.ones(4, 2, device=device)})
        assert ys is None and last["n"].item() == 4 and last["sum"].tolist() == [4, 4]

    @pytest.mark.parametrize("recompute", [False, True])
    def test_gradients(self, device, recompute):
        weight, init, xs = rand(4, 4), rand(2, 4, seed=1), rand(6, 2, 4, seed=2)

        def loss_of(scan, on):
            w, i, x = (t.to(on, copy=True).requires_grad_() for t in (weight, init, xs))

            def step(carry, x):
                hidden = torch.tanh(carry @ w + x)
                return hidden * x.sigmoid(), hidden.square()

            def fn(carry, x):
                return (
                    checkpoint(step, carry, x, use_reentrant=False)
                    if recompute
                    else (step(carry, x))
                )

            last, ys = scan(fn, i, x)
            loss = last.sum() + (ys * torch.arange(6.0, device=on)[:, None, None]).sum()
            loss.backward()
            return [t.cpu() for t in (loss.detach(), w.grad, i.grad, x.grad)]

        torch.testing.assert_close(loss_of(scan, device), loss_of(unrolled, "cpu"))

    def test_compiles_once_for_each_length_and_not_for_each_number(self, device):
        def step(n, factor):
            return scan(
                lambda c, x: (c * factor + x, c), *(rand(3).to(device), rand(n, 3).to(device))
            )

        for factor in (0.3, 0.4, 0.5):
            step(5, factor)[0].cpu()
            if factor == 0.3:
                met.clear_all()
        assert not met.counter_value("UncachedCompile")

    def test_gradients_of_some(self, device):
        xs = rand(3, 2).to(device)
        init = rand(2, seed=1).to(device).requires_grad_()
        counter = torch.zeros((), dtype=torch.int64, device=device)
        (last, n), ys = scan(lambda c, x: ((c[0] * x, c[1] + 1), c[1]), (init, counter), xs)
        assert last.requires_grad and not n.requires_grad and not ys.requires_grad
        last.sum().backward()
        torch.testing.assert_close(init.grad.cpu(), xs.cpu().prod(0))
        assert n.item() == 3 and ys.tolist() == [0, 1, 2]

    def test_random_numbers_differ_between_iterations(self, device):
        zeros = torch.zeros(4, 100, device=device)
        _, ys = scan(lambda c, x: (c, torch.rand_like(x)), zeros[0], zeros)
        assert len({tuple(row) for row in ys.tolist()}) == 4
        xm.set_rng_state(3)
        first = scan(lambda c, x: (c, torch.rand_like(x)), zeros[0], zeros)[1].cpu()
        xm.set_rng_state(3)
        again = scan(lambda c, x: (c, torch.rand_like(x)), zeros[0], zeros)[1].cpu()
        assert torch.equal(first, again)

    def test_dropout_has_one_mask_for_both_passes(self, device):
        x = torch.ones(3, 50, device=device, requires_grad=True)
        _, ys = scan(lambda c, x: (c, nn.functional.dropout(x, 0.5)), x.detach()[0], x)
        ys.sum().backward()
        torch.testing.assert_close(ys.cpu(), x.grad.cpu())

    def test_within_scan(self, device):
        def inner(carry, x):
            return scan(lambda c, y: (c + y, None), carry, x)[0], carry

        xs = rand(3, 4, 2).to(device)
        last, _ = scan(inner, torch.zeros(2, device=device), xs)
        torch.testing.assert_close(last.cpu(), xs.cpu().sum((0, 1)))

    @pytest.mark.parametrize(
        "fn, error, message",
        [
            (lambda c, x: (c.sum(), x), ValueError, "carry 0 as torch.float32 of shape"),
            (lambda c, x: c, TypeError, "a carry and a y"),
            (lambda c, x: ((c, c), x), ValueError, "structure"),
            (lambda c, x: (c * c.sum().item(), x), RuntimeError, "scan.*cut here|has no value"),
        ],
    )
    def test_errors(self, device, fn, error, message):
        with pytest.raises(error, match=message):
            scan(fn, torch.ones(2, device=device), torch.ones(3, 2, device=device))
        assert torch.ones(1, device=device).add(1).item() == 2

    def test_lengths(self, device):
        with pytest.raises(ValueError, match="one first dimension"):
            scan(lambda c, x: (c, x), torch.ones(2, device=device), torch.ones((), device=device))

    def test_multiples_are_computed_again(self, device):
        def fn(carry, x):
            y = (carry + x).tanh() * 0.5
            return carry + y * y.exp(), None

        def gradient(on, apply):
            init = rand(3).to(on).requires_grad_()
            apply(fn, init, rand(5, 3, seed=1).to(on))[0].sum().backward()
            return init.grad

        def plain(fn, carry, xs):
            for x in xs:
                carry, _ = fn(carry, x)
            return carry, None

        found = gradient(device, scan)
        # The tangent and the exponential are kept.
        assert xm.get_stablehlo([found]).count("dynamic_update_slice") == 2
        torch.testing.assert_close(found.cpu(), gradient("cpu", plain))

    def test_changes_of_what_it_is_given(self, device):
        def fn(carry, x):
            carry += x.mul_(2)
            return carry, x

        init, xs = rand(2).to(device).requires_grad_(), rand(3, 2, seed=1).to(device)
        last, ys = scan(fn, init, xs)
        last.sum().backward()
        torch.testing.assert_close(ys.cpu(), 2 * rand(3, 2, seed=1))
        torch.testing.assert_close(xs.cpu(), rand(3, 2, seed=1))
        torch.testing.assert_close(last.cpu(), (rand(2) + ys.cpu().sum(0)))
        assert init.grad.tolist() == [1, 1]

    def test_computed_tensor_from_outside_with_gradient(self, device):
        w = (rand(2).to(device).requires_grad_() * 2).exp()
        with pytest.raises(ValueError, match="pass it as an argument"):
            scan(
                lambda c, x: (c * w, x),
                torch.ones(2, device=device),
                torch.ones(3, 2, device=device),
            )

    def test_leaked_tensor_raises_when_read(self, device):
        kept = []

        def fn(carry, x):
            kept.append(carry + x)
            return carry, x

        scan(fn, torch.ones(2, device=device), torch.ones(3, 2, device=device))
        torch_xla.sync(wait=True)
        with pytest.raises(RuntimeError, match="has no value"):
            kept[0].cpu()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def one_by_one(layers, x):
    return functools.reduce(lambda x, layer: layer(x), layers, x)


class TestScanLayers:
    @pytest.mark.parametrize("count", [1, 4])
    def test_training(self, device, count):
        def train(on, apply):
            torch.manual_seed(0)
            layers = nn.ModuleList(Block(8) for _ in range(count)).to(on)
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
            losses = []
            for i in range(3):
                optimizer.zero_grad()
                loss = apply(layers, rand(3, 8, seed=i).to(on)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        losses = train(device, scan_layers), train("cpu", one_by_one)
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)

    def test_program_does_not_grow(self, device):
        x = rand(2, 8).to(device)
        sizes = []
        for count in (2, 8):
            layers = nn.ModuleList(Block(8) for _ in range(count)).to(device)
            sizes.append(xm.get_stablehlo([scan_layers(layers, x)]).count("dot_general"))
        assert sizes == [2, 2]

    def test_gradients_need_no_layer_again(self, device):
        """What is read as a view, transposed weights and inputs of products, is there as a base."""
        layers = nn.ModuleList(Block(8) for _ in range(3)).to(device)
        scan_layers(layers, rand(2, 3, 8).to(device)).square().sum().backward()
        text = xm.get_stablehlo([p.grad for p in layers.parameters()])
        assert text.count("dot_general") == 6 and text.count("rsqrt") == 1

    def test_libraries_are_called_where_a_program_may(self, tmp_path):
        found = python_output(
            """
            import torch, torch_xla
            import torch_xla.core.xla_model as xm
            from torch_xla.experimental.scan_layers import StackedLayers, scan_layers

            def make():
                return scan_layers(layers, x.to(layers[0].weight.device))

            torch.manual_seed(0)
            layers = torch.nn.ModuleList(torch.nn.LayerNorm(64) for _ in range(3))
            x = torch.randn(128, 64)
            expected = layers[2](layers[1](layers[0](x)))
            layers.to("xla")
            print("custom_call" in xm.get_stablehlo([make()]))
            torch.testing.assert_close(make().cpu(), expected)
            """,
            XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
            XLA_PERSISTENT_CACHE_PATH="",
        )
        assert found == "False"
        programs = (path.read_text() for path in tmp_path.glob("*before_optimizations.txt"))
        calls = any("torch_xla.cpu_normalization" in text for text in programs)
        assert calls == (os.environ.get("XLA_CPU_KERNELS") != "0")

    def test_unlike_layers(self, device):
        with pytest.raises(ValueError, match="layer 1 has other parameters"):
            scan_layers([Block(8), Block(4)], torch.ones(2, 8))

    def test_none(self):
        assert scan_layers([], 5) == 5

    @pytest.mark.parametrize("residual", [False, True])
    def test_autocast(self, device, residual):
        """The first layer of those that are not residual takes float32, the others bfloat16."""

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x):
                y = self.linear(x).tanh()
                return x + y if residual else y

        torch.manual_seed(0)
        layers = nn.ModuleList([Layer() for _ in range(3)]).to(device)

        def train(apply):
            layers.zero_grad()
            x = torch.linspace(-1, 1, 32, device=device).view(4, 8).requires_grad_()
            with torch.autocast("xla", torch.bfloat16):
                y = apply(layers, x)
            y.float().square().sum().backward()
            return y.cpu(), x.grad.cpu(), *(p.grad.cpu() for p in layers.parameters())

        found, expected = train(scan_layers), train(one_by_one)
        assert found[0].dtype == (torch.float32 if residual else torch.bfloat16)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


class Normed(nn.Module):
    """A layer whose buffers change as it runs; its two linear layers have one weight."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.down.weight = self.up.weight

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).tanh())


class TestStackedLayers:
    @pytest.mark.parametrize("kind", [Block, Normed])
    @pytest.mark.parametrize(("on", "stacked"), [("xla", True), ("cpu", True), ("xla", False)])
    def test_training(self, kind, on, stacked):
        """Of stacked layers, and of scan_layers, whose layers' buffers change as well."""
        torch.manual_seed(0)
        layers = nn.Sequential(*(kind(8) for _ in range(3)))

        def train(model, apply, on):
            model.to(on)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for i in range(3):
                optimizer.zero_grad()
                apply(rand(3, 8, seed=i).to(on)).square().mean().backward()
                optimizer.step()
            return {name: tensor.cpu() for name, tensor in model.state_dict().items()}

        model = StackedLayers(layers) if stacked else copy.deepcopy(layers)
        found = train(model, model if stacked else functools.partial(scan_layers, model), on)
        expected = train(layers, layers, "cpu")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_one_array_for_all(self, device):
        model = StackedLayers(Block(8) for _ in range(5)).to(device)
        assert [len(parameter) for parameter in model.parameters()] == [5] * 6
        model(torch.ones(2, 8, device=device)).sum().backward()
        assert "concatenate" not in xm.get_stablehlo([p.grad for p in model.parameters()])

    def test_state_is_that_of_a_list(self, device):
        layers = nn.Sequential(Normed(4), Normed(4))
        model = nn.ModuleDict({"a": StackedLayers([Normed(4), Normed(4)])}).to(device)
        state = {f"a.{name}": tensor for name, tensor in layers.state_dict().items()}
        assert model.load_state_dict(state) == ([], [])
        torch.testing.assert_close({n: t.cpu() for n, t in model.state_dict().items()}, state)
        del state["a.1.up.bias"]
        with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"a.1.up.bias"):
            model.load_state_dict(state)

    def test_autocast_of_layers_that_change_the_dtype(self, device):
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
        model, x = StackedLayers(layers).to(device), rand(4, 8)
        with torch.autocast("xla", torch.bfloat16):
            y = model(x.to(device))
        y.sum().backward()
        layers(x).sum().backward()
        assert y.dtype == torch.bfloat16
        for i, parameter in enumerate(layers[1].parameters()):
            found = list(model.parameters())[i].grad[1].cpu()
            torch.testing.assert_close(found, parameter.grad, rtol=0.05, atol=0.05)

    def test_unlike_layers_and_none(self):
        with pytest.raises(ValueError, match="layer 1 has other parameters"):
            StackedLayers([Block(8), Block(4)])
        with pytest.raises(ValueError, match="at least one"):
            StackedLayers([])


class TestCond:
    def test_values(self, device):
        x = rand(3).to(device)
        for sign in (1.0, -1.0):
            pred = (x.sum() * 0 + sign) > 0
            result = cond(pred, torch.sin, torch.cos, (x,))
            expected = x.cpu().sin() if sign > 0 else x.cpu().cos()
            torch.testing.assert_close(result.cpu(), expected)

    def test_one_program_and_no_read(self, device):
        @torch_xla.compile(full_graph=True, max_different_graphs=1)
        def f(x):
            return cond(x.sum() > 0, lambda x: x * 2, lambda x: torch.zeros_like(x), (x,))

        assert f(torch.ones(2, device=device)).tolist() == [2, 2]
        assert f(-torch.ones(2, device=device)).tolist() == [0, 0]

    @pytest.mark.parametrize("truth", [True, False])
    def test_gradients(self, device, truth):
        def grads(on, choose):
            w, x = (rand(3, seed=i).to(on).requires_grad_() for i in (0, 1))
            pred = torch.tensor(truth, device=on)
            a, b = choose(pred, lambda x: (x * w, x.exp()), lambda x: (x.sin(), x * 3), (x,))
            (a.sum() + 2 * b.sum()).backward()
            return [x.grad.cpu(), torch.zeros(3) if w.grad is None else w.grad.cpu()]

        def plain(pred, first, second, operands):
            return (first if pred else second)(*operands)

        torch.testing.assert_close(grads(device, cond), grads("cpu", plain))

    def test_errors(self, device):
        x, pred = torch.ones(2, device=device), torch.tensor(True, device=device)
        with pytest.raises(ValueError, match="same shapes and dtypes"):
            cond(pred, lambda x: x, lambda x: x.sum(), (x,))
        with pytest.raises(ValueError, match="one bool"):
            cond(x, lambda x: x, lambda x: x, (x,))
        with pytest.raises(RuntimeError, match="cut here|has no value"):
            cond(pred, lambda x: x * x.sum().item(), lambda x: x, (x,))

    def test_python_bool(self):
        assert cond(False, lambda: 1, lambda: 2) == 2


def test_operators_of_pytorch_within_autocast(device):
    """All of them pass over it, as over that of other devices."""
    x = torch.full((3,), 0.5, device=device)
    start = torch.tensor(0, device=device)
    with torch.autocast("xla", torch.bfloat16):
        chosen = torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x * 2, (x,))
        count, last = torch._higher_order_ops.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (start, x)
        )
        carry, rows = torch._higher_order_ops.scan(lambda c, a: (c + a, c * a), x[0], x)
    assert chosen.dtype == torch.bfloat16 and chosen.item() == 0.75
    assert count.item() == 3 and last.tolist() == [4.0] * 3
    assert carry.item() == 2.0 and rows.tolist() == [0.25, 0.5, 0.75]


class TestLoops:
    def test_while(self, device):
        limit = torch.tensor(100, device=device)
        i, x = while_loop(
            lambda i, x: x.sum() < limit,
            lambda i, x: (i + 1, x * 2),
            (torch.tensor(0, device=device), torch.ones(3, device=device)),
        )
        assert i.item() == 6 and x.tolist() == [64, 64, 64]

    def test_while_with_more_inputs(self, device):
        step = torch.tensor(3, device=device)
        (i,) = while_loop(
            lambda i, s: i < 10, lambda i, s: (i + s,), (torch.tensor(0, device=device),), (step,)
        )
        assert i.item() == 12

    @pytest.mark.parametrize("as_tensors", [True, False])
    def test_fori(self, device, as_tensors):
        bounds = [2, 5]
        if as_tensors:
            bounds = [torch.tensor(b, device=device) for b in bounds]
        total = fori_loop(*bounds, lambda i, x: x + i, torch.zeros(2, device=device))
        assert total.tolist() == [9, 9]

    def test_fori_gradient(self, device):
        x = torch.full((2,), 3.0, device=device, requires_grad=True)
        fori_loop(0, 3, lambda i, y: y * x, x).sum().backward()
        torch.testing.assert_close(x.grad.cpu(), torch.full((2,), 4 * 27.0))

    def test_random_numbers(self, device):
        _, x = while_loop(
            lambda i, x: i < 4,
            lambda i, x: (
                i + 1,
                torch.where(torch.arange(4, device=device) == i, torch.rand(4, device=device), x),
            ),
            (torch.tensor(0, device=device), torch.zeros(4, device=device)),
        )
        assert len(set(x.tolist())) == 4

    def test_map_and_associative_scan(self, device):
        xs = rand(4, 3).to(device)
        torch.testing.assert_close(map(lambda x, s: x.exp() * s, xs, 2.0).cpu(), xs.cpu().exp() * 2)
        torch.testing.assert_close(associative_scan(torch.mul, xs, 0).cpu(), xs.cpu().cumprod(0))
        found = associative_scan(torch.add, xs, 1, reverse=True).cpu()
        torch.testing.assert_close(found, xs.cpu().flip(1).cumsum(1).flip(1))

    def test_errors(self, device):
        start = (torch.tensor(0, device=device),)
        with pytest.raises(ValueError, match="one bool"):
            while_loop(lambda i: i, lambda i: (i,), start)
        with pytest.raises(ValueError, match="shapes and dtypes"):
            while_loop(lambda i: i < 3, lambda i: (i * 1.5,), start)
        with pytest.raises(RuntimeError, match="cut here|has no value"):
            while_loop(lambda i: i.item() < 3, lambda i: (i,), start)


class TestCheckpoint:
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_gradients(self, device, reentrant):
        def grads(on, apply):
            torch.manual_seed(1)
            layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(on)
            x = rand(3, 4).to(on).requires_grad_()
            apply(layer, x).square().sum().backward()
            return [t.cpu() for t in (x.grad, *(p.grad for p in layer.parameters()))]

        expected = grads("cpu", lambda layer, x: layer(x))
        found = grads(device, lambda layer, x: checkpoint(layer, x, use_reentrant=reentrant))
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_random_numbers_are_the_same(self, device, reentrant):
        x = torch.ones(200, device=device, requires_grad=True)
        y = checkpoint(lambda x: nn.functional.dropout(x * 1.0, 0.5), x, use_reentrant=reentrant)
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())

    @pytest.mark.parametrize("case", ["plain", "dropout", "autocast", "nested", "named", "closure"])
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_of_pytorch_saves_memory(self, device, reentrant, case):
        """By the executable's own statistics, and the gradients are those without it."""
        if reentrant and case == "named":
            return  # It takes no named arguments.

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(32, 256), nn.Linear(256, 32)

            def forward(self, x, scale=1.0):
                y = nn.functional.gelu(self.up(x))
                y = nn.functional.dropout(y, 0.1 if case == "dropout" else 0.0)
                return x + self.down(y) * scale

        def train(apply):
            torch.manual_seed(0)
            blocks = nn.ModuleList(Block() for _ in range(6)).to(device)
            x = rand(64, 32).to(device).requires_grad_()
            scale = torch.full((32,), 1.5, device=device)
            torch_xla.sync(wait=True)
            torch_xla.runtime.clear_computation_cache()
            before = max((program["number"] for program in _XLAC._program_memory()), default=-1)
            y = x
            with torch.autocast("xla", torch.bfloat16, enabled=case == "autocast"):
                for first, second in zip(blocks[::2], blocks[1::2], strict=True):
                    if case == "nested":
                        y = apply(lambda y, a, b: apply(b, apply(a, y)), y, first, second)
                    elif case == "named":
                        y = apply(second, x=apply(first, x=y, scale=scale), scale=scale)
                    elif case == "closure":
                        y = apply(lambda y, a, b: b(a(y), scale), y, first, second)
                    else:
                        y = apply(second, apply(first, y))
            y.float().square().mean().backward()
            torch_xla.sync(wait=True)
            sizes = [p["temporaries"] for p in _XLAC._program_memory() if p["number"] > before]
            return max(sizes), [t.grad.cpu() for t in (x, *blocks.parameters())]

        def again(function, *args, **kwargs):
            return torch.utils.checkpoint.checkpoint(
                function, *args, use_reentrant=reentrant, **kwargs
            )

        kept, expected = train(lambda function, *args, **kwargs: function(*args, **kwargs))
        computed, found = train(again)
        assert computed < 0.6 * kept
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_nothing_is_kept(self, device, reentrant):
        """What lives until Python collects garbage would be a result, in a program of its own."""
        gc.disable()
        try:
            seen = []

            def f(x):
                seen.append(weakref.ref(x))
                return x.sin() * 2

            x = rand(3).to(device).requires_grad_()
            y = checkpoint(f, x * 2, use_reentrant=reentrant)
            y.sum().backward()
            del y
            assert [argument() for argument in seen] == [None, None]
        finally:
            gc.enable()

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_xla_computes_again(self, tmp_path, reentrant):
        """The optimized program has the forward function's tangents twice, not once."""
        code = (
            "import sys, torch, torch_xla\n"
            "from torch_xla.utils.checkpoint import checkpoint\n"
            "x = torch.ones(64, 64, device='xla', requires_grad=True)\n"
            "w = torch.ones(64, 64, device='xla')\n"
            "f = lambda x: torch.tan(torch.tan(x @ w) @ w)\n"
            "torch_xla.sync()\n"
            f"y = checkpoint(f, x, use_reentrant={reentrant})\n"
            "y.sum().backward()\n"
            "torch_xla.sync(wait=True)\n"
            "x.grad.cpu()\n"
        )
        counts = []
        for name, text in (
            ("with", code),
            ("without", code.replace("checkpoint(f, x,", "f(x); (")),
        ):
            text = text.replace(f"; ( use_reentrant={reentrant})", "")
            folder = tmp_path / name
            flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
            python_output(text, XLA_FLAGS=flags, XLA_CPU_KERNELS="0")
            programs = [p.read_text() for p in folder.glob("*after_optimizations.txt")]
            counts.append(max(program.count("tan(") for program in programs))
        assert counts[0] > counts[1]


class TestHigherOrderOperators:
    """PyTorch's own operators, which the device computes in the program."""

    def test_cond(self, device):
        x = rand(3).to(device).requires_grad_()

        @torch_xla.compile(full_graph=True)
        def f(pred):
            return torch.cond(pred, lambda x: x.sin(), lambda x: x * 2, (x,))

        for truth in (True, False):
            x.grad = None
            y = f(torch.tensor(truth, device=device))
            y.sum().backward()
            plain = x.detach().cpu()
            torch.testing.assert_close(y.detach().cpu(), plain.sin() if truth else plain * 2)
            expected = plain.cos() if truth else torch.full((3,), 2.0)
            torch.testing.assert_close(x.grad.cpu(), expected)

    def test_while_loop(self, device):
        from torch._higher_order_ops import while_loop as torch_while_loop

        start = torch.tensor(0, device=device), torch.ones(2, device=device)
        with torch_xla.compile(full_graph=True):
            result = torch_while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), start)
        assert result[0].item() == 5 and result[1].tolist() == [32, 32]

    def test_scan(self, device):
        from torch._higher_order_ops import scan as torch_scan

        def grads(on, scan):
            init, xs = (
                rand(*s, seed=i).to(on).requires_grad_() for i, s in ((0, (3,)), (1, (4, 3)))
            )
            last, ys = scan(lambda c, x: (c * x, c + x), init, xs)
            (last.sum() + ys.square().sum()).backward()
            return [init.grad.cpu(), xs.grad.cpu()]

        torch.testing.assert_close(grads(device, torch_scan), grads("cpu", unrolled))


class TestGradientAccumulation:
    @pytest.mark.parametrize("again", [False, True])
    def test_as_one_by_one(self, device, again):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        xs, ys = rand(5, 2, 3), rand(5, 2, 1, seed=1)

        def step_of(model):
            def step(x, y, count):
                return (model(x) - y).square().mean(), count + 1

            return step

        expected, count = 0.0, 0
        for _ in range(1 + again):
            for x, y in zip(xs, ys, strict=True):
                loss, count = step_of(model)(x, y, count)
                loss = loss / len(xs)
                loss.backward()
                expected += loss.detach()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model.to(device)
        total, count_found = 0.0, torch.tensor(0, device=device)
        for _ in range(1 + again):
            batches = xs.to(device), ys.to(device)
            loss, count_found = gradient_accumulation(step_of(model), batches, model, count_found)
            total += loss
        assert count_found.item() == count
        torch.testing.assert_close(total.cpu(), expected)
        torch.testing.assert_close([p.grad.cpu() for p in model.parameters()], grads)

    def test_without_carried_tensors(self, device):
        """The loss by itself, and as that of all batches at once."""
        model = nn.Linear(3, 2).to(device)
        batches = rand(8, 3).to(device)
        loss = gradient_accumulation(lambda x: model(x).square().mean(), [batches], model)
        expected = model(batches).square().mean()
        torch.testing.assert_close(loss.cpu(), expected.detach().cpu())
        (gradient,) = torch.autograd.grad(expected, [model.weight])
        torch.testing.assert_close(model.weight.grad.cpu(), gradient.cpu())

    def test_no_batch(self, device):
        model = nn.Linear(3, 2).to(device)
        for batches in ([], [torch.ones(0, 3, device=device)], [rand(2, 3), rand(3, 3)]):
            with pytest.raises(ValueError, match="expected `iterable_tensors` with one number"):
                gradient_accumulation(lambda *xs: model(xs[0]).sum(), batches, model)


def test_higher_order_operators_in_eager_mode():
    x = torch.linspace(-1, 1, 4)
    with eager_mode_context(True):
        y = x.to("xla")
        found = torch.cond(y.sum() > 1, torch.sin, torch.cos, (y,))
        assert found.device.type == "xla"
    torch.testing.assert_close(found.cpu(), x.cos())


def test_another_thread_writes_meanwhile():
    """What it changes is not what the traced function changes."""
    counter, ended = torch.zeros(2, device="xla"), threading.Event()

    def write():
        while not ended.is_set():
            counter.add_(1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        x = torch.ones(2, device="xla")
        for k in range(20):
            found = torch.cond(x.sum() > k, torch.sin, torch.cos, (x,))
            torch.testing.assert_close(found.cpu(), torch.ones(2).sin() if k < 2 else x.cos().cpu())
    finally:
        ended.set()
        thread.join()

    def writes(y):
        x.add_(1)
        return y

    with pytest.raises(RuntimeError, match="changes a tensor from outside"):
        cond(x.sum() > 0, writes, torch.cos, (x * 2,))
