"""`_foreach_` operations that follow each other are one call on the CPU: what it computes."""

import re
from collections.abc import Callable

import pytest
import torch
from testing import ops, processes
from testing.kernels import CALLS, chosen

import torch_xla

Lists = list[list[torch.Tensor]]

# Less than a block, some blocks, several chunks; none; a scalar; several dimensions.
SHAPES = [(3,), (), (64,), (2, 0), (7, 11), (600,), (33, 40), (2, 3, 4), (1,), (256,), (17, 16)]


def make_lists(count: int, shapes: list[tuple[int, ...]] = SHAPES) -> Lists:
    return [
        [ops.rand(*shape, seed=100 * i + k) for k, shape in enumerate(shapes)] for i in range(count)
    ]


def copies(lists: Lists, device: str) -> Lists:
    return [[t.clone().to(device) for t in one] for one in lists]


def check(f: Callable[..., list[torch.Tensor]], lists: Lists, rtol: float = 1e-6) -> None:
    """``f`` changes lists and returns all tensors to look at."""
    expected = f(*copies(lists, "cpu"))
    given = copies(lists, "xla")
    torch_xla.sync()
    actual = f(*given)
    torch_xla.sync()
    if CALLS:
        assert "f32 many" in chosen("foreach")
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(
            a.cpu(), e, rtol=rtol, atol=1e-7, equal_nan=True, msg=lambda m, i=i: f"{i}: {m}"
        )


def test_every_operation() -> None:
    def f(a, b, c):
        numbers = [0.25 * i - 1 for i in range(len(a))]
        x = torch._foreach_add(a, b)
        torch._foreach_add_(x, c, alpha=-0.5)
        torch._foreach_sub_(x, 0.75)
        torch._foreach_sub_(x, numbers)
        torch._foreach_mul_(x, torch.tensor(1.5, device=x[0].device))
        y = torch._foreach_addcmul(x, a, b, value=0.5)
        torch._foreach_addcdiv_(y, a, torch._foreach_add(torch._foreach_abs(c), 1), numbers)
        torch._foreach_lerp_(y, a, 0.1)
        torch._foreach_lerp_(y, b, 0.9)
        z = torch._foreach_sqrt(torch._foreach_abs(torch._foreach_neg(y)))
        z = torch._foreach_div(torch._foreach_reciprocal(torch._foreach_add(z, 1)), 3)
        torch._foreach_maximum_(z, torch._foreach_minimum(x, y))
        torch._foreach_clamp_max_(z, 0.75)
        torch._foreach_clamp_min_(z, numbers)
        return [*x, *y, *z]

    check(f, make_lists(3), rtol=1e-5)


def test_what_is_no_number_and_what_is_tiny() -> None:
    special = torch.cat([ops.special(), torch.tensor([1e-40, -1e-40, 3e38])])
    a = [special.repeat(2, 1) + i * 0 for i in range(9)]
    b = [special.flip(0).repeat(2, 1) for _ in range(9)]

    def f(a, b):
        extremes = torch._foreach_maximum(a, b), torch._foreach_minimum(a, b)
        made = torch._foreach_mul(torch._foreach_abs(a), 0.5)
        return [t for one in (*extremes, made, torch._foreach_lerp(a, b, 0.25)) for t in one]

    check(f, [a, b])
    made = torch._foreach_neg(torch._foreach_abs([torch.zeros(8, device="xla")] * 16))
    assert torch.signbit(made[0].cpu()).all()


def test_more_tensors_than_a_call_takes() -> None:
    def f(a, b):
        torch._foreach_mul_(a, 0.9)
        torch._foreach_add_(a, b)
        return [*a, *b]

    check(f, make_lists(2, [(i % 5 + 1, 3) for i in range(70)]))


def test_what_is_read_between() -> None:
    """Sums of the first chain are numbers of the second; lists in another order are no chain."""

    def f(a, b):
        x = torch._foreach_mul(a, 2)
        torch._foreach_add_(x, b)
        total = sum(t.sum() for t in x)
        torch._foreach_div_(b, total)
        torch._foreach_sub_(b, 1)
        y = torch._foreach_add([x[1], *x[1:]], b)
        torch._foreach_neg_(y)
        return [total, *x, *b, *y]

    check(f, make_lists(2, [(4, 5)] * 10), rtol=1e-5)


def test_lists_that_overlap() -> None:
    """A tensor that is written is read at another place of the list, before and after."""

    def f(a, b):
        torch._foreach_add_(a, [*a[1:], b[0]])
        torch._foreach_mul_(b, 2)
        torch._foreach_add_(b, [*b[1:], a[0]])
        rotated = torch._foreach_sub([a[-1], *a[:-1]], a)
        torch._foreach_mul_(rotated, a)
        return [*a, *b, *rotated]

    check(f, make_lists(2, [(40, 30)] * 17))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_other_dtypes_are_as_before(dtype: torch.dtype) -> None:
    lists = [[(t * 4).to(dtype) for t in one] for one in make_lists(2)]

    def f(a, b):
        torch._foreach_mul_(a, 2)
        torch._foreach_add_(a, b)
        return a

    actual, expected = f(*copies(lists, "xla")), f(*copies(lists, "cpu"))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_parameters_are_updated_in_place() -> None:
    """From the second step on what the step before made is given away."""
    weights = [ops.rand(16, 9, seed=i) for i in range(20)]
    results = []
    for device in ("cpu", "xla"):
        parameters = [torch.nn.Parameter(w.clone().to(device)) for w in weights]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, amsgrad=True)
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
            torch_xla.sync()
        results.append([p.detach().cpu() for p in parameters])
    for a, e in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
    if CALLS:
        assert "f32 many" in chosen("foreach")


class Tables(torch.nn.Module):
    """Embeddings whose gradients no other operation makes, but for the last, which has two uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(1000, 33, padding_idx=3)
        self.wide = torch.nn.Embedding(3, 5000)
        self.bags = torch.nn.EmbeddingBag(5000, 7, mode="sum")
        self.means = torch.nn.EmbeddingBag(40, 64, mode="mean", padding_idx=1)
        self.shared = torch.nn.Embedding(20, 33)
        self.scale = torch.nn.Linear(33, 20)

    def forward(self, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        words = self.words(index)
        bags = self.bags(index * 5, per_sample_weights=weights)
        means = self.means(index.int() % 40)
        shared = self.scale(words) @ self.shared.weight + self.shared(index % 20)
        wide = self.wide(index % 3)
        return sum((made * made.sin()).mean() for made in (words, wide, bags, means, shared))


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, amsgrad=True),
    "loop": lambda p: torch.optim.SGD(p, lr=0.5, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clips", [False, True])
def test_gradients_of_embeddings_are_made_as_they_are_read(name: str, clips: bool) -> None:
    """Duplicates, padding, empty rows; the gradients are there afterwards. Clipping reads them."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(1000, (30, 4), generator=generator) for _ in range(3)]
    batches[1][:, 1:] = 3
    weights = ops.rand(30, 4)
    results = []
    for device in ("cpu", "xla"):
        model = Tables().to(device)
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        for batch in batches:
            optimizer.zero_grad()
            model(batch.to(device), weights.to(device)).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            made = [t for p in model.parameters() for t in (p.detach(), p.grad)]
            results.append([t.clone().cpu() for t in made])
    for expected, actual in zip(results[:3], results[3:], strict=True):
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            torch.testing.assert_close(a, e, rtol=2e-5, atol=1e-6, msg=lambda m, i=i: f"{i}: {m}")


def test_rows_of_what_is_updated_in_place() -> None:
    """A weight is the gradient's rows, and what the same call writes."""
    index = torch.randint(500, (500,), generator=torch.Generator().manual_seed(1))
    lists = make_lists(2, [(500, 40)] * 5)
    results = []
    for device in ("cpu", "xla"):
        weights, sums = copies(lists, device)
        where = index.to(device)
        torch_xla.sync()
        for shift, dims in ((0, (500,)), (1, (500,)), (0, (20, 25)), (1, (20, 25))):
            rows = [w.view(*dims, 40) for w in weights[shift:] + weights[:shift]]
            made = [
                torch.ops.aten.embedding_dense_backward(r, where.view(dims), 500, -1, False)
                for r in rows
            ]
            torch._foreach_mul_(sums, 0.5)
            torch._foreach_add_(sums, made)
            torch._foreach_sub_(weights, sums, alpha=0.1)
            torch_xla.sync()
            results.append([t.clone().cpu() for t in (*weights, *sums, *made)])
    for expected, actual in zip(results[:4], results[4:], strict=True):
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not CALLS, reason="calls are switched off")
@pytest.mark.parametrize("reads", [False, True])
def test_gradients_that_others_read_are_made_once(reads: bool, tmp_path) -> None:
    processes.python_output(
        f"""
        import torch, torch_xla
        tables = [torch.nn.Embedding(100, 8).to("xla") for _ in range(4)]
        weights = [table.weight for table in tables]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
        index = torch.arange(9, device="xla")
        torch_xla.sync()
        sum(table(index).square().sum() for table in tables).backward()
        norm = sum(w.grad.sum() for w in weights) if {reads} else 0
        optimizer.step()
        torch_xla.sync()
        for w in weights:
            torch.testing.assert_close(w.grad[:9].cpu(), w.detach()[:9].cpu() * 2.5)
        """,
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        XLA_PERSISTENT_CACHE_PATH="",
    )
    texts = [path.read_text() for path in tmp_path.glob("*after_optimizations.txt")]
    (text,) = [text for text in texts if "torch_xla.cpu_foreach" in text]
    assert text.count('"torch_xla.cpu_add_rows"') == (4 if reads else 0)
    found = re.search(r'"torch_xla\.cpu_foreach".*words = array<i64: ([^>]*)>', text)
    words = [int(word) for word in found[1].split(",")]
    assert words[1 + words[0]] == (0 if reads else 4)  # As csrc/cpu/foreach.h has them: its tables.


@pytest.mark.skipif(not CALLS, reason="calls are switched off")
def test_without_calls() -> None:
    processes.run_tests(__file__, XLA_CPU_KERNELS="0")
