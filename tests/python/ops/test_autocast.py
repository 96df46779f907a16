"""torch.autocast("xla"), GradScaler and torch_xla.amp, against PyTorch's own on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from testing.ops import rand
from torch import nn

import torch_xla
import torch_xla.amp
import torch_xla.debug.metrics as met

X, W, TARGET = rand(2, 3, 4), rand(4, 4), torch.tensor([0, 3])

# Operators whose lists are the same on both devices.
OPERATORS = {
    "matmul": lambda x, w: x @ w,
    "linear": lambda x, w: F.linear(x, w),
    "linear_then_add": lambda x, w: F.linear(x, w) + x,
    "tanh_of_linear": lambda x, w: F.linear(x, w).tanh(),
    "bmm": lambda x, w: torch.bmm(x, x.mT),
    "addmm": lambda x, w: torch.addmm(w, w, w),
    "conv1d": lambda x, w: F.conv1d(x, x[:, :, :2]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x, x),
    "mse_loss": lambda x, w: F.mse_loss(F.linear(x, w), x),
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
    "nll_loss": lambda x, w: F.nll_loss(F.linear(x, w)[:, 0], torch.tensor([0, 3]).to(x.device)),
    "double": lambda x, w: x.double() @ w.double(),
    "integers": lambda x, w: x.long().float().sum() * w.sum(),
}


def _run(operator, x, w):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        result = operator(x, w)
    result.double().sum().backward()
    return result.detach().cpu(), *(None if t.grad is None else t.grad.cpu() for t in (x, w))


@pytest.mark.parametrize("name", OPERATORS)
def test_like_cpu(device, name):
    expected = _run(OPERATORS[name], X, W)
    actual = _run(OPERATORS[name], X.to(device), W.to(device))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("operator", "dtype"),
    [
        (lambda x: x.exp(), torch.float32),
        (lambda x: x.softmax(-1), torch.float32),
        (lambda x: x.sum(), torch.float32),
        (lambda x: x.norm(), torch.float32),
        (lambda x: F.layer_norm(x, (4,)), torch.float32),
        (lambda x: F.cross_entropy(x, TARGET.to(x.device)), torch.float32),
        (lambda x: torch.atan2(x, x.float()), torch.float32),
        (lambda x: torch.atan2(x, x), torch.float16),
        (lambda x: x.relu(), torch.float16),
        (lambda x: torch.mm(x, x.mT.float()), torch.float16),
        (lambda x: x.sum(dtype=torch.float16), torch.float16),
    ],
)
def test_lists(device, operator, dtype):
    """By policy: float32, the widest, as it comes, the lower precision, what the user says."""
    with torch.autocast("xla", dtype=torch.float16):
        result = operator(rand(2, 4, dtype=torch.float16).to(device))
    assert result.dtype == dtype
    assert result.isfinite().all()


def test_switches(device):
    x = rand(2, 2).to(device)
    assert torch.amp.is_autocast_available("xla")
    with torch.autocast("xla"):
        assert torch.is_autocast_enabled("xla")
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert nn.Linear(2, 2).to(device)(x).dtype == torch.bfloat16  # New parameters, too.
    assert (x @ x).dtype == torch.float32
    with pytest.warns(UserWarning, match="XLA Autocast only supports"):
        assert not torch.autocast("xla", dtype=torch.float64)._enabled


class _Model(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(36, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5),
        )  # fmt: skip


def _losses(device_type, steps=6):
    model = _Model().to(device_type)
    inputs, targets = rand(8, 1, 8, 8).to(device_type), (torch.arange(8) % 5).to(device_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device_type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def test_training_like_cpu(device):
    expected = _losses("cpu")
    met.clear_all()
    actual = _losses("xla")
    torch.testing.assert_close(actual, expected, rtol=0.03, atol=0.03)
    assert actual[-1] < 0.7 * actual[0]
    assert not met.executed_fallback_ops()
    # The first step, which makes AdamW's state, the later ones, and the reading of the losses.
    assert met.metric_data("CompileTime")[0] <= 4


def _scaled(device_type, make_optimizer, scaler, overflow_at=2, steps=5):
    """Trains with float16 gradients of which one overflows; returns all that changes."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(device_type)
    optimizer = make_optimizer(model.parameters())
    x = rand(2, 4).to(device_type)
    scales = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if step == overflow_at:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [*(p.detach().cpu() for p in model.parameters()), torch.tensor(scales)]


SCALER = {"init_scale": 64.0, "growth_interval": 2}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_grad_scaler(device, optimizer, fused):
    def make(parameters):
        return getattr(torch.optim, optimizer)(parameters, lr=0.1, fused=fused)

    expected = _scaled("cpu", make, torch.amp.GradScaler("cpu", **SCALER))
    actual = _scaled("xla", make, torch.amp.GradScaler("xla", **SCALER))
    torch.testing.assert_close(actual, expected)
    assert expected[-1].tolist() == [64.0, 128.0, 64.0, 64.0, 128.0]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_syncfree(device, optimizer):
    expected = _scaled(
        "cpu",
        lambda parameters: getattr(torch.optim, optimizer)(parameters, lr=0.1),
        torch.amp.GradScaler("cpu", **SCALER),
    )
    optimizer_class = getattr(torch_xla.amp.syncfree, optimizer)
    scaler = torch_xla.amp.GradScaler(**SCALER)
    actual = _scaled("xla", lambda parameters: optimizer_class(parameters, lr=0.1), scaler)
    torch.testing.assert_close(actual, expected)


def test_syncfree_step_does_not_read(device):
    model = nn.Linear(4, 3).to(device)
    optimizer = torch_xla.amp.syncfree.AdamW(model.parameters())
    scaler = torch_xla.amp.GradScaler()
    x = rand(2, 4).to(device)

    def step():
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()

    for _ in range(3):
        step()
    torch_xla.sync(wait=True)
    met.clear_all()
    for _ in range(4):
        step()
    torch_xla.sync(wait=True)
    assert met.metric_data("ExecuteTime")[0] == 4
    assert met.metric_data("CompileTime") is None
    assert met.metric_data("TransferFromDeviceTime") is None


@pytest.mark.parametrize("fused", [False, True])
def test_zero_grad_in_place_of_a_skipped_step(device, fused):
    """An overflow is a step with gradients of 0, for any optimizer, and nothing is read."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch_xla.amp.GradScaler(**SCALER, use_zero_grad=True)
    x = rand(2, 4).to(device)

    def step(factor):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()

    step(1.0)
    before = [p.detach().clone() for p in model.parameters()]
    torch_xla.sync(wait=True)
    met.clear_all()
    step(float("inf"))
    torch_xla.sync(wait=True)
    assert met.metric_data("TransferFromDeviceTime") is None
    assert scaler.get_scale() == 32.0
    torch.testing.assert_close([p.cpu() for p in model.parameters()], [p.cpu() for p in before])
    step(1.0)
    assert not torch.equal(model.weight.cpu(), before[0].cpu())


def test_amp_autocast(device):
    x = rand(2, 2).to(device)
    with torch_xla.amp.autocast(device):
        assert (x @ x).dtype == torch.bfloat16
    with torch_xla.amp.autocast(device, dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    with torch_xla.amp.autocast(device, enabled=False):
        assert (x @ x).dtype == torch.float32
    with pytest.raises(ValueError, match="expected an XLA device, got cpu"):
        torch_xla.amp.autocast("cpu")
