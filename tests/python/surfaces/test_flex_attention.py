"""``flex_attention`` on xla: PyTorch's code, called, compiled and recorded, against the CPU's."""

import pytest
import torch
from testing.ops import rand
from torch.nn.attention import flex_attention as flex

import torch_xla

LENGTH = 12
DOCUMENTS = torch.tensor([0] * 5 + [1] * 7)


def _masks(device):
    documents = DOCUMENTS.to(device)
    return {
        "none": None,
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j < 4),
        "documents": lambda b, h, i, j: documents[i] == documents[j],
        "heads": lambda b, h, i, j: (i >= j) | (h == 1),
    }


def _mods(bias):
    return {
        "none": None,
        "relative": lambda score, b, h, i, j: score + (j - i) * 0.1,
        "cap": lambda score, b, h, i, j: 2 * torch.tanh(score / 2),
        "learned": lambda score, b, h, i, j: score + bias[h, i - j],
    }


CASES = [
    ("none", "cap"), ("documents", "learned"), ("window", "relative"), ("heads", "none"),
]  # fmt: skip


def _expected(tensors, bias, mask, mod):
    """The formula, as autograd of the CPU knows no backward of PyTorch's function."""
    query, key, value = tensors
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    b, h, i, j = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if (modify := _mods(bias)[mod]) is not None:
        scores = modify(scores, b, h, i, j)
    if (allowed := _masks("cpu")[mask]) is not None:
        scores = scores.masked_fill(~allowed(b, h, i, j), -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _attend(function, tensors, bias, mask, mod):
    device = tensors[0].device
    blocks = None
    if (allowed := _masks(device)[mask]) is not None:
        batch, heads = tensors[0].shape[:2]
        length = (LENGTH, LENGTH)
        blocks = flex.create_block_mask(allowed, batch, heads, *length, device, BLOCK_SIZE=4)
    aux = flex.AuxRequest(lse=True)
    grouped = tensors[0].shape[1] != tensors[1].shape[1]
    result, more = function(
        *tensors, score_mod=_mods(bias)[mod], block_mask=blocks, enable_gqa=grouped, return_aux=aux
    )
    return result, more.lse


def _leaves(device, key_heads=2):
    shapes = ((2, 2, LENGTH, 8), (2, key_heads, LENGTH, 8), (2, key_heads, LENGTH, 6))
    tensors = [rand(*shape, seed=seed) - 0.5 for seed, shape in enumerate(shapes)]
    tensors.append(rand(2, LENGTH, seed=9))
    return [tensor.to(device).requires_grad_() for tensor in tensors]


def _check(attend, device, mask, mod, key_heads=2):
    *tensors, bias = leaves = _leaves(device, key_heads)
    *reference, reference_bias = reference_leaves = _leaves("cpu", key_heads)
    weights = rand(2, 2, LENGTH, 6, seed=5)
    found = attend(tensors, bias, mask, mod)
    expected = _expected(reference, reference_bias, mask, mod)
    ((found[0] * weights.to(device)).sum() + found[1].sum()).backward()
    ((expected[0] * weights).sum() + expected[1].sum()).backward()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(leaves, reference_leaves, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("mask", "mod"), CASES)
def test_called(device, mask, mod):
    _check(lambda *args: _attend(flex.flex_attention, *args), device, mask, mod)


@pytest.mark.parametrize(("backend", "cases"), [("openxla", CASES[:3]), ("inductor", CASES[1:2])])
def test_compiled(device, backend, cases):
    """By name, and as torch.compile does without a name."""
    compiled = torch.compile(flex.flex_attention, backend=backend)
    for mask, mod in cases:
        torch._dynamo.reset()
        _check(lambda *args: _attend(compiled, *args), device, mask, mod)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_grouped_heads(device):
    _check(lambda *args: _attend(flex.flex_attention, *args), device, "causal", "none", 1)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_model(device, dtype):
    """Blocks that are made once, a step that is compiled, autocast."""
    weight = rand(8, 24, seed=3) - 0.5

    def step(x, weight, blocks):
        batch, length, width = x.shape
        with torch.autocast(x.device.type, dtype):
            heads = (x @ weight).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            return flex.flex_attention(*heads, block_mask=blocks).float()

    results = {}
    for name in ("cpu", device):
        blocks = flex.create_block_mask(
            _masks(name)["causal"], None, None, LENGTH, LENGTH, name, BLOCK_SIZE=4
        )
        functions = [step] if name == "cpu" else [step, torch_xla.compile(step)]
        for function in functions:
            for seed in range(3):
                x = rand(2, LENGTH, 8, seed=seed)
                with torch.no_grad():
                    result = function(x.to(name), weight.to(name), blocks).cpu()
                if name == "cpu":
                    results[seed] = result
                torch.testing.assert_close(result, results[seed], rtol=2e-2, atol=2e-2)


def test_the_cpu_keeps_its_answer():
    x = rand(1, 1, 4, 4).requires_grad_()
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex.flex_attention(x, x, x)
