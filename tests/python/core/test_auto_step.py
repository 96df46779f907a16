"""Loops that never call mark_step: they are cut where a step ends, at the same place each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from process_testing import run_python
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

STEPS = 16


@pytest.fixture(autouse=True)
def auto_step() -> Iterator[None]:
    _XLAC._xla_set_auto_step(True)
    yield
    _XLAC._xla_set_auto_step(False)


def compiles() -> int:
    return met.counter_value("UncachedCompile") or 0


def cuts() -> int:
    return met.counter_value("AutoStep") or 0


class Counts:
    """Compiles and cuts at the end of each step."""

    def __init__(self) -> None:
        self.start = (compiles(), cuts())
        self.compiles: list[int] = []
        self.cuts: list[int] = []

    def step(self) -> None:
        self.compiles.append(compiles() - self.start[0])
        self.cuts.append(cuts() - self.start[1])


def batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        yield (
            torch.rand(8, 1, 8, 8, generator=generator),
            torch.randint(4, (8,), generator=generator),
        )


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def normed() -> nn.Module:
    """Its forward pass changes state, too."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    )


Loop = Callable[[torch.device, Counts], list[torch.Tensor]]


def state(*modules: nn.Module) -> list[torch.Tensor]:
    return [t.detach().cpu() for module in modules for t in module.state_dict().values()]


def check(loop: Loop, most_compiles: int, one_each: bool = True) -> Counts:
    """Runs a loop on the CPU and on the device, where it must become steady."""
    want = loop(torch.device("cpu"), Counts())
    torch_xla.sync(wait=True)
    _XLAC._xla_forget_steps()
    counts = Counts()
    got = loop(xm.xla_device(), counts)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    steps = len(counts.compiles)
    assert counts.compiles[-1] <= most_compiles, counts.compiles
    assert counts.compiles[steps // 2] == counts.compiles[-1], counts.compiles
    if one_each:
        # A step's cut comes with the next operation, or with the read that ends it.
        steady = counts.cuts[-1] - counts.cuts[steps // 2]
        assert abs(steady - (steps - 1 - steps // 2)) <= 1, counts.cuts
    return counts


def training(
    model: Callable[[], nn.Module],
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    read_every: int = 0,
    clip: bool = False,
    schedule: bool = False,
    accumulate: int = 1,
    zero_late: bool = False,
    read_early: bool = False,
) -> Loop:
    """Returns a plain loop, as a newcomer writes it."""

    def loop(device: torch.device, counts: Counts) -> list[torch.Tensor]:
        net = model().to(device)
        opt = optimizer(net.parameters())
        schedules = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100) if schedule else None
        losses = []
        for step, (x, y) in enumerate(batches(STEPS * accumulate)):
            last = (step + 1) % accumulate == 0
            if not zero_late and step % accumulate == 0:
                opt.zero_grad()
            loss = F.cross_entropy(net(x.to(device)), y.to(device)) / accumulate
            if zero_late:
                opt.zero_grad()
            if read_early:
                losses.append(loss.item())
            loss.backward()
            if clip and last:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            if last:
                opt.step()
                if schedules:
                    schedules.step()
                if read_every and (step // accumulate) % read_every == 0:
                    losses.append(loss.item())
                counts.step()
        return [*state(net), torch.tensor(losses)]

    return loop


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
    "adam-loop": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_step_is_one_program(name):
    # The first rounds, the steady one, and the rest that the end reads.
    check(training(mlp, OPTIMIZERS[name]), most_compiles=6)


@pytest.mark.parametrize("every", [1, 7])
def test_reads_of_the_loss_do_not_move_the_cut(every):
    check(training(normed, OPTIMIZERS["adam"], read_every=every), most_compiles=7)


def test_a_read_between_forward_and_backward_makes_two_programs():
    check(training(normed, OPTIMIZERS["sgd"], read_early=True), most_compiles=8)


@pytest.mark.parametrize(
    "options",
    [{"clip": True}, {"schedule": True}, {"zero_late": True}, {"accumulate": 4}],
    ids=lambda options: next(iter(options)),
)
def test_the_ways_a_step_is_written(options):
    one_each = "accumulate" not in options
    check(training(normed, OPTIMIZERS["adam"], **options), most_compiles=7, one_each=one_each)


def test_two_models_in_turn():
    def loop(device: torch.device, counts: Counts) -> list[torch.Tensor]:
        torch.manual_seed(0)
        make, judge = nn.Linear(64, 64).to(device), nn.Linear(64, 1).to(device)
        of_make = torch.optim.Adam(make.parameters(), lr=1e-3)
        of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
        for x, _ in batches():
            x = x.flatten(1).to(device)
            of_judge.zero_grad()
            (F.softplus(-judge(x)) + F.softplus(judge(make(x).detach()))).mean().backward()
            of_judge.step()
            of_make.zero_grad()
            F.softplus(-judge(make(x))).mean().backward()
            of_make.step()
            counts.step()
        return state(make, judge)

    check(loop, most_compiles=6)


def test_epochs_with_evaluation_between():
    def loop(device: torch.device, counts: Counts) -> list[torch.Tensor]:
        net = normed().to(device)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        found = []
        for _ in range(4):
            net.train()
            for x, y in batches(8):
                opt.zero_grad()
                F.cross_entropy(net(x.to(device)), y.to(device)).backward()
                opt.step()
                counts.step()
            net.eval()
            right = 0
            with torch.no_grad():
                for x, y in batches(4):
                    right += (net(x.to(device)).argmax(1) == y.to(device)).sum()
            found.append(int(right) / 32)
        return [*state(net), torch.tensor(found)]

    check(loop, most_compiles=8, one_each=False)


# ------------------------------------------------------------------ what is not cut


def train_synced(device: torch.device, steps: int, between: int, extra: bool = False) -> Counts:
    net = mlp().to(device)
    average = torch.zeros(16, 64).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    torch_xla.sync()
    counts = Counts()
    for step, (x, y) in enumerate(batches(steps)):
        opt.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        opt.step()
        if extra:
            average.lerp_(net[1].weight.detach(), 0.1)
        if step % between == between - 1:
            torch_xla.sync()
        counts.step()
    return counts


@pytest.mark.parametrize("extra", [False, True])
def test_loops_that_sync_are_left_alone(device, extra):
    counts = train_synced(device, steps=20, between=1, extra=extra)
    assert counts.cuts[-1] == 0
    assert counts.compiles[-1] <= 4


def test_steps_of_several_rounds_are_the_users(device):
    counts = train_synced(device, steps=40, between=5)
    assert counts.cuts[-1] == counts.cuts[10]
    assert counts.compiles[-1] == counts.compiles[20]


def test_layers_alike_are_no_steps(device):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(48)).to(device)
    total = torch.zeros(8).to(device)
    torch_xla.sync()
    counts = Counts()
    x = torch.ones(4, 8, device=device)
    for layer in layers:
        x = torch.tanh(layer(x)) + x
        total += x.detach().mean(0)
    x.sum().backward()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)
    torch_xla.sync()
    counts.step()
    assert counts.cuts == [0]
    assert counts.compiles == [1]


def test_small_loops_are_one_program(device):
    x = torch.ones(4, device=device)
    y = torch.zeros(4).to(device)
    torch_xla.sync()
    counts = Counts()
    for _ in range(400):
        x = x * 1.01
        y += x
    counts.step()
    assert counts.cuts == [0]
    torch.testing.assert_close(x.cpu(), torch.full((4,), 1.01**400), rtol=1e-3, atol=0)


def test_regions_are_not_cut(device):
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = next(batches())
    x, y = x.to(device), y.to(device)

    @torch_xla.compile(full_graph=True)
    def steps() -> None:
        for _ in range(12):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()

    steps()
    counts = Counts()
    steps()
    counts.step()
    assert counts.cuts == [0]
    assert counts.compiles[-1] <= 2


# ------------------------------------------------------------------ what is bounded


def test_a_long_loop_of_small_operations_is_cut_in_blocks(device):
    torch_xla.sync()
    counts = Counts()
    with torch.no_grad():
        x = torch.ones(4).to(device)
        for _ in range(8000):
            x = x * 1.0001
            counts.step()
    assert 4 <= counts.cuts[-1] <= 8
    assert counts.compiles[-1] <= 5
    torch.testing.assert_close(x.cpu(), torch.full((4,), 1.0001**8000), rtol=1e-3, atol=0)


def test_an_evaluation_that_keeps_a_list_is_cut(device):
    net = mlp().to(device).eval()
    data = list(batches(300))
    torch_xla.sync()
    counts = Counts()
    kept = []
    with torch.no_grad():
        for x, _ in data:
            kept.append(net(x.to(device)).argmax(1))
            counts.step()
    assert counts.cuts[-1] >= 1
    got = torch.cat(kept).cpu()
    net.cpu()
    with torch.no_grad():
        assert torch.equal(got, torch.cat([net(x).argmax(1) for x, _ in data]))


PROGRAM = """
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 8).to(device)
for step in range(6):
    opt.zero_grad()
    net(x).mean().backward()
    opt.step()
report(cuts=count("AutoStep"))
"""


def test_the_environment_turns_it_on_and_tells_where_it_cuts(tmp_path):
    on, told = run_python(PROGRAM, tmp_path, PT_XLA_DEBUG="1", XLA_AUTO_STEP="1")
    assert on["cuts"] == 4
    assert "operations repeat; from now on the graph is cut before" in told
    assert "script.py:" in told
    off, told = run_python(PROGRAM, tmp_path, PT_XLA_DEBUG="1", XLA_AUTO_STEP="0")
    assert off["cuts"] == 0
    assert "operations repeat" not in told
