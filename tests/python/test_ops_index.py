"""Ops that read and write where an index tensor says (lowering/indexing.cpp)."""

import pytest
import torch
from op_testing import check, check_many

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
        ]
    )
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


def test_indices_out_of_range_are_memory_safe():
    """PyTorch on a CPU raises; a device cannot, but stays within the tensor."""
    import torch_xla.core.xla_model as xm

    x, i = ramp(3, 2).to(xm.xla_device()), index(7, -9).to(xm.xla_device())
    assert x[i].cpu().tolist() == [[4, 5], [0, 1]]
    assert x.index_select(0, i).cpu().tolist() == [[4, 5], [0, 1]]
    assert x.index_put((i,), x[:2]).cpu().tolist() == ramp(3, 2).tolist()
