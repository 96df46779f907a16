"""Numbers from Python are parameters: another value needs no compilation."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from number_sweep import LIMIT, sweep
from testing.ops import rand
from torch.utils._pytree import tree_map

import torch_xla
import torch_xla.debug.metrics as met


def compiles(step: Callable[[Any], Any], values: list[Any]) -> int:
    """How many programs ``step`` of each value compiles, all that it leaves synchronised."""
    torch_xla.sync(wait=True)
    # Graphs of the same structure with the sizes of other tests would make sizes arguments.
    torch_xla._XLAC._xla_clear_programs()
    before = met.counter_value("UncachedCompile") or 0
    for value in values:
        result = step(value)  # noqa: F841 - what nobody holds is not computed
        torch_xla.sync()
    return (met.counter_value("UncachedCompile") or 0) - before


FILLS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "full": lambda x, s: torch.full((3,), s, device=x.device) * x,
    "full of a dtype": lambda x, s: torch.full((3,), s, dtype=torch.bfloat16, device=x.device) * x,
    "full of integers": lambda x, s: torch.full((3,), int(s), device=x.device) * x,
    "full of complex": lambda x, s: torch.full((3,), s * 1j, device=x.device) * x,
    "full_like": lambda x, s: torch.full_like(x, s) + x,
    "fill_": lambda x, s: (x + 1).fill_(s) * x,
    "fill_ of what is new": lambda x, s: torch.empty_like(x).fill_(s) / x,
    "number / tensor": lambda x, s: s / x,
    "a slice": lambda x, s: torch.zeros_like(x).index_fill_(0, torch.tensor([1]).to(x.device), s),
}


@pytest.mark.parametrize("name", FILLS)
def test_fill_compiles_once(name: str, device: torch.device) -> None:
    x = rand(3)
    values = [2.5, -3.25, 1e6, -8.0, 7.0]
    there = x.to(device)
    assert compiles(lambda s: FILLS[name](there, s), values) == 1
    for s in values:
        torch.testing.assert_close(FILLS[name](there, s).cpu(), FILLS[name](x, s))


def test_kinds_of_numbers_do_not_share_a_program(device: torch.device) -> None:
    """The same operations on the same shapes, but a float here and an integer there."""
    x = torch.ones(2)
    for value in (2.5, 3, 4.5, 5, True, 2 + 3j):
        expected = torch.full((2,), value, dtype=torch.complex64) * x
        actual = torch.full((2,), value, dtype=torch.complex64, device=device) * x.to(device)
        torch.testing.assert_close(actual.cpu(), expected)


def _cosine_with_warmup(step: int) -> float:
    return step / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * (step - 4) / 16))


@pytest.mark.parametrize("cls", ["Adam", "AdamW", "Adagrad", "SGD"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
def test_learning_rate_schedule_compiles_once(cls: str, fused: bool, device: torch.device) -> None:
    """transformers.Trainer's default: AdamW(fused=True), warm-up from 0, then a cosine."""

    def train(device: torch.device | str, begin: Callable[[], None]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        model.to(device)
        optimizer = getattr(torch.optim, cls)(
            model.parameters(), lr=0.1, weight_decay=0.01, fused=fused, foreach=not fused
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _cosine_with_warmup)
        x, y = rand(4, 6).to(device), rand(4, 2).to(device)
        for step in range(20):
            if step == 2:  # gradients and state are there
                begin()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            torch_xla.sync()
        return [p.detach().cpu() for p in model.parameters()]

    before = []

    def begin() -> None:
        before.append(met.counter_value("UncachedCompile"))

    actual = train(device, begin)
    # Nothing in the steps but what a special number (warm-up ends at 1) may cost.
    after = met.counter_value("UncachedCompile")
    assert after - before[0] <= (0 if fused else 1)
    for a, e in zip(actual, train("cpu", lambda: None), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ constants by need


def pdist(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.nn.functional.pdist(x, p)


def fake_quantize(x: torch.Tensor, zero_point: int) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, int(zero_point), -128, 127)


def margin(x: torch.Tensor, s: float) -> torch.Tensor:
    target = torch.tensor([0, 2, 1, 0]).to(x.device)
    return torch.nn.functional.multi_margin_loss(x, target, margin=s)


# The call, and values of which some are those that a lowering knows.
BY_NEED: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], list[Any]]] = {
    "x ** s": (lambda x, s: x.abs() ** s, [2.0, 3.0, 0.5, -1.0, 0.0, 1.7, -0.5, 1e-3]),
    "integers ** s": (lambda x, s: (x * 5).long() ** s, [2, 3, 0, 1, 5, 4]),
    "x ** 1js": (lambda x, s: x.to(torch.complex64) ** (s * 1j), [0.5, 1.5, 2.0, 2.5]),
    "sqrt(-inf)": (lambda x, s: (x - math.inf) ** s, [2.0, 3.0, 0.5, -0.5, 1.0]),
    "_foreach_pow": (
        lambda x, s: torch._foreach_pow([x.abs(), x.abs() + 1], s)[1],
        [2.0, 3.0, 0.5, 4.0],
    ),
    "norm": (
        lambda x, s: torch.linalg.vector_norm(x, s, dim=1),
        [2.0, 1.0, 0.0, math.inf, -math.inf, 3.0, 0.5, 2.5, math.inf],
    ),
    "cdist": (lambda x, s: torch.cdist(x, x + 1, p=s), [2.0, 1.0, 0.0, 3.0, math.inf, 0.5, 2.0]),
    "pdist": (pdist, [2.0, 1.0, 0.0, 3.0, math.inf, 0.5]),
    "huber": (lambda x, s: torch.nn.functional.huber_loss(x, x * 2, delta=s), [1.0, 0.5, 2, 0.1]),
    "smooth_l1": (
        lambda x, s: torch.nn.functional.smooth_l1_loss(x, x * 2, beta=s),
        [1.0, 0.5, 2.0, 0.25, 0.1],
    ),
    "multi_margin": (margin, [1.0, 0.5, 2.0, 0.3]),
    "logit": (lambda x, s: torch.logit(x, eps=s), [1e-6, 0.1, 0.2, 0.3]),
    "nan_to_num": (
        lambda x, s: torch.nan_to_num(x / 0 * x, nan=s, posinf=2 * s, neginf=-s),
        [1.0, 0.5, 2.0, 3.0],
    ),
    "layer_norm": (
        lambda x, s: torch.nn.functional.layer_norm(x, (3,), eps=s),
        [1e-5, 1e-3, 1.0, 2],
    ),
    "batch_norm": (
        lambda x, s: torch.nn.functional.batch_norm(
            x, x[0] * 0, x[0] * 0 + 1, training=True, momentum=s, eps=s
        ),
        [0.1, 0.2, 0.3, 0.4],
    ),
    "histc": (lambda x, s: torch.histc(x, 4, -s, s), [1.0, 0.0, 2.0, 3.0, 0.0]),
    "kthvalue": (lambda x, s: x.T.reshape(3, -1).kthvalue(s).values, [1, 4, 2, 3, 1]),
    "kthvalue of integers": (
        lambda x, s: torch.stack(list((x * 100).long().kthvalue(s, dim=0, keepdim=True))),
        [4, 1, 2, 3],
    ),
    "polygamma": (lambda x, s: torch.polygamma(s, x.abs() + 0.5), [1, 2, 0, 3, 4, 7, 1]),
    "tril": (lambda x, s: x.tril(s), [0, 1, -1, 2, -7, 7]),
    "triu": (lambda x, s: x.triu(s), [0, 1, -1, 2, -7, 7]),
    "fake_quantize": (fake_quantize, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", BY_NEED)
def test_constant_by_need_is_specialised_twice(name: str, device: torch.device) -> None:
    """Two values have programs of their own, all others share a third."""
    call, values = BY_NEED[name]
    x = rand(4, 3)
    x[0, 0] = 0
    there = x.to(device)
    for s in values:
        torch.testing.assert_close(call(there, s).cpu(), call(x, s), equal_nan=True)
    fresh = rand(5, 3).to(device) if name not in ("multi_margin",) else there
    assert compiles(lambda s: call(fresh, s), values) <= 3
    for s in reversed(values):
        torch.testing.assert_close(call(there, s).cpu(), call(x, s), equal_nan=True)


@pytest.mark.parametrize("p", [2.0, 1.0, 0.0, 3.0, math.inf, 0.5, 1.5])
def test_gradient_of_a_distance_whose_p_is_a_parameter(p: float, device: torch.device) -> None:
    def gradient(device: torch.device | str, p: float) -> torch.Tensor:
        x = rand(4, 3).to(device).requires_grad_()
        torch.cdist(x, rand(5, 3, seed=1).to(device), p=p).sum().backward()
        return x.grad.cpu()

    for other in (2.25, 2.75, 4.0):
        gradient(device, other)
    torch.testing.assert_close(gradient(device, p), gradient("cpu", p))


def test_values_that_meta_kernels_refuse_are_refused_after_good_ones(device: torch.device) -> None:
    x = rand(4, 3).to(device)
    torch.nn.functional.huber_loss(x, x, delta=0.5)
    with pytest.raises(RuntimeError, match="delta"):
        torch.nn.functional.huber_loss(x, x, delta=-0.5)
    whole = torch.tensor([1, 2]).to(device)
    assert (whole**2).tolist() == [1, 4]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        whole**-1


def test_numbers_of_two_places_do_not_multiply(device: torch.device) -> None:
    """n places with two values each are 2 ** n programs, were each on its own."""
    x = rand(3).abs().to(device)

    def step(bits: int) -> torch.Tensor:
        y = x
        for i in range(5):
            y = y ** (2 if bits >> i & 1 else 3) + 1 / (i + 2)
        return y

    assert compiles(step, list(range(32))) <= 2 + 5
    expected = x.cpu()
    for i in range(5):
        expected = expected ** (2 if 21 >> i & 1 else 3) + 1 / (i + 2)
    torch.testing.assert_close(step(21).cpu(), expected)


# ------------------------------------------------------------------ where a view begins

VIEWS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "x[i]": lambda x, i: x[i] + 1,
    "x[:, i]": lambda x, i: x[:, i] * 2,
    "x[i, :, i]": lambda x, i: x[i, :, i] * 2,
    "x[..., i]": lambda x, i: x[..., i] * 2,
    "narrow": lambda x, i: x.narrow(1, i, 2) * 2,
    "x[i:i + 2]": lambda x, i: x[i : i + 2].sum(0),
    "x[:, i::8]": lambda x, i: x[:, i : i + 2 : 2] * 2,
    "of a transposed": lambda x, i: x.transpose(0, 2)[i] * 2,
    "of a part": lambda x, i: x[1:][i, 2:] * 2,
    "as_strided": lambda x, i: x.as_strided((3, 2), (7, 3), i) * 2,
    "overlapping": lambda x, i: x.as_strided((3, 4), (2, 1), i) * 2,
    "diagonal of x[i]": lambda x, i: x[i].diagonal() * 2,
    "x[i] = 1": lambda x, i: _written(x, lambda y: y[i].fill_(2.5)),
    "x[:, i] = y": lambda x, i: _written(x, lambda y: y[:, i].copy_(x[0])),
    "x[i] += i": lambda x, i: _written(x, lambda y: y[i].add_(i + 2)),
    "x[:, i:i + 2] += 2": lambda x, i: _written(x, lambda y: y[:, i : i + 2].mul_(2.5)),
    "x[:, i:i + 3:2] += 2": lambda x, i: _written(x, lambda y: y[:, i : i + 3 : 2].mul_(2.5)),
    "as_strided written": lambda x, i: _written(
        x, lambda y: y.as_strided((2, 3), (11, 2), i).fill_(2.5)
    ),
}


def _written(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    y = x.clone()
    write(y)
    return y


@pytest.mark.parametrize("name", VIEWS)
def test_loop_over_views_compiles_twice(name: str, device: torch.device) -> None:
    x = rand(6, 6, 6)
    there = x.to(device)
    assert compiles(lambda i: VIEWS[name](there, i), [0, 1, 2, 3, 1, 0]) == 2
    for i in (3, 0, 2, 1):
        torch.testing.assert_close(VIEWS[name](there, i).cpu(), VIEWS[name](x, i))


@pytest.mark.parametrize("size", [1, 2])
def test_gradient_of_a_loop_over_views(size: int, device: torch.device) -> None:
    def gradient(x: torch.Tensor, i: int) -> torch.Tensor:
        x = x.detach().requires_grad_()
        part = x[i] if size == 1 else x[i : i + size]
        return torch.autograd.grad((part * part).sum(), x)[0]

    x = rand(6, 5)
    there = x.to(device)
    assert compiles(lambda i: gradient(there, i), [0, 1, 2, 3, -4, 1]) <= 3
    for i in (0, 3, -3):
        torch.testing.assert_close(gradient(there, i).cpu(), gradient(x, i))


def test_offset_of_another_structure_has_a_program_of_its_own(device: torch.device) -> None:
    """The same sizes and strides, but the rows that begin at 4 cross the ends of x's."""
    x = torch.arange(36.0).view(6, 6)
    there = x.to(device)
    for offset in (0, 1, 2, 3, 4, 5, 6, 13):
        for strides in ((6, 1), (12, 1), (7, 2)):
            expected = x.as_strided((2, 3), strides, offset)
            actual = there.as_strided((2, 3), strides, offset)
            assert actual.tolist() == expected.tolist()
            y, z = x.clone(), there.clone()
            y.as_strided((2, 3), strides, offset).fill_(-2.5)
            z.as_strided((2, 3), strides, offset).fill_(-2.5)
            assert z.tolist() == y.tolist()


def _with_gradient(
    x: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone().requires_grad_()
    result = f(y)
    return result.detach(), torch.autograd.grad(result.sum(), y)[0]


TWENTY: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "x[i]": lambda x, i: x[i] * 2,
    "x[i:i + 4]": lambda x, i: x[i : i + 4] * 2,
    "narrow": lambda x, i: x.narrow(1, i, 3) * 2,
    "select": lambda x, i: x.select(1, i) * 2,
    "x[i] = v": lambda x, i: _written(x, lambda y: y[i].fill_(2.5)),
    "x[i] = i": lambda x, i: _written(x, lambda y: y.__setitem__(i, i + 2)),
    "x[:, i:i + 4] += i": lambda x, i: _written(x, lambda y: y[:, i : i + 4].add_(i + 2)),
    "index_copy_": lambda x, i: _written(
        x, lambda y: y.index_copy_(1, torch.tensor([i], device=y.device), x[:, :1] * 2)
    ),
    "x ** s": lambda x, i: x.abs() ** (i / 4),
    "norm": lambda x, i: torch.linalg.vector_norm(x, i / 2, dim=1),
    "tril": lambda x, i: x.tril(i - 10),
    "roll": lambda x, i: x.roll(3 * i - 28),
    "roll of two": lambda x, i: x.roll((i - 30, 2 * i), (1, 0)),
    "slice_scatter": lambda x, i: x.slice_scatter(x[:3] * 2, 0, i, i + 3),
    "pad": lambda x, i: F.pad(x, (2 * i - 20, 14 - 2 * i), value=0.5),
    "pad of two": lambda x, i: F.pad(x, (i, 20 - i, -i, i - 5)),
    "ignore_index": lambda x, i: _with_gradient(
        x, lambda y: F.cross_entropy(y, torch.arange(25, device=x.device), ignore_index=i - 3)
    ),
    "padding_idx": lambda x, i: _with_gradient(
        x, lambda y: F.embedding(torch.arange(25, device=x.device), y, padding_idx=i)
    ),
    "select_scatter": lambda x, i: x.select_scatter(x[:, 0] * 2, 1, i - 20),
}


@pytest.mark.parametrize("name", TWENTY)
def test_twenty_values_compile_three_programs_at_most(name: str, device: torch.device) -> None:
    x = rand(25, 26)
    there = x.to(device)
    assert compiles(lambda i: TWENTY[name](there, i), list(range(20))) <= 3
    for i in (19, 0, 7):
        actual, expected = TWENTY[name](there, i), TWENTY[name](x, i)
        torch.testing.assert_close(tree_map(torch.Tensor.cpu, actual), expected)


def test_key_value_cache_written_at_a_position_compiles_twice(device: torch.device) -> None:
    cache = torch.zeros(2, 3, 16, 4).to(device)
    expected = torch.zeros(2, 3, 16, 4)

    def step(position: int) -> torch.Tensor:
        token = rand(2, 3, 1, 4, seed=position)
        expected[:, :, position : position + 1] = token
        cache[:, :, position : position + 1] = token.to(device)
        return (cache * 2).sum()

    assert compiles(step, list(range(16))) == 2
    torch.testing.assert_close(cache.cpu(), expected)


def test_writes_of_a_loop_without_a_sync_are_linear(device: torch.device) -> None:
    """x[i] += i reads, writes, reads and writes: one update of x is left of it."""

    def nodes(n: int) -> int:
        x = torch.zeros(n).to(device)
        for i in range(n):
            x[i] += i
        text = torch_xla._XLAC._get_xla_tensors_text([x])
        assert x.tolist() == list(range(n))
        return text.count("as_strided_view_update")

    assert nodes(40) == 40
    x = torch.zeros(4, 4).to(device)
    x[1] = 2.5
    x[1] = x[1]  # nothing
    x[1] = 3.5
    assert torch_xla._XLAC._get_xla_tensors_text([x]).count("as_strided_view_update") == 1
    assert x.sum().item() == 14
    # What another write covers in part is not forgotten.
    x[:, 1] = 7.5
    x[1] = 0
    x[:, 1] += 1
    expected = torch.zeros(4, 4)
    expected[:, 1] = 7.5
    expected[1] = 0
    expected[:, 1] += 1
    assert x.tolist() == expected.tolist()


def test_a_view_that_is_empty_wherever_it_begins(device: torch.device) -> None:
    """At the end of its base too, after the place where it begins has become a number."""
    x = torch.arange(50.0).reshape(5, 5, 2)
    there = x.to(device)
    for i in range(7):
        for view in (x[i:], x[i:i], x.tensor_split(i + 1)[-1]):
            other = there.as_strided(view.shape, view.stride(), view.storage_offset())
            torch_xla.sync()
            assert other.cpu().equal(view)
        assert there[i:].cpu().equal(x[i:])
        assert there.tensor_split(i + 1)[-1].cpu().equal(x.tensor_split(i + 1)[-1])


# Of all that number_sweep.py takes (`make conformance`).
OPERATORS = (
    "add|addcmul|clamp|div|float_power|lerp|pow|remainder|sub|nan_to_num|masked_fill|fill|full_like|"
    "new_full|index_fill|addmm|logit|histc|cdist|linalg_norm|nn_functional_(elu|leaky_relu|"
    "huber_loss|smooth_l1_loss|layer_norm|threshold|softplus)"
)


@pytest.mark.parametrize("values", [6])
def test_numbers_share_programs(values: int) -> None:
    results, bad = sweep(rf"^({OPERATORS})$", values)
    assert len(results) > 20
    assert not bad, {name: results[name] for name in bad}
    assert LIMIT == 3
