"""Loops that append to integers and read a few of them: one program for all lengths."""

from collections.abc import Callable

import pytest
import torch
from testing.executor import compiles, out_of_memory

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

VOCABULARY, WIDTH, ROOM = 23, 8, 64


def host_calls() -> int:
    xm.wait_device_ops()  # the worker counts them
    return met.counter_value("HostCalls") or 0


class Decoder:
    """As transformers' generate() with a static cache: tokens, a mask and positions grow."""

    def __init__(self, device: torch.device | str) -> None:
        generator = torch.Generator().manual_seed(0)

        def weights(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator).to(device)

        self.table, self.head = weights(VOCABULARY, WIDTH), weights(WIDTH, VOCABULARY)
        self.layers = [weights(WIDTH, WIDTH) for _ in range(6)]
        self.cache = torch.zeros(2, ROOM, WIDTH, device=device)
        self.length = torch.zeros((), dtype=torch.int64, device=device)
        self.tokens = torch.arange(6, device=device).view(2, 3)
        self.mask = torch.ones_like(self.tokens)
        self.unfinished = torch.ones(2, dtype=torch.int64, device=device)
        self.end = torch.tensor([99], device=device)

    def step(self) -> None:
        """Appends a token."""
        positions = self.mask.cumsum(-1)[:, -1:] - 1
        x = self.table[self.tokens[:, -1]] + positions * 0.01
        at = torch.arange(1, device=x.device) + self.length
        self.length.add_(1)
        self.cache.index_copy_(1, at, x[:, None])
        room = torch.arange(ROOM, device=x.device)
        seen = (room <= at)[None, :, None] & self.mask[:, -1:, None].bool()
        x = x + torch.where(seen, self.cache, 0.0).sum(1)
        for weight in self.layers:
            x = torch.tanh(x @ weight)
        chosen = (x @ self.head).argmax(-1)
        chosen = chosen * self.unfinished + (1 - self.unfinished)
        self.tokens = torch.cat([self.tokens, chosen[:, None]], 1)
        self.mask = torch.cat([self.mask, self.mask.new_ones(2, 1)], 1)
        self.unfinished = self.unfinished & ~torch.isin(self.tokens[:, -1], self.end)

    def ended(self) -> bool:
        return bool(self.unfinished.max() == 0)


def run(decoder: Decoder, steps: int, read: Callable[[], object]) -> list[int]:
    """Returns how many programs were compiled up to each step."""
    before, after = compiles(), []
    for _ in range(steps):
        decoder.step()
        read()
        after.append(compiles() - before)
    return after


def test_the_bulk_is_one_program_for_all_lengths(device: torch.device) -> None:
    actual, expected = Decoder(device), Decoder("cpu")
    split = host_calls()
    after = run(actual, 20, actual.ended)
    run(expected, 20, expected.ended)
    assert after[9] == after[-1] <= 6
    assert host_calls() > split
    for name in ("tokens", "mask", "unfinished", "length", "cache"):
        torch.testing.assert_close(getattr(actual, name).cpu(), getattr(expected, name))


def test_what_waits_for_the_next_round_does_not_pile_up(device: torch.device) -> None:
    """The counter of a round is read in the next one: no chain of all of them."""
    decoder = Decoder(device)
    run(decoder, 12, decoder.ended)
    text = torch_xla._XLAC._get_xla_tensors_text([decoder.length, decoder.mask])
    assert text.count("aten::") <= 6


def test_the_cache_is_overwritten_in_place(device: torch.device) -> None:
    decoder = Decoder(device)
    run(decoder, 8, decoder.ended)
    xm.wait_device_ops()
    before = torch_xla._XLAC._xla_memory_info(str(device))["bytes_used"]
    run(decoder, 8, decoder.ended)
    xm.wait_device_ops()
    after = torch_xla._XLAC._xla_memory_info(str(device))["bytes_used"]
    assert after - before < decoder.cache.nbytes


def test_cuts_of_the_user_are_split_likewise(device: torch.device) -> None:
    actual, expected = Decoder(device), Decoder("cpu")
    after = run(actual, 16, torch_xla.sync)
    run(expected, 16, lambda: None)
    assert after[4] == after[-1] <= 5
    assert actual.tokens.tolist() == expected.tokens.tolist()


def test_training_steps_are_whole(device: torch.device) -> None:
    """Lengths that change in the bulk itself: a program each, and nothing on the host."""
    weight = torch.ones(4, 4, device=device, requires_grad=True)
    split = host_calls()
    for rows in range(2, 8):
        x = torch.ones(rows, 4, device=device)
        for _ in range(10):
            x = torch.tanh(x @ weight)
        (x.sum() * torch.arange(rows, device=device).sum()).backward()
        torch_xla.sync()
    assert host_calls() == split


@pytest.mark.parametrize(
    "view",
    [
        lambda x, n: x[:, :, :n].reshape(-1, n)[:, -1],
        lambda x, n: x[:, :, :n].reshape(-1, n)[1:, 0],
        lambda x, n: x[:, 1:, :n].clone()[:, ::2, n // 2],
        lambda x, n: x[:, :, :n].clone()[1, :, n - 1 :],
        lambda x, n: x[:, :, :n].clone().view(-1)[n - 1 : 3 * n : n],
    ],
)
def test_what_is_seen_of_a_growing_copy_is_seen_of_the_whole(
    device: torch.device, view: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    """What is left over from x[..., :n] where n is no part of the program."""
    x = torch.arange(2 * 5 * 16).view(2, 5, 16)
    moved, before = x.to(device), compiles()
    for n in range(3, 13):
        actual = view(moved, n) * 2
        torch_xla.sync()
        torch.testing.assert_close(actual.cpu(), view(x, n) * 2)
    assert compiles() - before <= 3


def test_two_graphs_of_a_bulk_are_two_programs(device: torch.device) -> None:
    """A sum that begins in the first round: the second round is the same as all others."""
    x, labels = torch.linspace(-1, 1, 8, device=device), torch.arange(8, device=device)
    split, before = host_calls(), compiles()
    correct = None
    for _ in range(6):
        hits = (bulk(x).argmax() == labels).sum()
        correct = hits if correct is None else correct + hits
        torch_xla.sync()
    assert host_calls() == split
    assert compiles() - before == 2
    assert correct.item() == 6


def bulk(x: torch.Tensor) -> torch.Tensor:
    for _ in range(18):
        x = torch.tanh(x * 1.5)
    return x


def rounds(device: torch.device | str) -> list[list[torch.Tensor]]:
    """Bookkeeping of which later rounds and the reader need every part."""
    x, tokens = torch.linspace(-1, 1, 8, device=device), torch.arange(3, device=device)
    count, results = torch.zeros((), dtype=torch.int64, device=device), []
    for _ in range(6):
        # A sum that is an operand of the bulk, of the type of one of its results, and lives on.
        count = count + tokens.numel()
        x = bulk(x + count)
        best = torch.div(x.argmax() + count, 2, rounding_mode="floor")
        tokens = torch.cat([tokens, best[None]])
        # Views of views: what as_strided counts from.
        tail = (tokens[2:] + 0)[-2:].flip(0)[1:] * 3
        torch_xla.sync()
        results.append([count, best, tokens, tail])
    return results


def test_values_are_those_of_the_cpu(device: torch.device) -> None:
    split = host_calls()
    actual, expected = rounds(device), rounds("cpu")
    assert host_calls() > split
    for ours, theirs in zip(actual, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.cpu(), b)


def test_bookkeeping_of_what_failed_fails(device: torch.device, no_failure_left: None) -> None:
    """What is computed on the host of a failed step's result tells so when it is read, once."""
    x = torch.linspace(-1, 1, 8, device=device)
    torch_xla.sync()
    big = out_of_memory(device)
    failed = torch.arange(6, device=device) + 1
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        big[0, 0].item()
    split, sums = host_calls(), []
    for tokens in (torch.arange(3, device=device), torch.arange(4, device=device) * 2, failed):
        sums.append((bulk(x), torch.cat([tokens, tokens]).sum()))
        torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        sums[2][1].item()
    assert [int(tokens) for _, tokens in sums[:2]] == [6, 24]
    assert host_calls() > split
    del big, failed, sums
    torch_xla.sync(wait=True)
    assert (x + 1).sum().item() == pytest.approx(8)


def test_numbers_of_host_data_need_no_program(device: torch.device) -> None:
    """As transformers asks of each batch whether its mask leaves anything out."""
    before = compiles(), host_calls()
    for length in (5, 7, 9):
        mask = torch.ones(2, length, dtype=torch.int64)
        mask[1, 3:] = length == 7
        rows = mask.to(device)
        assert bool(rows.all()) == bool(mask.all())
        assert bool((rows[:, -1] == 0).any()) == bool((mask[:, -1] == 0).any())
        assert rows.sum(1).amax().item() == mask.sum(1).max().item()
    assert compiles() == before[0] and host_calls() == before[1] + 9


def test_numbers_of_what_is_computed_are_read_there(device: torch.device) -> None:
    """Of floats, of a step's results, and where nothing may be cut."""
    before = host_calls()
    assert (torch.tensor([1.5, 2.5]).to(device) > 2).any().item() is True
    step = torch.tensor([1, 2], device=device) * 2
    torch_xla.sync()
    assert step.sum().item() == 6
    assert host_calls() == before
    mask = torch.ones(3, dtype=torch.int64).to(device)
    with pytest.raises(RuntimeError, match="full_graph"):
        torch_xla.compile(lambda: bool(mask.all()), full_graph=True)()
    assert host_calls() == before


def test_a_number_that_was_read_is_part_of_the_next_program(device: torch.device) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(device)
    lengths = mask.sum(1)
    longest = lengths.max()
    assert longest.item() == 2
    result = torch.arange(3, device=device) < longest
    torch_xla.sync()
    assert result.tolist() == [True, True, False] and lengths.tolist() == [2, 1]


def test_batches_of_samples_that_stay_on_the_device(device: torch.device) -> None:
    """As the replay buffer of a DQN: a sample's next state is the state of another sample."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(4, generator=generator) for _ in range(12)]
    weights = torch.randn(4, 4, generator=generator)
    on_device, total = [state.to(device) for state in states], weights.to(device)
    expected, after = weights, []
    for _ in range(12):
        chosen = torch.randperm(11, generator=generator)[:6].tolist()
        ends = [i + 1 for i in chosen]

        def update(
            data: list[torch.Tensor], w: torch.Tensor, chosen=chosen, ends=ends
        ) -> torch.Tensor:
            now, then = torch.stack([data[i] for i in chosen]), torch.stack([data[i] for i in ends])
            for _ in range(4):
                now, then = torch.tanh(now @ w), torch.sigmoid(then @ w)
            return w + 0.1 * (now.T @ then)

        total, expected = update(on_device, total), update(states, expected)
        torch_xla.sync()
        after.append(compiles())
    torch.testing.assert_close(total.cpu(), expected)
    assert after[-1] == after[3]
