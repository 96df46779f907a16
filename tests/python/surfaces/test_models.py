"""Real models train on xla as they do on the CPU: same losses, same parameters, no fallback.

Each test trains two copies of one model, one in eager PyTorch on the CPU and one on the xla
device, from the same weights and on the same batches. From the step at which the set of graphs
is complete nothing may be compiled and no op may run on the CPU. Models are tiny: what is tested
is their ops, and the time goes into compiling.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.ops import fallbacks
from testing.processes import python_output
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

Batch = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    # Gradients that are zero but for rounding (of a key's bias) must not be scaled up to steps.
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5)


def backward_and_step(model: nn.Module, loss: torch.Tensor, optimizer: Any, step: int) -> None:
    """The plain training step; a test may pass another ``update`` to ``check_training``."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def check_training(
    model: nn.Module,
    batches: list[Batch],
    loss_of: Loss,
    make_optimizer: MakeOptimizer = adamw,
    *,
    update: Callable[[nn.Module, torch.Tensor, Any, int], None] = backward_and_step,
    warm_up: int = 1,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Trains copies of ``model`` on both devices, a step for each batch, and compares.

    Args:
        model: In the mode (train, eval) in which it is to run.
        batches: One for each step; all of the same shapes.
        loss_of: The loss of a model and a batch.
        make_optimizer: Makes the optimizer of the parameters.
        update: What follows the forward pass; gets the number of the step.
        warm_up: The number of steps after which nothing more may be compiled.
        rtol: Of losses, parameters and buffers.
        atol: Of losses, parameters and buffers.
    """
    device = xm.xla_device()
    results = {}
    for where in (torch.device("cpu"), device):
        replica = copy.deepcopy(model).to(where)
        optimizer = make_optimizer(replica.parameters())
        moved = [{key: value.to(where) for key, value in batch.items()} for batch in batches]
        torch_xla.sync()  # The initial values are no part of a step.
        losses = []
        for step, batch in enumerate(moved):
            if step == warm_up:
                compiles, moved_to_cpu = met.counter_value("UncachedCompile"), fallbacks()
            loss = loss_of(replica, batch)
            losses.append(loss.detach().clone())
            update(replica, loss, optimizer, step)
            torch_xla.sync()
        if where == device:
            assert fallbacks() == moved_to_cpu, "an op ran on the CPU in the steady state"
            assert met.counter_value("UncachedCompile") == compiles, "a steady step was compiled"
        state = {name: value.cpu() for name, value in replica.state_dict().items()}
        results[where.type] = torch.stack(losses).cpu(), state
    (expected, expected_state), (actual, actual_state) = results["cpu"], results["xla"]
    assert expected.std() > 0, "the losses say nothing: they do not change"
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    assert actual_state.keys() == expected_state.keys()
    for name, value in expected_state.items():
        torch.testing.assert_close(
            actual_state[name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def batches_of(count: int, *shape: int, classes: int) -> list[Batch]:
    return [
        {"x": torch.randn(shape), "y": torch.randint(classes, (shape[0],))} for _ in range(count)
    ]


# ---- Multi-layer perceptrons: optimizers and what goes with them -------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 24),
        nn.ReLU(),
        nn.LayerNorm(24),
        nn.Linear(24, 16),
        nn.GELU(),
        nn.Linear(16, 5),
    )


@pytest.mark.parametrize(
    ("make_optimizer", "warm_up"),
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1), 1, id="sgd"),
        # Without a momentum buffer yet, the first step is another program.
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2, id="momentum"),
        pytest.param(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
            2,
            id="nesterov",
        ),
        pytest.param(lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True), 1, id="amsgrad"),
        pytest.param(adamw, 1, id="adamw"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5), 1, id="rmsprop"),
        pytest.param(lambda p: torch.optim.Adagrad(p, lr=0.01), 1, id="adagrad"),
        pytest.param(lambda p: torch.optim.Adadelta(p, lr=0.1), 1, id="adadelta"),
    ],
)
def test_mlp(make_optimizer: MakeOptimizer, warm_up: int) -> None:
    batches = batches_of(5, 8, 12, classes=5)
    check_training(mlp().train(), batches, classify, make_optimizer, warm_up=warm_up)


def test_gradient_clipping_and_schedule() -> None:
    """A learning rate that changes at each step is a parameter of the program."""

    class Scheduled(torch.optim.AdamW):
        def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
            super().__init__(parameters, lr=1e-2)
            self.schedule = torch.optim.lr_scheduler.SequentialLR(
                self,
                [
                    torch.optim.lr_scheduler.LinearLR(self, 0.1, 1.0, 3),
                    torch.optim.lr_scheduler.CosineAnnealingLR(self, 8),
                ],
                [3],
            )

    norms: dict[str, list[torch.Tensor]] = {"cpu": [], "xla": []}

    def update(model: nn.Module, loss: torch.Tensor, optimizer: Scheduled, step: int) -> None:
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        norms[loss.device.type].append(norm)
        optimizer.step()
        optimizer.schedule.step()
        optimizer.zero_grad()

    batches = batches_of(6, 8, 12, classes=5)
    check_training(mlp(), batches, classify, Scheduled, update=update, warm_up=1)
    assert min(norms["cpu"]) > 0.05  # It did clip.
    torch.testing.assert_close(
        torch.stack(norms["xla"]).cpu(), torch.stack(norms["cpu"]), rtol=1e-4, atol=1e-6
    )


def test_gradient_accumulation() -> None:
    def update(model: nn.Module, loss: torch.Tensor, optimizer: Any, step: int) -> None:
        (loss / 2).backward()
        if step % 2 == 1:
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()

    # Two programs: one that only accumulates, and one that updates.
    batches = batches_of(6, 8, 12, classes=5)
    check_training(mlp(), batches, classify, adamw, update=update, warm_up=2)


def test_gradient_accumulation_in_place() -> None:
    """Gradients that are kept and zeroed in place."""

    def update(model: nn.Module, loss: torch.Tensor, optimizer: Any, step: int) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    # The first step has no gradient to add to.
    check_training(mlp(), batches_of(5, 8, 12, classes=5), classify, update=update, warm_up=2)


# ---- Convolutional networks --------------------------------------------------------------------


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * channels, 1, bias=False),
            nn.BatchNorm2d(4 * channels),
        )


class Residual(nn.Module):
    """A block and its shortcut."""

    def __init__(self, block: Any, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.block = block(channels_in, channels, stride)
        channels_out = block.expansion * channels
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block.body(x)
        y += self.shortcut(x)
        return F.relu(y)


def resnet(block: Any, counts: tuple[int, int, int, int], width: int) -> nn.Module:
    """A ResNet with its stem; ``width`` is 64 in the paper."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels_in = width
    for stage, count in enumerate(counts):
        channels = width * 2**stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Residual(block, channels_in, channels, stride))
            channels_in = block.expansion * channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, 10))


def test_resnet18() -> None:
    model = resnet(BasicBlock, (2, 2, 2, 2), 8).train()
    batches = batches_of(3, 4, 3, 64, 64, classes=10)
    make_optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    check_training(model, batches, classify, make_optimizer, rtol=2e-3, atol=2e-4)


def test_resnet50() -> None:
    """In float64: rounding grows a thousandfold through 50 batch normalizations of 16 values."""
    model = resnet(Bottleneck, (3, 4, 6, 3), 4).train().double()
    batches = batches_of(3, 4, 3, 64, 64, classes=10)
    for batch in batches:
        batch["x"] = batch["x"].double()
    make_optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    check_training(model, batches, classify, make_optimizer, rtol=1e-6, atol=1e-8)


def test_resnet_in_evaluation() -> None:
    model = resnet(BasicBlock, (1, 1, 1, 1), 8).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        model = model.to(xm.xla_device())
        before = fallbacks()
        actual = model(x.to(xm.xla_device())).cpu()
    assert fallbacks() == before
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# ---- Transformers ------------------------------------------------------------------------------

VOCABULARY = 67


def language_model(name: str, attention: str) -> nn.Module:
    """A tiny model of the transformers package, without dropout, in training mode."""
    import transformers

    common = {"vocab_size": VOCABULARY, "attn_implementation": attention}
    if name == "gpt2":
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "bos_token_id": 0}
        config = transformers.GPT2Config(**sizes, eos_token_id=0, **drops, **common)
        return transformers.GPT2LMHeadModel(config).train()
    size = common | {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    }
    if name == "bert":
        drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        return transformers.BertForMaskedLM(transformers.BertConfig(**drops, **size)).train()
    size |= {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    if name == "mixtral":  # its experts are torch._grouped_mm
        config = transformers.MixtralConfig(
            num_local_experts=4, num_experts_per_tok=2, experts_implementation="grouped_mm", **size
        )
        return transformers.MixtralForCausalLM(config).train()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).train()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mixtral"])
def test_language_model(name: str, attention: str) -> None:
    model = language_model(name, attention)
    batches = []
    for _ in range(3):
        words = torch.randint(VOCABULARY, (2, 12))
        mask = torch.ones_like(words)
        mask[1, -3:] = 0  # The second sequence is shorter.
        labels = words.masked_fill(mask == 0, -100)
        if name == "bert":
            labels = labels.masked_fill(torch.rand(words.shape) < 0.5, -100)
        batches.append({"input_ids": words, "attention_mask": mask, "labels": labels})
    check_training(model, batches, lambda m, batch: m(**batch).loss, rtol=1e-3, atol=1e-4)


def test_lazy_modules_stay_lazy(device) -> None:
    torch.manual_seed(0)
    lazy = [nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3)]
    model = nn.Sequential(*lazy).to(device)
    x = torch.randn(2, 1, 5, 5)
    model(x.to(device)).sum().backward()
    assert model[3].weight.shape == (3, 36)
    assert {p.device for p in model.parameters()} == {device}
    assert all(p.grad is not None for p in model.parameters())
    expected = copy.deepcopy(model).cpu().eval()(x)
    torch.testing.assert_close(model.eval()(x.to(device)).cpu(), expected)


def test_modules_move_in_place(device) -> None:
    """An optimizer made before has the parameters that train, as with other devices."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parameters = list(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    gradients = [p.grad.clone() for p in parameters]
    model.to(device)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.device == parameter.grad.device == device
        torch.testing.assert_close(parameter.grad.cpu(), gradient)
    expected = [(p - 0.1 * p.grad).cpu() for p in parameters]
    optimizer.step()
    model.cpu()
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.data, value.detach())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_modules_in_a_graph_move(device) -> None:
    """Parameters that a graph holds cannot move in place: the module has new ones, still tied."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    old, loss = model[0].weight, model(torch.ones(1, 3)).sum()
    model.to(device)
    assert model[0].weight is model[1].weight
    assert model[0].weight.device == device
    loss.backward()
    assert old.grad.device == torch.device("cpu")
    model(torch.ones(1, 3).to(device)).sum().backward()
    torch.testing.assert_close(model[0].weight.grad.cpu(), old.grad)


def test_tied_weights_stay_tied() -> None:
    model = language_model("gpt2", "sdpa").to(xm.xla_device())
    assert model.lm_head.weight is model.transformer.wte.weight
    model.lm_head.weight.data.add_(1)
    torch.testing.assert_close(model.lm_head.weight.cpu(), model.transformer.wte.weight.cpu())


class Tagger(nn.Module):
    """Embedding with padding, then a recurrent or a Transformer encoder; tied output weights."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.body = body
        self.output = nn.Linear(width, VOCABULARY)
        self.output.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.body(self.embedding(words))
        return self.output(x[0] if isinstance(x, tuple) else x)


@pytest.mark.parametrize(
    "make_body",
    [
        pytest.param(lambda: nn.LSTM(16, 16, num_layers=2, batch_first=True), id="lstm"),
        pytest.param(
            lambda: nn.LSTM(16, 8, batch_first=True, bidirectional=True), id="bidirectional"
        ),
        pytest.param(lambda: nn.GRU(16, 16, batch_first=True), id="gru"),
        pytest.param(lambda: nn.RNN(16, 16), id="rnn"),
        pytest.param(
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True), 1
            ),
            id="encoder",
        ),
    ],
)
def test_tagger(make_body: Callable[[], nn.Module]) -> None:
    batches = []
    for _ in range(3):
        words = torch.randint(VOCABULARY, (3, 4))
        words[0, -1:] = 0
        batches.append({"x": words, "y": words.roll(1, 1)})
    check_training(
        Tagger(make_body(), 16).train(),
        batches,
        lambda m, batch: F.cross_entropy(
            m(batch["x"]).flatten(0, 1), batch["y"].flatten(), ignore_index=0
        ),
        rtol=1e-3,
        atol=1e-4,
    )


def test_transformer() -> None:
    """nn.Transformer, with a causal mask for the decoder and a padding mask."""
    model = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True).train()

    def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(4, device=batch["y"].device)
        output = model(
            batch["x"], batch["y"], tgt_mask=causal, src_key_padding_mask=batch["padding"]
        )
        return F.mse_loss(output, batch["y"])

    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    batches = [
        {"x": torch.randn(2, 5, 16), "y": torch.randn(2, 4, 16), "padding": padding}
        for _ in range(3)
    ]
    check_training(model, batches, loss_of, rtol=1e-3, atol=1e-4)


def test_dropout_differs_from_step_to_step() -> None:
    """Random numbers need no new program, and are not the same at each step."""
    device = xm.xla_device()
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5)).to(device).train()
    x = torch.randn(4, 16).to(device)
    outputs = []
    for step in range(4):
        if step == 1:
            compiles, before = met.counter_value("UncachedCompile"), fallbacks()
        outputs.append(model(x).detach())
        torch_xla.sync()
    assert met.counter_value("UncachedCompile") == compiles
    assert fallbacks() == before
    masks = [output.cpu() == 0 for output in outputs]
    assert all(not torch.equal(a, b) for a, b in zip(masks, masks[1:], strict=False))
    share = torch.stack(masks).float().mean()
    assert 0.4 < share < 0.6


def test_backward_on_the_cpu_before_there_is_a_device() -> None:
    """Autograd starts its threads at the first backward pass, for the devices known by then."""
    program = """
import torch, torch_xla
torch.ones(2, requires_grad=True).sum().backward()
assert not torch_xla._XLAC._xla_is_initialized()
x = torch.arange(3.0, device="xla").requires_grad_()
(x * x).sum().backward()
assert x.grad.tolist() == [0, 2, 4], x.grad
"""
    python_output(program)
