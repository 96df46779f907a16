"""Views, and ops that move, repeat, pad and order elements."""

import pytest
import torch
from testing.ops import check, check_many

NAN, INF = float("nan"), float("inf")


def ramp(*sizes, dtype=torch.float32):
    return torch.arange(torch.Size(sizes).numel()).to(dtype).view(sizes)


VIEWS = {
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[1:, :, -3:],
    "step": lambda x: x[:, ::2, 1::3],
    "select": lambda x: x[1, :, 2],
    "negative select": lambda x: x[..., -1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "view": lambda x: x.view(3, -1),
    "flatten": lambda x: x.flatten(1),
    "flatten slice": lambda x: x[:, 1:3].flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 3)).transpose(2, 3),
    "unsqueeze": lambda x: x.unsqueeze(0).unsqueeze(-1),
    "expand": lambda x: x[:, None].expand(3, 2, 4, 6),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diagonal below": lambda x: x.diagonal(-2, 0, 2),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "unfold apart": lambda x: x.unfold(1, 2, 2),
    "unfold step": lambda x: x.unfold(2, 4, 2),
    "as_strided": lambda x: x.as_strided((5, 2, 3), (7, 1, 2), 4),
    "reshape": lambda x: x.transpose(0, 1).reshape(-1),
    "chain": lambda x: x[1:].transpose(1, 2)[:, 1:5].unflatten(1, (2, 2))[..., 0],
    "heads": lambda x: x.chunk(3, 2)[1].unflatten(2, (2, 1)).transpose(1, 2),
    "split": lambda x: x.split([1, 3], 1)[1],
    "empty": lambda x: x[:, 2:2],
    "movedim": lambda x: x.movedim(0, -1),
}


def test_views():
    x = ramp(3, 4, 6)
    check_many([(lambda x, f=f: f(x) + 0, (x,)) for f in VIEWS.values()])


@pytest.mark.parametrize(
    "name", ["slice", "select", "diagonal", "unfold", "expand", "chain", "unfold step"]
)
def test_view_gradients(name):
    check(lambda x: VIEWS[name](x) * 2, ramp(3, 4, 6), grad=True)


def test_writes_through_views():
    def write(view):
        def f(x):
            x = x.clone()
            v = view(x)
            v.mul_(2)
            v.add_(1)
            return x

        return f

    # Overlapping views cannot be written to; where CPU's reshape must copy, ours is a view.
    others = {"unfold", "unfold step", "expand", "reshape"}
    x = ramp(3, 4, 6)
    check_many([(write(f), (x,)) for name, f in VIEWS.items() if name not in others])


def test_views_of_scalars_and_empties():
    check_many(
        [
            (lambda x: x[None].expand(3) + 0, (torch.tensor(2.0),)),
            (lambda x: x.view(1, 1) + 0, (torch.tensor(2.0),)),
            (lambda x: x.unfold(0, 1, 1) + 0, (torch.tensor(2.0),)),
            (lambda x: x.view(3, 0) + 0, (torch.zeros(0, 3),)),
            (lambda x: x.transpose(0, 1) + 0, (torch.zeros(0, 3),)),
            (lambda x: x.diagonal(5) + 0, (torch.zeros(2, 3),)),
        ]
    )


def test_cat():
    a, b = ramp(2, 3), ramp(2, 3) + 10
    check_many(
        [
            (lambda *x: torch.cat(x), (a, b)),
            (lambda *x: torch.cat(x, -1), (a, b, a)),
            (lambda *x: torch.cat(x, 1), (a, b.to(torch.int64), b.to(torch.bfloat16))),
            (lambda *x: torch.cat(x), (torch.tensor([True]), ramp(3, dtype=torch.uint8))),
            (lambda *x: torch.cat(x), (torch.zeros(0), a)),
            (lambda *x: torch.cat(x, 1), (a, torch.zeros(0))),
            (lambda *x: torch.cat(x), (torch.zeros(0), torch.zeros(0))),
            (lambda *x: torch.cat(x), (torch.zeros(0, 3), a)),
            (lambda *x: torch.stack(x, 1), (a, b)),
            (lambda *x: torch.hstack(x), (a, b)),
        ]
    )
    check(lambda a, b: torch.cat([a, b], 1), a, b, grad=True)


def test_pad():
    x = ramp(2, 3, 4)
    pad = torch.nn.functional.pad
    check_many(
        [
            (lambda x: pad(x, (1, 2)), (x,)),
            (lambda x: pad(x, (1, 2, 0, 3), value=5.5), (x,)),
            (lambda x: pad(x, (-1, 2, 3, -1, 1, 1), value=-INF), (x,)),
            (lambda x: pad(x, (0, 0, 1, 0), value=3), (x.to(torch.int32),)),
            (lambda x: pad(x, (1, 1), value=1), (x > 5,)),
            (lambda x: pad(x, (1, 1)), (torch.zeros(2, 0),)),
        ]
    )
    check(lambda x: pad(x, (-1, 2, 1, 0)), x, grad=True)


def test_flip_roll_repeat():
    x, scalar, empty = ramp(2, 3, 4), torch.tensor(3.0), torch.zeros(2, 0)
    check_many(
        [
            (lambda x: x.flip(0, -1), (x,)),
            (lambda x: x.flip(()), (x,)),
            (lambda x: x.flip(0), (scalar,)),
            (lambda x: x.roll(5), (x,)),
            (lambda x: x.roll((1, -7), (0, -1)), (x,)),
            (lambda x: x.roll((1, 1), (1, 1)), (x,)),
            (lambda x: x.roll(1), (scalar,)),
            (lambda x: x.roll(1, 1), (empty,)),
            (lambda x: x.repeat(2, 1, 3), (x,)),
            (lambda x: x.repeat(2, 2, 1, 3), (x,)),
            (lambda x: x.repeat(2, 0, 1), (x,)),
            (lambda x: x.repeat(3), (scalar,)),
            (lambda x: x.repeat(2, 2), (empty,)),
            (lambda x: x.tile(2), (x,)),
            (lambda x: x.repeat_interleave(2, 1), (x,)),
        ]
    )
    check(lambda x: x.roll(1, 1).flip(0).repeat(2, 1, 1), x, grad=True)


def test_triangles():
    x = ramp(2, 3, 5) + 1
    x[0, 2, 0] = NAN
    cases = [(f, (x, d)) for f in (torch.tril, torch.triu) for d in (-9, -1, 0, 2, 2**40)]
    cases += [(torch.tril, (x > 4,)), (torch.triu, (x.nan_to_num().to(torch.int64), 1))]
    cases += [(torch.triu, (torch.zeros(0, 3),)), (torch.tril, (ramp(4, 4).to(torch.bfloat16), -1))]
    check_many(cases)
    check(lambda x: x.tril(-1) + x.triu(1), ramp(3, 3), grad=True)


SPECIAL = torch.tensor(
    [
        [2.0, NAN, -INF, 0.0, -0.0, INF, 1e-30, -3.5, 2.0],
        [0.0, -0.0, 0.0, NAN, -NAN, INF, -1, -1, 5],
    ]
)


def sortable():
    integers = torch.tensor([[5, -7, 0, 5, 127, -128, 0], [1, 1, 1, -1, -1, 0, 2]])
    yield from (
        SPECIAL.to(t) for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    )
    yield from (integers.to(t) for t in (torch.int8, torch.int16, torch.int32, torch.int64))
    yield torch.tensor([[5, 255, 0, 5, 127, 128, 0]], dtype=torch.uint8)
    yield torch.tensor([2**31 - 1, -(2**31), 0, -1], dtype=torch.int32)
    yield torch.tensor([2**62, -(2**62), 2**62 + 1, -1])


def test_sort():
    cases = [
        (lambda x, d=d, k=k: torch.sort(x, dim=k, descending=d, stable=True), (x,))
        for x in sortable()
        for d in (False, True)
        for k in (0, -1)
    ]
    cases += [
        (lambda x: torch.sort(x, stable=True), (torch.tensor([True, False, True]),)),
        (lambda x: torch.sort(x, stable=True, dim=1), (ramp(2, 3, 4).flip(1),)),
        (torch.sort, (torch.tensor(3.0),)),
        (torch.sort, (torch.zeros(2, 0),)),
        (torch.argsort, (ramp(6).flip(0),)),
        (torch.msort, (ramp(3, 2).flip(0),)),
    ]
    check_many(cases)
    check(lambda x: torch.sort(x, descending=True)[0], ramp(2, 6).flip(1).contiguous(), grad=True)


def test_topk():
    def values(x, k, dim, largest):
        # Which of equal elements is taken is not defined: what the indices name is.
        v, i = torch.topk(x, k, dim, largest)
        return v, x.gather(dim, i)

    cases = [
        (lambda x, a=a: values(x, *a), (x,))
        for x in sortable()
        for a in ((2, -1, True), (2, -1, False), (x.shape[-1], -1, True), (1, 0, False))
    ]
    x = torch.randperm(24).float().view(2, 3, 4)
    cases += [
        (lambda x: torch.topk(x, 2, dim=1), (x,)),
        (lambda x: torch.topk(x, 2, dim=0, largest=False), (x.to(torch.bfloat16),)),
        (lambda x: torch.topk(x, 0), (x,)),
        (lambda x: torch.topk(x, 1, 0), (torch.tensor(1.5),)),
        (lambda x: torch.topk(x, 3, sorted=False)[0].sort()[0], (x,)),
    ]
    check_many(cases)
    check(lambda x: torch.topk(x, 2)[0], x, grad=True)


def test_scatters_into_views():
    x = ramp(3, 4, 5)
    check_many(
        [
            (lambda x, s: torch.slice_scatter(x, s, 1, 1, 3), (x, -ramp(3, 2, 5))),
            (lambda x, s: torch.slice_scatter(x, s, -1, -4, 99, 2), (x, -ramp(3, 4, 2))),
            (lambda x, s: torch.slice_scatter(x, s), (x, -ramp(3, 4, 5).to(torch.int32))),
            (lambda x, s: torch.slice_scatter(x, s, 0, 3), (x, torch.zeros(0, 4, 5))),
            (lambda x, s: torch.select_scatter(x, s, 1, -1), (x, -ramp(3, 5))),
            (lambda x, s: torch.select_scatter(x, s, 0, 0), (ramp(2), torch.tensor(7.0))),
            (lambda x, s: torch.diagonal_scatter(x, s), (ramp(4, 4), -ramp(4))),
            (lambda x, s: torch.diagonal_scatter(x, s, 1, 0, 2), (x, -ramp(4, 3))),
            (lambda x, s: torch.diagonal_scatter(x, s, -1, 2, 0), (x, -ramp(4, 3))),
            (lambda x, s: torch.diagonal_scatter(x, s, 9), (ramp(2, 3), torch.zeros(0))),
        ]
    )
    check(lambda x, s: torch.slice_scatter(x, s, 1, 0, 4, 3), x, -ramp(3, 2, 5), grad=True)
    check(lambda x, s: torch.diagonal_scatter(x, s, 1, 1, 2), x, -ramp(3, 4), grad=True)


def test_backwards_of_views():
    aten = torch.ops.aten
    check_many(
        [
            (lambda g: aten.slice_backward(g, [3, 7], 1, 1, 2**62, 2), (ramp(3, 3),)),
            (lambda g: aten.slice_backward(g, [3, 7], -1, -3, -1, 1), (ramp(3, 2),)),
            (lambda g: aten.slice_backward(g, [3, 7], 0, 5, 9, 1), (torch.zeros(0, 7),)),
            (lambda g: aten.select_backward(g, [3, 7], -1, -2), (ramp(3),)),
            (lambda g: aten.select_backward(g, [3], 0, 1), (torch.tensor(2.0),)),
            (lambda g: aten.diagonal_backward(g, [3, 7], 2, 0, 1), (ramp(3) + 1,)),
            (lambda g: aten.diagonal_backward(g, [3, 2, 4], -1, 0, 2), (ramp(2, 2) + 1,)),
            (lambda g: aten.diagonal_backward(g, [3, 7], 9, 0, 1), (torch.zeros(0),)),
        ]
        + [
            (
                lambda g, n=n, size=size, step=step: aten.unfold_backward(
                    g, [2, n, 3], 1, size, step
                ),
                (ramp(2, (n - size) // step + 1, 3, size) + 1,),
            )
            for n, size, step in (
                (7, 3, 1),
                (7, 3, 2),
                (9, 2, 3),
                (8, 6, 1),
                (8, 8, 1),
                (8, 5, 2),
                (5, 1, 1),
            )
        ]
        + [(lambda g: aten.unfold_backward(g, [], 0, 1, 1), (torch.ones(1),))]
    )
