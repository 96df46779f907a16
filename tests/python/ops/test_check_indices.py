"""torch_xla.config.check_indices: indices out of range raise at the next read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from op_testing import rand
from process_testing import start_python

import torch_xla
import torch_xla.debug.metrics as met

Indexed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# The call on a [5, 3], the shape of the indices, and what they must stay below.
CALLS: dict[str, tuple[Indexed, tuple[int, ...], int]] = {
    "gather": (lambda x, i: x.gather(0, i), (2, 3), 5),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (2, 3), 5),
    "scatter_": (lambda x, i: x.clone().scatter_(0, i, x), (2, 3), 5),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), (2, 3), 5),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "sum"), (2, 3), 5),
    "index_select": (lambda x, i: x.index_select(0, i), (4,), 5),
    "index_add": (lambda x, i: x.index_add(0, i, x[:4]), (4,), 5),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:4]), (4,), 5),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), (4,), 5),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:4], "prod"), (4,), 5),
    "take": (lambda x, i: x.take(i), (4,), 15),
    "put": (lambda x, i: x.put(i, x[:4, 0]), (4,), 15),
    "x[i]": (lambda x, i: x[i], (4,), 5),
    "x[:, i]": (lambda x, i: x[:, i], (4,), 3),
    "x[i] = 1": (lambda x, i: x.clone().index_put_((i,), x[0]), (4,), 5),
    "embedding": (lambda x, i: F.embedding(i, x), (4,), 5),
    "embedding_bag": (lambda x, i: F.embedding_bag(i, x), (2, 2), 5),
    "one_hot": (lambda x, i: F.one_hot(i, 5) + x.sum(), (4,), 5),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), (5,), 3),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (5,), 3),
}


@pytest.fixture
def _checked(device: torch.device) -> Iterator[None]:
    torch_xla.config.check_indices = True
    yield
    torch_xla.config.check_indices = False


@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("name", CALLS)
def test_out_of_range_raises_at_the_next_read(name: str, device: torch.device) -> None:
    call, shape, size = CALLS[name]
    x = rand(5, 3).to(device)
    good = (torch.arange(torch.Size(shape).numel()) % size).view(shape)
    call(x, good.to(device)).sum().item()
    for wrong in (size, -size - 1):
        bad = good.clone()
        bad.view(-1)[1] = wrong
        with pytest.raises((IndexError, RuntimeError)):
            call(x.cpu(), bad)
        result = call(x, bad.to(device))  # nothing is raised here
        with pytest.raises(IndexError, match=f"index {wrong} is out of range") as info:
            result.cpu()
        assert "test_check_indices.py" in str(info.value)
        result.cpu()  # once
        call(x, good.to(device)).sum().item()


@pytest.mark.usefixtures("_checked")
def test_raises_after_the_step_too(device: torch.device) -> None:
    x = rand(5, 3).to(device)
    y = x.index_select(0, torch.tensor([1, 9]).to(device))
    torch_xla.sync(wait=True)
    with pytest.raises(IndexError, match="aten::index_select: index 9"):
        (x + 1).cpu()
    assert y.shape == (2, 3)


@pytest.mark.usefixtures("_checked")
def test_ignore_index_is_no_index(device: torch.device) -> None:
    x, target = rand(4, 3).to(device), torch.tensor([0, -100, 2, 1]).to(device)
    F.cross_entropy(x, target).item()
    F.nll_loss(x, torch.tensor([0, 7, 2, 1]).to(device), ignore_index=7).item()


@pytest.mark.usefixtures("_checked")
def test_many_unread_checks_are_bounded(device: torch.device) -> None:
    x, i = rand(5, 3).to(device), torch.tensor([0, 1]).to(device)
    for _ in range(600):
        y = x.index_select(0, i)
    torch_xla.sync()
    y.cpu()


def test_off_by_default_and_costs_nothing(device: torch.device) -> None:
    assert torch_xla.config.check_indices is False
    x, i = rand(5, 3).to(device), torch.tensor([0, 9]).to(device)
    before = met.counter_value("xla::where") or 0
    x.index_select(0, i).cpu()
    assert (met.counter_value("xla::where") or 0) == before


def test_index_on_the_host_is_checked_always(device: torch.device) -> None:
    x = rand(5, 3).to(device)
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 5"):
        x[torch.tensor([0, 7])]
    with pytest.raises(IndexError, match="index -6 is out of bounds"):
        x[torch.tensor([0, -6])] = 1.0
    assert x[torch.tensor([0, -5])].shape == (2, 3)


def test_settings_have_types_and_names() -> None:
    with pytest.raises(TypeError, match="expected a bool"):
        torch_xla.config.check_indices = 1
    with pytest.raises(AttributeError, match="no setting 'chek_indices'"):
        torch_xla.config.chek_indices = True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XLA_CHECK_INDICES": "1"}, True),
        ({"PT_XLA_DEBUG": "1"}, True),
        ({"PT_XLA_DEBUG": "1", "XLA_CHECK_INDICES": "0"}, False),
    ],
)
def test_environment(variables: dict[str, str], expected: bool) -> None:
    program = "import torch_xla; print(torch_xla.config.check_indices)"
    run = start_python("-c", program, **variables)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(expected)]
