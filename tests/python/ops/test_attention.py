"""Attention takes the CPU's flash kernel where the CPU would, else PyTorch's composition."""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from testing.kernels import chosen, needs_calls
from testing.ops import BF16, F16, F64, INF, check_many, rand
from testing.processes import run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_xla.debug.metrics as met
from torch_xla import _XLAC

TARGET = "torch_xla.cpu_attention"
FLASH = "xla::_scaled_dot_product_flash_attention_for_cpu"


def attend(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def heads(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    batch, count, queries, keys, width = sizes
    lengths = (queries, keys, keys)
    return [
        rand(batch, count, length, width, dtype=dtype, seed=seed + i)
        for i, length in enumerate(lengths)
    ]


def flash_calls() -> int:
    return met.counter_value(FLASH) or 0


def cases(dtype: torch.dtype = torch.float32) -> list[tuple[Any, ...]]:
    small, uneven = heads(2, 3, 5, 7, 4, dtype=dtype), heads(3, 5, 6, 6, 8, dtype=dtype)
    blocked = rand(5, 7) > 0
    blocked[:, 0] = True
    nothing = blocked.clone()
    nothing[2] = False  # may attend to nothing
    numbers = torch.where(blocked, 0.5, -INF).to(dtype)
    return [
        (attend, small),
        (attend, uneven, {"is_causal": True}),
        (attend, small, {"scale": 0.3, "is_causal": True}),
        (attend, (*small, blocked)),
        (attend, (*small, nothing)),
        (lambda q, k, v: attend(q, k, v, numbers.to(q.device)), small),
        (attend, (*small, blocked[None, None].expand(2, 1, 5, 7).contiguous())),
        (attend, (small[0], small[1][:, :1], small[2][:, :1]), {"enable_gqa": True}),
        (lambda x: attend(*x.view(2, 6, 3, 3, 4).permute(3, 0, 2, 1, 4)), (rand(2, 6, 36),)),
    ]


def test_values() -> None:
    before = flash_calls()
    check_many(cases(), rtol=1e-4, atol=1e-5)
    assert flash_calls() == before + len(cases())


def test_gradients() -> None:
    """Of 256 keys and more; shorter ones are the composition's."""
    before = flash_calls()
    q, k, v = heads(2, 3, 5, 256, 8)
    mask = rand(5, 256) > 0
    mask[2] = False
    long = [
        (attend, (q, k, v)),
        (attend, (q, k, v, mask)),
        (attend, (q, k[:, :1], v[:, :1], mask), {"enable_gqa": True}),
        (attend, heads(2, 2, 260, 260, 4), {"is_causal": True, "scale": 0.2}),
        (lambda x: attend(*x.view(2, 256, 3, 3, 4).permute(3, 0, 2, 1, 4)), (rand(2, 256, 36),)),
    ]
    check_many(cases() + long, rtol=1e-4, atol=1e-5, grad=True)
    assert flash_calls() == before + len(long)


def test_half_precision() -> None:
    check_many(cases(BF16)[:5], rtol=0.02, atol=0.02)
    check_many([(attend, heads(2, 2, 5, 256, 8, dtype=BF16))], grad=True, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("sizes", [(4, 4, 64, 256, 64), (1, 5, 200, 300, 32)], ids=str)
def test_work_in_parts(sizes: tuple[int, ...]) -> None:
    mask = rand(*sizes[2:4]) > -1
    check_many(
        [
            (attend, heads(*sizes)),
            (attend, heads(*sizes), {"is_causal": True}),
            (attend, (*heads(*sizes), mask)),
        ],
        rtol=1e-4,
        atol=1e-4,
        grad=True,
    )


@pytest.mark.parametrize(
    ("name", "value", "tests"),
    [
        ("XLA_KERNELS", "attention=stablehlo", "values or gradients or half_precision"),
        # Nothing takes the flash kernel, which the others count.
        ("XLA_CPU_KERNELS", "0", "half_precision or parts"),
    ],
)
def test_without_library_calls(name: str, value: str, tests: str) -> None:
    if name in os.environ:
        pytest.skip("this run is that")
    environment = {name: value, "XLA_PERSISTENT_CACHE_PATH": ""}
    run_tests(__file__, "-k", f"({tests}) and not without", **environment)


def test_few_queries() -> None:
    """As the next word has: their keys and values are taken as a cache of them lies."""
    mask = torch.where(torch.arange(37) < 30, 0.0, -INF).expand(2, 37)
    for sizes in ((2, 3, 1, 37, 20), (1, 4, 2, 37, 64), (1, 2, 4, 4, 5), (1, 1, 1, 5000, 64)):
        q, k, v = heads(*sizes)
        cases = [(attend, (q, k, v)), (attend, (q, k, v), {"is_causal": True})]
        if sizes[3] == 37:
            cases.append((attend, (q, k, v, mask[: sizes[2]].contiguous())))
            cases.append((attend, (q, k, v, mask[: sizes[2]] == 0)))
        check_many(cases, rtol=1e-4, atol=1e-5, grad=True)
    check_many([(attend, heads(2, 3, 1, 37, 20, dtype=BF16))], rtol=0.02, atol=0.02)
    if not {"XLA_CPU_KERNELS", "XLA_KERNELS"} & set(os.environ):
        choices = _XLAC._kernel_choices()
        assert ("attention", "f32 few", "stablehlo") in choices
        assert ("attention.products", "f32 few", "library") in choices


def test_what_stays_a_composition() -> None:
    before = flash_calls()
    q, k, v = heads(2, 4, 5, 6, 4)
    mask = rand(5, 6)
    with_math = sdpa_kernel(SDPBackend.MATH)(attend)
    check_many(
        [
            (with_math, heads(1, 2, 3, 256, 4)),
            (attend, heads(2, 4, 5, 6, 4, dtype=F64)),
            (attend, (q[0], k[0], v[0])),  # three dimensions
            (attend, (q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
            (attend, (q, k[:1], v)),
            (attend, (q, k, v[..., :3])),
            (attend, (q, k, v, mask)),  # its gradient is asked for
        ],
        rtol=1e-4,
        atol=1e-5,
        grad=True,
    )
    check_many([(attend, heads(2, 4, 5, 6, 4, dtype=F16))])
    assert flash_calls() == before


def test_gradients_of_gradients_and_transforms(device: torch.device) -> None:
    """By the composition, which PyTorch on the CPU wants to be asked for."""
    q, k, v = (x.to(device) for x in heads(1, 2, 3, 3, 4))

    def loss(q: torch.Tensor) -> torch.Tensor:
        return (attend(q, k, v) ** 2).sum()

    with sdpa_kernel(SDPBackend.MATH):
        x = q.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        (first**2).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    torch.testing.assert_close(torch.func.grad(loss)(q).cpu(), first.detach().cpu())
    tangent = torch.func.jvp(loss, (q,), (q,))[1]
    torch.testing.assert_close(tangent.cpu(), (first * q).sum().detach().cpu())
    assert not loss(q).requires_grad
    batched = torch.func.vmap(lambda q: attend(q, k, v))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(batched[1].cpu(), attend(2 * q, k, v).cpu())


def test_inference_mode_and_compiled(device: torch.device) -> None:
    q, k, v = heads(2, 2, 5, 5, 4)
    expected = attend(q, k, v, is_causal=True)
    before = flash_calls()
    with torch.inference_mode():
        result = attend(*(x.to(device) for x in (q, k, v)), is_causal=True)
        torch.testing.assert_close(result.cpu(), expected)
    assert flash_calls() == before + 1
    compiled = torch.compile(attend, backend="openxla")
    q, k, v = heads(1, 2, 256, 256, 4)
    expected = attend(q, k, v, is_causal=True)
    x = [x.to(device).requires_grad_() for x in (q, k, v)]
    y = [x.clone().requires_grad_() for x in (q, k, v)]
    result = compiled(*x, is_causal=True)
    torch.testing.assert_close(result.cpu(), expected)
    result.sum().backward()
    attend(*y, is_causal=True).sum().backward()
    for a, e in zip(x, y, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-4, atol=1e-5)


@needs_calls
def test_only_programs_that_run_here_call_the_library(device: torch.device) -> None:
    q, k, v = (x.to(device) for x in heads(2, 2, 5, 5, 4))
    assert TARGET not in _XLAC._get_xla_tensors_hlo([attend(q, k, v)])
    attend(q, k, v).cpu()
    assert "f32 many" in chosen("attention")
