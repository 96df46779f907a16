"""Replay of training steps, its checks, and what it says."""

import email.charset
import html.entities
import logging
from email.charset import Charset

import pytest
import torch
from testing.replay import (
    batches,
    clipped_step,
    is_refused,
    is_replayed,
    mlp,
    refused,
    right,
    status,
)

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._internal.replay import calls
from torch_xla._internal.replay import functions as replay

mse = torch.nn.functional.mse_loss


def states(*objects):
    return [
        [p.detach() for p in one.state_dict().values()]
        if isinstance(one, torch.nn.Module)
        else [v for s in one.state.values() for v in s.values()]
        for one in objects
    ]


def test_whose_code_it_is():
    own = [module.__file__ for module in (torch, torch_xla, met, replay)]
    assert {calls.file_family(file) for file in own} == {"trusted"}
    assert calls.file_family(__file__) == "user"


class TestHooks:
    @is_refused("has other entries")
    def test_that_count(self, compile, device):
        model, seen = mlp(device), []
        model[0].register_forward_hook(lambda *args: seen.append(1))

        @compile
        def f(x):
            return model(x).detach()

        for _ in range(15):
            f(torch.ones(2, 6, device=device))
        return [len(seen)]

    @is_replayed
    def test_added_later(self, compile, device):
        model = mlp(device)

        @compile
        def f(x, y):
            model.zero_grad()
            mse(model(x), y).backward()
            return model[0].weight.grad * 1

        found = []
        for i, (x, y) in enumerate(batches(device, 20)):
            if i == 6:
                model[0].register_forward_hook(lambda module, args, out: out * 2)
            if i == 12:
                model[0].weight.register_hook(lambda grad: grad * 3)
            found.append(f(x, y))
        return found


def products(numbers):
    """A program that calls a function with each of the numbers."""

    def program(compile, device):
        @compile
        def f(x, number):
            return x * number

        x = torch.ones(3, device=device)
        return [f(x, number) for number in numbers]

    return program


class TestManySizes:
    @is_replayed(50)
    def test_each_of_20_in_turn_has_its_recording(self, compile, device):
        # What code runs is learnt in two or three calls, then each size is traced twice.
        model = mlp(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = clipped_step(compile, model, optimizer)
        given = [batches(device, 1, size)[0] for size in range(2, 22)]
        return [step(x, y) for _ in range(5) for x, y in given]

    def test_that_never_come_again_are_no_longer_recorded(self, device):
        numbers = range(replay._MAX_NEW + 5)
        refused(products(numbers), device, "of new sizes or values too often")

    def test_new_ones_do_not_end_what_is_replayed(self, device):
        numbers = [7] * 9 + list(range(10, replay._MAX_NEW + 20)) + [7] * 10
        right(products(numbers), device, least=16)


class TestOptimizers:
    @pytest.mark.parametrize("kwargs", [{"fused": True}, {"capturable": True}, {}])
    @is_replayed(181)
    def test_adamw_cosine_and_clipping_over_200_steps(self, compile, device, kwargs):
        model = mlp(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **kwargs)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        step = clipped_step(compile, model, optimizer)
        losses = []
        data = batches(device, 5)
        for i in range(200):
            losses.append(step(*data[i % 5]).detach())
            scheduler.step()
        return [losses, states(model, optimizer)]

    @is_replayed
    def test_learning_rate_by_hand(self, compile, device):
        model = mlp(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @compile
        def step(x, y):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        losses = []
        for i, (x, y) in enumerate(batches(device, 24)):
            if i % 8 == 7:
                optimizer.param_groups[0]["lr"] /= 3
            losses.append(step(x, y).detach())
        return [losses, states(model, optimizer)]

    @is_replayed
    def test_gradients_are_kept_by_the_user(self, compile, device):
        model = mlp(device)

        @compile
        def step(x, y):
            model.zero_grad()
            mse(model(x), y).backward()

        grads = []
        for x, y in batches(device, 10):
            step(x, y)
            grads.append(model[0].weight.grad)
        return grads

    def test_a_recorded_step_is_that_of_a_traced_one(self, device):
        """It lets go of the gradients before: as many programs, and no more memory."""

        def train(compile):
            model = torch.nn.Linear(512, 512, bias=False).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

            @compile
            def step(x):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            compiled = met.counter_value("UncachedCompile") or 0
            for _ in range(6):
                step(torch.ones(2, 512, device=device))
                torch_xla.sync(wait=True)
            return met.counter_value("UncachedCompile") - compiled

        before = met.counter_value("ReplayedCall") or 0
        traced = train(lambda step: step)
        _XLAC._xla_clear_programs()
        assert train(torch_xla.compile(replay=True)) == traced == 2
        assert met.counter_value("ReplayedCall") - before == 3

    @is_replayed
    def test_gradients_that_somebody_keeps(self, compile, device):
        model, kept = mlp(device), []

        @compile
        def step(x, y):
            model.zero_grad()
            mse(model(x), y).backward()

        for x, y in batches(device, 12):
            step(x, y)
            kept.append(model[0].weight.grad)  # the tensor itself, and a view of another
            kept.append(model[0].bias.grad[0])
        return kept

    @is_replayed
    def test_gradients_accumulate(self, compile, device):
        model = mlp(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def backward(x, y):
            mse(model(x), y).backward()

        @compile
        def update():
            optimizer.step()
            optimizer.zero_grad()

        for i, (x, y) in enumerate(batches(device, 40)):
            backward(x, y)
            if i % 4 == 3:
                update()
        return states(model)

    def test_second_backward_says_so(self, device):
        model = mlp(device)

        @torch_xla.compile(replay=True)
        def step(x, y):
            loss = mse(model(x), y)
            loss.backward()
            return loss

        for x, y in batches(device, 6):
            model.zero_grad(set_to_none=False)
            loss = step(x, y)
        assert status(step).replayed > 0 and loss.requires_grad
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


class TestChecks:
    def test_difference_is_raised_and_named(self, device, monkeypatch):
        monkeypatch.setenv("XLA_REPLAY_CHECK", "4")
        hidden = logging.getLogger("of replay")  # No guard looks into loggers.
        hidden.scale = 2.0

        @torch_xla.compile(replay=True)
        def f(x):
            return x * hidden.scale

        x = torch.ones(2, device=device)
        for _ in range(12):
            assert f(x).tolist() == [2, 2]
        assert status(f).replayed >= 4
        hidden.scale = 5.0
        with pytest.raises(
            RuntimeError, match=r"a number at .*test_replay.py:\d+ is 5.0.* was 2.0"
        ):
            for _ in range(5):
                f(x)
        for _ in range(6):
            assert f(x).tolist() == [5, 5]

    @pytest.mark.parametrize(
        ("read", "container", "key"),
        [
            (lambda: len(Charset("zz").input_charset), email.charset.ALIASES, "zz"),
            (lambda: len(html.unescape("&zz;")), html.entities.html5, "zz;"),
        ],
        ids=["email", "html"],
    )
    def test_containers_of_the_standard_library(self, device, monkeypatch, read, container, key):
        # docs/replay.md, "Assumed constant", 2: no guard, but the calls that are traced find it.
        monkeypatch.setenv("XLA_REPLAY_CHECK", "4")
        monkeypatch.setitem(container, key, "a/b")
        f = torch_xla.compile(lambda x: x * float(read()), replay=True)
        x = torch.ones(2, device=device)
        for _ in range(12):
            assert f(x).tolist() == [3, 3]
        assert status(f).replayed >= 4
        monkeypatch.setitem(container, key, "longer")
        with pytest.raises(RuntimeError, match="does something else than was recorded"):
            for _ in range(5):
                f(x)
        for _ in range(6):
            assert f(x).tolist() == [6, 6]

    def test_checks_that_agreed_are_followed_by_fewer(self, device, monkeypatch):
        monkeypatch.delenv("XLA_REPLAY_CHECK", raising=False)
        f = torch_xla.compile(lambda x: x + 1, replay=True)
        x = torch.ones(2, device=device)
        f(x)
        while not status(f).replayed:
            f(x)
        traced = []
        for call in range(400):
            before = status(f).replayed
            f(x)
            if status(f).replayed == before:
                traced.append(call)
        assert traced == [49, 150, 351]

    def test_checks_of_an_interval_that_was_set_come_evenly(self, device, monkeypatch):
        monkeypatch.setenv("XLA_REPLAY_CHECK", "10")
        f = torch_xla.compile(lambda x: x + 1, replay=True)
        x = torch.ones(2, device=device)
        f(x)
        while not status(f).replayed:
            f(x)
        before = status(f).replayed
        for _ in range(110):
            f(x)
        assert status(f).replayed == before + 100

    def test_no_checks(self, device, monkeypatch):
        monkeypatch.setenv("XLA_REPLAY_CHECK", "0")
        f = torch_xla.compile(lambda x: x - 1, replay=True)
        for _ in range(70):
            f(torch.ones(2, device=device))
        assert status(f).replayed >= 60

    def test_full_graph_and_options(self, device):
        @torch_xla.compile(
            replay=True, full_graph=True, custom_compile_options={"xla_cpu_enable_fast_math": False}
        )
        def f(x, read):
            return x * (x.sum().item() if read else 3)

        for _ in range(6):
            assert f(torch.ones(2, device=device), False).tolist() == [3, 3]
        assert status(f).replayed > 0
        with pytest.raises(RuntimeError, match="full_graph=True"):
            f(torch.ones(2, device=device), True)

    def test_explain_says_why(self, device):
        @torch_xla.compile(replay=True, name="reads")
        def f(x):
            return x * x.sum().item()

        for _ in range(14):
            f(torch.ones(2, device=device))
        told = [one for one in torch_xla.debug.explain.replay() if one.name == "reads"]
        assert told[-1].state == "refused" and "item" in told[-1].reason
        assert "0 of 14 calls replayed" in str(told[-1])

    def test_decorator_and_results(self, device):
        @torch_xla.compile(replay=True)
        def f(x, *, scale=2):
            """Doubles."""
            return {"a": (x * scale, [x + 1, None, "text"])}

        assert f.__name__ == "f" and f.__doc__ == "Doubles."
        for i in range(8):
            x = torch.full((2,), float(i), device=device)
            found = f(x)
            assert found["a"][0].tolist() == [2 * i] * 2
            assert found["a"][1][0].tolist() == [i + 1] * 2 and found["a"][1][1:] == [None, "text"]
        assert status(f).replayed > 0

    def test_counts_and_names(self, device):
        f = torch_xla.compile(lambda x: x * 3, name="tripled", replay=True)
        before = met.counter_value("ReplayedCall") or 0
        for _ in range(9):
            f(torch.ones(5, device=device))
        assert met.counter_value("ReplayedCall") == before + status(f).replayed > before
        assert met.counter_value("ExecutedGraph::tripled") == 9


INTEGERS = {
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), [0, 3, 2], [0, 4, 2]),
    "cross_entropy": (torch.nn.functional.cross_entropy, [0, 2, 1, -100], [0, 1, 3, 1]),
    "gather": (lambda x, i: x.gather(1, i[:, None]), [0, 2, 1, 2], [0, 1, -1, 1]),
    "x[i]": (lambda x, i: x[i], [0, -4], [-5, 0]),
    "// 0": (lambda x, i: x.long() // i, [5, -1, 3], [5, -1, 0]),
    "repeats": (
        lambda x, i: torch.repeat_interleave(x, i, 0, output_size=6),
        [1, 2, 3, 0],
        [1, 2, 3, 1],
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_an_operation_cannot_take(name, device):
    """Of a call that would be replayed they are looked at, too."""
    call, good, bad = INTEGERS[name]
    table = torch.arange(12.0).reshape(4, 3)
    on_device = table.to(device)

    @torch_xla.compile(replay=True)
    def step(i):
        return call(on_device, i) + 1

    for _ in range(6):
        step(torch.tensor(good).to(device))
    replayed = status(step).replayed
    assert replayed > 0, status(step)
    with pytest.raises((IndexError, RuntimeError)) as on_cpu:
        call(table, torch.tensor(bad))
    with pytest.raises((IndexError, RuntimeError)) as found:
        step(torch.tensor(bad).to(device))
    assert found.type is on_cpu.type or name == "cross_entropy"
    result = step(torch.tensor(good).to(device))
    assert status(step).replayed == replayed + 1
    torch.testing.assert_close(result.cpu(), call(table, torch.tensor(good)) + 1)
    # Of what the device computes nothing is known, traced or replayed.
    step(torch.tensor(good).to(device) * 1)


def test_a_number_that_an_operation_cannot_take(device):
    table = torch.arange(6.0, device=device)

    @torch_xla.compile(replay=True)
    def step(i):
        return table[i] * 2

    for k in range(1, 7):
        step(torch.full((2,), k % 6, device=device))
    assert status(step).replayed > 0
    with pytest.raises(IndexError):
        step(torch.full((2,), 6, device=device))
    assert step(torch.full((2,), 5, device=device)).tolist() == [10.0, 10.0]


def test_a_replayed_function_within_torch_compile(device):
    """Dynamo traced the machinery of replay itself, which then called a logger."""
    layer = torch.nn.Linear(6, 2).to(device)
    inner = torch_xla.compile(lambda x: layer(x).tanh(), replay=True)
    outer = torch.compile(lambda x: inner(x) * 2, backend="openxla", fullgraph=True)
    for batch, _ in batches(device, 4):
        torch.testing.assert_close(outer(batch), layer(batch).tanh() * 2)
