"""Manual regions: shard_map, its collectives, and both writers of shardings."""

import contextlib
import copy
import io
import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.processes import run_tests, start_python
from testing.replay import right
from testing.spmd import in_spmd

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC, aot
from torch_xla.distributed.spmd import debugging, xla_sharding
from torch_xla.experimental import cond
from torch_xla.experimental.fori_loop import while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call
from torch_xla.library import stablehlo, stablehlo_type
from torch_xla.stablehlo import exported_program_to_stablehlo
from torch_xla.utils.checkpoint import checkpoint

pytestmark = pytest.mark.multiprocess

FILES = ["test_spmd.py", "test_spmd_training.py", "test_manual.py"]


def mesh_of(*sizes: int, names: str = "xy") -> xs.Mesh:
    return xs.Mesh(range(4), sizes, tuple(names[: len(sizes)]))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)


def pair(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.randn(shape, dtype=dtype)
    return host.clone().requires_grad_(), host.to("xla").requires_grad_()


# ------------------------------------------------------------------------- regions


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.shape == (2, 4)
    assert b.shape == (4, 6)
    return xs.psum(a @ b, "y")


@in_spmd
def test_a_product_with_its_gradients():
    (a, on_a), (b, on_b) = pair(4, 8), pair(8, 6)
    mapped = xs.shard_map(product, mesh_of(2, 2), [("x", "y"), ("y", None)], ("x", None))
    expected = (a @ b).sin()
    expected.sum().backward()
    for between in (False, True):
        on_a.grad = on_b.grad = None
        found = mapped(on_a, on_b).sin()
        close(found, expected)
        if between:  # What the backward pass needs of the region is data then.
            torch_xla.sync()
        found.sum().backward()
        torch_xla.sync()
        close(on_a.grad, a.grad)
        close(on_b.grad, b.grad)


@in_spmd
def test_collectives_and_their_gradients():
    mesh = mesh_of(4, names="x")
    blocks = lambda t: t.chunk(4)  # noqa: E731
    cases = {
        "psum": (lambda t: xs.psum(t, "x"), lambda t: torch.cat([sum(blocks(t))] * 4)),
        "pmean": (lambda t: xs.pmean(t, "x"), lambda t: torch.cat([sum(blocks(t)) / 4] * 4)),
        "all_gather": (
            lambda t: xs.all_gather(t, "x", 1),
            lambda t: torch.cat([torch.cat(blocks(t), 1)] * 4),
        ),
        "reduce_scatter": (
            lambda t: xs.reduce_scatter(t, "x", -1),
            lambda t: torch.cat(sum(blocks(t)).chunk(4, 1)),
        ),
        "all_to_all": (
            lambda t: xs.all_to_all(t, "x", 1, 0),
            lambda t: torch.cat(
                [torch.cat([c.chunk(4, 1)[i] for c in blocks(t)]) for i in range(4)]
            ),
        ),
        "ppermute": (
            lambda t: xs.ppermute(t, "x", [(0, 2), (3, 0)]),
            lambda t: torch.cat([blocks(t)[3], blocks(t)[0] * 0, blocks(t)[0], blocks(t)[0] * 0]),
        ),
        "axis_index": (
            lambda t: t * (xs.axis_index("x") + 1),
            lambda t: torch.cat([c * (i + 1) for i, c in enumerate(blocks(t))]),
        ),
    }
    for name, (ours, theirs) in cases.items():
        t, on_t = pair(8, 4)
        expected = theirs(t)
        weights = torch.randn(expected.shape)
        found = xs.shard_map(ours, mesh, [("x", None)], ("x", None))(on_t)
        (found * weights.to("xla")).sum().backward()
        (expected * weights).sum().backward()
        try:
            close(found, expected)
            close(on_t.grad, t.grad)
        except AssertionError as error:
            raise AssertionError(name) from error
    for op, theirs in (("max", torch.amax), ("min", torch.amin)):
        t, on_t = pair(8, 4)
        with torch.no_grad():  # Two devices have the same, of which each gets a part.
            t[2:4], on_t[2:4] = t[:2], on_t[:2]
        mapped = xs.shard_map(
            lambda p, op=op: xs.all_reduce(p, "x", op), mesh, [("x", None)], (None, None)
        )
        found, expected = mapped(on_t), theirs(torch.stack(t.chunk(4)), 0)
        close(found, expected)
        weights = torch.randn(expected.shape)
        (found * weights.to("xla")).sum().backward()
        (expected * weights).sum().backward()
        close(on_t.grad, t.grad)
    truths = torch.tensor([True, False, False, False])
    any_of = xs.shard_map(lambda t: xs.pmax(t, "x"), mesh, [("x",)], (None,))
    assert any_of(truths.to("xla")).cpu().tolist() == [True]


@in_spmd
def test_extremes_keep_a_nan():
    h = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [3.0, 5.0], [2.0, 4.0]])
    mapped = xs.shard_map(
        lambda t: (xs.pmax(t, "x"), xs.pmin(t, "x")),
        mesh_of(4, names="x"),
        [("x", None)],
        [None] * 2,
    )
    for found, expected in zip(mapped(h.to("xla")), (h.amax(0), h.amin(0)), strict=True):
        torch.testing.assert_close(found.cpu()[0], expected, equal_nan=True)


@in_spmd
def test_checkpoints_in_a_region():
    """What a checkpoint computes again in the backward pass is in the region."""
    mesh = mesh_of(4, names="x")

    def body(p: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return xs.psum((p @ w).tanh(), "x") * p

    for reentrant in (False, True):
        (w, on_w), (x, on_x) = pair(4, 4), pair(8, 4)
        again = lambda p, w: checkpoint(body, p, w, use_reentrant=reentrant)  # noqa: B023, E731
        found = xs.shard_map(again, mesh, [("x", None), None], ("x", None))(on_x, on_w)
        total = sum((p @ w).tanh() for p in x.chunk(4))
        expected = torch.cat([total * p for p in x.chunk(4)])
        close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        close(on_x.grad, x.grad)
        close(on_w.grad, w.grad)
    with pytest.raises(RuntimeError, match="in a function given to shard_map"):
        xs.psum(on_x, "x")


@in_spmd
def test_gradients_of_gradients():
    mesh = mesh_of(4, names="x")
    collectives = [
        (lambda t: xs.psum(t, "x"), None),
        (lambda t: xs.all_gather(t, "x"), None),
        (lambda t: xs.reduce_scatter(t, "x", 1), "x"),
        (lambda t: xs.all_to_all(t, "x", 1, 0), "x"),
        (lambda t: xs.ppermute(t, "x", [(0, 1), (1, 3)]), "x"),
    ]
    for go, left in collectives:
        mapped = xs.shard_map(lambda t, go=go: go(t.sin()), mesh, [("x", None)], (left, None))

        def second(t: torch.Tensor, call: object) -> torch.Tensor:
            (first,) = torch.autograd.grad(call(t).square().sum(), t, create_graph=True)
            return torch.autograd.grad(first.square().sum(), t)[0]

        t, on_t = pair(4, 4)
        columns = [mapped(e.to("xla").asin()).detach().cpu().flatten() for e in basis(4, 4)]
        matrix = torch.stack(columns, 1)
        close(second(on_t, mapped), second(t, lambda t, m=matrix: m @ t.sin().flatten()))


def basis(*shape: int) -> list[torch.Tensor]:
    """Tensors that have a single one."""
    return list(torch.eye(torch.Size(shape).numel()).unflatten(1, shape))


@in_spmd
def test_axes_together_and_in_other_orders():
    mesh = xs.Mesh([3, 1, 2, 0], (2, 2), ("x", "y"))
    t = torch.randn(8, 2)
    for axes in (("x", "y"), ("y", "x")):
        for how in (
            lambda p, axes: xs.all_gather(p, axes),
            lambda p, axes: xs.psum(
                p.new_zeros(8, 2).index_copy(
                    0, xs.axis_index(axes) * 2 + torch.arange(2, device="xla"), p
                ),
                axes,
            ),
        ):
            mapped = xs.shard_map(
                lambda p, how=how, axes=axes: how(p, axes), mesh, [(axes, None)], (None, None)
            )
            close(mapped(t.to("xla")), t)
        whole = xs.shard_map(lambda p: p * 2, mesh, [(axes, None)], (axes, None))
        close(whole(t.to("xla")), t * 2)


def _module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


@in_spmd
def test_gradients_of_what_is_captured():
    """A module's parameters, and values computed from others, that are no arguments."""
    mesh, x = mesh_of(2, 2), torch.randn(4, 4)
    cases = [
        (lambda m, a, c: m(a), ("x", None), None),
        (lambda m, a, c: m(a) + m(2 * a) * c + m[0].weight.sum(), ("x", None), None),
        (lambda m, a, c: m(a) * c, (("y", "x"), None), None),
        (lambda m, a, c: m(a) * c, ("x", None), ("x",)),
        (lambda m, a, c: a @ (m[0].weight * 2).t(), (None, None), None),
        (lambda m, a, c: a.sum() * 0 + m[0].weight * c, (None, None), None),
        (lambda m, a, c: c * torch.utils.checkpoint.checkpoint(m, a, use_reentrant=False),
         ("x", None), None),
    ]  # fmt: skip
    for needs in (True, False):  # whether the argument has a gradient
        for f, spec, names in cases:
            results = []
            for device in ("cpu", "xla"):
                m = _module().to(device)
                s = torch.tensor(2.0, device=device, requires_grad=True)
                a, c = x.to(device, copy=True).requires_grad_(needs), s * 3

                def part(p, f=f, m=m, c=c):
                    return f(m, p, c)

                go = part if device == "cpu" else xs.shard_map(part, mesh, [spec], spec, names)
                result = go(a)
                result.square().sum().backward()
                grads = [p.grad for p in (*m.parameters(), s, a) if p.grad is not None]
                results.append((result, *grads))
            for expected, actual in zip(*results, strict=True):
                close(actual, expected)


@in_spmd
def test_arguments_are_written_in_place():
    mesh, spec, w, results = mesh_of(2, 2), ("x", None), torch.randn(4, 4), []
    for device in ("cpu", "xla"):
        leaf = torch.arange(16.0).view(4, 4).to(device).requires_grad_()
        a, b, weight = leaf * 1, torch.ones(4, 4, device=device), w.to(device)
        view = a[:1]

        def f(a, b, weight=weight):
            a.mul_(2)
            b[:, 0] = a[:, 1]
            return a @ weight + b

        result = (f if device == "cpu" else xs.shard_map(f, mesh, [spec, spec], spec))(a, b)
        (result.sum() + a.pow(2).sum() + view.sum() + b.sum()).backward()
        results.append((result, a, view, b, leaf.grad))
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)
    double = xs.shard_map(lambda p: p.mul_(2), mesh, [spec], spec)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        double(leaf)
    with torch.no_grad():
        double(leaf)
    close(leaf, torch.arange(16.0).view(4, 4) * 2)


@in_spmd
def test_arguments_that_share_memory():
    mesh, t = mesh_of(4, names="x"), torch.randn(4, 4)

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    on_t = t.to("xla")
    close(xs.shard_map(f, mesh, [("x", None)] * 2, ("x", None))(on_t, on_t), (t + 1) ** 2)
    close(on_t, t + 1)
    with pytest.raises(ValueError, match=r"shares memory .* spec \(None, 'x'\)"):
        xs.shard_map(f, mesh, [("x", None), (None, "x")], ("x", None))(on_t, on_t[:1])


@in_spmd
def test_second_derivatives_of_what_is_captured():
    mesh, w, x, results = mesh_of(2, 2), torch.randn(4, 3), torch.randn(4, 4), []
    for device in ("cpu", "xla"):
        weight = w.to(device, copy=True).requires_grad_()
        a = x.to(device, copy=True).requires_grad_()

        def f(p, weight=weight):
            return torch.tanh(p @ weight).square()

        go = f if device == "cpu" else xs.shard_map(f, mesh, [("x", None)], ("x", None))
        (grad,) = torch.autograd.grad(go(a).sum(), a, create_graph=True)
        grad.norm().backward()
        results.append((weight.grad, a.grad))
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


@in_spmd
def test_gradients_of_what_another_region_stored():
    mesh, spec, results = mesh_of(2, 2), ("x", None), []
    x, w = torch.randn(4, 4), torch.randn(3, 4)
    for device in ("cpu", "xla"):
        a, b = (t.to(device, copy=True).requires_grad_() for t in (x, w))
        kept = []

        def first(p, b=b, kept=kept):
            kept.append(p @ b.t())
            return kept[0].sin()

        def second(p, kept=kept):
            return p * kept[0]

        if device == "xla":
            first, second = (xs.shard_map(f, mesh, [spec], spec) for f in (first, second))
        (first(a) + second(torch.ones(4, 3, device=device))).square().sum().backward()
        results.append((a.grad, b.grad))
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


@in_spmd
@pytest.mark.parametrize("options", [{}, {"full_graph": True}, {"replay": True}])
def test_a_module_in_a_region_is_trained(options):
    mesh, losses = mesh_of(2, 2), []
    for device in ("cpu", "xla"):
        m = _module().to(device)
        optimizer = torch.optim.Adam(m.parameters(), 0.1)

        def part(p, m=m):
            return m(p)

        f = part if device == "cpu" else xs.shard_map(part, mesh, [("x", None)], ("x", None))

        def step(x, f=f, optimizer=optimizer):
            optimizer.zero_grad()
            loss = f(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = step if device == "cpu" else torch_xla.compile(step, **options)
        torch.manual_seed(1)
        losses.append(torch.stack([run(torch.randn(4, 4).to(device)).cpu() for _ in range(4)]))
        losses.append(m[0].weight)
    close(losses[2], losses[0])
    close(losses[3], losses[1])


@in_spmd
def test_parts_are_printed_asserted_and_watched():
    mesh, spec = mesh_of(2, 2), ("x", "y")
    x = torch.arange(16.0).view(4, 4)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        xs.shard_map(
            lambda p: torch_xla.debug.print("{} of {total}", p.sum(), total=1) or p,
            mesh,
            [spec],
            spec,
        )(x.to("xla"))
        torch_xla.debug.flush()
    sums = [10.0, 18.0, 42.0, 50.0]
    assert out.getvalue() == "".join(f"[device {i}] {value} of 1\n" for i, value in enumerate(sums))
    seen = []
    xs.shard_map(lambda p: torch_xla.debug.callback(seen.append, p) or p, mesh, [spec], spec)(
        x.to("xla")
    )
    torch_xla.debug.flush()
    assert [part.sum().item() for part in seen] == sums
    for least, error in ((0, None), (4, "expected all of it")):
        xs.shard_map(
            lambda p, least=least: torch._assert_async((p >= least).all(), "expected all of it")
            or p, mesh, [spec], spec,
        )(x.to("xla"))  # fmt: skip
        if error is None:
            torch_xla.debug.flush()
            continue
        with pytest.raises(RuntimeError, match=error):
            torch_xla.debug.flush()
    zero = torch.zeros(4, 4, device="xla", requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        xs.shard_map(lambda p: p.sqrt() * 0, mesh, [spec], spec)(zero).sum().backward()
    with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
        torch_xla.debug.flush()
    m = _module().to("xla")
    watch = torch_xla.debug.watch(m, every=1)
    xs.shard_map(m, mesh, [("x", None)], ("x", None))(x.to("xla")).sum().backward()
    text = str(watch)
    watch.remove()
    assert "0[3]" in text and "0.weight[1]" not in text


@in_spmd
def test_a_read_raises_a_failed_assertion():
    """Programs under SPMD cannot call the host, so a read checks what was asserted before it."""
    x = torch.arange(4.0, device="xla")
    torch_xla.sync()

    @torch_xla.compile
    def compiled(x):
        torch._assert_async((x < 3).all(), "below 3")
        return x * 2

    def traced(x):
        torch._assert_async((x < 9).all(), "below 9")
        torch._assert_async((x < 3).all(), "below 3")
        return x * 2

    for function in (traced, compiled):
        for read in (lambda y: y.sum().item(), lambda _: x.cpu()):
            with pytest.raises(RuntimeError, match="^below 3"):
                read(function(x))
            assert x.sum().item() == 6  # It is raised once.
    for wait in (torch_xla.debug.flush, lambda: torch_xla.sync(wait=True)):
        traced(x)
        with pytest.raises(RuntimeError, match="^below 3"):
            wait()
    assert traced(x[:2]).tolist() == [0, 2]


@in_spmd
def test_an_end_of_a_region_does_not_belong_into_another():
    mesh = mesh_of(2, 2)
    for name, rest in (("enable", ()), ("disable", ((4, 4),))):
        call = getattr(xs, f"{name}_manual_sharding")

        def inside(p, call=call, rest=rest):
            return call(p, ("x", None), *rest, mesh=mesh)

        with pytest.raises(RuntimeError, match=f"{name}_manual_sharding: .* shard_map"):
            xs.shard_map(inside, mesh, [("x", None)], ("x", None))(torch.ones(4, 4, device="xla"))
    whole = xs.shard_map(lambda p: p + 1, mesh, [("x", None)], ("x", None))
    assert whole(torch.ones(4, 4, device="xla")).sum().item() == 32


@in_spmd
def test_copies_share_the_gradient():
    t, on_t = pair(4, 3)
    mapped = xs.shard_map(
        lambda p, w: (p * w).sum(0), mesh_of(2, 2), [(None, None), ("x",)], ("x",)
    )
    with pytest.raises(ValueError, match="dimension 0 of size 3"):
        mapped(on_t, torch.ones(3, device="xla"))
    scale = torch.tensor([1.0, 2.0])
    mapped = xs.shard_map(lambda p, w: (p * w).sum(0), mesh_of(2, 2), [None, ("x",)], (None,))
    wide = xs.shard_map(lambda p, w: p.sin() * w, mesh_of(2, 2), [None, ("x",)], ("x", None))
    found = wide(on_t, scale.to("xla"))
    found.sum().backward()
    expected = torch.cat([t.sin() * 1, t.sin() * 2])
    expected.sum().backward()
    close(found, expected)
    close(on_t.grad, t.grad)


@in_spmd
def test_a_region_in_a_region():
    def outer(t: torch.Tensor) -> torch.Tensor:
        assert t.shape == (2, 8)

        def inner(part: torch.Tensor) -> torch.Tensor:
            assert part.shape == (2, 4)
            return part * (xs.axis_index("y") + 1) + xs.psum(part, ("x", "y")).mean()

        return xs.shard_map(inner, mesh, [(None, "y")], (None, "y"))(t * 2).cos()

    mesh = mesh_of(2, 2)
    t, on_t = pair(4, 8)
    found = xs.shard_map(outer, mesh, [("x", None)], ("x", None), axis_names=["x"])(on_t)
    doubled = t * 2
    expected = (doubled * torch.tensor([1.0] * 4 + [2.0] * 4) + doubled.mean() * 4).cos()
    close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    close(on_t.grad, t.grad)
    with pytest.raises(ValueError, match="has all axes of the mesh"):
        xs.shard_map(outer, mesh, [("x", None)], ("x", None))(on_t)


def _layer(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hidden = (x @ w).sin()
    return xs.psum(hidden * (xs.axis_index("y") + 1), "y") + xs.pmax(hidden, "y")


def _layer_of_one(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    parts = [(a @ b).sin() for a, b in zip(x.chunk(2, 1), w.chunk(2), strict=True)]
    return parts[0] + 2 * parts[1] + torch.maximum(*parts)


@in_spmd
def test_regions_in_loops_and_branches():
    mesh = mesh_of(2, 2)
    layer = xs.shard_map(_layer, mesh, [("y", None), ("x", "y")], ("x", None))
    layers = {"xla": layer, "cpu": _layer_of_one}

    def scanned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        go = layers[x.device.type]
        return scan(lambda x, w: (go(w, x), x.sum()), x, w)[0] if is_on(x) else loop(go, x, w)

    def chosen(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        go = layers[x.device.type]
        first = x[0, 0] > 100
        if not is_on(x):
            return go(w[0], x).cos()
        return cond(first, lambda x, w: go(w, x) * 2, lambda x, w: go(w, x).cos(), (x, w[0]))

    def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        go = layers[x.device.type]
        again = lambda w, x: checkpoint(go, w, x, use_reentrant=False)  # noqa: E731
        return scan(lambda x, w: (again(w, x), w), x, w)[0] if is_on(x) else loop(go, x, w)

    for call in (scanned, chosen, checkpointed):
        (x, on_x), (w, on_w) = pair(4, 8, dtype=torch.float64), pair(3, 8, 8, dtype=torch.float64)
        found, expected = call(on_x, on_w), call(x, w)
        try:
            close(found, expected)
            found.square().sum().backward()
            expected.square().sum().backward()
            close(on_x.grad, x.grad)
            close(on_w.grad, w.grad)
        except AssertionError as error:
            raise AssertionError(call.__name__) from error
    x, w = torch.randn(4, 8), torch.randn(8, 8) * 0.2
    _, found = while_loop(
        lambda i, x, w: i < 3,
        lambda i, x, w: (i + 1, layer(w, x)),
        (torch.tensor(0, device="xla"), x.to("xla")),
        (w.to("xla"),),
    )
    close(found, loop(_layer_of_one, x, w.expand(3, 8, 8)))


def loop(go: object, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for one in w:
        x = go(one, x)
    return x


def is_on(x: torch.Tensor) -> bool:
    return x.device.type == "xla"


@in_spmd
def test_loops_and_branches_in_a_region():
    def inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, _ = scan(lambda x, w: (xs.psum(_layer(w, x), "x").tanh(), None), x, w)
        x = cond(xs.axis_index("x") > 0, lambda x: x * 3, lambda x: x.exp(), (x,))
        return F.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0]

    mesh = mesh_of(2, 2)
    (x, on_x), (w, on_w) = pair(4, 8, dtype=torch.float64), pair(2, 8, 4, dtype=torch.float64)
    specs = [("x", "y"), (None, "y", None)]
    found = xs.shard_map(inside, mesh, specs, ("x", None))(on_x, on_w)
    whole = x
    for one in w:
        whole = torch.cat([sum(_layer_of_one(one, whole).chunk(2)).tanh()] * 2).tile(1, 2)
    parts = whole[:2, :4].exp(), whole[2:, :4] * 3
    expected = torch.cat(
        [F.scaled_dot_product_attention(*[p[None, None]] * 3)[0, 0] for p in parts]
    )
    close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    close(on_x.grad, x.grad)
    close(on_w.grad, w.grad)


@in_spmd
def test_what_no_loop_takes():
    mesh, t = mesh_of(2, 2), torch.randn(4, 4).to("xla")
    mapped = xs.shard_map(lambda p: xs.psum(p, "x"), mesh, [("x", None)], (None, None))
    xs.set_global_mesh(mesh)

    def part(x: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, xs.enable_manual_sharding(x, ("x", None)).global_tensor

    with pytest.raises(
        RuntimeError, match=r"scan\(\): the function returns or keeps a value of a manual region"
    ):
        scan(part, t, t)
    inside = xs.shard_map(
        lambda p: scan(lambda c, x: (xs.mark_sharding(c, mesh, ("y",)) + x, x), p[0], p)[0],
        mesh,
        [("x", None)],
        ("x",),
    )
    with pytest.raises(RuntimeError, match="a loop or a branch within a region"):
        inside(t).cpu()

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mapped(x) * 2

    exported = torch.export.export(Module(), (t,), strict=False)
    with pytest.raises(NotImplementedError, match="an export is a program for one device"):
        exported_program_to_stablehlo(exported)


@in_spmd
def test_marks_in_loops_are_of_the_programs_dialect():
    mesh, x = mesh_of(2, 2), torch.randn(4, 4)

    def body(c: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return xs.mark_sharding(c + x, mesh, ("x", "y")).global_tensor, x

    found, _ = scan(body, x.to("xla"), torch.ones(3, 4, 4).to("xla"))
    hlo = _XLAC._get_xla_tensors_hlo([found])
    assert "torch_xla.sharding" not in hlo
    assert ("sdy.sharding_constraint" in hlo) != ("mhlo.sharding" in hlo)
    close(found, x + 3)


@in_spmd
def test_several_regions_and_what_lies_between():
    mesh, other = mesh_of(2, 2), xs.Mesh([0, 2, 1, 3], (4,), ("ring",))
    t, on_t = pair(8, 4)
    first = xs.shard_map(lambda p: xs.psum(p.exp(), "x"), mesh, [("x", "y")], (None, "y"))
    second = xs.shard_map(
        lambda p, c: p * c + xs.axis_index("ring"), other, [("ring", None), None], ("ring", None)
    )
    middle = first(on_t).softmax(-1)
    found = second(middle, on_t.mean()).square().sum() + first(on_t * 2).sum()
    exps = lambda x: x[:4].exp() + x[4:].exp()  # noqa: E731
    expected = (exps(t).softmax(-1) * t.mean() + torch.arange(4.0)[:, None]).square().sum()
    expected = expected + exps(t * 2).sum()
    close(found, expected)
    found.backward()
    expected.backward()
    close(on_t.grad, t.grad)


@in_spmd
def test_nested_arguments_and_results():
    def both(batch: dict, scale: float) -> list:
        return [batch["a"] * scale, {"b": xs.psum(batch["b"], "x")}]

    mapped = xs.shard_map(
        both, mesh_of(4, names="x"), [{"a": ("x", None), "b": ("x",)}, None], [("x", None), (None,)]
    )
    a, b = torch.randn(8, 2), torch.arange(4.0)
    found = mapped({"a": a.to("xla"), "b": b.to("xla")}, 3.0)
    close(found[0], a * 3)
    close(found[1]["b"], torch.tensor([6.0]))


@in_spmd
def test_kernels_work_inside():
    """Attention is one call of each device; outside of regions it is composed."""
    q, k, v = (torch.randn(4, 4, 16, 8) for _ in range(3))
    spec = ("x", "y", None, None)
    attend = xs.shard_map(F.scaled_dot_product_attention, mesh_of(2, 2), [spec] * 3, spec)
    found = attend(*(t.to("xla") for t in (q, k, v)))
    assert "torch_xla.cpu_attention" in _XLAC._get_xla_tensors_hlo([found])
    close(found, F.scaled_dot_product_attention(q, k, v))
    on = [t.to("xla").requires_grad_() for t in (q, k, v)]
    attend(*on).sum().backward()
    host = [t.clone().requires_grad_() for t in (q, k, v)]
    F.scaled_dot_product_attention(*host).sum().backward()
    for ours, theirs in zip(on, host, strict=True):
        close(ours.grad, theirs.grad)


@in_spmd(alone=True)
def test_a_step_compiles_once_and_is_replayed():
    mesh = mesh_of(2, 2)
    weight, on_weight = pair(8, 8)
    batches = [torch.randn(4, 8) for _ in range(8)]
    loss_of = xs.shard_map(
        lambda x, w: xs.pmean((x @ w).square().mean(), ("x", "y")),
        mesh,
        [("x", None), (None, "y")],
        (),
    )
    optimizers = [torch.optim.SGD([w], lr=0.1, momentum=0.9) for w in (weight, on_weight)]

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizers[1].zero_grad()
        loss = loss_of(x, on_weight)
        loss.backward()
        optimizers[1].step()
        return loss.detach()

    compiled = torch_xla.compile(step)
    programs = []
    for batch in batches:
        optimizers[0].zero_grad()
        expected = (batch @ weight).square().mean()
        expected.backward()
        optimizers[0].step()
        close(compiled(batch.to("xla")), expected)
        programs.append(met.counter_value("UncachedCompile"))
    close(on_weight, weight)
    assert programs[-1] == programs[3]


@in_spmd
def test_replayed_calls_give_the_same():
    meshes = {"2x2": mesh_of(2, 2), "rows": xs.Mesh([2, 0, 1, 3], (4, 1), ("x", "y"))}

    def program(compile, device):
        weight = torch.randn(8, 8).to(device).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        found = []

        @compile
        def step(x, mesh):
            def loss_of(x, w):
                hidden = F.dropout(x @ w, 0.5) + xs.axis_index("x")
                return xs.pmean(xs.pmax(hidden, "y").square().mean(), ("x", "y"))

            optimizer.zero_grad()
            specs = [("x", None), (None, "y")]
            loss = xs.shard_map(loss_of, mesh, specs, ())(x, weight)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for turn in range(14):  # The mesh changes between calls, too.
            mesh = meshes["rows" if turn > 9 else "2x2"]
            found.append(step(torch.randn(4, 8).to(device), mesh))
        return [*found, weight]

    right(program, torch.device("xla"), least=4)


@in_spmd
def test_a_full_graph_with_regions():
    t = torch.randn(4, 4)
    mapped = xs.shard_map(
        lambda p: xs.psum(p.sin(), "x"), mesh_of(2, 2), [("x", None)], (None, None)
    )
    whole = torch_xla.compile(lambda x: mapped(x).cos() @ mapped(x * 2).T, full_graph=True)
    sums = [(a[:2].sin() + a[2:].sin()) for a in (t, t * 2)]
    for _ in range(2):
        close(whole(t.to("xla")), sums[0].cos() @ sums[1].T)


@in_spmd
def test_graphs_of_torch_compile_end_before_regions():
    t, mesh = torch.randn(4, 4), mesh_of(2, 2)
    mapped = xs.shard_map(lambda p: xs.psum(p.sin(), "x"), mesh, [("x", None)], (None, None))
    xs.set_global_mesh(mesh)

    def by_both_ends(x: torch.Tensor) -> torch.Tensor:
        part = xs.enable_manual_sharding(x, ("x", None)).global_tensor
        return xs.disable_manual_sharding(part, ("x", None), (4, 4)).global_tensor + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(lambda x: mapped(x + 1) * 2, backend="openxla")
        for _ in range(2):
            close(compiled(t.to("xla")), ((t[:2] + 1).sin() + (t[2:] + 1).sin()) * 2)
        close(torch.compile(by_both_ends, backend="openxla")(t.to("xla")), t + 1)
        with pytest.raises(Exception, match="a graph cannot hold a manual region of SPMD"):
            torch.compile(lambda x: mapped(x), backend="openxla", fullgraph=True)(t.to("xla"))
        # Names of 2.9's graphs, too.
        marked = torch.compile(
            lambda x: (
                torch.ops.xla.dynamo_mark_sharding(
                    torch.ops.xla.dynamo_set_buffer_donor_(x, True),
                    [0, 1, 2, 3],
                    [2, 2],
                    "('x', 'y')",
                    "('x', None)",
                )
                + 1
            ),
            backend="openxla",
        )
        on_t = t.to("xla").requires_grad_()
        result = marked(on_t)
        torch_xla.sync()
        assert _XLAC._get_xla_sharding_spec(result).startswith("{devices=[2,1,2]0,1,2,3")
        marked(on_t).sum().backward()
        close(marked(on_t), t + 1)
        close(on_t.grad, torch.ones(4, 4))


@in_spmd
def test_a_users_operators_work_inside():
    """Text in StableHLO and a custom call see a device's part."""
    t, mesh = torch.randn(4, 4), mesh_of(4, names="x")

    def own(p: torch.Tensor) -> torch.Tensor:
        name = stablehlo_type(p)
        body = f"%y = stablehlo.negate %x : {name} return %y : {name}"
        return stablehlo(f"func.func @f(%x: {name}) -> {name} {{ {body} }}", p)

    close(xs.shard_map(own, mesh, [("x", None)], ("x", None))(t.to("xla")), -t)
    found = xs.shard_map(
        lambda p: stablehlo_custom_call((p,), "some.kernel", [[1, 2]], [torch.float32]),
        mesh,
        [("x", None)],
        ("x", None),
    )(t.to("xla"))
    assert found.shape == (4, 2)
    hlo = _XLAC._get_xla_tensors_hlo([found])
    call = next(line for line in hlo.splitlines() if "some.kernel" in line)
    assert "(tensor<1x4xf32>) -> tensor<1x2xf32>" in call


@in_spmd
def test_values_that_leave_a_region_have_no_whole():
    kept = []
    t = torch.randn(4, 4).to("xla")
    spec = [("x", None)]
    mesh = mesh_of(2, 2)
    xs.shard_map(lambda p: kept.append(p * 2) or p, mesh, spec, ("x", None))(t)
    for _ in range(2):  # pending, and as data
        with pytest.raises(RuntimeError, match="a part on each device and no whole"):
            kept[0].cpu()
        torch_xla.sync()
    # Another region may read it.
    again = xs.shard_map(lambda p: p + kept[0], mesh, spec, ("x", None))(t)
    close(again, t.cpu() * 3)
    with pytest.raises(RuntimeError, match="return it from the region and mark the result"):
        xs.shard_map(
            lambda p: xs.mark_sharding(p, mesh, (None, None)) + 1, mesh, spec, ("x", None)
        )(t).cpu()
    close(t + 1, t.cpu() + 1)  # and all goes on


@in_spmd
def test_bad_regions():
    mesh, t = mesh_of(2, 2), torch.zeros(4, 3, device="xla")
    same = lambda p: p  # noqa: E731
    for specs, out, message in [
        ("x", None, "a partition spec for each argument"),
        ([("z", None)], (None, None), "got 'z'"),
        (
            [(None, "y")],
            (None, None),
            "dimension 1 of size 3 cannot be split over the 2 devices of axis 'y'",
        ),
        ([("x",)], (None, None), "an entry for each of the 2 dimensions"),
        (
            [("x", None), None],
            None,
            "expected 2 arguments by position, one for each of in_specs, got 1",
        ),
        ([("x", None)], [None, None], "expected"),
    ]:
        with pytest.raises(ValueError, match=message):
            xs.shard_map(same, mesh, specs, out)(t)
    for bad, message in [
        (lambda p: xs.psum(p, "z"), "psum|all_reduce: expected the name of an axis of the region"),
        (lambda p: xs.ppermute(p, "x", [(0, 1), (1, 1)]), "along axis 'x', each once"),
        (
            lambda p: xs.reduce_scatter(p, "x", 1),
            "size 3 cannot be split over the 2 devices of axis 'x'",
        ),
        (lambda p: xs.all_reduce(p, "x", "mul"), "sum, mean, max or min"),
        (lambda p: xs.all_gather(p, "x", 2), r"of a tensor of shape \[2, 3\], got 2"),
        (lambda p: xs.pmin(p, 0), r"pmin: .* an axis of the region, \['x', 'y'\], got 0"),
        (lambda p: xs.ppermute(p, "x", [0, 1]), r"along axis 'x', each once, got \[\(0,\)"),
        (lambda p: p, "along axis 'x', which the spec does not name"),
        (lambda p: xs.psum(p + xs.axis_index("y"), "x"), "along axis 'y', which"),
        (lambda p: xs.ppermute(xs.psum(p, "y"), "x", [(0, 1), (1, 0)]), "along axis 'x'"),
        (lambda p: xs.reduce_scatter(p.T, "y", 1).T, "along axis 'x'"),
    ]:
        with pytest.raises(ValueError, match=message):
            xs.shard_map(bad, mesh, [("x", None)], (None, None))(t)
    with pytest.raises(TypeError, match="expected an xla tensor, got one on cpu"):
        xs.shard_map(same, mesh, [("x", None)], ("x", None))(torch.zeros(4, 3))
    with pytest.raises(RuntimeError, match="psum: .* in a function given to shard_map.* 'x'"):
        xs.psum(t, "x")
    for bad, message in [
        (lambda p: xs.psum(3, "x"), "psum: expected an xla tensor, got 3"),
        (lambda p: xs.all_gather(torch.zeros(2), "x"), "all_gather: .* got one on cpu"),
        (lambda p: xs.pmax(p + 0j, "x"), "pmax: complex numbers have no order"),
    ]:
        with pytest.raises(TypeError, match=message):
            xs.shard_map(bad, mesh, [("x", None)], (None, None))(t)
    part = xs.shard_map(same, mesh, [("x", None)], ("x", None), axis_names=("x",))
    for call, message in [
        (lambda: part(p=t), r"expected 1 arguments by position.* \['p'\] by name"),
        (lambda: xs.shard_map(part, mesh, [("x", None)], ("x", None))(t), "a region around"),
        (lambda: xs.shard_map(same, mesh, [None], None, axis_names="z")(t), "'z', no axis of the"),
        (lambda: xs.mark_sharding(t, mesh, ("y", "y")), "got 'y' 2 times"),
        (lambda: xs.enable_manual_sharding(t, ("x", None)), "expected the argument mesh"),
        (
            lambda: xs.enable_manual_sharding(t, (None, "y"), mesh=mesh),
            "enable_manual_sharding: dimension 1 of size 3 .* axis 'y'",
        ),
        (lambda: xs.local_map(same, [], [[]], mesh)(t), "2 placements, .* axes 'x', 'y'"),
        (lambda: xs.local_map(same, [], [[]], mesh)(t, t), "local_map: expected 1 arguments"),
        (lambda: xs.Mesh(range(4), (2, 2), (0, 1)), "expected strings as axis_names"),
        (lambda: xs.Mesh([0.5, 1], (2,)), "expected integers as `device_ids`"),
        (lambda: xs.Mesh([0, 1], 2), "a sequence of sizes as `mesh_shape`"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    # A value that a region has not put together is not read, exchanged as it may be.
    with pytest.raises(RuntimeError, match="a part on each device and no whole"):
        xs.shard_map(lambda p: p + xs.axis_index("x").item(), mesh, [None], None)(t)


@in_spmd
def test_what_devices_have_alike():
    mesh, t = mesh_of(2, 2), torch.randn(4, 6)
    ring = [(0, 1), (1, 0)]
    cases = [
        (
            lambda p: xs.psum(xs.psum(p, "x"), "y"),
            None,
            t[:2, :3] + t[2:, :3] + t[:2, 3:] + t[2:, 3:],
        ),
        (lambda p: xs.all_gather(xs.psum(p, "y"), "x"), None, t[:, :3] + t[:, 3:]),
        (lambda p: xs.all_gather(xs.reduce_scatter(p, "x"), "x"), (None, "y"), t[:2] + t[2:]),
        (lambda p: xs.ppermute(xs.psum(p, "x"), "x", ring), (None, "y"), t[:2] + t[2:]),
        (lambda p: torch.ones_like(p) * xs.axis_size("x"), None, torch.full((2, 3), 2.0)),
        (lambda p: xs.pmax(p.sum(), ("x", "y")) * 0 + 1, None, torch.tensor(1.0)),
        (
            lambda p: xs.psum(torch.where(xs.axis_index("y") == 1, p, 0.0), "y"),
            ("x", None),
            t[:, 3:],
        ),
    ]
    for f, out, expected in cases:
        close(xs.shard_map(f, mesh, [("x", "y")], out)(t.to("xla")), expected)
    # Sums in two orders are equal only for the user.
    around = lambda p: p + xs.ppermute(p, "x", ring)  # noqa: E731
    with pytest.raises(ValueError, match="along axis 'x'.* check_rep=False"):
        xs.shard_map(around, mesh, [("x", "y")], (None, "y"))(t.to("xla"))
    mapped = xs.shard_map(around, mesh, [("x", "y")], (None, "y"), check_rep=False)
    close(mapped(t.to("xla")), t[:2] + t[2:])
    # What is written to an argument, as well.
    whole = torch.zeros(2, 6).to("xla")
    write = xs.shard_map(lambda w, p: w.copy_(p), mesh, [(None, "y"), ("x", "y")], ("x", "y"))
    with pytest.raises(ValueError, match="along axis 'x'"):
        write(whole, t.to("xla"))
    close(whole, torch.zeros(2, 6))
    close(
        xs.shard_map(lambda p: xs.psum(p > 0, "x"), mesh, [("x", None)], None)(t.to("xla")),
        (t[:2] > 0).long() + (t[2:] > 0),
    )


@in_spmd
def test_running_statistics_are_the_devices_mean():
    mesh, t = mesh_of(2, 2), torch.randn(8, 6)
    norms = [torch.nn.BatchNorm1d(6, momentum=0.3) for _ in range(5)]
    for norm in norms[1:]:
        norm.load_state_dict(norms[0].state_dict())
    norm = norms[0].to("xla")
    mapped = xs.shard_map(norm, mesh, [("x", None)], ("x", None))
    for _ in range(2):
        found = mapped(t.to("xla"))
        expected = torch.cat(
            [norm(part) for norm, part in zip(norms[1:3], t.chunk(2), strict=True)]
        )
        close(found, expected)
    means = {
        name: (value + norms[2].get_buffer(name)) / 2 for name, value in norms[1].named_buffers()
    }
    for name, value in norm.named_buffers():
        close(value.double(), means[name].double())
    # As arguments they are written the same.
    stats = [torch.zeros(6), torch.ones(6)]
    given = [stat.to("xla") for stat in stats]
    xs.shard_map(
        lambda p, *stats: F.batch_norm(p, *stats, training=True, momentum=0.3),
        mesh,
        [("x", None), None, None],
        ("x", None),
    )(t.to("xla"), *given)
    for part in t.chunk(2):
        own = [torch.zeros(6), torch.ones(6)]
        F.batch_norm(part, *own, training=True, momentum=0.3)
        stats = [
            stat + (mine - start) / 2 for stat, mine, start in zip(stats, own, (0, 1), strict=True)
        ]
    for actual, expected in zip(given, stats, strict=True):
        close(actual, expected)


def test_regions_need_the_mode():
    with pytest.raises(RuntimeError, match="expected SPMD mode"):
        xs.shard_map(lambda t: t, mesh_of(2, 2), [("x",)], ("x",))(torch.zeros(4, device="xla"))


@in_spmd
def test_manual_sharding_by_2_9s_names():
    t, on_t = pair(4, 6)
    xs.set_global_mesh(mesh_of(2, 2))
    part = xs.enable_manual_sharding(on_t, ("x", None)).global_tensor
    assert part.shape == (2, 6)
    whole = xs.disable_manual_sharding(part.sin(), ("x", None), (4, 6)).global_tensor
    close(whole, t.sin())
    whole.sum().backward()
    t.sin().sum().backward()
    close(on_t.grad, t.grad)
    with pytest.raises(ValueError, match=r"shape \[4, 6\], but full_shape is \[4, 7\]"):
        xs.disable_manual_sharding(part, ("x", None), (4, 7), mesh=mesh_of(2, 2))


@in_spmd
def test_local_map_by_placements():
    from torch.distributed.tensor import Replicate, Shard

    a, b = torch.randn(4, 8), torch.randn(8, 6)
    mapped = xs.local_map(
        product,
        [Shard(0), Replicate()],
        ([Shard(0), Shard(1)], [Replicate(), Shard(0)]),
        mesh_of(2, 2),
    )
    close(mapped(a.to("xla"), b.to("xla")), a @ b)


@in_spmd
def test_operators_of_2_9s_graphs():
    t = torch.randn(4, 4)
    spec = str(("x", None))
    marked = torch.ops.xla.dynamo_mark_sharding(t.to("xla"), range(4), [2, 2], "('x', 'y')", spec)
    assert _XLAC._get_xla_sharding_spec(marked).startswith("{devices=[2,1,2]0,1,2,3")
    close(torch.ops.xla.dynamo_set_buffer_donor_(marked, True), t)
    with pytest.raises(NotImplementedError, match="composites"):
        torch.ops.xla.mark_tensor(marked, "gelu", 0, "1", True)
    with pytest.raises(AttributeError, match="mark_sharding of both"):
        xla_sharding.shard_as  # noqa: B018
    with pytest.raises(AttributeError, match=r"torch_xla.device_count\(\)"):
        xm.xla_device_count  # noqa: B018


# ------------------------------------------------------------------------- meshes


@in_spmd
def test_meshes_over_a_part_of_the_devices():
    t = torch.randn(4, 6)
    mesh = xs.Mesh([3, 1], (2,), ("p",))
    marked = xs.mark_sharding(t.to("xla"), mesh, ("p", None))
    held = [shard.data for shard in marked.local_shards]
    torch.testing.assert_close(held[3], t[:2])
    torch.testing.assert_close(held[1], t[2:])
    close(marked @ marked.T, t @ t.T)
    total = xs.shard_map(lambda p: xs.psum(p, "p"), mesh, [("p", None)], (None, None))
    close(total(t.to("xla")), t[:2] + t[2:])
    # Several meshes in one program.
    both = marked + xs.mark_sharding(t.to("xla"), mesh_of(2, 2), (None, "y"))
    close(both, t * 2)


@in_spmd(alone=True, CPU_NUM_DEVICES="6")
def test_meshes_that_have_no_mesh_in_common():
    """2 × 3 and 3 × 2 devices: a program of Shardy has both meshes, a region one of them."""
    t = torch.randn(6, 6)
    meshes = xs.Mesh(range(6), (2, 3), ("a", "b")), xs.Mesh(range(6), (3, 2), ("c", "d"))
    a, b = (xs.mark_sharding(t.to("xla"), m, m.axis_names).global_tensor for m in meshes)
    torch_xla.sync()
    found = a @ b + xs.mark_sharding(a + 1, meshes[1], ("d", None)).global_tensor
    hlo = _XLAC._get_xla_tensors_hlo([found])
    assert hlo.count("sdy.mesh @") == (2 if is_shardy() else 0)
    close(found, t @ t + t + 1)
    first = xs.shard_map(lambda p: xs.psum(p, "a"), meshes[0], [("a", "b")], (None, "b"))
    second = xs.shard_map(lambda p: xs.psum(p, "c"), meshes[1], [("c", "d")], (None, "d"))
    sums = (t[:3] + t[3:]).repeat(2, 1), (t[:2] + t[2:4] + t[4:]).repeat(3, 1)
    close(first(a).repeat(2, 1) * second(b).repeat(3, 1), sums[0] * sums[1])
    if not is_shardy():
        return
    kept = []
    xs.shard_map(lambda p: kept.append(p) or p, meshes[0], [("a", "b")], ("a", "b"))(a)
    mixed = xs.shard_map(
        lambda p: xs.psum(p.sum(), ("c", "d")) + kept[0].sum(),
        meshes[1],
        [("c", "d")],
        (),
        check_rep=False,
    )
    with pytest.raises(ValueError, match=r"devices=\[.*devices=\[.*which no mesh has"):
        mixed(b).cpu()
    torch_xla.sync()  # Then the part is data.
    close(mixed(b).isfinite(), torch.tensor(True))


@in_spmd
def test_a_mesh_is_made_of_the_finest_axes():
    """Shardings over 4, over 2 × 2 and over 2 of 4 devices in another order have one in common."""
    t = torch.randn(4, 4)
    lies = [
        (xs.Mesh(range(4), (4,), ("x",)), ("x", None)),
        (mesh_of(2, 2), ("y", "x")),
        (xs.Mesh([0, 2], (2,), ("p",)), (None, "p")),
        (xs.Mesh([0, 2, 1, 3], (4,), ("q",)), (None, "q")),
    ]
    marked = [xs.mark_sharding(t.to("xla"), mesh, spec).global_tensor for mesh, spec in lies]
    found = marked[0] @ marked[1] + marked[2] * marked[3]
    assert _XLAC._get_xla_tensors_hlo([found]).count("sdy.mesh @") == (1 if is_shardy() else 0)
    close(found, t @ t + t * t)


@in_spmd(CPU_NUM_DEVICES="8")
def test_regions_exchange_on_a_mesh_in_any_order():
    """The numbers that they exchange by follow when the partitions get the order of the mesh."""
    mesh = xs.Mesh([7, 0, 3, 5, 2, 1, 6, 4], (2, 2, 2), ("a", "b", "c"))
    layer, x = torch.nn.LSTM(12, 16), torch.randn(4, 6, 12)

    def part(t):
        others = xs.ppermute(t, "b", [(0, 1), (1, 0)])
        sums = xs.all_gather(t, "c", 1).sum(1, keepdim=True)
        return t * (xs.axis_index("b") + 1) + xs.psum(t, "b") + 2 * others + sums

    upper, lower = layer(x)[0].chunk(2)
    expected = torch.cat(
        [
            own * (b + 1) + upper + lower + 2 * other + own.sum(1, keepdim=True)
            for b, (own, other) in enumerate(((upper, lower), (lower, upper)))
        ]
    )
    expected.square().mean().backward()
    for of_weights in mesh, xs.Mesh(range(8), (2, 2, 2), ("a", "b", "c")):
        on_device = copy.deepcopy(layer).to("xla")
        on_device.zero_grad()
        with torch.no_grad():
            for weight in on_device.weight_hh_l0, on_device.weight_ih_l0:
                xs.mark_sharding(weight, of_weights, (0, 1))
        hidden = on_device(x.to("xla"))[0]
        found = xs.shard_map(part, mesh, [("b", "c", None)], ("b", "c", None))(hidden)
        close(found, expected)
        found.square().mean().backward()
        for a, b in zip(on_device.parameters(), layer.parameters(), strict=True):
            close(a.grad, b.grad)


# ------------------------------------------------------------------------- writers


@in_spmd
def test_a_program_has_one_dialect():
    x = xs.mark_sharding(torch.randn(4, 4).to("xla"), mesh_of(2, 2), ("x", "y"))
    hlo = _XLAC._get_xla_tensors_hlo([x + 1])
    assert ("sdy.mesh" in hlo) == is_shardy()
    assert ("mhlo.sharding" in hlo) != is_shardy()


def is_shardy() -> bool:
    return os.environ.get("XLA_SHARDY", "1") == "1"


@in_spmd
def test_what_is_printed_of_programs():
    """Pictures of shardings that were given and found, and a plan's collectives."""
    mesh, t = mesh_of(2, 2), torch.randn(8, 8)
    x = xs.mark_sharding(t.to("xla"), mesh, ("x", None)).global_tensor
    w = xs.mark_sharding(t.to("xla"), mesh, (None, "y")).global_tensor
    kept = []
    both = xs.shard_map(lambda p: kept.append(p * 2) or p, mesh, [("y", "x")], ("y", "x"))
    cases = [
        (x, [["0,1"], ["2,3"]]),
        (x @ w, [["0", "1"], ["2", "3"]]),  # as the partitioner found
        (both(x), [["0", "2"], ["1", "3"]]),
        (kept[0], [["0", "1", "2", "3"]]),
    ]
    torch_xla.sync()
    for tensor, expected in cases:
        spec = _XLAC._get_xla_sharding_spec(tensor)
        assert debugging._cells(spec) == [[f"CPU {cell}" for cell in row] for row in expected]
    xs.visualize_tensor_sharding(kept[0], use_color=False)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = xs.shard_map(lambda p, q: xs.psum(p @ q, "y"), mesh, specs, ("x", None))(x, w)
        return xs.mark_sharding(total, mesh, (None, None)).global_tensor

    specs = [("x", "y"), ("y", None)]
    plan = aot.compile(step, (x, w))
    kinds = {kind: count for kind, (count, _) in plan.collectives.items()}
    assert kinds["all-reduce"] == 1 and "all-gather" in kinds
    assert "all-reduce" in str(plan)


@pytest.mark.parametrize("name", FILES)
def test_the_files_of_spmd_pass_under_gspmd(name):
    """The plugin's default is Shardy, under which they run as they are."""
    run_tests(str(Path(__file__).with_name(name)), "-k", "not under_gspmd", XLA_SHARDY="0")


def test_nothing_is_said_of_a_deprecated_partitioner():
    script = (
        "import torch, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs\n"
        "xr.use_spmd()\n"
        "mesh = xs.get_1d_mesh('x')\n"
        "t = xs.mark_sharding(torch.ones(4, 4).to('xla'), mesh, ('x', None))\n"
        "print((t @ t).sum().item())\n"
    )
    result = start_python("-c", script, CPU_NUM_DEVICES="4")
    assert result.stdout.strip() == "64.0"
    assert "deprecat" not in result.stderr.lower()
