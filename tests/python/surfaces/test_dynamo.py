"""torch.compile(backend="openxla"): graphs of dynamo as programs of the device."""

import functools
import importlib

import pytest
import torch
import torch.nn.functional as F
from testing.ops import rand
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as spmd


# Of this tag, so that it is no part of a program.
@torch.library.custom_op(
    "dynamo_test::host_only",
    mutates_args=(),
    device_types="cpu",
    tags=(torch.Tag.nondeterministic_seeded,),
)
def host_only(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.numpy() * 2), torch.from_numpy(x.numpy()[0] - 3)


@host_only.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(x.shape[1:])


compiled = functools.partial(torch.compile, backend="openxla", dynamic=False)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def traced_operators() -> int:
    return sum(met.counter_value(n) for n in met.counter_names() if n.startswith("xla::"))


class TestDefaultBackend:
    """What most scripts have: a torch.compile that names no backend."""

    @pytest.mark.parametrize("mode", [None, "reduce-overhead"])
    def test_trains_as_without(self, device, mode):
        def train(device, wrap):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
            call, losses = wrap(model), []
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for step, batch in enumerate((6, 6, 6, 3, 6, 5)):  # the last ones of a loader
                optimizer.zero_grad()
                loss = call(rand(batch, 4, seed=step).to(device)).pow(2).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        actual = train(device, functools.partial(torch.compile, mode=mode))
        assert actual == pytest.approx(train("cpu", lambda model: model), rel=1e-4)

    def test_numbers_and_no_tensor_to_compute(self, device):
        @torch.compile
        def scaled(x, factor):
            return (x * factor).sum(), x + 1

        for factor in (2.5, 3.5, 4.5):
            total, more = scaled(torch.ones(3, device=device), factor)
            assert (total.item(), more.tolist()) == (3 * factor, [2.0] * 3)


class TestInference:
    def test_module(self, device):
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
        expected = [model(rand(3, 4, seed=i)) for i in range(3)]
        model.to(device)
        run = compiled(model)
        with torch.no_grad():
            found = [run(rand(3, 4, seed=i).to(device)).cpu() for i in range(3)]
        torch.testing.assert_close(found, [e.detach() for e in expected])

    def test_traces_nothing_again(self, device):
        run = compiled(lambda x: (x.sin() * 3).sum(0))
        x = rand(3, 4).to(device)
        run(x)
        torch_xla.sync(wait=True)
        met.clear_all()
        results = [run(x) for _ in range(5)]
        xm.wait_device_ops()
        assert met.metric_data("ExecuteTime")[0] == 5
        assert traced_operators() == 0 and met.counter_value("UncachedCompile") is None
        torch.testing.assert_close(results[4].cpu(), (x.cpu().sin() * 3).sum(0))

    def test_changed_parameters_are_seen(self, device):
        model = nn.Linear(2, 2).to(device)
        run = compiled(model)
        x = rand(3, 2).to(device)
        with torch.no_grad():
            run(x)
            model.weight.mul_(2)
            torch.testing.assert_close(run(x).cpu(), model(x).cpu())

    def test_pending_and_view_inputs(self, device):
        run = compiled(lambda a, b: a @ b)
        base = rand(4, 4).to(device)
        for k in (1, 2):
            a, b = base[1:3] * k, base.T[:, :2]
            torch.testing.assert_close(run(a, b).cpu(), a.cpu() @ b.cpu())

    def test_structures(self, device):
        run = compiled(lambda x: {"a": (x + 1, 5), "b": [x * 2, None]})
        x = torch.ones(2, device=device)
        result = run(x)
        assert result["a"][0].tolist() == [2, 2] and result["a"][1] == 5
        assert result["b"][0].tolist() == [2, 2] and result["b"][1] is None

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: (lambda y: (y, y[1:], y.t(), y.view(-1)[3:9:2]))(x * 2),
            lambda x: (lambda y: (y[2:], x + 1, y[:3]))(x * 2),
            lambda x: (lambda y: (y.diagonal(), y.unsqueeze(0), y))(x.t() + 2),
            lambda x: (x + 1).unbind(),
            lambda x: (lambda y: (y, y.view(torch.int32), y.view(torch.int16)[1:, 2:4]))(x + 9),
            lambda x: (lambda y: (y, torch.view_as_complex(y.view(4, 3, 2)).conj()))(x + 9),
            lambda x: (lambda y: (y[0], torch.view_as_complex(y.view(4, 3, 2)).imag))(x + 9),
        ],
        ids=["views", "parts", "transposed", "unbind", "dtypes", "conjugate", "imaginary"],
    )
    def test_results_that_share_memory(self, device, f):
        x = torch.randn(4, 6)
        call = compiled(f)
        for _ in range(2):
            results, expected = call(x.to(device)), f(x)
            for i in range(len(expected)):
                for result, wanted in zip(results, expected, strict=True):
                    torch.testing.assert_close(result.cpu(), wanted)
                results[i].fill_(i)
                expected[i].fill_(i)

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: (x * 2).transpose_(0, 1),
            lambda x: (x * 2).t_() + 1,
            lambda x: (x * 2).unsqueeze_(0).squeeze_(0).mul_(3),
            lambda x: (x[:, None] * 2).squeeze_(1),
            lambda x: (x[:, None, None] * 2).squeeze_((1, 2)),
            lambda x: (x[:1] * 2).squeeze_(),
            lambda x: (x + 1).as_strided_((2, 3), (1, 2), 1),
            lambda x: F.adaptive_avg_pool1d(x[None].transpose(1, 2), 1),
        ],
    )
    def test_views_in_place(self, device, f):
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(f)(x.to(device)).cpu(), f(x))
        mine, theirs = (x.to(d, copy=True).requires_grad_() for d in (device, "cpu"))
        for call, given in ((compiled(f), mine), (f, theirs)):
            call(given).square().sum().backward()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)

    def test_results_that_share_memory_have_gradients(self, device):
        def f(x):
            y = x * x
            return y.t(), y[1:].exp(), y[0]

        x = torch.randn(3, 4)
        mine, theirs = (x.to(d, copy=True).requires_grad_() for d in (device, "cpu"))
        for call, given in ((compiled(f), mine), (f, theirs)):
            sum((result * result).sum() for result in call(given)).backward()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)

    def test_several_shapes(self, device):
        run = compiled(lambda x: x.cumsum(0))
        for n in (3, 5, 3):
            assert run(torch.ones(n, device=device)).tolist() == list(range(1, n + 1))

    @pytest.mark.parametrize("dynamic", [None, True])
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: x.view(x.shape[0], -1, 2) * 2,
            lambda x: x.view(x.shape[0] * 2, -1).t() * 2,
            lambda x: x[1 : x.shape[0] - 1] * x[-1:],
            lambda x: x[: x.shape[0] // 2 : 2] ** 2,
            lambda x: x[x.shape[0] :].sum() + (x.chunk(2)[1] ** 2).sum(),
            lambda x: [x * 2] * 2,
        ],
    )
    def test_training_with_views_of_changing_sizes(self, device, dynamic, f):
        torch._dynamo.reset()
        run = torch.compile(f, backend="openxla", dynamic=dynamic)
        for rows in 4, 6, 8:
            cpu = torch.arange(rows * 4.0).view(rows, 4).requires_grad_()
            xla = cpu.detach().to(device).requires_grad_()
            for one, by in (cpu, f), (xla, run):
                results = by(one)
                results = results if isinstance(results, list) else [results]
                sum(result.square().sum() for result in results).backward()
            torch.testing.assert_close(xla.grad.cpu(), cpu.grad)

    @pytest.mark.parametrize("dynamic", [None, True])
    @pytest.mark.parametrize("view", [lambda x, i: x[i], lambda x, i: x.narrow(0, i, 2)])
    def test_view_at_a_place_of_the_call(self, device, dynamic, view):
        torch._dynamo.reset()
        run = torch.compile(view, backend="openxla", dynamic=dynamic)
        for i in 0, 1, 2, 1:
            cpu = torch.arange(4.0)
            xla = cpu.to(device)
            expected, found = view(cpu, i), run(xla, i)
            assert expected.tolist() == found.tolist()
            expected.add_(1), found.add_(1)
            assert cpu.tolist() == xla.tolist()

    @pytest.mark.parametrize("dynamic", [None, True])
    def test_views_of_inputs_whose_place_a_size_decides(self, device, dynamic):
        """A transposed slice of a buffer, before and after the graph has written to the buffer."""

        def look(x, buffer):
            return buffer[: x.shape[0]].t()

        def write(x, buffer):
            buffer[: x.shape[0]] += x
            return buffer[: x.shape[0]].t(), buffer[:, 1:]

        for f in (look, write):
            torch._dynamo.reset()
            run = torch.compile(f, backend="openxla", dynamic=dynamic)
            cpu = torch.arange(36.0).view(9, 4)
            xla = cpu.to(device)
            for n in (5, 3, 7, 5):
                x = torch.arange(n * 4.0).view(n, 4)
                expected, found = f(x, cpu), run(x.to(device), xla)
                for one in (expected, found):
                    (one[0] if isinstance(one, tuple) else one)[1:, 0] += 1
                torch.testing.assert_close(found, expected, check_device=False, check_stride=False)
                torch.testing.assert_close(xla.cpu(), cpu)

    def test_dynamic_shapes(self, device):
        run = torch.compile(lambda x: x * x.shape[0], backend="openxla", dynamic=True)
        classes = torch.compile(lambda x: F.one_hot(x, 5), backend="openxla", dynamic=True)
        for n in (3, 5, 4, 3):
            assert run(torch.ones(n, device=device)).tolist() == [n] * n
            assert classes(torch.arange(n, device=device)).tolist() == torch.eye(n, 5).tolist()

    @pytest.mark.parametrize("grad", [False, True])
    def test_dynamic_shapes_of_attention(self, device, grad):
        """Its composition merges dimensions of a transposed tensor."""

        def attend(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).square()

        torch._dynamo.reset()
        run = torch.compile(attend, backend="openxla", dynamic=True)
        for length in (5, 7, 6):
            mask = rand(length, length) > 0
            mask[:, 0] = True
            results = []
            for call, on in ((attend, "cpu"), (run, device)):
                args = [rand(2, 3, length, 4, seed=i).to(on).requires_grad_(grad) for i in range(3)]
                result = call(*args, mask.to(on))
                if grad:
                    result.sum().backward()
                results.append(
                    [x.detach().cpu() for x in [result, *(a.grad for a in args if grad)]]
                )
            torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


class TestMutation:
    def test_inputs(self, device):
        def f(x, y):
            x.add_(y)
            y[0] = 7
            return x * 2

        run = compiled(f)
        x, y = torch.ones(3, device=device), torch.ones(3, device=device)
        for k in (1, 2):
            assert run(x, y).tolist()[1:] == [2 * (k + 1)] * 2
        assert x.tolist() == [9, 3, 3] and y.tolist() == [7, 1, 1]

    def test_buffers(self, device):
        def run(on, compile):
            torch.manual_seed(0)
            model = nn.BatchNorm1d(3).to(on)
            call = compile(model)
            for i in range(3):
                call(rand(4, 3, seed=i).to(on))
            return [
                model.running_mean.cpu(),
                model.running_var.cpu(),
                model.num_batches_tracked.cpu(),
            ]

        torch.testing.assert_close(run(device, compiled), run("cpu", lambda m: m))


class TestRandom:
    def test_drawn_anew_and_seeded(self, device):
        run = compiled(lambda x: torch.rand_like(x) + nn.functional.dropout(x, 0.5))
        x = torch.ones(50, device=device)
        draws = []
        for _ in range(2):
            xm.set_rng_state(5)
            draws.append([run(x).cpu() for _ in range(3)])
        for a, b in zip(*draws, strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(draws[0][0], draws[0][1])


class TestTraining:
    def test_as_on_the_cpu(self, device):
        def train(on, compile):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(on)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

            def loss_of(x, target):
                return nn.functional.cross_entropy(model(x), target)

            loss_of = compile(loss_of)
            losses = []
            for i in range(4):
                optimizer.zero_grad()
                x = rand(6, 4, seed=i)
                loss = loss_of(x.to(on), (x.sum(1) > 0).long().to(on))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        found, expected = train(device, compiled), train("cpu", lambda f: f)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    def test_dropout(self, device):
        x = torch.ones(100, device=device, requires_grad=True)
        y = compiled(lambda x: nn.functional.dropout(x, 0.5))(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


class TestBreaks:
    def test_graph_break(self, device):
        def f(x):
            y = x * 2
            if y.sum().item() > 0:
                return y.sin()
            return y.cos()

        run = compiled(f)
        for sign in (1, -1):
            x = sign * torch.ones(3, device=device)
            torch.testing.assert_close(run(x).cpu(), f(x.cpu()))

    def test_fallback_operators(self, device):
        """An operator that runs on the CPU stands between two programs."""

        def f(x):
            a, b = host_only(x.sin() + 1)
            return (a.abs() * 2).sum(0), b.abs() + a.sum(1)

        run = compiled(f)
        x = rand(3, 3).to(device)
        for _ in range(2):
            met.clear_all()
            torch.testing.assert_close([t.cpu() for t in run(x)], list(f(x.cpu())))
        assert met.executed_fallback_ops() == ["dynamo_test::host_only"]
        assert met.counter_value("xla::sin") is None

    def test_cpu_input(self, device):
        run = compiled(lambda x, c: x * c.to(x.device))
        for n in (2.0, 3.0):
            assert run(torch.ones(2, device=device), torch.full((2,), n)).tolist() == [n, n]


class TestBackends:
    def test_xla_is_openxla(self, device):
        assert "xla" in torch._dynamo.list_backends(exclude_tags=())
        run = torch.compile(lambda x: x.cosh() + 1, backend="xla")
        assert run(torch.zeros(2, device=device)).tolist() == [2, 2]

    def test_options_reach_the_compiler(self, device):
        x = torch.zeros(3, device=device)
        run = torch.compile(lambda x: x.cosh() + 2, backend="xla", options={"xla_nonsense": 1})
        with pytest.raises(RuntimeError, match="xla_nonsense"):
            run(x).cpu()
        options = {"xla_cpu_enable_fast_math": False}
        assert torch.compile(lambda x: x.cosh() + 2, backend="xla", options=options)(x)[0] == 3

    def test_absent_names(self):
        import torch_xla.core.dynamo_bridge as bridge

        with pytest.raises(AttributeError, match="bound by their places"):
            bridge.GraphInputMatcher  # noqa: B018

    def test_absent_modules_and_names(self):
        """Each says what there is instead, in a sentence."""
        from torch_xla import _XLAC

        for module in "torch_xla._dynamo", "torch_xla.experimental.gru":
            with pytest.raises(ImportError, match="2.9 is not in this package: torch"):
                importlib.import_module(module)
        for owner, name in (
            (xm, "xla_device_count"),
            (spmd, "auto_policy"),
            (torch_xla, "_dynamo"),
            (_XLAC, "_get_xla_tensor_debug_info"),
        ):
            with pytest.raises(AttributeError, match=f"{name} of torch_xla 2.9 is not in this"):
                getattr(owner, name)


def test_tensors_of_the_host_in_a_graph():
    """What a graph makes on the CPU it returns, and draws anew."""

    @torch.compile(backend="openxla")
    def f(x):
        return x * torch.rand(2).to(x.device), torch.arange(2) + x.shape[0], torch.rand(2)

    x = torch.ones(2, device="xla")
    calls = [f(x) for _ in range(3)]
    assert all(of_host.tolist() == [2, 3] for _, of_host, _ in calls)
    for k in (0, 2):
        assert len({tuple(results[k].tolist()) for results in calls}) == 3
