"""LSTM, GRU and plain recurrent layers: one operation for a layer and a direction."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from testing.kernels import chosen, needs_calls
from testing.ops import BF16, F16, F32, F64, INF, NAN, check_many, rand
from testing.processes import run_tests
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

TARGET = "torch_xla.cpu_recurrent"
CELLS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
LAYERS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 2, "batch_first": True, "dtype": F64},
]


def functional(module: nn.Module) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The module as a function of its parameters and what it takes."""
    names, values = zip(*module.named_parameters(), strict=True)

    def call(*args: Any) -> Any:
        parameters = dict(zip(names, args, strict=False))
        return torch.func.functional_call(module, parameters, args[len(names) :])

    return call, [value.detach() for value in values]


def case(cell: str, batch: int = 3, times: int = 5, **options: Any) -> tuple[Any, ...]:
    """A call with states before and gradients of all that it gives."""
    torch.manual_seed(0)
    module = CELLS[cell](4, 6, **options)
    call, parameters = functional(module)
    dtype = parameters[0].dtype
    first = options.get("batch_first", False)
    x = rand(*((batch, times) if first else (times, batch)), 4, dtype=dtype)
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = [rand(count, batch, 6, dtype=dtype, seed=i) for i in range(2)]
    hidden = (states[0], states[1]) if cell == "lstm" else states[0]
    return call, (*parameters, x, hidden)


def recurrent_calls() -> int:
    return met.counter_value("xla::recurrent") or 0


@pytest.mark.parametrize("cell", CELLS)
def test_values_and_gradients(cell: str) -> None:
    before = recurrent_calls()
    check_many([case(cell, **options) for options in LAYERS], rtol=1e-5, atol=1e-5, grad=True)
    assert recurrent_calls() == before + 1 + 4 + 1 + 2
    check_many([case(cell, batch=40)], rtol=1e-5, atol=1e-5, grad=True)  # more than a block


@pytest.mark.parametrize("cell", CELLS)
def test_half_precision(cell: str) -> None:
    check_many([case(cell, dtype=dtype) for dtype in (BF16, F16)], grad=True)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_samples_in_parts(cell: str) -> None:
    # Enough work for each thread to take some of them, an odd number.
    torch.manual_seed(0)
    module = CELLS[cell](64, 128, bidirectional=True)
    call, parameters = functional(module)
    check_many([(call, (*parameters, rand(24, 33, 64)))], rtol=1e-4, atol=1e-3, grad=True)


@pytest.mark.parametrize("cell", CELLS)
def test_values_that_are_no_numbers(cell: str) -> None:
    call, (*parameters, x, hidden) = case(cell)
    x[1, 0, 0], x[2, 1, 0], x[3, 2, 0] = NAN, INF, -INF
    large = x.clone()
    large[large.isfinite()] *= 1e4
    check_many([(call, (*parameters, y, hidden)) for y in (x, large)], rtol=1e-4, atol=1e-5)


@needs_calls
def test_without_library_calls() -> None:
    names = "values_and_gradients or half_precision or no_numbers"
    run_tests(__file__, "-k", names, XLA_CPU_KERNELS="0")


@needs_calls
def test_the_program_calls_the_library_and_a_shown_one_does_not(device: torch.device) -> None:
    lstm = nn.LSTM(4, 6).to(device)
    x = rand(7, 2, 4).to(device)
    text = _XLAC._get_xla_tensors_hlo([lstm(x)[0]])
    assert TARGET not in text and "while" in text
    lstm(x)[0].cpu()
    assert "f32" in chosen("recurrent")


def test_the_graph_does_not_grow_with_the_length(device: torch.device) -> None:
    gru = nn.GRU(4, 6).to(device)

    def nodes(times: int) -> int:
        torch_xla.sync(wait=True)
        gru.zero_grad()
        output = gru(rand(times, 2, 4).to(device))[0]
        output.sum().backward()
        text = _XLAC._get_xla_tensors_text([gru.weight_hh_l0.grad])
        torch_xla.sync()
        return text.count("\n")

    assert nodes(5) == nodes(50)


def second_gradients(
    call: Callable[..., Any], x: torch.Tensor, parameters: list[nn.Parameter]
) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    results = tree_leaves(call(x))
    first = torch.autograd.grad(
        sum((result**3).sum() for result in results), [x, *parameters], create_graph=True
    )
    loss = sum((gradient**2).sum() for gradient in first)
    return list(torch.autograd.grad(loss, [x, *parameters]))


@pytest.mark.parametrize("cell", CELLS)
def test_second_gradients(cell: str, device: torch.device) -> None:
    torch.manual_seed(0)
    module = CELLS[cell](3, 4, dtype=F64, bidirectional=True)
    x = rand(4, 2, 3, dtype=F64)
    expected = second_gradients(module, x, list(module.parameters()))
    on_device = copy.deepcopy(module).to(device)
    actual = second_gradients(on_device, x.to(device), list(on_device.parameters()))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_gradients_of_some(device: torch.device) -> None:
    """Of the last cells alone, of the states before alone, and of a frozen layer's input."""

    def gradients(module: nn.LSTM, x: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor | None]:
        h, x = h.detach().requires_grad_(), x.detach().requires_grad_()
        (_, cells) = module(x, (h, h))[1]
        found = list(torch.autograd.grad(cells.sum(), [h, *module.parameters()]))
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        found += torch.autograd.grad(module(x)[0].sum(), [x])
        return found

    module, x, h = nn.LSTM(3, 4), rand(5, 2, 3), rand(1, 2, 4)
    expected = gradients(copy.deepcopy(module), x, h)
    actual = gradients(module.to(device), x.to(device), h.to(device))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_what_runs_time_by_time(device: torch.device) -> None:
    """Projections, a single time, autocast: PyTorch's own operations."""
    before = recurrent_calls()
    torch.manual_seed(0)
    x = rand(5, 3, 4)
    lengths = torch.tensor([5, 3, 2])
    module = nn.LSTM(4, 6, proj_size=2)
    on_device = copy.deepcopy(module).to(device)
    for call in (
        lambda m, x: m(x)[0],
        lambda m, x: m(x[:1])[1][1],
        lambda m, x: m(pack_padded_sequence(x, lengths))[0].data,  # of projections
    ):
        torch.testing.assert_close(call(on_device, x.to(device)).cpu(), call(module, x))
    gru = nn.GRU(4, 6)
    expected = gru(x)[0]
    with torch.autocast("xla", torch.bfloat16):
        output = gru.to(device)(x.to(device))[0]
    torch.testing.assert_close(output.float().cpu(), expected, rtol=0.05, atol=0.05)
    assert recurrent_calls() == before


@pytest.mark.parametrize("cell", CELLS)
def test_packed_sequences(cell: str, device: torch.device) -> None:
    """Samples of all lengths, in each direction, with states before and all gradients."""

    def results(
        module: nn.Module, x: torch.Tensor, states: list[torch.Tensor], lengths: torch.Tensor
    ) -> list[torch.Tensor]:
        x, *states = (a.detach().requires_grad_() for a in (x, *states))
        first = module.batch_first
        is_sorted = lengths.tolist() == sorted(lengths, reverse=True)
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=is_sorted)
        out, last = module(packed, tuple(states) if cell == "lstm" else states[0])
        padded, of = pad_packed_sequence(
            out, batch_first=first, padding_value=-2.5, total_length=max(lengths) + 2
        )
        found = [packed.data, packed.batch_sizes, out.data, *tree_leaves(last), padded, of]
        loss = sum((a.double() ** 2).sum() for a in (padded, *tree_leaves(last)))
        wanted = [x, *states[: 1 + (cell == "lstm")], *module.parameters()]
        return found + list(torch.autograd.grad(loss, wanted))

    of_layers = ([5, 3, 5, 1], [2, 2], [1, 1]), ([5, 3, 5, 1],), ([1, 7, 3], [6]), ([3] * 20,)
    for options, cases in zip(LAYERS, of_layers, strict=True):
        torch.manual_seed(0)
        module = CELLS[cell](4, 6, **options)
        dtype, first = module.weight_hh_l0.dtype, module.batch_first
        on_device = copy.deepcopy(module).to(device)
        count = module.num_layers * (2 if module.bidirectional else 1)
        for lengths in cases:
            of = torch.tensor(lengths)
            shape = (len(lengths), 7) if first else (7, len(lengths))
            x = rand(*shape, 4, dtype=dtype)
            states = [rand(count, len(lengths), 6, dtype=dtype, seed=i) for i in range(2)]
            before = recurrent_calls()
            actual = results(on_device, x.to(device), [s.to(device) for s in states], of)
            assert recurrent_calls() - before == (count if max(lengths) > 1 else 0)
            for a, e in zip(actual, results(module, x, states, of), strict=True):
                torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def test_packed_sequences_of_other_forms(device: torch.device) -> None:
    """No sequences of vectors, errors, halves, numbers that are none, second gradients."""
    pack, pad = torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence
    x, long, i64 = rand(4, 3, 2), torch.arange(12).view(4, 3), torch.tensor
    data, sizes = rand(8, 2), i64([3, 2, 2, 1])
    calls: list[Callable[[Any], Any]] = [
        lambda to: pack(to(long), i64([4, 3, 1]), False),
        lambda to: pack(to(rand(3, 4, 2, 3)), i64([4, 3, 1]), True),
        lambda to: pack(to(x), i64([5, 3, 2]), False),
        lambda to: pack(to(x), i64([4, 3]), False),
        lambda to: pack(to(x), i64([4, 3, 0]), False),
        lambda to: pack(to(x), i64([2, 3, 1]), False),
        lambda to: pack(to(x), i64([4, 3, 1]).int(), False),
        lambda to: pack(to(x[:, :0]), i64([], dtype=torch.int64), False),
        lambda to: pack(to(x[0, :, 0]), i64([4, 2, 1]), False),
        lambda to: pack(to(x), i64([[4, 3, 1]]), False),
        lambda to: pad(to(data), sizes, False, 0.0, 3),
        lambda to: pad(to(data.long()), sizes, True, 0.5, 6),
        lambda to: pad(to(data[:, 0]), sizes, True, float("nan"), 6),
        lambda to: pad(to(data), sizes, True, float("inf"), 0),
        lambda to: pad(to(data[:5]), sizes, False, 0.0, -1),
        lambda to: pad(to(torch.cat([data, data])), sizes, False, 0.0, -1),
    ]

    def outcome(call: Callable[[Any], Any], to: Callable[[Any], Any]) -> Any:
        try:
            return [a.cpu() for a in call(to)]
        except (RuntimeError, IndexError) as error:
            return type(error), str(error).partition("\n")[0]

    for call in calls:
        actual, expected = outcome(call, lambda a: a.to(device)), outcome(call, lambda a: a)
        if isinstance(expected, tuple):
            assert actual == expected
            continue
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)

    lengths = i64([4, 3, 1])
    for dtype in (F16, BF16):
        gru = nn.GRU(2, 4, bidirectional=True, dtype=dtype)
        packed = pack_padded_sequence(x.to(dtype), lengths)
        actual = copy.deepcopy(gru).to(device)(packed.to(device))[0].data
        torch.testing.assert_close(actual.cpu(), gru(packed)[0].data, rtol=2e-2, atol=2e-2)

    for cell in CELLS:
        torch.manual_seed(0)
        module = CELLS[cell](2, 4, dtype=F64)
        bad = x.double()
        bad[1, 0, 0], bad[2, 1, 0], bad[3, 2] = NAN, INF, NAN  # the last one is padding
        expected = module(pack_padded_sequence(bad, lengths))[0].data
        on_device = copy.deepcopy(module).to(device)
        actual = on_device(pack_padded_sequence(bad.to(device), lengths))[0].data
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
        twice = [
            second_gradients(
                lambda y, m=m: m(pack_padded_sequence(y, lengths))[0].data, y, list(m.parameters())
            )
            for m, y in ((module, x.double()), (on_device, x.double().to(device)))
        ]
        for e, a in zip(*twice, strict=True):
            torch.testing.assert_close(a.cpu(), e)


def test_packed_sequences_of_any_lengths_have_one_graph(device: torch.device) -> None:
    lstm = nn.LSTM(3, 4).to(device)

    def graph(*lengths: int) -> str:
        data = rand(sum(lengths), 3).to(device)
        sizes = torch.tensor([sum(n > t for n in lengths) for t in range(max(lengths))])
        out, _ = lstm(PackedSequence(data, sizes))
        return _XLAC._get_xla_tensors_text([pad_packed_sequence(out)[0]])

    assert graph(5, 4, 3) == graph(5, 5, 2) != graph(5, 4, 2)


def test_transforms(device: torch.device) -> None:
    """torch.func's gradients and tangents, and inference mode."""
    torch.manual_seed(0)
    gru = nn.GRU(3, 4)
    call, parameters = functional(gru)
    on_device = [p.to(device) for p in parameters]
    x = rand(5, 2, 3)

    def loss(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return (call(*parameters, x)[0] ** 2).sum()

    def all_of(x: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        found = [torch.func.grad(loss)(x, *parameters)]
        found.append(torch.func.jvp(lambda x: loss(x, *parameters), (x,), (x,))[1])
        with torch.inference_mode():
            found.append(call(*parameters, x)[0].clone())
        return found

    for a, e in zip(all_of(x.to(device), on_device), all_of(x, parameters), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def test_wrong_arguments(device: torch.device) -> None:
    lstm, x = nn.LSTM(4, 6).to(device), rand(5, 3, 4).to(device)
    state, weights = rand(1, 3, 6).to(device), lstm._flat_weights
    # The CPU takes widths that do not fit, and writes out of bounds.
    for arguments, words in (
        ((x, [state], weights), "expects two hidden states"),
        ((x, (), weights), "expects two hidden states"),
        ((x, [state] * 2, weights[:-1]), "number of RNN parameters"),
        ((x.double(), [state] * 2, weights), "dtype"),
        ((x[..., :3], [state] * 2, weights), "shapes"),
        ((x, [state[:, :2]] * 2, weights), "size"),
    ):
        with pytest.raises(RuntimeError, match=words):
            torch.lstm(*arguments, True, 1, 0.0, True, False, False)


@needs_calls
def test_float_is_the_only_dtype_of_the_call() -> None:
    check_many([case("gru", dtype=F64)])
    assert not any(
        operation == "recurrent" and kind != "f32" for operation, kind, _ in _XLAC._kernel_choices()
    )
    check_many([case("gru", dtype=F32, times=6)], rtol=1e-5, atol=1e-5)
    assert "f32" in chosen("recurrent")
