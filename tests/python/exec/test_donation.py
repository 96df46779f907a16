"""Which memory a step reuses."""

import gc
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.debug import graph


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


def test_weights_read_by_the_step_that_updates_them_are_not_copied(device, tmp_path):
    if xm.xla_device_hw(device) != "CPU":
        pytest.skip("reads what XLA:CPU made of the program")
    model = torch.nn.Sequential(torch.nn.Linear(31, 33), torch.nn.Linear(33, 35)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch_xla.sync()
    model(torch.ones(3, 31).to(device)).square().mean().backward()
    optimizer.step()
    torch_xla.sync(wait=True)
    program = max(graph.save_optimized(tmp_path))  # the latest
    entry = open(program).read().rpartition("\n}\n\n")[2]
    assert re.findall(r"Arg\S* = f32\[35,33\]", entry)
    assert not re.findall(r" copy\(Arg.*", entry), entry


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
