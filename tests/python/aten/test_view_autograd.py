"""Autograd of the views that have a kernel of their own: view and slice."""

import pytest
import torch
import torch.autograd.forward_ad as fwad

import torch_xla  # noqa: F401

VIEWS = {
    "view": lambda x: x.view(3, 4),
    "slice": lambda x: x[1:5, ::2],
    "view of slice": lambda x: x[2:4].view(4),
    "slice of view": lambda x: x.view(-1)[3:9:2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_first_and_second_gradient(name):
    make = VIEWS[name]
    results = []
    for device in ("cpu", "xla"):
        x = torch.arange(12.0).reshape(6, 2).clone().to(device).requires_grad_()
        view = make(x)
        assert view._is_view() and view._base is x
        (first,) = torch.autograd.grad((view**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x)
        results.append((first.detach().cpu(), second.cpu(), type(view.grad_fn).__name__))
    assert results[0][2] == results[1][2]
    torch.testing.assert_close(results[1][:2], results[0][:2])


@pytest.mark.parametrize("name", VIEWS)
def test_write_through_view_of_differentiable_base(name):
    make = VIEWS[name]
    results = []
    for device in ("cpu", "xla"):
        x = torch.arange(12.0).reshape(6, 2).clone().to(device).requires_grad_()
        base = x * 2
        view = make(base)
        view.mul_(view.detach() + 1)
        (base**2).sum().backward()
        # The view's own history is made again after the write.
        (own,) = torch.autograd.grad(make(base * 1).sum() + view.sum(), base)
        results.append((x.grad.cpu(), own.cpu(), base.detach().cpu()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", VIEWS)
def test_forward_mode(name):
    make = VIEWS[name]
    with fwad.dual_level():
        x = torch.arange(12.0, device="xla").reshape(6, 2).clone()
        dual = fwad.make_dual(x, x + 1)
        tangent = fwad.unpack_dual(make(dual)).tangent
        torch.testing.assert_close(tangent.cpu(), make(torch.arange(12.0).reshape(6, 2) + 1))


def test_grad_modes():
    x = torch.ones(4, device="xla", requires_grad=True)
    with torch.no_grad():
        view = x[1:]
    with pytest.raises(RuntimeError, match="no_grad"):
        view.mul_(2)
    with torch.inference_mode():
        normal = x[1:3].view(2, 1)
        inside = torch.ones(4, device="xla")[1:]
    assert not normal.is_inference() and inside.is_inference()
    assert normal.tolist() == [[1.0], [1.0]]
    outside = inside.view(1, -1)
    assert outside.is_inference() and outside[0].detach().is_inference()
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        outside.add_(1)
    assert not x.detach()[1:].requires_grad
    y = (x * 1)[1:3]
    y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z = x * 1
        w = z[1:].exp()
        w.mul_(2)
        w.sum().backward()


def test_reverse_view():
    x = torch.arange(12.0, device="xla").reshape(6, 2).clone()
    for make in VIEWS.values():
        assert torch.equal(make(x)._rev_view_func_unsafe(make(x)).cpu(), x.cpu())


# Functions of a view, and what takes the view.
FORWARD = {
    "row": (lambda a: (a.view(2, 2).tanh() @ a.view(2, 2)).sum(), lambda x: x[1]),
    "column": (lambda a: a.view(3, 1)[1:].pow(3).sum(), lambda x: x[:, 1]),
    "transposed": (lambda a: (a.t()[1:].pow(3)).sum() * a[1].sum(), lambda x: x[1:, 1:3]),
    "diagonal": (lambda a: a.diagonal().pow(3).sum(), lambda x: x[:, 1:]),
    "of an expanded one": (lambda a: a[1:].pow(3).sum(), lambda x: x[0].expand(2, 4)[1]),
    "by its place": (lambda a: a.as_strided((2,), (1,), 5).pow(3).sum(), lambda x: x[1]),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_through_views_of_a_view(name):
    """The tangent lies in memory as the primal does: views of both begin at the same offset."""
    function, view = FORWARD[name]
    cpu = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for x in (cpu, cpu.to("xla")):
        a = view(x)
        hessian = torch.func.hessian(function)(a) if name != "by its place" else torch.zeros(())
        tangent = torch.func.jvp(function, (a,), (torch.ones_like(a),))[1]
        found.append((hessian.cpu(), tangent.cpu()))
    torch.testing.assert_close(found[1], found[0])
