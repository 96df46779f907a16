"""What PyTorch builds on top of operators: transforms, fake tensors, export, checkpointing, …"""

import copy

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from testing.ops import rand
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import torch_xla  # noqa: F401
import torch_xla.debug.metrics as met

# ------------------------------------------------------------------ function transforms


def _assert_same_on(device, function, *inputs):
    expected = function(*inputs)
    actual = function(*(x.to(device) for x in inputs))
    torch.testing.assert_close(torch.utils._pytree.tree_map(torch.Tensor.cpu, actual), expected)


def test_vmap(device):
    _assert_same_on(device, torch.vmap(lambda x: (x.sin() * x).sum()), rand(3, 4))
    _assert_same_on(device, torch.vmap(torch.mm, in_dims=(0, None)), rand(2, 3, 4), rand(4, 5))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_random(device, randomness):
    x = torch.ones(2, 50).to(device)
    result = torch.vmap(lambda x: F.dropout(x) + torch.rand_like(x), randomness=randomness)(x)
    assert torch.equal(result[0], result[1]) == (randomness == "same")


@pytest.mark.parametrize("transform", ["grad", "hessian", "jacrev", "jacfwd"])
def test_derivatives(device, transform):
    function = getattr(torch.func, transform)(lambda x: (x.exp() @ x.sin()) / x.norm())
    _assert_same_on(device, function, rand(4))


@pytest.mark.parametrize("transform", ["hessian", "jacfwd"])
def test_derivatives_through_views(device, transform):
    """A tangent in a batch is no block of memory where its number is one: both begin at 1."""
    function = getattr(torch.func, transform)(lambda x: (x[1:] ** 3).sum() * x[0] + x[1] * x[2])
    _assert_same_on(device, function, rand(4))


def test_jvp_and_vjp(device):
    def function(x):
        return (x.exp() @ x.mT).softmax(-1)

    _assert_same_on(
        device, lambda x, v: torch.func.jvp(function, (x,), (v,)), rand(3, 3), rand(3, 3)
    )
    _assert_same_on(
        device, lambda x, v: torch.func.vjp(function, x)[1](v), rand(3, 3), rand(3, 3, seed=1)
    )


def test_gradients_of_each_sample(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def gradients(model, x):
        def loss(parameters, x):
            return torch.func.functional_call(model, parameters, (x,)).sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(
            dict(model.named_parameters()), x
        )

    expected = gradients(model, rand(5, 4))
    actual = gradients(copy.deepcopy(model).to(device), rand(5, 4).to(device))
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].cpu(), value)


def test_gradcheck(device):
    x = rand(3, 2, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: x.sin().cumsum(0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: (x**3).sum(), (x,))


# ------------------------------------------------------------------ tensors without data


def test_fake_tensors(device):
    x = rand(3, 4).to(device)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (x, x.t(), x[1:], nn.Parameter(x))]
    with mode:
        fakes += [fake + 1 for fake in fakes]
        fakes += [fakes[0].view(12), fakes[0].t(), fakes[0].detach(), fakes[0].view_as(fakes[0])]
        fakes += [torch.ops.prims.view_of(fakes[0]), torch.empty(2, device=device), fakes[0][1:]]
        fakes += [F.linear(fakes[0], fakes[0])]
    assert {fake.device for fake in fakes} == {x.device}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(device, backend):
    def function(x, w):
        return (F.linear(x, w).sin() + x.view(-1)[:1]).sum()

    x, w = rand(3, 4), rand(4, 4)
    expected = torch.func.grad(function, argnums=(0, 1))(x, w)
    leaves = [t.to(device).requires_grad_() for t in (x, w)]
    torch.compile(function, backend=backend)(*leaves).backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad.cpu(), gradient)


def test_export(device):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    x = rand(2, 1, 4, 4)
    expected = model.eval()(x)
    model.to(device)
    program = torch.export.export(model, (x.to(device),))
    torch.testing.assert_close(program.module()(x.to(device)).cpu(), expected)


def test_meta_to_empty(device):
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    model.to_empty(device=device)
    nn.init.constant_(model.weight, 2.0)
    assert model.weight.sum().item() == 18.0


# ------------------------------------------------------------------ modes and subclasses


def test_dispatch_modes(device):
    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    x = rand(3).to(device)
    with Log():
        (x + 1).relu_()
    assert names == ["add.Tensor", "relu_.default"]
    with FlopCounterMode(display=False) as counter:
        rand(3, 4).to(device) @ rand(4, 5).to(device)
    assert counter.get_total_flops() == 2 * 3 * 4 * 5


def test_tensor_subclass(device):
    class Mine(torch.Tensor):
        pass

    x = rand(3).to(device).as_subclass(Mine)
    assert type(x + 1) is Mine
    assert type(x[1:].exp()) is Mine


def test_default_device(device):
    with torch.device(device):
        made = [torch.ones(3), torch.arange(3), torch.tensor([1, 2]), torch.eye(2)]
        made += [torch.randperm(4), *nn.LSTM(3, 3).parameters(), *nn.Linear(2, 2).parameters()]
    assert {tensor.device for tensor in made} == {device}


# ------------------------------------------------------------------ autograd's graph


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoint(device, use_reentrant):
    """The second forward draws the same dropout."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 4)).to(device)

    def gradient(run):
        x = rand(3, 4).to(device).requires_grad_()
        torch.manual_seed(3)
        run(x).sum().backward()
        return x.grad.cpu()

    checkpointed = gradient(
        lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant)
    )
    torch.testing.assert_close(checkpointed, gradient(model))


def test_saved_on_cpu(device):
    x = rand(3).to(device).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * rand(3))


# ------------------------------------------------------------------ modules around modules


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations(device, name):
    torch.manual_seed(0)
    model = getattr(nn.utils.parametrizations, name)(nn.Linear(3, 3))
    ours = copy.deepcopy(model).to(device)
    for of, x in ((model, rand(2, 3)), (ours, rand(2, 3).to(device))):
        of(x).square().sum().backward()
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def test_script_and_trace(device):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(device)
    x = rand(2, 3).to(device)
    expected = model(x).cpu()
    torch.testing.assert_close(torch.jit.trace(model, x)(x).cpu(), expected)
    torch.testing.assert_close(torch.jit.script(model)(x).cpu(), expected)


def test_encoder_with_padding(device):
    """It asks whether the padding is at the ends, which reads one bool."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    x, ours = rand(2, 3, 8), copy.deepcopy(model).to(device)
    for rows in ([[0, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 0, 0]]):
        padding = torch.tensor(rows, dtype=torch.bool)
        inside = padding.logical_not()
        aligned = torch._nested_tensor_from_mask_left_aligned
        assert aligned(x.to(device), inside.to(device)) == aligned(x, inside)
        expected = model(x, src_key_padding_mask=padding)[inside]
        met.clear_all()
        actual = ours(x.to(device), src_key_padding_mask=padding.to(device)).cpu()[inside]
        torch.testing.assert_close(actual, expected)
        assert not met.executed_fallback_ops()


def test_nested_tensors(device):
    parts = [rand(2, 3), rand(4, 3)]
    nested = torch.nested.nested_tensor([p.to(device) for p in parts], layout=torch.jagged)
    torch.testing.assert_close((nested * 2).values().cpu(), 2 * torch.cat(parts))


def test_strided_nested_tensors_are_refused(device):
    parts = [rand(n, 1, 8).to(device) for n in (2, 4)]
    strided = torch.nested.nested_tensor([part.cpu() for part in parts])
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    for make in (
        lambda: torch.nested.as_nested_tensor(parts),
        lambda: strided.to(device),
        lambda: F.scaled_dot_product_attention(jagged, jagged, jagged),
    ):
        with pytest.raises(RuntimeError, match="no strided nested tensors"):
            make()


def test_attention_over_padded_jagged_tensors(device):
    """What the error of jagged ones tells to write."""
    parts = [rand(n, 2, 8, seed=n) for n in (2, 4, 3)]
    jagged = torch.nested.nested_tensor([x.to(device) for x in parts], layout=torch.jagged)
    x = jagged.to_padded_tensor(0.0).transpose(1, 2)
    mask = torch.arange(x.shape[2], device=device) < jagged.offsets().diff()[:, None]
    found = F.scaled_dot_product_attention(x, x, x, mask[:, None, None]).transpose(1, 2).cpu()
    for rows, part in zip(found, parts, strict=True):
        part = part.transpose(0, 1)
        expected = F.scaled_dot_product_attention(part, part, part).transpose(0, 1)
        torch.testing.assert_close(rows[: len(expected)], expected)


# ------------------------------------------------------------------ distributions


def _distributions(to):
    one, half, logits = to(torch.ones(3)), to(torch.full((3,), 0.5)), to(rand(4))
    return [
        D.Normal(one, one), D.Laplace(one, one), D.Cauchy(one, one), D.LogNormal(one, one),
        D.StudentT(one), D.Gamma(one, one), D.Beta(one, one), D.Dirichlet(one), D.Weibull(one, one),
        D.Poisson(one), D.VonMises(one, one), D.Bernoulli(half), D.Geometric(half),
        D.Binomial(5, half), D.Categorical(logits=logits), D.OneHotCategorical(logits=logits),
        D.Multinomial(5, logits=logits), D.MultivariateNormal(one, to(torch.eye(3))),
        D.Wishart(to(torch.tensor(4.0)), to(torch.eye(3))),
    ]  # fmt: skip


def test_distributions(device):
    ours = _distributions(lambda t: t.to(device))
    for distribution, reference in zip(ours, _distributions(lambda t: t), strict=True):
        samples = distribution.sample((4,))
        assert samples.device == device, distribution
        torch.testing.assert_close(
            distribution.log_prob(samples).cpu(), reference.log_prob(samples.cpu()),
            rtol=1e-4, atol=1e-4, msg=str(reference),
        )  # fmt: skip


# ------------------------------------------------------------------ what there is not


def test_sparse_is_refused(device):
    with pytest.raises(NotImplementedError, match="SparseXLA|sparse"):
        torch.eye(2).to_sparse().to(device)


def test_no_read_in_a_transform(device):
    """A transform is traced like the rest: nothing is executed before the result is read."""
    met.clear_all()
    result = torch.vmap(torch.func.grad(lambda x: x.sin().sum()))(rand(3, 4).to(device))
    assert met.metric_data("ExecuteTime") is None
    torch.testing.assert_close(result.cpu(), rand(3, 4).cos())
