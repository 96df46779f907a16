"""Numbers that optimizers work out on the host: they are right, or the call is not replayed."""

import math
import sys

import pytest
import torch
from testing.replay import (
    batches,
    both,
    clipped_step,
    is_refused,
    is_replayed,
    mlp,
    refused,
    right,
    status,
)

import torch_xla
from torch_xla._internal.replay import host_numbers

mse = torch.nn.functional.mse_loss
optim = torch.optim


def states(model, optimizer):
    held = [value for entry in optimizer.state.values() for value in entry.values()]
    return [list(model.state_dict().values()), held, [g["lr"] for g in optimizer.param_groups]]


def training(make, before=lambda i, optimizer, scheduler: None, steps=30, schedule=None, **kwargs):
    """A training loop; ``before`` runs ahead of each step, outside of what is replayed."""
    inside = kwargs.pop("inside", False)

    def program(compile, device):
        model = mlp(device)
        optimizer = make(model)
        scheduler = schedule(optimizer) if schedule else None
        step = clipped_step(compile, model, optimizer, scheduler if inside else None)
        losses, data = [], batches(device, 5)
        for i in range(steps):
            before(i, optimizer, scheduler)
            losses.append(step(*data[i % 5]).detach())
            if scheduler is not None and not inside:
                scheduler.step()
        return [losses, states(model, optimizer)]

    return program


def cosine(optimizer):
    return optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


KINDS = {
    "adam": lambda p: optim.Adam(p, lr=0.05),
    "adam with L2 and amsgrad": lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1, amsgrad=True),
    "adamw, one by one": lambda p: optim.AdamW(p, lr=0.05, foreach=False, maximize=True),
    "adamw, foreach": lambda p: optim.AdamW(p, lr=0.05, foreach=True),
    "adamw, fused": lambda p: optim.AdamW(p, lr=0.05, fused=True),
    "sgd": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adamax": lambda p: optim.Adamax(p, lr=0.05),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.05, momentum=0.5, capturable=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_learning_rate_of_each_step(device, kind, inside):
    program = training(
        lambda model: KINDS[kind](model.parameters()), schedule=cosine, inside=inside, steps=12
    )
    right(program, device, least=7)


def test_one_cycle_cycles_betas(device):
    program = training(
        lambda model: optim.AdamW(model.parameters(), lr=0.01),
        schedule=lambda one: optim.lr_scheduler.OneCycleLR(one, 0.1, total_steps=40),
    )
    right(program, device, least=24)


def test_groups_that_part_later(device):
    def make(model):
        first, *others = model.parameters()
        return optim.Adam([{"params": [first]}, {"params": others}], lr=0.01)

    def before(i, optimizer, scheduler):
        if i >= 12:
            optimizer.param_groups[1]["lr"] = 0.01 + i / 100
        if i == 20:
            optimizer.param_groups[0]["betas"] = (0.8, 0.99)

    right(training(make, before), device, least=20)


def test_numbers_that_become_part_of_the_program(device):
    """0 and 1 are no parameters; and weight_decay = 0 takes another branch."""

    def before(i, optimizer, scheduler):
        group = optimizer.param_groups[0]
        group["lr"] = [0.1, 0.0, 1.0, 0.2][i // 6 % 4]
        group["weight_decay"] = [0.1, 0.3, 0.0][i // 7 % 3]

    program = training(lambda model: optim.Adam(model.parameters(), weight_decay=0.1), before, 60)
    right(program, device)


def test_bias_correction_becomes_one_and_comes_back(device):
    def before(i, optimizer, scheduler):
        if i == 75:
            for entry in optimizer.state.values():
                entry["step"].fill_(3)

    program = training(
        lambda model: optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.5)), before, 90
    )
    right(program, device)


def test_state_is_loaded(device):
    saved = {}

    def before(i, optimizer, scheduler):
        if i == 8:
            saved["state"] = optimizer.state_dict()
        if i == 16:
            optimizer.load_state_dict(saved["state"])

    right(training(lambda model: optim.Adam(model.parameters(), lr=0.01), before), device)


def test_counters_of_parameters_differ(device):
    def make(model):
        optimizer = optim.AdamW(model.parameters(), lr=0.05)
        model[0].weight.requires_grad_(False)
        return optimizer

    def before(i, optimizer, scheduler):
        if i == 5:
            optimizer.param_groups[0]["params"][0].requires_grad_(True)
        if i == 20:
            optimizer.state[optimizer.param_groups[0]["params"][0]]["step"].fill_(2)

    right(training(make, before, schedule=cosine, steps=36), device)


def test_kinds_of_numbers_change(device):
    def before(i, optimizer, scheduler):
        optimizer.param_groups[0]["lr"] = 2 if 6 <= i < 12 else 0.5 + i / 50

    right(training(lambda model: optim.SGD(model.parameters(), lr=0.5), before), device)


def reading(read):
    """What of the optimizer the function reads decides what it computes."""

    def program(compile, device):
        model = mlp(device)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        groups = optimizer.param_groups
        scheduler = cosine(optimizer)

        @compile
        def step(x, y):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            if read(optimizer, groups, scheduler) < 0.07:
                loss = loss * 2
            loss.backward()
            optimizer.step()
            return loss

        losses, data = [], batches(device, 5)
        for i in range(30):
            losses.append(step(*data[i % 5]).detach())
            scheduler.step()
        return [losses, states(model, optimizer)]

    return program


@pytest.mark.parametrize(
    "read",
    [
        lambda optimizer, groups, scheduler: optimizer.param_groups[0]["lr"],
        lambda optimizer, groups, scheduler: groups[0]["lr"],
        lambda optimizer, groups, scheduler: next(iter(groups[0].values())) and groups[-1]["lr"],
        lambda optimizer, groups, scheduler: scheduler.get_last_lr()[0],
        lambda optimizer, groups, scheduler: 0.1 - scheduler.last_epoch / 500,
        lambda optimizer, groups, scheduler: optimizer.state_dict()["param_groups"][0]["lr"],
        lambda optimizer, groups, scheduler: vars(optimizer)["param_groups"][0]["lr"],
        lambda optimizer, groups, scheduler: getattr(optimizer, "param_groups")[0]["lr"],  # noqa: B009
    ],
)
def test_who_reads_it_is_traced(device, read):
    assert both(reading(read), device).replayed == 0


def test_unknown_optimizers_are_refused(device):
    class Mine(optim.Adam):
        def step(self, closure=None):
            for group in self.param_groups:
                group["lr"] *= 0.99
            return super().step(closure)

    refused(training(lambda model: Mine(model.parameters(), lr=0.1)), device, "it changes what")
    refused(training(lambda model: optim.NAdam(model.parameters())), device, "was written to")


def test_patched_optimizer_is_refused(device, monkeypatch):
    """The numbers of a torch.optim that works otherwise are not known."""
    module = sys.modules["torch.optim.adam"]
    original = module._single_tensor_adam

    def other(params, *args, lr, **kwargs):
        return original(params, *args, lr=math.sqrt(lr), **kwargs)

    monkeypatch.setattr(module, "_single_tensor_adam", other)
    monkeypatch.setattr(module, "_multi_tensor_adam", other)
    host_numbers._is_known.cache_clear()
    try:
        refused(
            training(lambda model: optim.Adam(model.parameters(), lr=0.1)), device, "was written to"
        )
    finally:
        host_numbers._is_known.cache_clear()


@is_refused("an optimizer steps after a scheduler")
def test_order_of_optimizer_and_scheduler(compile, device):
    model = mlp(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = cosine(optimizer)

    @compile
    def step(x, y):
        scheduler.step()
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()

    for x, y in batches(device, 16):
        step(x, y)
    return states(model, optimizer)


@is_replayed(14)
def test_two_optimizers_and_two_steps(compile, device):
    model, critic = mlp(device), mlp(device)
    one = optim.Adam(model.parameters(), lr=0.01)
    two = optim.AdamW(critic.parameters(), lr=0.02)
    schedulers = [cosine(one), optim.lr_scheduler.ExponentialLR(two, 0.9)]

    @compile
    def step(x, y):
        for _ in range(2):
            two.zero_grad()
            mse(critic(x), y).backward()
            two.step()
        one.zero_grad()
        (model(x) - critic(x).detach()).square().mean().backward()
        one.step()
        for scheduler in schedulers:
            scheduler.step()

    for x, y in batches(device, 20):
        step(x, y)
    return [states(model, one), states(critic, two)]


def test_checks_see_another_rule(device, monkeypatch):
    """The rule by which a number is worked out is tried at each check."""
    monkeypatch.setenv("XLA_REPLAY_CHECK", "4")
    model = mlp(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @torch_xla.compile(replay=True)
    def step(x, y):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()

    data = batches(device, 16)
    for i in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 + i / 100
        step(*data[i])
    assert status(step).replayed > 0
    source = host_numbers._common
    (recording,) = step._xla_replay[0]._recordings
    for group in recording.host._groups:
        group.source = lambda group, step: tuple(one and 1.5 * one for one in source(group))
    with pytest.raises(RuntimeError, match="worked out"):
        for i in range(6, 12):
            optimizer.param_groups[0]["lr"] = 0.1 + i / 100
            step(*data[i])
