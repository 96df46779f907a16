"""Random training programs, replayed and traced: their states are equal bit by bit.

The models, optimizers, schedules, modes and what Python does beside them are drawn from a seed.
Some cannot be replayed: those have to be right, too.
"""

import random

import pytest
import torch
from testing.replay import both
from torch import nn

QUICK = 4
ALL = 200


def make_model(choose, device):
    layers, width = [], 5
    for _ in range(choose.randint(1, 3)):
        following = choose.choice([4, 5, 7])
        layers.append(nn.Linear(width, following, bias=choose.random() < 0.8))
        width = following
        layers.append(
            choose.choice(
                [
                    nn.ReLU,
                    nn.Tanh,
                    nn.GELU,
                    lambda: nn.Dropout(0.3),
                    lambda width=width: nn.BatchNorm1d(width),
                    lambda width=width: nn.LayerNorm(width),
                ]
            )()
        )
    layers.append(nn.Linear(width, 3))
    return nn.Sequential(*layers).to(device)


def make_optimizer(choose, model):
    parameters = list(model.parameters())
    if choose.random() < 0.3:
        parameters = [{"params": parameters[:1], "lr": 0.02}, {"params": parameters[1:]}]
    kind = choose.randrange(9)
    if kind == 0:
        return torch.optim.SGD(parameters, lr=0.05)
    if kind == 1:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=choose.random() < 0.5)
    if kind == 2:
        return torch.optim.AdamW(parameters, lr=0.01, fused=True)
    if kind == 3:
        return torch.optim.Adam(parameters, lr=0.01, capturable=True, amsgrad=choose.random() < 0.5)
    if kind == 4:
        return torch.optim.Adam(parameters, lr=0.01)  # Its counter is on the host.
    if kind == 5:
        return torch.optim.RMSprop(parameters, lr=0.01, capturable=True)
    if kind == 6:
        return torch.optim.Adagrad(parameters, lr=0.05, fused=choose.random() < 0.5)
    if kind == 7:
        return torch.optim.AdamW(parameters, lr=0.01, foreach=choose.random() < 0.5)
    return torch.optim.NAdam(parameters, lr=0.01)  # Cannot be replayed.


def make_scheduler(choose, optimizer):
    kind = choose.randrange(6)
    if kind == 0:
        return torch.optim.lr_scheduler.StepLR(optimizer, 6, gamma=0.5)
    if kind == 1:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    if kind == 2:
        rates = [lambda i: 0.9**i] * len(optimizer.param_groups)
        rates[-1] = lambda i: 1 / (1 + max(0, i - 8))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
    if kind == 3:
        return torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [5],
        )
    return None


def program(seed):
    choose = random.Random(seed)
    clips, accumulates = choose.random() < 0.3, choose.random() < 0.2
    to_none, returns = choose.random() < 0.7, choose.choice(["loss", "outputs", "nothing", "dict"])
    trick = choose.choice(
        ["", "", "", "flag", "counter", "scale", "read", "noise", "eval", "reset"]
    )
    sizes = [4] * 9 + [choose.choice([4, 3])]
    build = choose.getrandbits(32)

    def run(compile, device):
        choose = random.Random(build)
        model = make_model(choose, device)
        optimizer = make_optimizer(choose, model)
        scheduler = make_scheduler(choose, optimizer)
        counter, inside = [0], scheduler is not None and choose.random() < 0.4
        flag, scale = False, 1.0

        @compile
        def step(x, y):
            optimizer.zero_grad(set_to_none=to_none)
            for _ in range(2 if accumulates else 1):
                outputs = model(x)
                if flag:
                    outputs = outputs * 2
                if trick == "noise":
                    outputs = outputs + torch.randn_like(outputs) * 0.1
                loss = nn.functional.mse_loss(outputs, y) * scale
                if trick == "read" and loss.item() > 1.1:
                    loss = loss * 0.5
                loss.backward()
            if trick == "counter":
                counter[0] += 1
                if counter[0] % 7 == 0:
                    optimizer.zero_grad()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.7)
            optimizer.step()
            if inside:
                scheduler.step()
            if returns == "loss":
                return loss
            if returns == "outputs":
                return outputs.detach(), [loss.detach()]
            return {"loss": loss.detach(), "n": 3} if returns == "dict" else None

        found = []
        generator = torch.Generator().manual_seed(seed)
        for i in range(24):
            size = sizes[i % 10]
            x = torch.randn(size, 5, generator=generator).to(device)
            y = torch.randn(size, 3, generator=generator).to(device)
            if trick == "flag":
                flag = i >= 13
            if trick == "scale":
                scale = 1.0 + i // 8
            if trick == "eval":
                model.train(i % 12 < 8)
            if trick == "reset" and i % 9 == 8:
                with torch.no_grad():
                    next(model.parameters()).copy_(torch.ones_like(next(model.parameters())))
                    next(model.parameters()).data = next(model.parameters()).data.clone()
            found.append(step(x, y))
            if scheduler is not None and not inside:
                scheduler.step()
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        grads = [p.grad for p in model.parameters()]
        return [found, list(model.state_dict().values()), state, grads]

    return run


def test_programs(device):
    assert sum(both(program(seed), device).replayed for seed in range(QUICK)) > 0


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(QUICK, ALL, 4))
def test_more_programs(device, first):
    for seed in range(first, first + 4):
        both(program(seed), device)
