"""Autograd on the device: gradients, hooks, versions, views and writes."""

import pytest
import torch
from testing.processes import python_output
from testing.tensors import XLA, Net, xla
from torch import nn

import torch_xla


def test_gradients_accumulate():
    x = torch.ones(2, device="xla", requires_grad=True)
    assert x.grad is None and x.is_leaf
    (x * 3).sum().backward()
    assert x.grad.device == XLA and x.grad.tolist() == [3, 3]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [5, 5]
    x.grad.zero_()
    assert x.grad.tolist() == [0, 0]
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_gradient_assignment_checks():
    x = torch.ones(2, device="xla", requires_grad=True)
    x.grad = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(2)


def test_autograd_grad_and_higher_order():
    x = xla(3.0, requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert first.item() == 27 and second.item() == 18


def test_hooks_and_retain_grad():
    x = torch.ones(2, device="xla", requires_grad=True)
    seen = []
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda grad: seen.append(grad.device) or grad * 10)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    y.sum().backward()
    assert seen == [XLA, [20.0, 20.0]]
    assert y.grad.tolist() == [10, 10]
    module = nn.Linear(2, 2).to("xla")
    module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    module(x).sum().backward()
    assert (2,) in seen


def test_detach_shares_memory_and_no_grad():
    x = torch.ones(2, device="xla", requires_grad=True)
    y = x.detach()
    assert not y.requires_grad
    y.add_(1)
    assert x.tolist() == [2, 2] and y._version == x._version
    with torch.no_grad():
        assert not (x * 2).requires_grad
        x.add_(1)
    assert y.tolist() == [3, 3]
    z = x.clone().detach_()
    assert not z.requires_grad


def test_version_counters():
    x = torch.zeros(4, device="xla")
    view = x[1:]
    version = x._version
    view.add_(1)
    assert x._version == version + 1 == view._version
    x.mul_(2)
    assert view._version == version + 2
    x.clone().add_(1)
    torch_xla.sync()
    assert x._version == version + 2


def test_in_place_error_of_autograd():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    w = torch.ones(3, device="xla", requires_grad=True)
    h = w * 2
    z = h * h
    h[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_in_place_on_leaves():
    x = torch.ones(3, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0] = 2.0
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.zero_()


def gradients_of(f, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    result = f(*inputs)
    (
        result * torch.arange(1.0, result.numel() + 1, device=result.device).view(result.shape)
    ).sum().backward()
    return [result.detach().cpu(), *(x.grad.cpu() for x in inputs)]


def write_middle(x):
    y = x * 1
    y[1:3].mul_(3)
    return y * y


def write_column(x):
    y = x.clone()
    y[:, 1] = y[:, 0] * 2
    return y.t()


def write_other(x, v):
    y = x.clone()
    y.diagonal().copy_(v)
    y.t()[0].add_(v)
    return y.view(-1)


def write_chain(x):
    y = x.clone()
    v = y.view(-1)[2:8].view(2, 3).t()
    v.mul_(v.detach().clone())
    y.relu_()
    return y.exp()


def fill_part(x):
    y = x.clone()
    y[0].zero_()
    y[:, 2].fill_(4.0)
    return y * x


def masked(x):
    y = x.clone()
    y[x > 0] = 0.5
    return y * x


def accumulate(x):
    y = x.clone()
    y[torch.tensor([0, 0, 2], device=x.device)] += 1.5
    return y * y


GRADIENTS = {
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t() * 2,
    "reshape": lambda x: x.t().reshape(2, 6) ** 2,
    "expand": lambda x: x[:, :1].expand(2, 3, 4),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "diagonal": lambda x: x.diagonal(1),
    "as_strided": lambda x: x.as_strided((3, 2), (4, 1), 1),
    "split": lambda x: x.split(2, 1)[0] * x.split(2, 1)[1],
    "unbind": lambda x: torch.stack(x.unbind(1), 0),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2, 2)) * (1 + 2j)),
    "write middle": write_middle,
    "write column": write_column,
    "write chain": write_chain,
    "fill part": fill_part,
    "masked": masked,
    "accumulate": accumulate,
    "index": lambda x: x[torch.tensor([2, 0, 0], device=x.device)],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_autograd_through_views_and_writes(name):
    x = torch.arange(12.0).view(3, 4).sub(5.5) / 4
    for a, b in zip(
        gradients_of(GRADIENTS[name], x.to("xla")), gradients_of(GRADIENTS[name], x), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_autograd_of_a_written_value():
    x, v = torch.arange(9.0).view(3, 3), torch.tensor([1.0, 2.0, 3.0])
    found = gradients_of(write_other, x.to("xla"), v.to("xla"))
    for a, b in zip(found, gradients_of(write_other, x, v), strict=True):
        torch.testing.assert_close(a, b)


def test_base_and_view_after_a_write():
    def f(x):
        y = x * 1
        view = y[1:]
        y.mul_(2)
        view.add_(x[:2])
        return torch.cat([y, view * 3])

    x = torch.arange(12.0).view(3, 4)
    for a, b in zip(gradients_of(f, x.to("xla")), gradients_of(f, x), strict=True):
        torch.testing.assert_close(a, b)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * ctx.factor * grad, None


class Bump(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


def test_custom_functions():
    x = xla([1.0, 2.0], requires_grad=True)
    Scale.apply(x, 3.0).sum().backward()
    assert x.grad.tolist() == [6, 12]
    y = xla([1.0, 2.0], requires_grad=True)
    z = y * 1
    bumped = Bump.apply(z)
    assert bumped is z
    bumped.sum().backward()
    assert y.grad.tolist() == [5, 5]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)).to("xla")
    x = torch.ones(2, 4, device="xla", requires_grad=True)
    state = torch.xla.get_rng_state()
    model(x).sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    torch.xla.set_rng_state(state)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    for a, b in zip([x.grad, *(p.grad for p in model.parameters())], expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_with_arguments_that_need_no_gradient(use_reentrant):
    # As the rotary embeddings that a decoder hands to each of its layers.
    def layer(x, turn):
        return torch.tanh(x * turn) * turn + (x * turn).exp()

    found = {}
    for device in ("cpu", "xla"):
        turn = torch.arange(4.0, device=device)
        x = torch.full((2, 4), 0.3, device=device, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(layer, x, turn, use_reentrant=use_reentrant)
        torch.utils.checkpoint.checkpoint(
            layer, y, turn, use_reentrant=use_reentrant
        ).sum().backward()
        found[device] = x.grad.cpu()
    torch.testing.assert_close(found["xla"], found["cpu"])


def test_checkpoint_before_the_client():
    output = python_output(
        """
        import torch, torch_xla
        from torch.utils.checkpoint import checkpoint

        x, w = (torch.full((2, 2), 0.5, device="xla", requires_grad=True) for _ in range(2))
        assert not torch.xla.is_initialized()
        # A matrix product asks which platform it is for.
        y = checkpoint(lambda x: torch.nn.functional.linear(x, w).tanh(), x, use_reentrant=False)
        y.sum().backward()
        print(torch.xla.is_initialized(), x.grad.flatten().tolist() == w.grad.flatten().tolist())
        """
    )
    assert output.split() == ["True", "True"]


def test_functional_transforms():
    w = torch.arange(6.0).view(2, 3)
    xs = torch.arange(12.0).view(4, 3) / 7

    def loss(w, x):
        return torch.tanh(w @ x).pow(2).sum()

    expected = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, xs)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w.to("xla"), xs.to("xla"))
    torch.testing.assert_close(found.cpu(), expected)
    jacobian = torch.func.jacrev(lambda x: torch.sin(x) * x)(xs[0].to("xla"))
    torch.testing.assert_close(jacobian.cpu(), torch.func.jacrev(lambda x: torch.sin(x) * x)(xs[0]))


def test_functional_call_and_saved_tensor_hooks():
    model = Net().to("xla")
    twice = {name: p * 2 for name, p in model.named_parameters()}
    x = torch.ones(1, 3, device="xla")
    y = torch.func.functional_call(model, twice, (x,))
    assert not torch.equal(y, model(x))
    with torch.autograd.graph.save_on_cpu():
        z = xla([1.0, 2.0], requires_grad=True)
        out = (z * z).sum()
    out.backward()
    assert z.grad.tolist() == [2, 4]


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, w: nn.functional.linear(x, w),
        lambda x, w: nn.functional.linear(x, w, torch.ones(len(w), device=w.device)),
        lambda x, w: nn.functional.linear(x.unflatten(0, (2, 3)), w),
        lambda x, w: x @ w.T,
        lambda x, w: x.unflatten(0, (2, 3)) @ w.mT,
        lambda x, w: torch.addmm(torch.zeros(5, device=w.device), x, w.transpose(0, -1)),
        lambda x, w: torch.bmm(x[None], w[None].transpose(1, 2)),
    ],
    ids=["linear", "bias", "3d", "T", "mT", "addmm", "bmm"],
)
def test_a_weights_gradient_is_a_product_in_the_weights_layout(forward):
    """Not a transposed view of one, which the optimizer would read across."""
    x, w = torch.arange(24.0).view(6, 4) / 10, torch.arange(20.0).view(5, 4).cos()
    weights = [w.clone().requires_grad_(), w.to("xla").requires_grad_()]
    for weight in weights:
        forward(x.to(weight.device), weight).sin().sum().backward()
    graph = torch_xla._XLAC._get_xla_tensors_text([weights[1].grad])
    assert "f32[5,4] aten::mm" in graph or "f32[1,5,4] aten::bmm" in graph, graph
    torch.testing.assert_close(weights[1].grad.cpu(), weights[0].grad)


class TransposesItsProduct(torch.autograd.Function):
    """x @ w.t(); looks at the weight's gradient from both sides, and writes to it."""

    @staticmethod
    def forward(ctx, x, w, write):
        ctx.save_for_backward(x, w)
        ctx.write = write
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        product = x.t() @ grad
        other = product[1:] if "slice" in ctx.write else None
        transposed = product.t()
        if "transposed" in ctx.write:
            transposed[0].mul_(2)
        if "product" in ctx.write:
            product[0].add_(1)
        if other is not None:
            other.sub_(3)
        return grad @ w, transposed + product.t() + product.mT, None


@pytest.mark.parametrize("write", ["", "transposed", "product", "transposed product", "slice"])
def test_a_product_that_a_backward_pass_transposes_is_still_one_memory(write):
    x, w = torch.arange(24.0).view(6, 4) / 10, torch.arange(20.0).view(5, 4).cos()
    weights = [w.clone().requires_grad_(), w.to("xla").requires_grad_()]
    for weight in weights:
        TransposesItsProduct.apply(x.to(weight.device), weight, write).sin().sum().backward()
    torch.testing.assert_close(weights[1].grad.cpu(), weights[0].grad)
    assert weights[1].grad.is_contiguous() and weights[1].grad.shape == (5, 4)


def test_second_derivatives_of_a_weight():
    x, w = torch.arange(24.0).view(6, 4) / 10, torch.arange(20.0).view(5, 4).cos()
    second = []
    for device in ("cpu", "xla"):
        weight = w.to(device).requires_grad_()
        loss = nn.functional.linear(x.to(device), weight).sin().sum()
        (first,) = torch.autograd.grad(loss, weight, create_graph=True)
        second += torch.autograd.grad(first.square().sum(), weight)
    torch.testing.assert_close(second[1].cpu(), second[0])


def _grads(function, x, device, again):
    t = x.to(device, copy=True).requires_grad_()
    out = function(t)
    weights = torch.arange(1.0, out.numel() + 1, device=device).view(out.shape)
    total = (out * weights).sum()
    (grad,) = torch.autograd.grad(total.abs() if out.is_complex() else total, t, create_graph=again)
    results = [out, grad]
    if again:
        results += torch.autograd.grad(grad.abs().square().sum(), t)
    return [r.detach().cpu() for r in results]


@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_products_with_zeros(again):
    """No zero, one, several, in rows or everywhere; real and complex, in another dtype."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    cases = [x, x.clone(), x.clone()]
    cases[1][0, 0] = cases[1][1, 3] = 0
    cases[2][:, 1:3] = 0
    if not again:
        cases += [torch.zeros(3, 1), torch.zeros(0, 3), torch.tensor(3.0)]
        cases += [cases[1].to(torch.complex64)]
    for x in cases:
        wide = torch.complex64 if x.is_complex() else torch.float64
        for function in (
            lambda t: t.cumprod(-1),
            lambda t: t.cumprod(0),
            lambda t: t.prod(),
            lambda t: t.prod(-1),
            lambda t, wide=wide: t.prod(0, keepdim=True, dtype=wide),
        ):
            expected = _grads(function, x, "cpu", again)
            for e, a in zip(expected, _grads(function, x, "xla", again), strict=True):
                torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def test_gradients_of_products_read_nothing():
    weight = torch.randn(4, 4).to("xla").requires_grad_()

    @torch_xla.compile(full_graph=True)
    def step(x):
        y = x @ weight
        (y.cumprod(1).sum() + y.prod(1).sum() + y.prod()).backward()

    step(torch.randn(3, 4).to("xla"))
    assert weight.grad.abs().sum().item() > 0


def test_products_have_tangents():
    x = torch.randn(3, 4)
    for function in (torch.prod, lambda t: t.prod(1), lambda t: t.cumprod(0)):
        results = [
            torch.func.jvp(function, (x.to(d),), (torch.ones(3, 4, device=d),))[1].cpu()
            for d in ("cpu", "xla")
        ]
        torch.testing.assert_close(results[1], results[0])
