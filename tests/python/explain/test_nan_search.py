"""Which operation made a NaN first: torch_xla.debug.find_nan and XLA_FIND_NAN."""

import warnings

import pytest
import torch
from testing.processes import run_python
from testing.replicas import run_replicas
from torch import nn

import torch_xla
from torch_xla import debug
from torch_xla.experimental.scan import scan


def _line(text):
    """The number of the line of this file that has ``text`` first."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if f"# {text}" in line)


def _ones(*sizes):
    return torch.ones(*sizes, device="xla")


def _log():
    x = _ones(3) * 2 - 3
    return (x.log() + 1).sum()  # NaN: log


def _division():
    x = _ones(3) - 1
    return x / x  # NaN: division


def _infinities():
    x = _ones(3) * 3e38 * 10
    return (x - x).tanh()  # NaN: infinities


def _sqrt_backward():
    x = torch.zeros(3, device="xla", requires_grad=True)
    (x.sqrt() * x).sum().backward()  # NaN: sqrt_backward
    return x.grad


def _where_backward():
    x = torch.zeros(3, device="xla", requires_grad=True)
    norm = x.norm()
    torch.where(norm > 0, x / norm, x).sum().backward()  # NaN: where_backward
    return x.grad


def _in_scan():
    def body(carry, element):
        return carry - element, (carry - element).sqrt()  # NaN: in_scan

    return scan(body, torch.full((), 3.0, device="xla"), torch.arange(4.0, device="xla"))


def _in_while():
    def body(x):
        return ((x - 1.5).sqrt() * 1.2,)

    start = _ones(()) * 2
    return torch._higher_order_ops.while_loop(lambda x: x > 0, body, (start,))  # NaN: in_while


def _autocast():
    layer = nn.Linear(4, 4, device="xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        hidden = layer(_ones(2, 4))
        hidden = hidden * 3e38 * 3e38
        return hidden * 0  # NaN: autocast


def _full_mask():
    mask = torch.ones(4, 4, dtype=torch.bool, device="xla")
    return _ones(4, 4).masked_fill(mask, float("-inf")).softmax(-1)  # NaN: full_mask


def _batch_norm():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to("xla")
    with torch.no_grad():
        net[0].weight[0].fill_(float("inf"))
    image = torch.randn(2, 3, 8, 8, device="xla")
    net(image).sum().backward()  # NaN: batch_norm
    return net[1].weight.grad


def _variance():
    return _ones(1).var()  # NaN: variance


def _power():
    return (_ones(2) - 2) ** 0.5  # NaN: power


def _cross_entropy():
    target = torch.full((2,), -100, device="xla")
    return nn.functional.cross_entropy(_ones(2, 3), target)  # NaN: cross_entropy


def _attention():
    q = _ones(1, 2, 4, 8)
    mask = torch.zeros(4, 4, dtype=torch.bool, device="xla")
    scores = (q @ q.mT).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ q  # NaN: attention


def _product():
    return (_ones(2, 2) * 3e38 * 10) @ (_ones(2, 2) - 1)  # NaN: product


def _arccosine():
    return (_ones(2) * 2).acos().cos()  # NaN: arccosine


def _optimizer():
    weight = nn.Parameter(_ones(2))
    optimizer = torch.optim.Adam([weight], eps=0.0)
    (weight * 0).sum().backward()
    optimizer.step()  # NaN: optimizer
    return weight


def _complex():
    x = torch.zeros(2, dtype=torch.complex64, device="xla")
    return x / x  # NaN: complex


def _replayed():
    @torch_xla.compile(replay=True)
    def step(x):
        return (x - 3).log().sum()  # NaN: replayed

    return [step(torch.full((2,), 8.0 - i, device="xla")) for i in range(8)]


def _dynamo():
    step = torch.compile(lambda x: (x - 3).log().sum(), backend="openxla")  # NaN: dynamo
    return [step(torch.full((2,), 4.0 - i, device="xla")) for i in range(3)]


_PLANTED = {
    _log: "aten::log",
    _division: "aten::div",
    _infinities: "aten::sub",
    _sqrt_backward: "aten::div",
    _where_backward: "aten::div",
    _in_scan: "aten::sqrt",
    _in_while: "aten::sqrt",
    _autocast: "aten::mul",
    _full_mask: "aten::_softmax",
    _batch_norm: "aten::convolution",
    _variance: "aten::var",
    _power: "aten::pow",
    _cross_entropy: "aten::",
    _attention: "aten::_softmax",
    _product: "aten::mm",
    _arccosine: "aten::acos",
    _optimizer: "aten::",
    _complex: "aten::div",
    _replayed: "aten::log",
    _dynamo: "aten::log",
}


@pytest.mark.parametrize("program", _PLANTED, ids=lambda program: program.__name__[1:])
def test_a_planted_nan_is_named(program):
    with pytest.raises(FloatingPointError) as raised, debug.find_nan():
        kept = program()
    del kept
    text = str(raised.value)
    name = program.__name__[1:]
    assert text.startswith(f"NaN made first by {_PLANTED[program]}"), text
    assert f"test_nan_search.py:{_line(f'NaN: {name}')}" in text
    assert ("(backward)" in text) == (name.endswith("backward"))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return (self.inner(x) * 0 - self.scale).sqrt()


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out = _Attention(), nn.Linear(2, 2)

    def forward(self, x):
        return self.out(self.attention(x))


@pytest.mark.parametrize("how", ["plain", "checkpoint", "dynamo", "replay", "scan"])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_module_is_named(how, way):
    from torch.utils.checkpoint import checkpoint

    from torch_xla.experimental.scan_layers import scan_layers

    layers = nn.ModuleList(_Layer() for _ in range(3)).to("xla")
    for i, layer in enumerate(layers):
        # sqrt(-1), or the derivative of sqrt at 0, which is multiplied by 0.
        bad = i == 2 or how == "scan"
        layer.attention.scale = float(bad) if way == "forward" else 0.0 if bad else -1.0

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layers

        def forward(self, x):
            if how == "scan":
                return scan_layers(self.layer, x)
            for layer in self.layer:
                x = checkpoint(layer, x, use_reentrant=False) if how == "checkpoint" else layer(x)
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x):
            return self.encoder(x)

    model = Model()
    if how == "dynamo":
        model = torch.compile(model, backend="openxla")

    def step(x):
        loss = model(x).sum()
        loss.backward()
        return loss

    if how == "replay":
        step = torch_xla.compile(step, replay=True)
    with pytest.raises(FloatingPointError) as raised, debug.find_nan():
        for _ in range(4 if how == "replay" else 1):
            kept = step(_ones(2, 2))
    del kept
    text = str(raised.value).split("\n")[0]
    name = f"encoder.layer.{0 if how == 'scan' else 2}.attention"
    if how == "dynamo":  # A graph of Dynamo's has the module that called it.
        name = "Model"
    assert f", module {name}" in text or (how, way) == ("dynamo", "backward"), text
    assert "test_nan_search.py" in text and ("(backward)" in text) == (way == "backward"), text


def test_a_program_without_any_passes():
    mask = torch.ones(4, 4, dtype=torch.bool, device="xla").triu(1)
    with debug.find_nan():
        kept = _ones(4, 4).masked_fill(mask, float("-inf")).softmax(-1).log()
    assert torch.isinf(kept).any()
    with debug.find_nan(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.TransformerEncoderLayer(8, 2, 16).to("xla")
        model(torch.randn(3, 2, 8, device="xla")).sum().backward()


def test_an_input_with_a_nan_is_no_operation():
    x = torch.tensor([float("nan")], device="cpu").to("xla")
    with pytest.raises(FloatingPointError, match="NaN in an input of a program"), debug.find_nan():
        kept = x * 2
    del kept


def test_programs_outside_of_the_block_do_not_search():
    def step():
        return (_ones(3) - 2).log().sum().item()

    step()
    with pytest.raises(FloatingPointError), debug.find_nan():
        step()
    step()
    debug.flush()


def _replica():
    import torch_xla.core.xla_model as xm

    x = torch.full((2,), 1.0 - xm.get_ordinal(), device="xla")
    try:
        with debug.find_nan():
            y = 1 / x - 1 / x
            y = xm.all_reduce(xm.REDUCE_SUM, y)
    except FloatingPointError as error:
        return str(error)
    return ""


def test_the_replica_that_made_it_is_named(tmp_path):
    first, second = run_replicas(_replica, 2, tmp_path)
    assert "aten::sub" in second and "replica 1" in second
    assert first.startswith("NaN made first by xla::all_reduce")


def test_the_variable_tells_each_once_and_goes_on(tmp_path):
    reported, errors = run_python(
        """
        for step in range(3):
            x = torch.full((2,), 1.0 - step, device="xla")
            loss = x.log().sum()
            torch_xla.sync()
        report(loss=str(loss.item()))
        """,
        tmp_path,
        XLA_FIND_NAN="1",
    )
    assert reported["loss"] == "nan"
    told = [line for line in errors.splitlines() if "NaN made first by aten::log at" in line]
    assert len(told) == 1 and "in run 3 of its program" in told[0]
