"""Some of the jobs of ``workloads.py`` in JAX, with the same weights and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import torch
import workloads

Parameters = dict[str, Any]
Loss = Callable[[Parameters, Parameters, Any, Any, Any], tuple[Any, Parameters]]


def _linear(p: Parameters, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _norm(p: Parameters, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * p[f"{name}.weight"] + p[f"{name}.bias"]


def _dropout(x: Any, key: Any, rate: float = 0.1) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _attend(q: Any, k: Any, v: Any, heads: int, causal: bool, key: Any = None) -> Any:
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    if key is not None:
        weights = _dropout(weights, key)
    out = jnp.einsum("nhqk,nkhd->nqhd", weights, v)
    return out.reshape(*out.shape[:2], -1)


def _cross_entropy(logits: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[..., None], -1).mean()


def _mlp_loss(p: Parameters, buffers: Parameters, x: Any, target: Any, _: Any) -> Any:
    for i in (0, 2, 4):
        x = jax.nn.relu(_linear(p, str(i), x))
    return _cross_entropy(_linear(p, "6", x), target), buffers


def _resnet18_loss(p: Parameters, buffers: Parameters, x: Any, target: Any, _: Any) -> Any:
    new = dict(buffers)

    def conv(name: str, x: Any, stride: int, padding: int) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            p[f"{name}.weight"],
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def norm(name: str, x: Any) -> Any:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        for what, value in (("mean", mean), ("var", var)):
            key = f"{name}.running_{what}"
            new[key] = 0.9 * buffers[key] + 0.1 * value
        x = (x - mean) * jax.lax.rsqrt(var + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = jax.nn.relu(norm("1", conv("0", x, 2, 3)))
    x = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]
    )
    for i in range(8):
        name = str(4 + i)
        stride = 2 if i in (2, 4, 6) else 1
        y = jax.nn.relu(norm(f"{name}.bn1", conv(f"{name}.conv1", x, stride, 1)))
        y = norm(f"{name}.bn2", conv(f"{name}.conv2", y, 1, 1))
        if stride == 2:
            x = norm(f"{name}.shortcut.1", conv(f"{name}.shortcut.0", x, 2, 0))
        x = jax.nn.relu(x + y)
    return _cross_entropy(_linear(p, "14", x.mean((1, 2))), target), new


def _bert_loss(p: Parameters, buffers: Parameters, words: Any, target: Any, key: Any) -> Any:
    keys = iter(jax.random.split(key, 1 + 3 * 4))
    x = p["word.weight"][words] + p["position.weight"][: words.shape[1]] + p["kind.weight"][0]
    x = _dropout(_norm(p, "norm", x, 1e-12), next(keys))
    for i in range(4):
        name = f"layers.{i}"
        q, k, v = (_linear(p, f"{name}.{part}", x) for part in ("query", "key", "value"))
        y = _linear(p, f"{name}.output", _attend(q, k, v, 4, causal=False, key=next(keys)))
        x = _norm(p, f"{name}.norm1", x + _dropout(y, next(keys)), 1e-12)
        y = _linear(p, f"{name}.down", jax.nn.gelu(_linear(p, f"{name}.up", x), approximate=False))
        x = _norm(p, f"{name}.norm2", x + _dropout(y, next(keys)), 1e-12)
    x = jax.nn.gelu(_linear(p, "transform.0", x), approximate=False)
    logits = _norm(p, "transform.2", x) @ p["word.weight"].T + p["bias"]
    return _cross_entropy(logits, target), buffers


def _gpt2(p: Parameters, words: Any) -> Any:
    x = p["word.weight"][words] + p["position.weight"][: words.shape[1]]
    for i in range(8):
        name = f"blocks.{i}"
        q, k, v = jnp.split(_linear(p, f"{name}.qkv", _norm(p, f"{name}.norm1", x)), 3, -1)
        x = x + _linear(p, f"{name}.output", _attend(q, k, v, 8, causal=True))
        y = jax.nn.gelu(_linear(p, f"{name}.up", _norm(p, f"{name}.norm2", x)))
        x = x + _linear(p, f"{name}.down", y)
    return _linear(p, "head", _norm(p, "norm", x))


def _tree(items: Any) -> Parameters:
    return {name: jnp.asarray(x.detach().numpy()) for name, x in items}


def _sgd_update(p: Parameters, grads: Parameters, state: Any) -> tuple[Parameters, Any]:
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda w, m: w - 0.01 * m, p, state), state


def _adamw_update(p: Parameters, grads: Parameters, state: Any) -> tuple[Parameters, Any]:
    count, m, v = state
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    first, second = 1 - 0.9**count, 1 - 0.999**count

    def updated(w: Any, m: Any, v: Any) -> Any:
        return w * (1 - 1e-4 * 0.01) - 1e-4 * (m / first) / (jnp.sqrt(v / second) + 1e-8)

    return jax.tree.map(updated, p, m, v), (count, m, v)


def _training(workload: models.Workload, loss_of: Loss, images: bool) -> Callable[[], Any]:
    p, buffers = _tree(workload.model.named_parameters()), _tree(workload.model.named_buffers())
    inputs, target = (jnp.asarray(tensor.numpy()) for tensor in workload.batch)
    if images:  # JAX's own order, in which convolutions are fastest
        inputs = inputs.transpose(0, 2, 3, 1)
        p = {name: x.transpose(2, 3, 1, 0) if x.ndim == 4 else x for name, x in p.items()}
    zeros = jax.tree.map(jnp.zeros_like, p)
    adamw = workload.make_optimizer is models.adamw
    update = _adamw_update if adamw else _sgd_update
    state = (jnp.zeros(()), zeros, jax.tree.map(jnp.copy, zeros)) if adamw else zeros

    def step(p: Any, buffers: Any, state: Any, key: Any) -> Any:
        key, use = jax.random.split(key)
        (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(
            p, buffers, inputs, target, use
        )
        p, state = update(p, grads, state)
        return p, buffers, state, key, loss

    jitted = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    carried = [p, buffers, state, jax.random.key(0)]

    def run() -> Any:
        *carried[:], loss = jitted(*carried)
        return loss

    return run


def make(name: str) -> Callable[[], Any] | None:
    """Returns a step of the job, whose result can be waited for; None where there is none."""
    losses: dict[str, Loss] = {"mlp": _mlp_loss, "resnet18": _resnet18_loss, "bert": _bert_loss}
    torch.manual_seed(0)
    if name in losses:
        return _training(models.WORKLOADS[name](), losses[name], images=name == "resnet18")
    if name == "gpt2":
        p = _tree(workloads.Gpt(50257, 512, 8, 8).named_parameters())
        words = jnp.asarray(torch.randint(50257, (1, 128)).numpy())
        jitted = jax.jit(_gpt2)
        return lambda: jitted(p, words)
    return None
