"""The executor: what runs when, what is compiled, what memory is reused, what errors do."""

import gc
import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from process_testing import run_python

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC


def count(name: str) -> int:
    return met.counter_value(name) or 0


def compiles() -> int:
    return count("UncachedCompile")


def executions() -> int:
    return count("UncachedCompile") + count("CachedCompile")


def executed_on_device() -> int:
    data = met.metric_data("ExecuteTime")
    return data[0] if data else 0


# ------------------------------------------------------------------ what runs when


def test_a_loop_that_reads_something_else_is_cut_by_its_rounds(device: torch.device) -> None:
    """As generate() without an end token: whether all have ended says nothing of the tokens."""
    torch_xla.sync(wait=True)
    x, expected = torch.ones(3, device=device), torch.ones(3)
    ended = torch.zeros(3, dtype=torch.int64, device=device)
    before, after = compiles(), []
    for _ in range(8):
        for _ in range(80):
            x, expected = (x * 0.5).cos(), (expected * 0.5).cos()
        assert not bool(ended.max() != 0)
        after.append(compiles() - before)
    # What is read, two rounds, one round.
    assert after[-1] <= 4 and after[2] == after[-1]
    assert _XLAC._get_xla_tensors_text([x]).count("cos") == 0
    torch.testing.assert_close(x.cpu(), expected)


def test_what_fails_is_told_by_its_own_read(device: torch.device) -> None:
    """And not by the read of another tensor in a loop, which cuts what is pending."""
    torch_xla.sync(wait=True)
    bad = torch.ones(3, device=device).to(torch.complex32)
    x, ended = torch.ones(3, device=device), torch.zeros(3, device=device)
    for _ in range(6):
        for _ in range(80):
            x = (x * 0.5).cos()
        assert not bool(ended.max() != 0)
    with pytest.raises(TypeError, match="ComplexHalf"):
        bad.cpu()


def test_reads_between_steps_cut_nothing(device: torch.device) -> None:
    torch_xla.sync(wait=True)
    x = torch.ones(3, device=device)
    ended = torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(4):
        for _ in range(80):
            x = (x * 0.5).cos()
        assert not bool(ended.max() != 0)
        assert _XLAC._get_xla_tensors_text([x]).count("cos") == 80
        torch_xla.sync()


class SlowStep:
    """Overwrites its state by a chain of matrix products: tens of milliseconds."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.state = (torch.rand(600, 600, generator=generator) / 300).to(device)
        self.weight = (torch.rand(600, 600, generator=generator) / 300).to(device)

    def trace(self) -> None:
        x = self.state
        for _ in range(12):
            x = x @ self.weight
        self.state.copy_(x)


def test_sync_returns_long_before_a_donating_step_is_done(device):
    step = SlowStep(device)
    step.trace()
    torch_xla.sync(wait=True)
    shares = []
    for _ in range(7):
        step.trace()
        start = time.perf_counter()
        torch_xla.sync()
        returned = time.perf_counter()
        xm.wait_device_ops()
        shares.append((returned - start) / (time.perf_counter() - start))
    assert statistics.median(shares) < 0.1, shares


def test_tracing_runs_ahead_of_the_device(device):
    step = SlowStep(device)
    step.trace()
    torch_xla.sync(wait=True)
    shares = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(3):
            step.trace()
            torch_xla.sync()
        returned = time.perf_counter()
        xm.wait_device_ops()
        shares.append((returned - start) / (time.perf_counter() - start))
    assert statistics.median(shares) < 0.2, shares


def test_wait_device_ops_waits_for_what_was_launched(device):
    step = SlowStep(device)
    before = executed_on_device()
    step.trace()
    torch_xla.sync()
    xm.wait_device_ops()
    assert executed_on_device() == before + 1


def test_sync_wait_returns_when_the_device_is_done(device):
    step = SlowStep(device)
    before = executed_on_device()
    step.trace()
    torch_xla.sync(wait=True)
    assert executed_on_device() == before + 1


def test_nothing_runs_before_it_is_needed(device):
    a = torch.ones(5).to(device)
    before = executions()
    b = a + a
    c = b.view(5, 1).expand(5, 2)
    d = torch.zeros(3, device=device)
    assert (b.shape, c.shape, d.dtype) == ((5,), (5, 2), torch.float32)
    repr(c.size())
    assert executions() == before


def test_reading_runs_only_what_the_value_needs(device):
    a = torch.arange(4.0).to(device)
    needed = a * 3
    other = torch.randn(4, device=device) @ torch.randn(4, device=device)
    hlo = _XLAC._get_xla_tensors_hlo([needed])
    assert "multiply" in hlo and "rng" not in hlo and "dot" not in hlo
    before = executions()
    assert needed.tolist() == [0, 3, 6, 9]
    assert executions() == before + 1
    assert "aten::dot" in _XLAC._get_xla_tensors_text([other])  # still to be run


def test_reading_twice_runs_once(device):
    a = torch.arange(4.0).to(device)
    b = a * 3
    before = executions()
    b.tolist()
    b.tolist()
    assert b[1].item() == 3  # a view of it runs its own slice
    assert executions() <= before + 2


def test_reading_leaves_the_rest_of_the_graph(device):
    a = torch.arange(4.0).to(device)
    b = a * 3
    c = b + 1
    d = a - 5
    text = _XLAC._get_xla_tensors_text([d])
    assert c.tolist() == [1, 4, 7, 10]
    assert _XLAC._get_xla_tensors_text([d]) == text
    # Computed on the way to c, and kept.
    assert "device_data" in _XLAC._get_xla_tensors_text([b])
    torch_xla.sync()
    assert "aten::mul" not in _XLAC._get_xla_tensors_text([b])
    assert (b.tolist(), d.tolist()) == ([0, 3, 6, 9], [-5, -4, -3, -2])


def test_sync_gives_every_tensor_its_value_in_one_execution(device):
    a = torch.arange(4.0).to(device)
    tensors = [a * k for k in (2.0, 3.0, 4.0)]
    before = executions()
    torch_xla.sync()
    assert executions() == before + 1
    assert [t.tolist()[1] for t in tensors] == [2, 3, 4]
    assert executions() == before + 1


def test_empty_sync_runs_nothing(device):
    before = executions()
    torch_xla.sync()
    torch_xla.sync(wait=True)
    assert executions() == before


def test_dead_tensors_are_not_computed(device):
    a = torch.arange(4.0).to(device)
    b = a * 2
    dead = torch.randn(64, 64, device=device) @ torch.randn(64, 64, device=device)
    del dead
    before = compiles(), executions()
    torch_xla.sync()
    assert executions() == before[1] + 1
    # The same program as without the dead tensor.
    c = a * 2
    torch_xla.sync()
    assert compiles() <= before[0] + 1
    assert b.tolist() == c.tolist()


def test_unlazy_computes_given_tensors_only(device):
    a = torch.arange(4.0).to(device)
    b, c = a * 2, a * 3
    xm.unlazy([b])
    assert "device_data" in _XLAC._get_xla_tensors_text([b])
    assert "aten::mul" not in _XLAC._get_xla_tensors_text([b])
    assert "aten::mul" in _XLAC._get_xla_tensors_text([c])


def test_graph_is_freed_by_sync(device):
    a = torch.arange(4.0).to(device)
    alive = weakref.ref(a)
    b = a * 2
    del a
    torch_xla.sync(wait=True)
    assert alive() is None
    assert b.tolist() == [0, 2, 4, 6]


# ------------------------------------------------------------------ what is compiled


def model(device: torch.device, width: int) -> torch.nn.Module:
    torch.manual_seed(width)
    net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    return net.to(device)


def train(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], width: int, steps: int
) -> tuple[list[int], list[float]]:
    """Compiles so far and the loss after each step."""
    device = xm.xla_device()
    net = model(device, width)
    optimizer = make(list(net.parameters()))
    x = torch.linspace(-1, 1, 32).view(4, 8).to(device)
    torch_xla.sync(wait=True)
    start, compiled, losses = compiles(), [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss)
        compiled.append(compiles() - start)
    return compiled, [loss.item() for loss in losses]


def test_adamw_compiles_one_step_graph(device):
    compiled, losses = train(lambda p: torch.optim.AdamW(p, lr=1e-2), 11, 5)
    assert compiled == [1, 1, 1, 1, 1]
    assert losses[-1] < losses[0]


def test_amsgrad_compiles_one_step_graph(device):
    compiled, _ = train(lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True), 12, 3)
    assert compiled == [1, 1, 1]


def test_sgd_with_momentum_compiles_two_step_graphs(device):
    # The first step has no momentum buffer yet: it is another graph.
    compiled, losses = train(lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), 13, 5)
    assert compiled == [1, 2, 2, 2, 2]
    assert losses[-1] < losses[0]


def test_training_agrees_with_eager(device):
    _, losses = train(lambda p: torch.optim.AdamW(p, lr=1e-2), 14, 6)
    net = model(torch.device("cpu"), 14)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x = torch.linspace(-1, 1, 32).view(4, 8)
    expected = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(7, device=d),
        lambda d: torch.full((7,), 0.5, device=d),
        lambda d: torch.ones_like(torch.zeros(7, device=d)),
        lambda d: torch.empty(7, device=d).fill_(2.5),
    ],
    ids=["zeros", "full", "ones_like", "fill_"],
)
def test_filled_state_is_a_parameter_from_the_start(device, make):
    state = make(device)
    expected = make(torch.device("cpu"))
    torch_xla.sync()
    before, history = compiles(), []
    for _ in range(3):
        state.mul_(3).add_(0.25)
        expected.mul_(3).add_(0.25)
        torch_xla.sync()
        history.append(compiles() - before)
    assert history[0] == history[-1]
    assert state.tolist() == expected.tolist()


@pytest.mark.parametrize(("value", "parameters"), [(3.5, 2), (1, 1)])
def test_filled_temporary_is_a_number_of_the_program(device, value, parameters):
    """No array is made of it: a number is a parameter, 0 and 1 are constants."""
    a = torch.arange(6.0).to(device)
    b = a + torch.full((6,), value, device=device)
    signature = _XLAC._get_xla_tensors_hlo([b]).split("->")[0]
    assert signature.count("%arg") == parameters
    assert "tensor<6xf32>" in signature and signature.count("6xf32") == 1
    assert b.tolist() == [value + i for i in range(6)]


def test_same_program_for_other_data_and_other_order_of_death(device):
    def step(seed: float) -> torch.Tensor:
        a = (torch.arange(9.0) + seed).to(device)
        b = a.sin()
        return b * b + a

    first = step(0)
    torch_xla.sync()
    before = compiles()
    for seed in (1, 2, 3):
        result = step(seed)
        torch_xla.sync()
        a = torch.arange(9.0) + seed
        torch.testing.assert_close(result.cpu(), a.sin() ** 2 + a)
    assert compiles() == before
    assert first.shape == (9,)


def test_sharing_is_part_of_the_program(device):
    # x*x, x*y and x*x of two leaves have alike nodes wired differently.
    x, y = torch.tensor([2.0, 3.0]).to(device), torch.tensor([5.0, 7.0]).to(device)
    results = []
    for left, right in ((x, x), (x, y), (y, x), (y, y)):
        result = left * right + left
        torch_xla.sync()
        results.append(result.tolist())
    assert results == [[6, 12], [12, 24], [15, 28], [30, 56]]


# ------------------------------------------------------------------ donation


def test_state_updated_in_place_keeps_one_buffer(device):
    size = 1 << 20  # 4 MB
    gc.collect()
    xm.wait_device_ops()
    before = xm.get_memory_info()["bytes_used"]
    state = torch.rand(size).to(device)
    used, reached = [], []
    for k in range(50):
        state.mul_(0.5).add_(k)
        torch_xla.sync(wait=True)
        info = xm.get_memory_info()
        used.append(info["bytes_used"] - before)
        reached.append(info["peak_bytes_used"])
    assert max(used) < 1.1 * 4 * size, used
    # The first step may have set a new peak; the others had no second buffer to add.
    assert reached[-1] - reached[0] < 1000


def test_without_donation_there_would_be_two_buffers(device):
    # What the test above measures is there to be seen: a kept old value costs a buffer.
    size = 1 << 20
    xm.wait_device_ops()
    before = xm.get_memory_info()["bytes_used"]
    state = torch.rand(size).to(device)
    kept = state.clone()
    state.mul_(0.5)
    torch_xla.sync(wait=True)
    assert xm.get_memory_info()["bytes_used"] - before >= 2 * 4 * size
    assert kept.shape == (size,)


def test_program_says_what_is_donated(device):
    state = torch.arange(8.0).to(device)
    first = state.clone()
    state.add_(1)
    torch_xla.sync(wait=True)
    state.add_(1)
    torch_xla.sync(wait=True)
    assert first.tolist() == list(range(8))
    assert state.tolist() == [k + 2.0 for k in range(8)]


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x.clone(),
        lambda x: x.detach().clone(),
        lambda x: x * 1,
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: x[1:].clone(),
        lambda x: x.view(2, 4).t().clone(),
        lambda x: x.to(torch.float64),
        lambda x: torch.stack([x, x]),
    ],
    ids=["clone", "detach_clone", "mul", "copy_", "slice", "transpose", "cast", "stack"],
)
def test_kept_copy_survives_the_update(device, keep):
    x = torch.arange(8.0).to(device)
    expected = keep(torch.arange(8.0))
    kept = [keep(x)]
    for _ in range(3):
        x.add_(1)
        torch_xla.sync(wait=True)
    assert torch.equal(kept[0].cpu(), expected)
    assert x.tolist() == [k + 3.0 for k in range(8)]


def test_alias_sees_the_update(device):
    x = torch.arange(8.0).to(device)
    aliases = [x.detach(), x.view(2, 4), x[2:], x.data]
    x.add_(1)
    torch_xla.sync(wait=True)
    x.add_(1)
    torch_xla.sync(wait=True)
    expected = torch.arange(8.0) + 2
    for alias, view in zip(
        aliases, [expected, expected.view(2, 4), expected[2:], expected], strict=True
    ):
        assert torch.equal(alias.cpu(), view)


def test_saved_for_backward_survives_the_update_of_a_copy(device):
    w = torch.arange(1.0, 5.0).to(device).requires_grad_()
    x = torch.arange(1.0, 5.0).to(device)
    saved = x.clone()
    loss = (w * saved).sum()
    torch_xla.sync(wait=True)
    x.zero_()
    torch_xla.sync(wait=True)
    loss.backward()
    assert w.grad.tolist() == [1, 2, 3, 4]


def test_data_read_while_it_is_overwritten(device):
    x = torch.arange(6.0).to(device)
    for k in range(5):
        before = x.cpu()
        x.mul_(2)
        torch_xla.sync()
        after = x.cpu()
        assert torch.equal(after, before * 2), k


class Scenario:
    """One random program, run on two devices: tensors in named slots."""

    SIZE = 6

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.slots = [torch.arange(self.SIZE * 1.0).add(10 * i).to(device) for i in range(4)]
        self.kept: list[torch.Tensor] = []

    def do(self, op: tuple[str, int, int]) -> None:
        name, i, j = op
        a, b = self.slots[i], self.slots[j]
        if name == "clone":
            self.slots[j] = a.clone()
        elif name == "detach":
            self.slots[j] = a.detach()
        elif name == "keep":
            self.kept.append(a)
        elif name == "keep_clone":
            self.kept.append(a.clone())
        elif name == "copy_":
            b.copy_(a)
        elif name == "add_":
            a.add_(j + 1)
        elif name == "mul_tensor_":
            a.mul_(0.5).add_(b.clone())
        elif name == "add":
            self.slots[j] = a + b
        elif name == "write_view":
            a[j : j + 2].add_(1)
        elif name == "write_reverse_view":
            a.view(2, 3).t()[0].copy_(b.clone()[:2])
        elif name == "view":
            self.kept.append(a[j:])
        elif name == "zero_":
            a.zero_()
        elif name == "swap":
            self.slots[i], self.slots[j] = b, a
        elif name == "drop":
            del self.kept[: j + 1]
        elif name == "read" and self.device.type == "xla":
            a.cpu()
        elif name == "sync" and self.device.type == "xla":
            torch_xla.sync()

    def values(self) -> list[list[float]]:
        return [t.cpu().tolist() for t in [*self.slots, *self.kept]]


OPS = (
    "clone detach keep keep_clone copy_ add_ mul_tensor_ add write_view write_reverse_view view "
    "zero_ swap drop read sync sync sync"
).split()


# Every example compiles programs of its own (30 ms and more each): few, but long.
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(OPS), st.integers(0, 3), st.integers(0, 3)),
        min_size=8,
        max_size=24,
    )
)
def test_donation_never_destroys_readable_data(program):
    xla, cpu = Scenario(xm.xla_device()), Scenario(torch.device("cpu"))
    for op in program:
        xla.do(op)
        cpu.do(op)
    torch_xla.sync()
    assert xla.values() == cpu.values()


# ------------------------------------------------------------------ scalars


SCALAR_OPS = {
    "mul float": lambda x, k: x * (k + 0.5),
    "mul int": lambda x, k: x * (k + 2),
    "add alpha": lambda x, k: torch.add(x, x, alpha=k + 2),
    "add float alpha": lambda x, k: torch.add(x, x, alpha=k + 0.25),
    "sub": lambda x, k: x - (k + 2.5),
    "rsub": lambda x, k: (k + 2.5) - x,
    "div": lambda x, k: x / (k + 1.5),
    "rdiv": lambda x, k: (k + 1.5) / (x + 20),
    "clamp": lambda x, k: x.clamp(-k - 1.5, k + 1.5),
    "clamp int": lambda x, k: x.clamp(min=-k - 2, max=k + 2),
    "compare": lambda x, k: x > (k + 1.25),
    "where": lambda x, k: torch.where(x > 0, k + 1.5, x),
    "masked_fill": lambda x, k: x.masked_fill(x > 0, k + 1.5),
    "addcmul": lambda x, k: torch.addcmul(x, x, x, value=k + 0.5),
    "addmm": lambda x, k: torch.addmm(x, x, x, alpha=k + 0.5, beta=k + 0.75),
    "lerp": lambda x, k: torch.lerp(x, x * x, 0.125 * (k + 1)),
    "fill_": lambda x, k: x.clone().fill_(k + 1.5) + x,
    "arange": lambda x, k: x + torch.arange(k + 2, k + 5, device=x.device),
    "zero-dim tensor": lambda x, k: x * torch.tensor(k + 1.5),
    "complex": lambda x, k: x * complex(k + 1.5, k - 0.5),
}


@pytest.mark.parametrize("name", SCALAR_OPS)
def test_another_number_is_the_same_program(device, name):
    op = SCALAR_OPS[name]
    cpu = torch.linspace(-3, 4, 9).view(3, 3)
    x = cpu.to(device)
    history = []
    for k in range(4):
        y = op(x, k)
        torch_xla.sync()
        torch.testing.assert_close(y.cpu(), op(cpu, k), rtol=2e-5, atol=1e-5)
        history.append(compiles())
    assert history[0] == history[-1], "a new program for another number"


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.int64, (5, -7, 2**40, -(2**62))),
        (torch.int32, (5, -7, 2**30)),
        (torch.uint8, (5, 200, 17)),
        (torch.float64, (0.1, 1e300, -3.5)),
        (torch.float16, (0.125, 300.0, -3.5)),
        (torch.complex64, (0.5 + 2j, -1j, 3 + 0j)),
    ],
)
def test_numbers_keep_their_precision(device, dtype, numbers):
    cpu = torch.tensor([1, 2, 3]).to(dtype)
    x = cpu.to(device)
    for number in numbers:
        assert torch.equal((x * number).cpu(), cpu * number)
        assert torch.equal((x + number).cpu(), cpu + number)


def test_bool_scalars(device):
    cpu = torch.tensor([True, False])
    x = cpu.to(device)
    for flag in (True, False):
        assert torch.equal((x ^ flag).cpu(), cpu ^ flag)
        assert torch.equal((x + flag).cpu(), cpu + flag)
        assert torch.equal((x * flag).cpu(), cpu * flag)


def test_type_of_the_number_decides_the_result_type(device):
    x = torch.arange(3).to(device)
    assert (x * 2).dtype == torch.int64
    assert (x * 2.0).dtype == torch.float32
    assert (x * 2j).dtype == torch.complex64
    assert (x * 2).tolist() == [0, 2, 4]
    assert (x * 2.0).tolist() == [0.0, 2.0, 4.0]


def test_zero_and_one_are_part_of_the_program(device):
    x = torch.arange(3.0).to(device)
    assert _XLAC._get_xla_tensors_text([x * 1.0]) != _XLAC._get_xla_tensors_text([x * 3.0])
    one, two = (_XLAC._get_xla_tensors_hlo([x * k]) for k in (1.0, 2.0))
    assert one != two
    assert _XLAC._get_xla_tensors_hlo([x * 3.0]) == two


def test_negative_zero_and_special_floats(device):
    x = torch.ones(2).to(device)
    for number in (-0.0, float("inf"), float("-inf"), float("nan")):
        torch.testing.assert_close((x * number).cpu(), torch.ones(2) * number, equal_nan=True)
    assert torch.signbit((x * -0.0).cpu()).all()


def test_learning_rate_schedule_needs_no_program(device):
    net = model(device, 15)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    x = torch.rand(4, 8).to(device)
    history = []
    for _ in range(5):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        schedule.step()
        torch_xla.sync()
        history.append(compiles())
    assert history[0] == history[-1]


def test_no_special_scalars_and_small_program_cache(tmp_path):
    result, _ = run_python(
        """
        x = torch.arange(3.0).to(device)
        history, values = [], []
        for k in (0, 1, 2, 3):
            y = x * k + float(k)
            torch_xla.sync()
            values.append(y.tolist())
            history.append(count("UncachedCompile"))

        def run(n):
            before = count("UncachedCompile")
            z = torch.arange(float(n)).to(device) * 2 + 1
            torch_xla.sync()
            assert z.tolist() == [2.0 * i + 1 for i in range(n)]
            return count("UncachedCompile") - before

        # Two programs fit: 5 and 6 do; 7 drops 5, the least recently used.
        lru = [run(n) for n in (5, 6, 5, 6, 5, 7, 5, 6)]
        report(history=history, values=values, lru=lru)
        """,
        tmp_path,
        XLA_NO_SPECIAL_SCALARS="1",
        XLA_COMPILATION_CACHE_SIZE="2",
    )
    assert result["values"] == [[0, 0, 0], [1, 2, 3], [2, 4, 6], [3, 6, 9]]
    assert result["history"][0] == result["history"][-1]
    assert result["lru"] == [1, 1, 0, 0, 0, 1, 0, 1]


# ------------------------------------------------------------------ errors


TOO_LARGE = 10**5  # squared, in floats: 40 GB


def out_of_memory(device: torch.device) -> torch.Tensor:
    """More than there is, made in the step itself: fails on the worker, not here."""
    column = torch.arange(float(TOO_LARGE)).to(device)
    return column[:, None] * torch.full((1, 10**10), 2.0, device=device)


@pytest.fixture
def no_failure_left():
    yield
    gc.collect()
    try:
        torch_xla.sync(wait=True)
    except RuntimeError:
        torch_xla.sync(wait=True)


def test_read_reports_a_failed_step(device, no_failure_left):
    big = out_of_memory(device)
    small = torch.arange(3.0).to(device) + 1
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        big[0, 0].item()
    # Reported once; the tensors of that step stay without a value.
    torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match="(?i)memory"):
        small.cpu()
    del big, small
    torch_xla.sync(wait=True)
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "wait", [lambda: torch_xla.sync(wait=True), xm.wait_device_ops], ids=["sync", "wait"]
)
def test_sync_reports_a_failed_step_once(device, no_failure_left, wait):
    big = out_of_memory(device)
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        wait()
    wait()
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]
    del big


def test_too_large_tensors_are_errors(device):
    with pytest.raises(RuntimeError):
        torch.empty(10**15, device=device).cpu()
    with pytest.raises(RuntimeError):
        torch.zeros(2**62, device=device).cpu()
    with pytest.raises(RuntimeError):
        torch.zeros(2**40, 2**40, device=device)
    with pytest.raises(RuntimeError, match="negative"):
        torch.zeros(-1, device=device)
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]


def test_a_failed_op_leaves_the_graph_intact(device):
    a = torch.arange(6.0).view(2, 3).to(device)
    b = a + 1
    with pytest.raises(RuntimeError):
        a @ a
    with pytest.raises(RuntimeError):
        a.add_(torch.ones(5, device=device))
    with pytest.raises(RuntimeError):
        a + torch.ones(2, 3)
    with pytest.raises(IndexError):
        a[5]
    torch_xla.sync()
    assert b.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_cannot_be_lowered_raises_at_the_call(device, no_failure_left):
    a, b = torch.ones(2, 2).to(device), torch.ones(2, 2, dtype=torch.float64).to(device)
    good = a + 1
    with pytest.raises(RuntimeError, match="same dtype, but got: float != double"):
        a @ b
    torch_xla.sync()
    assert good.tolist() == [[2, 2], [2, 2]]


# ------------------------------------------------------------------ environment


BF16_SCRIPT = """
    cpu = torch.tensor([1 / 3, 1.00390625, 3.14159265, 1e30])
    x = cpu.to(device)
    y = x * 3
    double = torch.tensor([1 / 3, 1.00390625], dtype=torch.float64).to(device)
    half = torch.tensor([1 / 3], dtype=torch.float16).to(device)
    integers = torch.arange(300).to(device)
    values = x.cpu()
    report(
        dtype=str(x.dtype), result_dtype=str((x + 1).dtype), cpu_dtype=str(values.dtype),
        rounded=bool(torch.equal(values, cpu.bfloat16().float())),
        product=y.cpu().tolist(), double=double.cpu().tolist(), double_dtype=str(double.dtype),
        half=half.cpu().item(), sum=integers.sum().item(), item=x[0].item(),
        mean=torch.full((10,), 0.5, device=device).mean().item(),
        hlo="bf16" in _XLAC._get_xla_tensors_hlo([x * 2]),
        scaled=(x * 0.1).dtype == torch.float32,
        step=[float(v) for v in torch.optim.SGD([torch.nn.Parameter(x)], lr=0.1).param_groups[0]
              ["params"][0].detach().cpu()[:1]],
    )
"""


@pytest.mark.parametrize("variable", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_bf16_behind_float32(tmp_path, variable):
    result, _ = run_python(BF16_SCRIPT, tmp_path, **{variable: "1"})
    assert result["dtype"] == result["result_dtype"] == result["cpu_dtype"] == "torch.float32"
    assert result["rounded"] and result["hlo"] and result["scaled"]
    third = torch.tensor(1 / 3).bfloat16()
    assert result["item"] == third.float().item()
    assert result["product"][0] == (third * 3).float().item()
    assert result["double_dtype"] == "torch.float64"
    if variable == "XLA_USE_BF16":
        double = torch.tensor([1 / 3, 1.00390625]).bfloat16().tolist()
    else:
        double = torch.tensor([1 / 3, 1.00390625]).tolist()
    assert result["double"] == double
    assert result["half"] == torch.tensor(1 / 3).half().item()
    assert result["sum"] == 44850
    assert result["mean"] == 0.5


def test_two_devices(tmp_path):
    result, _ = run_python(
        """
        second = xm.xla_device(1)
        xm.xla_device(0)
        a = torch.arange(4.0).to("xla:1")
        b = torch.arange(4.0).to("xla:0")
        c = a * 2          # on 1
        d = (b + 1).to(second)  # traced on 0, copied to 1
        e = c + d
        b.copy_(e)         # back to 0
        try:
            a + b
            mixed = "no error"
        except RuntimeError as error:
            mixed = str(error)
        net = torch.nn.Linear(4, 2).to(second)
        net(a[None]).sum().backward()
        xm.xla_device(1)
        torch_xla.sync(wait=True)
        default = str(torch.ones(1, device="xla").device)
        report(
            count=torch_xla.device_count(), device=str(a.device), e=e.tolist(), b=b.tolist(),
            e_device=str(e.device), b_device=str(b.device), mixed=mixed, default=default,
            grad=str(net.weight.grad.device), memory=xm.get_memory_info("xla:1")["bytes_used"],
            rng=[torch.rand(3, device=f"xla:{i}").tolist() for i in (0, 1)],
        )
        """,
        tmp_path,
        CPU_NUM_DEVICES="2",
    )
    assert result["count"] == 2
    assert (result["device"], result["e_device"], result["b_device"]) == ("xla:1", "xla:1", "xla:0")
    assert result["e"] == result["b"] == [1, 4, 7, 10]
    assert "xla:0" in result["mixed"] and "xla:1" in result["mixed"]
    assert result["default"] == result["grad"] == "xla:1"
    assert result["memory"] > 0


def test_debug_variables_name_the_line(tmp_path):
    result, errors = run_python(
        """
        a = torch.arange(4.0).to(device)
        b = a + 2  # LINE-ADD
        text = _XLAC._get_xla_tensors_text([b])
        x = torch.linspace(-1, 1, 4).to(device)
        for _ in range(3):
            y = torch.igamma(x.abs() + 1, x.abs())  # LINE-IGAMMA
        def inner(x):
            return torch.igamma(x, x)
        inner(x)
        report(text=text, y=y.tolist())
        """,
        tmp_path,
        XLA_CPU_KERNELS="0",  # As on other platforms, igamma is then not lowered.
        XLA_IR_DEBUG="1",
        PT_XLA_DEBUG="1",
    )
    script = tmp_path / "script.py"
    lines = script.read_text().splitlines()
    add, igamma = (
        1 + next(i for i, line in enumerate(lines) if f"LINE-{name}" in line)
        for name in ("ADD", "IGAMMA")
    )
    assert f"{script}:{add}" in result["text"]
    warnings = [line for line in errors.splitlines() if "Op(s) not lowered: aten::igamma" in line]
    assert len(warnings) == 1, errors
    assert warnings[0].startswith("pt-xla-profiler: Op(s) not lowered: aten::igamma")
    assert f"{script}:{igamma}" in warnings[0]


# ------------------------------------------------------------------ endurance


def test_deep_graphs(device):
    a = torch.ones(2).to(device)
    x = a
    for _ in range(20_000):
        x = x + a
    # Walked, printed, lowered and freed without recursion. (Compiling such a chain is
    # quadratic in XLA:CPU.)
    assert _XLAC._get_xla_tensors_text([x]).count("aten::add") == 20_000
    assert _XLAC._get_xla_tensors_hlo([x]).count("stablehlo.add") == 20_000
    del x
    y = a
    for _ in range(500):
        y = y + a
    assert y.tolist() == [501, 501]


def test_two_threads_trace_and_sync(device):
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            x = torch.zeros(3, device=device)
            for i in range(100):
                x.add_(k)
                y = x * 2
                if i % 5 == 0:
                    torch_xla.sync()
                if i % 20 == 0:
                    assert y.tolist() == [2.0 * k * (i + 1)] * 3
            assert x.tolist() == [100.0 * k] * 3
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    for _ in range(4):
        threads = [threading.Thread(target=work, args=(k,)) for k in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert not failures, failures


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_a_thousand_steps(device):
    net = model(device, 16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    batches = [torch.rand(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]

    def steps(n: int) -> tuple[int, int]:
        for i in range(n):
            optimizer.zero_grad()
            loss = net(batches[i % 4].to(device)).square().sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            torch_xla.sync()
        loss.item()
        del loss
        xm.wait_device_ops()
        gc.collect()
        return resident_bytes(), xm.get_memory_info()["bytes_used"]

    steps(300)  # caches of all kinds fill, the allocator settles
    before = compiles()
    host, used = steps(10)
    host_after, used_after = steps(1000)
    assert used_after == used
    assert compiles() == before
    # A leaked graph node is about 200 bytes, a step has some 150: 1,000 steps leak 30 MB.
    assert host_after - host < 8e6


def test_reading_in_a_loop_compiles_once():
    """What is computed on the way to a value that is read is kept, so no program grows."""
    x = torch.ones(3, device=xm.xla_device())
    y = torch.zeros(3, device=xm.xla_device())
    torch_xla.sync()
    values, compiles = [], []
    for _ in range(6):
        x = x * 2
        y = y + x
        values.append(y.sum().item())
        compiles.append(met.metric_data("CompileTime")[0])
    assert values == [6.0, 18.0, 42.0, 90.0, 186.0, 378.0]
    assert compiles[-1] == compiles[1]
