"""Statistics of a model's tensors by module: torch_xla.debug.watch."""

import json
import math

import pytest
import torch
from testing.browser import open_page
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import debug
from torch_xla.experimental.scan_layers import scan_layers


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x))


class _Model(nn.Module):
    def __init__(self, how="plain"):
        super().__init__()
        self.layer = nn.ModuleList(_Block() for _ in range(2))
        self.how = how

    def forward(self, x):
        if self.how == "scan":
            return scan_layers(self.layer, x)
        for layer in self.layer:
            x = checkpoint(layer, x, use_reentrant=False) if self.how == "checkpoint" else layer(x)
        return x


def _train(model, device, steps, rate=0.1, compiled=lambda step: step):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)

    @compiled
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        step(torch.randn(3, 4, generator=generator).to(device))
        torch_xla.sync()


def _expected(values):
    x = values.detach().double()
    return (
        x.mean().item(),
        x.std(correction=0).item(),
        x.abs().max().item(),
        (x == 0).double().mean().item(),
        0.0,
    )


def _reference(model, steps):
    """The same of an eager model on the CPU, by (step, kind, name)."""
    found, step, hooks = {}, [-1], []

    def begin(module, args):
        step[0] += 1
        for name, parameter in model.named_parameters():
            found[step[0], "weights", name] = _expected(parameter)

    hooks.append(model.register_forward_pre_hook(begin))
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):

            def end(module, args, result, name=name or "_Model"):
                found[step[0], "activations", name] = _expected(result)

            hooks.append(module.register_forward_hook(end))
    for name, parameter in model.named_parameters():

        def hook(parameter, name=name):
            found[step[0], "gradients", name] = _expected(parameter.grad)

        hooks.append(parameter.register_post_accumulate_grad_hook(hook))
    _train(model, "cpu", steps)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("how", ["plain", "checkpoint", "scan", "compile", "replay"])
def test_statistics_are_those_of_eager(how):
    torch.manual_seed(0)
    model = _Model(how)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    reference_model = _Model()
    reference_model.load_state_dict(state)
    reference = _reference(reference_model, 6)
    model.to("xla")
    wrap = {
        "compile": torch_xla.compile,
        "replay": lambda step: torch_xla.compile(step, replay=True),
    }
    seen = debug.watch(model, every=2)
    _train(model, "xla", 6, compiled=wrap.get(how, lambda step: step))
    records = seen.records()
    seen.remove()
    assert [one.step for one in records] == sorted(one.step for one in records)
    assert {one.step for one in records} == {0, 2, 4}
    got = {(one.step, one.kind, one.name): one[3:] for one in records}
    assert len(got) == len(records)
    for (step, kind, name), values in reference.items():
        if step % 2:
            continue
        if how == "scan" and kind == "activations" and name.startswith("layer."):
            # The body of the loop is the first layer's.
            name = name.replace("layer.1", "layer.0") + ("[1]" if "layer.1" in name else "")
        torch.testing.assert_close(got.pop((step, kind, name)), values, rtol=1e-4, atol=1e-5)
    assert not got


def test_a_step_that_is_not_measured_pays_nothing():
    model = _Model().to("xla")
    _train(model, "xla", 2)
    graphs = met.metric_data("CompileTime")[0]
    with_watch = debug.watch(model, every=100)
    _train(model, "xla", 12)
    assert met.metric_data("CompileTime")[0] <= graphs + 2  # The first; one that gives gradients.
    records = with_watch.records()
    assert {one.step for one in records} == {0}
    model.eval()
    model(torch.ones(1, 4, device="xla"))
    with torch.no_grad():
        model.train()(torch.ones(1, 4, device="xla"))
    with_watch.remove()
    _train(model, "xla", 2)
    assert with_watch.records() == records


def test_nan_and_infinities_are_counted(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2)).to("xla")
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[math.nan, 1.0], [0.0, math.inf]]))
    seen = debug.watch(model)
    with torch.autocast("xla", dtype=torch.bfloat16):
        model(torch.ones(1, 2, device="xla"))
    weight = next(one for one in seen.records() if one.name == "0.weight")
    assert (weight.zeros, weight.nan, weight.largest) == (0.25, 0.25, math.inf)
    seen.save(tmp_path / "seen.json")
    written = json.loads((tmp_path / "seen.json").read_text())
    assert next(one for one in written if one["name"] == "0.weight")["largest"] is None
    seen.save(tmp_path / "seen.html")
    assert "class=bad" in (tmp_path / "seen.html").read_text()


class _Writer:
    def __init__(self):
        self.values = {}

    def add_scalar(self, tag, value, step):
        self.values[tag, step] = value


def test_the_page_the_table_and_the_writer(tmp_path):
    writer = _Writer()
    model = _Model().to("xla")
    seen = debug.watch(model, every=1, writer=writer)
    assert str(seen) == "no step was measured yet\n"
    _train(model, "xla", 3)
    table = str(seen)
    assert table.startswith("step 2\n") and "layer.1.linear.weight" in table
    records = seen.records()
    last = records[-1]
    assert writer.values[f"{last.kind}/{last.name}/largest", 2] == last.largest
    assert len(writer.values) == 5 * len(records)
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        seen.save(tmp_path / "seen.txt")
    seen.save(tmp_path / "seen.html")
    page = open_page(tmp_path / "seen.html")
    names = {(one.kind, one.name) for one in records}
    assert page.count("<figure") == len(names)
    assert page.count('<path class="l"') == len(names)
    assert "http://" not in page and "https://" not in page and "<script" not in page


def test_what_cannot_be_watched():
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="expected a module, got int"):
        debug.watch(3)
    with pytest.raises(ValueError, match="every >= 1, got 0"):
        debug.watch(model, every=0)
    with pytest.raises(ValueError, match=r"torch\.compile has not compiled"):
        debug.watch(torch.compile(model))
    seen = debug.watch(model)
    with pytest.raises(Exception, match="cannot be compiled"):
        torch.compile(lambda x: model(x), backend="openxla", fullgraph=True)(torch.ones(2, 2))
    seen.remove()
