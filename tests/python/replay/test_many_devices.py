"""Replay in SPMD mode, and in replicas."""

import numpy as np
import pytest
import torch
from testing.processes import python_output
from testing.replay import batches, mlp, right, status
from testing.replicas import run_replicas
from testing.spmd import in_spmd

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs

mse = torch.nn.functional.mse_loss


def sharded_training(tensor_parallel):
    def program(compile, device):
        mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
        model = mlp(device, dropout=0.1)
        if tensor_parallel:
            xs.mark_sharding(model[0].weight, mesh, ("model", None))
            xs.mark_sharding(model[3].weight, mesh, (None, "model"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)

        @compile
        def step(x, y):
            optimizer.zero_grad()
            hidden = model[1](model[0](x))
            xs.mark_sharding(hidden, mesh, ("data", "model"))
            loss = mse(model[3](model[2](hidden)), y)
            loss.backward()
            optimizer.step()
            return loss, hidden.detach()

        found = []
        for i, (x, y) in enumerate(batches(device, 14)):
            if i < 10:  # Then inputs lie otherwise.
                xs.mark_sharding(x, mesh, ("data", None))
            found += step(x, y)
            scheduler.step()
        weight = model[0].weight
        lies = torch_xla._XLAC._get_xla_sharding_spec(weight)
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        return [found, list(model.state_dict().values()), state, lies]

    return program


@pytest.mark.parametrize("tensor_parallel", [False, True])
@in_spmd
def test_spmd(tensor_parallel):
    right(sharded_training(tensor_parallel), torch.device("xla"), least=5)


@in_spmd
def test_marking_what_was_there_is_refused():
    device = torch.device("xla")
    mesh = xs.Mesh(np.arange(4), (4,), ("data",))

    @torch_xla.compile(replay=True)
    def f(x):
        xs.mark_sharding(x, mesh, ("data", None))
        return x * 2

    for _ in range(5):
        assert f(torch.ones(4, 2, device=device)).tolist() == [[2, 2]] * 4
    assert status(f).replayed == 0 and status(f).reason


def replica():
    """Returns the weights after steps with reduced gradients, traced and replayed."""
    device = xm.xla_device()
    found, replayed = [], 0
    for replay in (False, True):
        torch.manual_seed(1)
        torch_xla.manual_seed(1)
        model = mlp(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

        @torch_xla.compile(replay=replay)
        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            xm.optimizer_step(optimizer)
            return loss

        for x, y in batches(device, 10):
            step(x * (1 + xm.get_ordinal()), y)
        found.append([value.cpu() for value in model.state_dict().values()])
        if replay:
            replayed = status(step).replayed, status(step).reason
    return found, replayed


def test_replicas(tmp_path):
    results = run_replicas(replica, 2, tmp_path, CPU_NUM_DEVICES="2")
    (expected, _), _ = results[0]
    for (traced, again), (replayed, reason) in results:
        assert replayed >= 5, reason
        for one, two, three in zip(expected, traced, again, strict=True):
            assert torch.equal(one, two) and torch.equal(one, three)


ON_TWO_DEVICES = """
import torch
import torch_xla
function = torch_xla.compile(lambda x: (x + 1, x.new_zeros(2)), replay=True)
devices = ["xla:0"] * 6 + ["xla:1"] * 6 + ["xla:0", "xla:1"] * 2
found = [function(torch.ones(2, device=device)) for device in devices]
assert [str(one.device) for pair in found for one in pair] == [d for d in devices for _ in range(2)]
for device, (result, _) in zip(devices, found):
    assert (torch.ones(2, device=device) + result).tolist() == [3, 3]
print(function._xla_replay[0].status().replayed)
"""


def test_argument_on_another_device():
    assert int(python_output(ON_TWO_DEVICES, CPU_NUM_DEVICES="2")) > 0
