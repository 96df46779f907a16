"""Indices out of range: those from the host raise at the call, those that the device computes at
the next read (torch_xla.config.check_indices)."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.ops import INF, NAN, rand
from testing.processes import start_python

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

# The same of what only the host's indices are checked for.
ON_HOST: dict[str, tuple[Indexed, tuple[int, ...], int]] = {
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x, i), (5,), 3),
    "multilabel_margin_loss": (lambda x, i: F.multilabel_margin_loss(x, i), (5, 3), 3),
    "nll_loss2d": (lambda x, i: F.nll_loss(x.t()[None, :, :, None], i), (1, 5, 1), 3),
}


def _assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


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
        result = call(x, bad.to(device) * 1)  # nothing is raised here
        with pytest.raises(IndexError, match=f"index {wrong} is out of range") as info:
            result.cpu()
        assert "test_check_indices.py" in str(info.value)
        result.cpu()  # once
        call(x, good.to(device)).sum().item()


@pytest.mark.usefixtures("_checked")
def test_raises_after_the_step_too(device: torch.device) -> None:
    x = rand(5, 3).to(device)
    y = x.index_select(0, torch.tensor([1, 9]).to(device) * 1)
    torch_xla.sync(wait=True)
    with pytest.raises(IndexError, match="aten::index_select: index 9"):
        (x + 1).cpu()
    assert y.shape == (2, 3)


@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize(("argument", "wrong"), [("input", float("nan")), ("target", 1.5)])
def test_probabilities_are_checked_too(argument: str, wrong: float, device: torch.device) -> None:
    arguments = {"input": torch.tensor([0.5, 0.25]), "target": torch.tensor([1.0, 0.0])}
    good = {name: tensor.to(device) for name, tensor in arguments.items()}
    F.binary_cross_entropy(**good).item()
    arguments[argument][1] = wrong
    says = f"all elements of {argument} should be between 0 and 1"
    with pytest.raises(RuntimeError, match=says):
        F.binary_cross_entropy(**arguments)
    loss = F.binary_cross_entropy(**good | {argument: arguments[argument].to(device)})
    with pytest.raises(RuntimeError, match=says):
        loss.item()
    loss.item()  # once


# Of ones times a number: the numbers that the CPU refuses, and one that it takes.
DATA: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[float, ...], float]] = {
    "poisson": (torch.poisson, (-1.0, NAN), 0.0),
    "bernoulli": (torch.bernoulli, (-1.0, 1.5, NAN), 1.0),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(x), (-1.0, 1.5, NAN), 0.0),
    "multinomial": (lambda x: torch.multinomial(x, 2), (-1.0, 0.0, INF, NAN), 0.5),
    "normal": (lambda x: torch.normal(0.0, x), (-1.0, NAN), 0.0),
    "normal of two": (lambda x: torch.normal(x, x), (-1.0, NAN), 1.0),
    "histc": (torch.histc, (INF, NAN), 1.0),
    "quantile": (lambda x: torch.quantile(x, x[0, 0]), (-1.0, 1.5), 0.5),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x[0]), (1.0,), -1.0),
}


@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("name", DATA)
def test_what_else_is_wrong_with_data(name: str, device: torch.device) -> None:
    call, wrong, right = DATA[name]
    x = torch.ones(2, 3)
    for number in wrong:
        with pytest.raises(RuntimeError):
            call(x * number)
        result = call(x.to(device) * number)
        with pytest.raises((RuntimeError, IndexError), match="aten::"):
            result.cpu()
        result.cpu()  # once
    assert call(x.to(device) * right).cpu().shape == call(x * right).shape


@pytest.mark.usefixtures("_checked")
def test_ignore_index_is_no_index(device: torch.device) -> None:
    x = rand(4, 3)
    for loss, ignored in ((F.cross_entropy, -100), (F.nll_loss, 7)):
        target = torch.tensor([0, ignored, 2, 1])
        actual = loss(x.to(device), target.to(device), ignore_index=ignored)
        torch.testing.assert_close(actual.cpu(), loss(x, target, ignore_index=ignored))


@pytest.mark.usefixtures("_checked")
def test_many_unread_checks_are_bounded(device: torch.device) -> None:
    x, i = rand(5, 3).to(device), torch.tensor([0, 1]).to(device)
    for _ in range(600):
        y = x.index_select(0, i)
    torch_xla.sync()
    _assert_equal(y, x.cpu()[:2])


def test_off_by_default_and_costs_nothing(device: torch.device) -> None:
    assert torch_xla.config.check_indices is False
    x, i = rand(5, 3).to(device), torch.tensor([0, 9]).to(device) * 1
    before = met.counter_value("xla::where") or 0
    x.index_select(0, i).cpu()
    assert (met.counter_value("xla::where") or 0) == before


def test_index_on_the_host_is_checked_always(device: torch.device) -> None:
    x = rand(5, 3).to(device)
    for index in (torch.tensor([0, 7]), [0, 7]):
        with pytest.raises(IndexError, match=r"aten::index: index 7 is out of range \[-5, 5\)"):
            x[index]
    for index in (torch.tensor([0, -6]), [0, -6]):
        with pytest.raises(IndexError, match="index -6 is out of range"):
            x[index] = 1.0
    _assert_equal(x[torch.tensor([0, -5])], x.cpu()[[0, -5]])
    _assert_equal(x[[0, -5]], x.cpu()[[0, -5]])


@pytest.mark.parametrize("name", [*CALLS, *ON_HOST])
def test_uploaded_index_is_as_on_the_cpu(name: str, device: torch.device) -> None:
    call, shape, size = (CALLS | ON_HOST)[name]
    x = rand(5, 3)
    for dtype in (torch.int64, torch.int32):
        good = (torch.arange(torch.Size(shape).numel()) % size).view(shape).to(dtype)
        for number in (size - 1, size, -1, -size, -size - 1):
            index = good.clone()
            index.view(-1)[1] = number
            try:
                expected = call(x, index)
            except (IndexError, RuntimeError) as error:
                # Of int32 it is the dtype that some refuse.
                kind = type(error) if dtype == torch.int64 else (IndexError, RuntimeError)
                with pytest.raises(kind):
                    call(x.to(device), index.to(device))
            else:
                _assert_equal(call(x.to(device), index.to(device)), expected)


def test_uploaded_index_is_known_through_views_and_syncs(device: torch.device) -> None:
    x, i = rand(5, 3).to(device), torch.tensor([[0, 9], [1, 2]]).to(device)
    torch_xla.sync(wait=True)
    for index in (i, i.view(-1), i.t(), i[None], i.unsqueeze(1).expand(2, 3, 2)):
        with pytest.raises(IndexError, match="index 9"):
            x[index]
    # What a part of it holds is not known.
    _assert_equal(x[i[1]], x.cpu()[[1, 2]])
    i[0, 1] = 4
    _assert_equal(x[i[0]], x.cpu()[[0, 4]])
    assert x[i].shape == (2, 2, 3)
    with pytest.raises(IndexError, match="index 9"):
        x[torch.full((2,), 9, device=device)]


@pytest.mark.parametrize("ignored", [-100, 1, 255])
def test_uploaded_labels_may_be_ignored(ignored: int, device: torch.device) -> None:
    x = rand(4, 3)
    for labels in ([0, ignored, 2, ignored], [ignored] * 4):
        target = torch.tensor(labels)
        ours = F.cross_entropy(x.to(device), target.to(device), ignore_index=ignored)
        _assert_equal(ours, F.cross_entropy(x, target, ignore_index=ignored))
    for labels in ([ignored, 0, 3, 2], [-101, ignored, 0, 0], [ignored, 0, 256, 0]):
        with pytest.raises(IndexError):
            F.cross_entropy(x.to(device), torch.tensor(labels).to(device), ignore_index=ignored)


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


def test_bags_that_descend_when_data_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla.config, "check_indices", True)
    weight = torch.ones(4, 2, device="xla")
    indices = torch.tensor([0, 1, 2], device="xla")
    good = F.embedding_bag(indices, weight, torch.tensor([0, 1, 1], device="xla"))
    assert good.sum().item() == 4
    bad = F.embedding_bag(indices, weight, torch.tensor([0, 2, 1], device="xla"))
    with pytest.raises(RuntimeError, match="must begin with 0 and ascend"):
        bad.sum().item()
