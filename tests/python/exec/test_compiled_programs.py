"""What is compiled: one program for steps that are alike, numbers as its parameters."""

from collections.abc import Callable

import pytest
import torch
from testing.executor import compiles, model
from testing.processes import run_python

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla.debug import explain

# ------------------------------------------------------------------ what is compiled


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


def test_clear_computation_cache(device):
    x = torch.arange(5.0).to(device)

    def compiles_of_call() -> int:
        before = compiles()
        assert (x * 3).cosh().sum().item() == pytest.approx(85641.72, rel=1e-5)
        return compiles() - before

    compiles_of_call()
    assert compiles_of_call() == 0
    assert xr.get_num_cached_compilation_graph() > 0
    xr.clear_computation_cache()
    assert xr.get_num_cached_compilation_graph() == 0
    assert compiles_of_call() == 1
    (reason, *_) = explain.last().reasons
    assert reason.kind == "evicted" and "clear_computation_cache()" in reason.text
