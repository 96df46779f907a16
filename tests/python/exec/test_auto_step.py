"""Loops that never call mark_step: they are cut where a step ends, at the same place each time."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.executor import compiles
from testing.processes import run_python
from testing.replicas import run_replicas
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._internal.compile import auto_step
from torch_xla.distributed.parallel_loader import MpDeviceLoader

STEPS = 16


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


def settle() -> None:
    # A function of its own: who calls a sync in the function of his loop is taken at his word.
    torch_xla.sync(wait=True)


def check(loop: Loop, most_compiles: int, each: int | None = 1) -> Counts:
    """Runs a loop on the CPU and on the device, where it must become steady.

    Args:
        loop: The loop.
        most_compiles: How many programs it may need.
        each: How many cuts a round has; None: that is not one number.
    """
    want = loop(torch.device("cpu"), Counts())
    settle()
    _XLAC._xla_forget_steps()
    counts = Counts()
    got = loop(xm.xla_device(), counts)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    steps = len(counts.compiles)
    assert counts.compiles[-1] <= most_compiles, counts.compiles
    assert counts.compiles[steps // 2] == counts.compiles[-1], counts.compiles
    if each is not None:
        steady = counts.cuts[-1] - counts.cuts[steps // 2]
        assert steady == each * (steps - 1 - steps // 2), counts.cuts
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
    check(training(normed, OPTIMIZERS["adam"], **options), most_compiles=6)


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

    check(loop, most_compiles=6, each=2)


def test_several_optimizers_of_one_backward_pass_are_one_step():
    def loop(device: torch.device, counts: Counts) -> list[torch.Tensor]:
        net = normed().to(device)
        all_of_them = [torch.optim.SGD([p], lr=0.1) for p in net.parameters()]
        for x, y in batches():
            for opt in all_of_them:
                opt.zero_grad()
            F.cross_entropy(net(x.to(device)), y.to(device)).backward()
            for opt in all_of_them:
                opt.step()
            counts.step()
        return state(net)

    check(loop, most_compiles=4)


@pytest.mark.parametrize("model", [mlp, normed])
def test_a_loop_without_an_optimizer_is_found_when_its_second_round_ends(model):
    def loop(device: torch.device, counts: Counts) -> list[torch.Tensor]:
        net = model().to(device)
        kept = []  # by cycles that the collector of garbage frees some time
        for x, y in batches():
            net.zero_grad()
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
            loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(0.999)
                    parameter.sub_(parameter.grad, alpha=0.1)
            cycle = [loss]
            cycle.append(cycle)
            if len(kept) < 3:
                kept.append(cycle)
            counts.step()
        return state(net)

    counts = check(loop, most_compiles=6)
    # The cut comes with the first operation of the third round.
    assert counts.cuts[:4] == [0, 0, 1, 2]


@pytest.mark.parametrize("frequent", [False, True])
def test_the_collector_of_garbage_does_not_move_the_cut(device, frequent):
    torch.manual_seed(0)
    net = normed().to(device)
    settle()
    before = gc.get_threshold()
    counts = Counts()
    try:
        gc.set_threshold(1 if frequent else 100000)
        for x, y in batches(12):
            net.zero_grad()
            out = net(x.to(device))
            cycle = [out.detach() + i for i in range(3)]
            cycle.append(cycle)
            F.cross_entropy(out, y.to(device)).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
            del cycle
            counts.step()
    finally:
        gc.set_threshold(*before)
    assert counts.cuts == [0, 0, *range(1, 11)]


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

    check(loop, most_compiles=8, each=None)


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


def test_another_loop_after_one_that_syncs_is_cut(device):
    _XLAC._xla_forget_steps()
    train_synced(device, steps=6, between=1)
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    counts = Counts()
    for x, y in batches(8):
        opt.zero_grad()
        loss = F.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        opt.step()
        loss.item()
        counts.step()
    assert counts.cuts == [0, 1, 2, 3, 4, 5, 6, 7]
    assert counts.compiles[2] == counts.compiles[-1]


def test_several_optimizers_in_a_loop_of_a_loader_are_its_own(device):
    _XLAC._xla_forget_steps()
    nets = [mlp().to(device) for _ in range(2)]
    opts = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    settle()
    counts = Counts()
    for step, (x, y) in enumerate(MpDeviceLoader(list(batches(12)), device)):
        for net, opt in list(zip(nets, opts, strict=True))[: 1 + (step % 5 == 4)]:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        counts.step()
    assert counts.cuts[-1] == 0


def test_steps_of_several_rounds_are_the_users(device):
    counts = train_synced(device, steps=40, between=5)
    assert counts.cuts[-1] == 0
    assert counts.compiles[-1] == counts.compiles[20]


def test_steps_that_a_function_syncs_are_the_users_from_the_second_time_on(device):
    # No name tells it beforehand.
    end = [settle]
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    settle()
    counts = Counts()
    for step, (x, y) in enumerate(batches(24)):
        opt.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        opt.step()
        if step % 4 == 3:
            end[0]()
        counts.step()
    assert counts.cuts[-1] == counts.cuts[3] <= 4


def test_the_steps_of_a_loader_are_its_own(device):
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    total = torch.zeros(()).to(device)
    settle()
    counts = Counts()
    for x, y in MpDeviceLoader(list(batches(24)), device, batches_per_execution=12):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        total += loss.detach()
        counts.step()
    assert counts.cuts[-1] == 0


def test_who_names_a_sync_and_does_not_call_it_is_cut_later(device):
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    settle()
    counts = Counts()
    for x, y in batches(16):
        opt.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        opt.step()
        if counts.cuts and counts.cuts[-1] < 0:
            torch_xla.sync()
        counts.step()
    assert counts.cuts == [*[0] * 8, *range(1, 9)]


def test_the_loop_that_syncs_is_the_innermost_one():
    found = []

    def step(xm: Any = None) -> None:
        found.append(auto_step.syncs_in_loop())

    def step_and_sync(xm: Any = None) -> None:
        found.append(auto_step.syncs_in_loop())
        if xm is not None:
            xm.mark_step()

    for _ in range(1):
        step()
    for _ in range(1):
        step_and_sync()
    for _ in range(1):
        for _ in range(1):
            step()
        if found is None:
            torch_xla.sync()
    count = 0
    while count < 1:
        count += 1
        step()
        if found is None:
            xm.optimizer_step(None)
    assert found == [False, True, False, True]


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


def train_replica(steps: int, on_xla: bool = True) -> list[torch.Tensor]:
    """A replica; the graphs of the first one end elsewhere than those of the other one."""
    device = xm.xla_device() if on_xla else torch.device("cpu")
    net = mlp().to(device)
    sums = []
    for step, (x, y) in enumerate(batches(steps)):
        net.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        gradients = [p.grad for p in net.parameters()]
        if on_xla:
            xm.all_reduce("sum", gradients, scale=0.5)
            if xm.get_ordinal() == 0 and step < 5:
                for _ in range(step):
                    sums.append(net[1].weight.detach().sum())
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
    return [torch.tensor(cuts()), *state(net)]


@pytest.mark.multiprocess
def test_replicas_that_are_cut_at_different_places_agree(tmp_path):
    first, second = run_replicas(train_replica, 2, tmp_path, 16)
    assert first[0] < second[0]
    want = train_replica(16, on_xla=False)
    for replica in (first, second):
        for a, b in zip(replica[1:], want[1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


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


# ------------------------------------------------------------------ loops that generate


class Reader(nn.Module):
    """Reads tokens, and says which one comes next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x.cumsum(1))) + x
        return self.head(x[:, -1])


def generate(model: Reader, ids: torch.Tensor, tokens: int, counts: Counts) -> torch.Tensor:
    for _ in range(tokens):
        ids = torch.cat([ids, model(ids).argmax(-1, keepdim=True)], 1)
        counts.step()
    return ids


@pytest.mark.parametrize("grad", [False, True])
def test_a_loop_that_generates_and_reads_nothing_is_cut(device, grad):
    model, start = Reader(), torch.arange(4)[None]
    with torch.set_grad_enabled(grad):
        want = generate(model, start, 14, Counts())
        model.to(device)
        settle()
        _XLAC._xla_forget_steps()
        counts = Counts()
        assert torch.equal(generate(model, start.to(device), 14, counts).cpu(), want)
        # From the third round on, or the ninth.
        first = 9 if grad else 3
        assert counts.cuts[first - 1] == 0 and counts.cuts[-1] >= (14 - first) // 4, counts.cuts
        for _ in range(2):
            again = Counts()
            assert torch.equal(generate(model, start.to(device), 14, again).cpu(), want)
        assert again.cuts[-1] >= (1 if grad else 4) and compiles() == again.start[0]


def test_integers_that_grow_with_the_steps_of_a_loop_move_no_cut(device):
    """A list of what was predicted; and, in another loop, parts of a step that are put together."""
    net = mlp().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for parts in (1, 4, 8):
        settle()
        _XLAC._xla_forget_steps()
        counts = Counts()
        found = torch.zeros(0, dtype=torch.long, device=device)
        for x, _ in batches(8):
            opt.zero_grad()
            if parts > 1:
                found = torch.zeros(0, dtype=torch.long, device=device)
            loss = torch.zeros((), device=device)
            for part in torch.split(x.to(device), 8 // parts):
                out = net(part)
                for _ in range(12):
                    out = out * 1.01
                found = torch.cat([found, out.detach().argmax(1)])
                loss = loss + out.square().sum()
            loss.backward()
            opt.step()
            counts.step()
        assert counts.cuts == list(range(1, 9)), (parts, counts.cuts)
        assert found.cpu().shape == ((64,) if parts == 1 else (8,))


PROGRAM = """
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 8).to(device)
for step in range(6):
    net.zero_grad()
    net(x).mean().backward()
    {update}
report(cuts=count("AutoStep"))
"""
WITH_OPTIMIZER = PROGRAM.replace("{update}", "opt.step()")
WITHOUT = PROGRAM.replace(
    "{update}",
    "torch._foreach_sub_([p.data for p in net.parameters()], "
    "[p.grad for p in net.parameters()], alpha=0.1)",
)


def test_it_tells_where_it_cuts_and_the_environment_turns_it_off(tmp_path):
    on, told = run_python(WITH_OPTIMIZER, tmp_path, PT_XLA_DEBUG="1")
    assert on["cuts"] == 6
    assert "the graph is cut behind each step of an optimizer, here " in told
    assert "script.py:" in told
    on, told = run_python(WITHOUT, tmp_path, PT_XLA_DEBUG="1")
    assert on["cuts"] == 4
    assert "operations repeat; from now on the graph is cut before " in told
    off, told = run_python(WITH_OPTIMIZER, tmp_path, PT_XLA_DEBUG="1", XLA_AUTO_STEP="0")
    assert off["cuts"] == 0
    assert "graph is cut" not in told


def test_a_cut_nobody_asked_for_raises_nothing(device):
    """What cannot be lowered tells so when it is read, and the loop goes on being cut."""
    torch_xla.sync(wait=True)
    bad = torch.ones(3, device=device).to(torch.complex32)
    model = mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = cuts()
    for x, y in batches(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    assert cuts() - before >= 4
    assert torch.isfinite(loss.detach()).item()
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        bad.cpu()
