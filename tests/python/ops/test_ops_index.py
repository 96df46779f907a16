"""Ops that read and write where an index tensor says (lowering/indexing.cpp)."""

import pytest
import torch
import torch.nn.functional as F
from testing.ops import check, check_many

import torch_xla
from torch_xla import _XLAC

INT32, INT64 = torch.int32, torch.int64


def ramp(*sizes, dtype=torch.float32):
    return torch.arange(torch.Size(sizes).numel()).to(dtype).view(sizes)


def index(*values, dtype=INT64):
    return torch.tensor(values, dtype=dtype)


X = ramp(3, 4, 5)
ROWS, COLUMNS = index([0, 2], [1, 1]), index([3, 0], [-1, 2])
MASK = ramp(3, 4, 5) % 3 == 1

READS = [
    lambda x, i, j: x[i],
    lambda x, i, j: x[:, i],
    lambda x, i, j: x[..., i],
    lambda x, i, j: x[i, j],
    lambda x, i, j: x[:, i, j],
    lambda x, i, j: x[i, :, j],
    lambda x, i, j: x[i[0], j],
    lambda x, i, j: x[i, j, i],
    lambda x, i, j: x[-1, i],
    lambda x, i, j: x[i, 1],
    lambda x, i, j: x[i, ..., 1:3],
    lambda x, i, j: x[None, i],
    lambda x, i, j: x[i[:0]],
    lambda x, i, j: x[i[0, 0]],
    lambda x, i, j: x[[2, 0]],
    lambda x, i, j: x[i.to(INT32), j.to(INT32)],
]


def test_index():
    check_many([(f, (X, ROWS, COLUMNS)) for f in READS])
    check_many(
        [
            (f, (X.to(t), ROWS, COLUMNS))
            for f in READS[:6:5]
            for t in (torch.bfloat16, torch.bool, INT64)
        ]
    )
    check_many(
        [
            (lambda x, i: x[i], (torch.zeros(0, 3), torch.zeros(0, dtype=INT64))),
            (lambda x, i: x[:, i], (torch.zeros(0, 3), index(2, 0))),
        ]
    )


def test_boolean_mask():
    # How many elements there are is known on the host alone: nonzero runs there.
    check(lambda x, m: x[m], X, MASK, fallback_ok=True)
    check(lambda x, m: x[m], X, MASK[:, :, 0], fallback_ok=True)
    check(lambda x, m: torch.where(m, x, 0), X, MASK)


@pytest.mark.parametrize("read", [READS[i] for i in (0, 3, 5, 8)])
def test_index_gradient(read):
    check(read, X, ROWS, COLUMNS, grad=True)


def put(*indices, accumulate=False):
    """Stores values of the shape that the indices name; None stands for a whole dimension."""

    def f(x, *tensors):
        tensors = iter(tensors)
        key = [None if i is None else next(tensors) for i in indices]
        shape = torch.empty_like(x)[tuple(slice(None) if k is None else k for k in key)].shape
        values = (torch.arange(shape.numel(), device=x.device) + 1).to(x.dtype).view(shape)
        return torch.ops.aten.index_put(x, key, values, accumulate)

    return f, tuple(i for i in indices if i is not None)


def test_index_put():
    # Without accumulation, places named twice would be undefined.
    i, j = index([0, 2]), index([3], [-2])
    keys = [(i,), (i, j), (None, j), (None, i, j), (i, None, j), (None, i[0]), (i[0], i, j)]
    cases = [(f, (X, *tensors)) for f, tensors in (put(*key) for key in keys)]
    keys += [
        (ROWS,),
        (ROWS, COLUMNS),
        (None, ROWS, COLUMNS),
        (ROWS, None, COLUMNS),
        (ROWS, COLUMNS, ROWS),
    ]
    cases += [
        (f, (x, *tensors))
        for f, tensors in (put(*key, accumulate=True) for key in keys)
        for x in (X, X.to(INT64))
    ]
    half = X.to(torch.bfloat16)
    cases += [
        (lambda x, i, v: x.index_put((i,), v), (X, index(2, 0), torch.tensor(7.0))),
        (lambda x, i, v: x.index_put((i,), v), (X, index(2, -1), ramp(5))),
        (lambda x, i, v: x.index_put((i,), v), (X, index(1)[:0], torch.ones(0, 4, 5))),
        (lambda x, i, v: x.index_put((i,), v), (X, index(1, 2), ramp(2, 4, 1))),
        (lambda x, i, v: x.index_put((i,), v, True), (X, index(2, 2), torch.tensor(1.0))),
        (lambda x, i, v: x.index_put((i,), v, True), (half, index(1, 1), half[:1])),
        (lambda x, i, v: x.index_put((i,), v, True), (MASK, index(1, 1), ~MASK[:2])),
    ]
    check_many(cases)
    i, v = index(1, 1), ramp(2, 4, 5)
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), X, i, v, grad=True)
    check(lambda x, i, v: x.index_put((i,), v), X, index(1, 0), v, grad=True)


def test_masked_assignment():
    def f(x, m):
        x = x.clone()
        x[m] = 9.0
        return x

    check(f, X, MASK, fallback_ok=True)
    check(f, X, MASK[:, 0, 0], fallback_ok=True)


@pytest.mark.parametrize("value", [7, True, 2.6, [7], [2.6]])
@pytest.mark.parametrize("dtype", [torch.float16, INT32, torch.bool])
def test_masked_assignment_casts_one_value(value, dtype):
    def f(x, m, v):
        x, y = x.to(dtype, copy=True), x.to(dtype, copy=True)
        x[m] = v
        y[:, m[0, :, 0]] = v
        return x, y, x.index_put((m,), v)

    check(f, X, MASK, torch.tensor(value))
    if not isinstance(value, list):
        check(lambda x, m: f(x, m, torch.tensor(value)), X, MASK)


def test_index_select():
    check_many(
        [
            (lambda x, i: x.index_select(0, i), (X, index(2, 0, 2))),
            (lambda x, i: x.index_select(-1, i), (X, index(4, 0, dtype=INT32))),
            (lambda x, i: x.index_select(1, i), (X, torch.tensor(2))),
            (lambda x, i: x.index_select(0, i), (torch.tensor(3.0), index(0))),
            (lambda x, i: x.index_select(0, i), (X, index(1)[:0])),
            (lambda x, i: x.index_select(1, i), (torch.zeros(0, 3), index(2, 2))),
        ]
    )
    check(lambda x, i: x.index_select(1, i), X, index(2, 0, 2), grad=True)


def test_index_add_copy_fill():
    i, rows = index(2, 0, 2), ramp(3, 4, 5) - 7
    columns = ramp(3, 4, 2)
    cases = [
        (lambda x, i, s: x.index_add(0, i, s), (X, i, rows)),
        (lambda x, i, s: x.index_add(0, i, s, alpha=-2.5), (X, i, rows)),
        (
            lambda x, i, s: x.index_add(-1, i, s, alpha=2),
            (X.to(INT64), index(3, 3), columns.to(INT64)),
        ),
        (lambda x, i, s: x.index_add(0, i, s), (X.to(torch.float16), i, rows.to(torch.float16))),
        (lambda x, i, s: x.index_add(0, i, s), (ramp(1), index(0), torch.ones(1))),
        (lambda x, i, s: x.index_add(0, i, s), (ramp(4), torch.tensor(1), torch.ones(1))),
        (lambda x, i, s: x.index_add(0, i, s), (X, i[:0], rows[:0])),
        (lambda x, i, s: x.index_copy(0, i, s), (X, index(2, 0), rows[:2])),
        (lambda x, i, s: x.index_copy(2, i, s), (X, index(4, 1), columns)),
        (lambda x, i, s: x.index_copy(0, i, s), (ramp(4), index(1), torch.tensor([9.0]))),
        (lambda x, i: x.index_fill(1, i, 3), (X, index(2, -1))),
        (lambda x, i: x.index_fill(0, i, -1.5), (X, index(1, 1))),
        (lambda x, i: x.index_fill(0, i, 2), (torch.tensor(1.0), index(0))),
        (lambda x, i: x.index_fill(0, i, 2), (X.to(INT64), i[:0])),
        (lambda x, i: x.index_fill(0, i, True), (MASK, torch.tensor(1))),
    ]
    check_many(cases)
    check(lambda x, i, s: x.index_add(0, i, s, alpha=0.5), X, i, rows, grad=True)
    check(lambda x, i, s: x.index_copy(0, i, s), X, index(2, 0), rows[:2], grad=True)
    check(lambda x, i: x.index_fill(1, i, 2.0), X, index(2, 0), grad=True)


INDEX = index([[3, 1, 0], [0, 0, 2]], [[1, 2, 3], [3, 3, 3]])  # along dimension 1 of X


def test_gather():
    check_many(
        [
            (lambda x, i: x.gather(1, i), (X, INDEX)),
            (lambda x, i: x.gather(-2, i), (X.to(torch.bfloat16), INDEX)),
            (lambda x, i: x.gather(0, i), (X, INDEX % 3)),
            (lambda x, i: x.gather(2, i), (MASK, INDEX)),
            (lambda x, i: x.gather(0, i), (ramp(5), index(4, 0, 4, 1, 2, 3))),
            (lambda x, i: x.gather(0, i), (torch.tensor(2.0), index(0, 0))),
            (lambda x, i: x.gather(0, i), (ramp(5), torch.tensor(3))),
            (lambda x, i: x.gather(1, i), (X, torch.zeros(3, 0, 5, dtype=INT64))),
            (lambda x, i: x.gather(1, i), (X, torch.zeros(0, dtype=INT64))),
            (lambda x, i: torch.take_along_dim(x, i, 1), (X, INDEX[:, :, :1].repeat(2, 1, 1)[:3])),
        ]
    )
    check(lambda x, i: x.gather(1, i), X, INDEX, grad=True)


def test_scatter():
    once = index([[3, 1, 0], [0, 0, 2]], [[1, 2, 3], [3, 3, 3]])
    few = index([1, 4], [0, 2])
    check_many(
        [
            (lambda x, i, s: x.scatter(1, i, s), (X, once, -X)),
            (lambda x, i, s: x.scatter(-1, i, s), (X.to(INT32), once[:, :, :1], -X.to(INT32))),
            (
                lambda x, i, s: x.scatter(0, i, s),
                (torch.tensor(2.0), index(0), torch.tensor([5.0])),
            ),
            (lambda x, i, s: x.scatter(0, i, s), (ramp(3), torch.tensor(1), torch.tensor(5.0))),
            (lambda x, i, s: x.scatter(0, i, s), (X, torch.zeros(0, dtype=INT64), X)),
            (lambda x, i: x.scatter(1, i, 7.5), (X, INDEX)),
            (lambda x, i: x.scatter(1, i, 7), (X.to(INT64), INDEX)),
            (lambda x, i: x.scatter(1, i, True), (MASK, INDEX)),
            (lambda x, i, s: x.scatter_add(1, i, s), (X, INDEX, X)),
            (
                lambda x, i, s: x.scatter_add(0, i, s),
                (X.to(torch.float16), INDEX % 3, X.to(torch.float16)),
            ),
            (lambda x, i, s: x.scatter_add(2, i, s), (X.to(INT64), INDEX, X.to(INT64))),
            (lambda x, i, s: x.scatter_add(0, i, s), (X, torch.zeros(0, dtype=INT64), X)),
            # Two writes to a row of five, which need no scatter.
            *(
                (put, (x.to(dtype), places, (ramp(2, 2) - 2).to(dtype)))
                for x, places in [(ramp(2, 5), index([4, 4], [0, 3])), (ramp(5, 2), few)]
                for put in (
                    lambda x, i, s: x.scatter_add(x.shape.index(5), i, s),
                    lambda x, i, s: x.scatter_reduce(x.shape.index(5), i, s, "amax"),
                )
                for dtype in (torch.float32, torch.bfloat16, INT32)
            ),
            (lambda x, i, s: x.scatter(0, i, s), (ramp(5, 2) > 4, few, ramp(2, 2) > 1)),
            (lambda x, i, s: x.scatter(0, i, s), (ramp(5, 2) * 1j, few, ramp(2, 2) + 2j)),
        ]
    )
    check(lambda x, i, s: x.scatter(0, i, s), ramp(5, 2), few, ramp(2, 2), grad=True)
    check(lambda x, i, s: x.scatter_add(1, i, s), X, INDEX, X[:2, :2, :3].clone(), grad=True)
    check(lambda x, i, s: x.scatter(1, i, s), X, INDEX[:, :1], X[:2, :1, :3].clone(), grad=True)
    check(lambda x, i: x.scatter(1, i, 2.0), X, INDEX, grad=True)


@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(include_self):
    x = (ramp(3, 4, 5) - 20) / 8
    x[1, 0, 0] = x[0, 3, 0] = float("nan")
    cases = [
        (
            lambda x, i, s, r=r: x.scatter_reduce(1, i, s, r, include_self=include_self),
            (x.to(t), INDEX, s.to(t)),
        )
        for s in [torch.cos(ramp(3, 4, 5)) * 3]
        for r in ("sum", "prod", "mean", "amax", "amin")
        for t in (torch.float32, torch.float64)
    ]
    cases += [
        (
            lambda x, i, s, r=r: x.scatter_reduce(1, i, s, r, include_self=include_self),
            (n, INDEX, n - 30),
        )
        for n in [ramp(3, 4, 5, dtype=INT64) - 25]
        for r in ("sum", "prod", "mean", "amax", "amin")
    ]
    check_many(cases)
    source = torch.cos(ramp(3, 4, 5))[:2, :2, :3].clone()
    for r in ("sum", "mean", "amax"):
        check(
            lambda x, i, s, r=r: x.scatter_reduce(1, i, s, r, include_self=include_self),
            ramp(3, 4, 5) + 2,
            INDEX,
            source,
            grad=True,
        )


def test_embedding():
    embedding = torch.nn.functional.embedding
    weight, tokens = ramp(6, 4) / 3, index([1, 5, 0], [1, 1, 2])
    check_many(
        [
            (lambda i, w: embedding(i, w), (tokens, weight)),
            (lambda i, w: embedding(i, w), (tokens.to(INT32), weight.to(torch.bfloat16))),
            (lambda i, w: embedding(i, w), (torch.tensor(3), weight)),
            (lambda i, w: embedding(i, w), (tokens[:0], weight)),
        ]
    )
    for kwargs in (
        {},
        {"padding_idx": 1},
        {"scale_grad_by_freq": True},
        {"padding_idx": 5, "scale_grad_by_freq": True},
    ):
        check(lambda i, w, kwargs=kwargs: embedding(i, w, **kwargs), tokens, weight, grad=True)
    check(lambda i, w: embedding(i, w), tokens[:0], weight, grad=True)
    check(lambda i, w: embedding(i, w), tokens, weight.to(torch.bfloat16), grad=True)


@pytest.mark.parametrize("include_self", [True, False])
def test_index_reduce(include_self):
    i, rows = index(2, 0, 2), torch.cos(ramp(3, 4, 5)) * 3
    whole = ramp(3, 4, 5, dtype=INT64) - 25
    cases = [
        (lambda x, i, s, r=r, d=d: x.index_reduce(d, i, s, r, include_self=include_self), (x, i, s))
        for r in ("prod", "mean", "amax", "amin")
        for x, s, d in ((X, rows, 0), (X, rows[:, :, :3], 2), (whole, whole - 30, 0))
    ]
    check_many(cases)
    for r in ("mean", "amax", "prod"):
        check(
            lambda x, i, s, r=r: x.index_reduce(0, i, s, r, include_self=include_self),
            X + 2,
            i,
            rows,
            grad=True,
            fallback_ok=r == "prod",
        )


def test_scatter_with_reduce():
    source = torch.cos(ramp(3, 4, 5)) * 3
    cases = [
        (lambda x, i, s, r=r: x.scatter(1, i, s, reduce=r), (X, INDEX, source))
        for r in ("add", "multiply")
    ]
    cases += [
        (lambda x, i, r=r: x.scatter(1, i, 2.5, reduce=r), (X, INDEX)) for r in ("add", "multiply")
    ]
    check_many(cases)


def test_take_and_put():
    places = index([3, -1], [0, 3])
    values = torch.tensor([[1.5, 2.5], [3.5, 4.5]])
    cases = [
        (torch.take, (X, places)),
        (torch.take, (X, places[:0])),
        (torch.take, (MASK, places)),
        (lambda x, i, v: x.put(i, v, accumulate=True), (X, places, values)),
        (lambda x, i, v: x.put(i, v), (X, places[0], values[0])),
        (lambda x, i, v: x.put_(i, v, True), (X.to(INT64), places, places)),
        (lambda x, i, v: x.put(i, v, True), (X.to(torch.bfloat16), places, values.bfloat16())),
    ]
    check_many(cases)
    check(torch.take, X, places, grad=True)
    check(lambda x, i, v: x.put(i, v, accumulate=True), X, places, values, grad=True)


def test_masked_scatter():
    source = -ramp(60)
    cases = [
        (torch.masked_scatter, (X, MASK, source)),
        (torch.masked_scatter, (X, MASK[:, :, 0:1], source)),
        (torch.masked_scatter, (X, torch.zeros_like(MASK), source[:0])),
        (lambda x, m, s: x.masked_scatter_(m, s), (X.to(INT64), MASK[0], source.to(INT64))),
    ]
    check_many(cases)
    check(torch.masked_scatter, X, MASK, source, grad=True)


def test_data_dependent_sizes():
    # How many elements there are is known on the host alone.
    for case in (
        (torch.masked_select, X, MASK),
        (torch.masked_select, torch.tensor(2.0), torch.tensor(True)),
        (torch.masked_select, X, MASK[0]),
        (torch.nonzero, MASK),
        (torch.argwhere, X),
        (lambda x: x.nonzero(as_tuple=True), MASK),
        (torch.repeat_interleave, X, index(2, 0, 3), 0),
        (torch.repeat_interleave, index(2, 0, 3)),
        (torch.repeat_interleave, X, 2),
    ):
        check(*case, fallback_ok=True)
    check(torch.masked_select, X, MASK, grad=True, fallback_ok=True)
    check(
        lambda x, i: torch.repeat_interleave(x, i, 1),
        X,
        index(1, 0, 2, 2),
        grad=True,
        fallback_ok=True,
    )


def test_static_sizes():
    check_many(
        [
            (lambda x: torch.nonzero_static(x, size=30), (MASK,)),
            (lambda x: torch.nonzero_static(x, size=5, fill_value=-7), (MASK,)),
            (lambda x: torch.nonzero_static(x, size=2), (torch.tensor(3.0),)),
            (lambda x: torch.nonzero_static(x, size=0), (MASK,)),
            (lambda x, i: torch.repeat_interleave(x, i, 0, output_size=5), (X, index(2, 0, 3))),
            (lambda i: torch.repeat_interleave(i, output_size=5), (index(2, 0, 3, dtype=INT32),)),
        ]
    )


BAGS = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "mean", "padding_idx": 1},
    {"mode": "max", "padding_idx": 1},
    {"mode": "sum", "padding_idx": 1},
]


@pytest.mark.parametrize("kwargs", BAGS, ids=str)
def test_embedding_bag(kwargs):
    bag = torch.nn.functional.embedding_bag
    weight, tokens = torch.sin(ramp(6, 4) * 3), index(1, 5, 0, 1, 1, 2, 5)
    for args in ((tokens, weight, index(0, 2, 2, 6)), (tokens[:6].view(2, 3), weight)):
        check(lambda *a: bag(*a, **kwargs), *args, grad=True)
    check(lambda *a: bag(*a, include_last_offset=True, **kwargs), tokens, weight, index(0, 3, 7))
    check(lambda *a: bag(*a, **kwargs), tokens, weight.bfloat16(), index(0, 3))
    if kwargs["mode"] == "sum":
        check(
            lambda i, w, o, p: bag(i, w, o, per_sample_weights=p, **kwargs),
            tokens,
            weight,
            index(0, 2, 6),
            torch.cos(ramp(7)),
            grad=True,
        )


@pytest.mark.parametrize("kwargs", BAGS, ids=str)
def test_bags_all_as_long_are_reduced_where_they_are(kwargs):
    """No scatter finds them; the one of the other is where bags begin by data."""
    bag = torch.nn.functional.embedding_bag
    weight, tokens = torch.sin(ramp(6, 4)).bfloat16(), index([1, 5, 0], [1, 1, 2])
    check(lambda i, w: bag(i, w, **kwargs), tokens, weight)
    i, w, o = tokens.to("xla"), weight.to("xla"), index(0, 3).to("xla")
    for args, count in (((i, w), 0), ((i.flatten(), w, o), 1)):
        text = _XLAC._get_xla_tensors_hlo([bag(*args, **kwargs)])
        assert min(text.count('"stablehlo.scatter"'), 1) == count


def test_embedding_bag_gradient_by_frequency():
    """Bags of one are embeddings. (PyTorch's CPU kernel divides by counts of other rows.)"""
    grads = []
    for bags in (False, True):
        w = torch.sin(ramp(6, 4)).to("xla").requires_grad_()
        tokens = index([1], [5], [1], [2]).to("xla")
        f = torch.nn.functional.embedding_bag if bags else torch.nn.functional.embedding
        kwargs = {"mode": "sum"} if bags else {}
        (f(tokens, w, scale_grad_by_freq=True, **kwargs) ** 2).sum().backward()
        grads.append(w.grad.cpu())
    torch.testing.assert_close(*grads)


def test_embedding_max_norm():
    weight, tokens = ramp(6, 4) / 3, index([1, 5, 0], [1, 1, 2])

    def f(i, w, p):
        w = w.clone()
        return torch.nn.functional.embedding(i, w, max_norm=2.0, norm_type=p), w

    check_many([(f, (tokens, weight, p)) for p in (2.0, 1.0)])


def test_index_fill_with_a_tensor():
    i = index(2, 0)
    check_many(
        [
            (lambda x, i, v: x.index_fill(1, i, v), (X, i, torch.tensor(2.5))),
            (lambda x, i, v: x.index_fill_(0, i, v), (X, i, torch.tensor(2.5))),
        ]
    )


# ------------------------------------------------------------------ out of range

# Of a dimension of 4, what 32 bits would make an index that is none.
BAD = (4, 7, 2**31, 2**32, 2**32 + 1, -(2**32) + 2, 2**62, -5, -(2**31) - 3)
# What is along dimension 0 of (4, 5): one slice of the source (n, 5) for each index (n).
WRAPPING = {
    "index_put": lambda x, i, s: x.index_put((i,), s),
    "index_put with accumulate": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put of pairs": lambda x, i, s: x.index_put((i, i[:1] * 0 + 1), s[:, 0]),
    "index_put of pairs, the second": lambda x, i, s: x.t().index_put((i[:1] * 0, i), s[:, 1]),
    "index_put of pairs with accumulate": lambda x, i, s: x.index_put(
        (i, i), s[:, 0], accumulate=True
    ),
    "index_put of dimensions apart": lambda x, i, s: torch.ops.aten.index_put(
        x.view(4, 1, 5), [i, None, i], s[:, :1]
    ),
    "assignment": lambda x, i, s: _assigned(x, (i, slice(1, 3)), s[:, :2]),
    "assignment of columns": lambda x, i, s: _assigned(x[:, :4], (slice(None), i), s[:, :4].t()),
    "index_fill": lambda x, i, s: x.index_fill(0, i, 9.0),
}
PLAIN = {
    "index_add": lambda x, i, s: x.index_add(0, i, s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "amax"),
    "index_reduce of the mean": lambda x, i, s: x.index_reduce(0, i, s, "mean", include_self=False),
    "scatter": lambda x, i, s: x.scatter(0, _wide(i), s),
    "scatter along 1": lambda x, i, s: x.t().scatter(1, _wide(i).t(), s.t()),
    "scatter of a number": lambda x, i, s: x.scatter(0, _wide(i), 9.0),
    "scatter with add": lambda x, i, s: x.scatter(0, _wide(i), s, reduce="add"),
    "scatter_add": lambda x, i, s: x.scatter_add(0, _wide(i), s),
    "gradient of embedding": lambda x, i, s: _gradient(
        lambda w: torch.nn.functional.embedding(i, w), x, s
    ),
    "gradient of gather": lambda x, i, s: _gradient(lambda w: w.gather(0, _wide(i)), x, s),
    "gradient of index_select": lambda x, i, s: _gradient(lambda w: w.index_select(0, i), x, s),
} | {
    f"scatter_reduce {reduce} {include}": lambda x, i, s, r=reduce, b=include: x.scatter_reduce(
        0, _wide(i), s, r, include_self=b
    )
    for reduce in ("sum", "prod", "mean", "amax", "amin")
    for include in (True, False)
}


def _wide(i):
    return i[:, None].expand(-1, 5)


def _assigned(x, where, values):
    x = x.clone()
    x[where] = values
    return x


def _gradient(function, x, grad):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x, grad)[0]


def _on_device(call, bad):
    """A call with indices that the device computes, `bad` between good ones, and what is right."""
    good = (2, 0, 3)
    values = [good[0], *bad[:3], good[1], *bad[3:], good[2]]
    kept = [0, 4, len(values) - 1]
    source = ramp(len(values), 5) + 30
    got = call(ramp(4, 5).to("xla"), index(*values).to("xla") * 1, source.to("xla"))
    return got, call(ramp(4, 5), index(*good), source[kept])


def test_writes_out_of_range_are_dropped():
    """Each kind of indexed write: none hits another element, whatever 32 bits make of the index."""
    cases = {name: _on_device(call, BAD) for name, call in WRAPPING.items()}
    cases |= {name: _on_device(call, (*BAD, -1)) for name, call in PLAIN.items()}
    torch_xla.sync()
    wrong = [key for key, (got, right) in cases.items() if not torch.equal(got.cpu(), right)]
    assert not wrong


def test_flat_writes_out_of_range_are_dropped():
    x, source = ramp(4, 5).to("xla"), ramp(3).to("xla") + 30
    for bad in (20, 2**32 + 1, -21, -(2**32) - 1):
        i = index(3, bad, -2).to("xla") * 1
        right = ramp(4, 5).put(index(3, -2), torch.tensor([30.0, 32.0]))
        assert torch.equal(x.put(i, source).cpu(), right)
    # An index into a plane is none of another plane's.
    plane = torch.ops.aten.max_pool2d_with_indices_backward
    arguments = ([4, 4], [1, 1], [0, 0], [1, 1], False)
    grad, planes = torch.ones(2, 1, 1), torch.zeros(2, 4, 4)
    got = plane(grad.to("xla"), planes.to("xla"), *arguments, index(16, 3).view(2, 1, 1).to("xla"))
    assert got.cpu().flatten().nonzero().tolist() == [[16 + 3]]


def test_reads_out_of_range_take_the_nearest():
    x = ramp(4, 5).to("xla")
    for bad in BAD:
        near = 0 if bad < 0 else 3
        i = index(2, bad).to("xla") * 1
        rows = ramp(4, 5)[[2, near]]
        assert torch.equal(x[i].cpu(), rows)
        assert torch.equal(x[i, i[:1] * 0 + 1].cpu(), rows[:, 1])
        assert torch.equal(x.index_select(0, i).cpu(), rows)
        assert torch.equal(x.gather(0, _wide(i)).cpu(), rows)
        assert torch.equal(torch.nn.functional.embedding(i, x).cpu(), rows)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 4], [0, 2, 4]])
def test_bags_that_begin_out_of_place(offsets: list[int]) -> None:
    for device in ("cpu", "xla"):
        indices = torch.tensor([0, 1, 2], device=device)
        begins = torch.tensor(offsets, device=device)
        with pytest.raises(RuntimeError):
            F.embedding_bag(indices, torch.ones(4, 2, device=device), begins)


def test_indices_of_what_has_no_elements() -> None:
    """Nothing is looked up but where the indexed dimension itself is empty."""
    index = torch.tensor([0, 3, 3])
    places = [(index,), (slice(None), index), (slice(None), slice(None), index)]
    for shape in ((4, 2, 0), (4, 0, 2), (0, 2, 4)):
        x = torch.zeros(shape)
        for place in places:
            if shape[len(place) - 1] == 0:
                with pytest.raises(IndexError):
                    x.to("xla")[place]
            else:
                check(lambda x, i, p=place: x[*p[:-1], i], x, index)
