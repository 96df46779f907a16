"""Layers in JAX, as fast as they come on a CPU, by the names of PyTorch's parameters.

Weights of products are [in, out], of convolutions [H, W, in, out]; images are [N, H, W, C].
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, Any]


@jax.custom_vjp
def _with_gradient_once(x: Any) -> Any:
    return x


# Two products read the gradient of a product. Without the barrier XLA computes what is elementwise
# in it for each of them, and transposed for one, which is slow.
_with_gradient_once.defvjp(
    lambda x: (x, None), lambda _, grad: (jax.lax.optimization_barrier(grad),)
)


def product(x: Any, weight: Any) -> Any:
    """Returns [..., out] of [..., in] and [in, out]."""
    rows = x.reshape(-1, x.shape[-1])  # The gradient by a matrix needs no transposed copy.
    return _with_gradient_once(rows @ weight).reshape(*x.shape[:-1], -1)


def linear(p: Parameters, name: str, x: Any) -> Any:
    y = product(x, p[f"{name}.weight"])
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def layer_norm(p: Parameters, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * p[f"{name}.weight"] + p[f"{name}.bias"]


def rms_norm(p: Parameters, name: str, x: Any) -> Any:
    epsilon = jnp.finfo(x.dtype).eps  # PyTorch's default
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon) * p[f"{name}.weight"]


def dropout(x: Any, key: Any, rate: float = 0.1) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def heads(x: Any, count: int) -> Any:
    """Splits [N, T, width] into [N, count, T, width / count]."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def rotation(places: Any, dims: int) -> Any:
    """Returns the cosines and sines, [T, dims], that ``rotate`` turns words at places by."""
    rate = 10000 ** (-jnp.arange(0, dims, 2) / dims)
    angle = jnp.tile(places[:, None] * rate, 2)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Any, turn: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    return x * turn[0] + jnp.concatenate([-b, a], -1) * turn[1]


def causal(length: int) -> Any:
    """Returns which words a word sees: itself and those before it."""
    return jnp.tril(jnp.ones((length, length), bool))


def attend(q: Any, k: Any, v: Any, mask: Any = None, key: Any = None) -> Any:
    """Returns [N, T, width] of heads; dropout where a key is given."""
    scores = jnp.einsum("nhqd,nhkd->nhqk", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    if key is not None:
        weights = dropout(weights, key)
    out = jnp.einsum("nhqk,nhkd->nqhd", weights, v)
    return out.reshape(*out.shape[:2], -1)


def _patches(x: Any, size: int, stride: int) -> Any:
    """Returns [N, H', W', size * size * C]: what each place of a convolution sees."""
    height, width = (stride * ((length - size) // stride) + 1 for length in x.shape[1:3])
    offsets = itertools.product(range(size), repeat=2)
    parts = [x[:, i : i + height : stride, j : j + width : stride] for i, j in offsets]
    return jnp.concatenate(parts, -1)


def conv(p: Parameters, name: str, x: Any, stride: int, padding: int) -> Any:
    weight = p[f"{name}.weight"]
    if len(weight) == 1 or x.shape[1] <= 4 * stride:
        # Of 1x1 XLA transposes weights and images for the gradient; to give 16x2x2x512 by 3x3 its
        # convolution takes 455 ms, this 3.
        x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        y = product(_patches(x, weight.shape[0], stride), weight.reshape(-1, weight.shape[-1]))
    else:
        y = jax.lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def batch_norm(p: Parameters, buffers: Parameters, name: str, x: Any) -> Any:
    """Normalizes by the batch; replaces the running statistics in ``buffers``."""
    # The mean of squares: a pass fewer, and half the gradient of what jnp.var does.
    mean = x.mean((0, 1, 2))
    var = (x * x).mean((0, 1, 2)) - mean * mean
    count = x.size // x.shape[-1]
    for what, value in (("mean", mean), ("var", var * (count / (count - 1)))):
        key = f"{name}.running_{what}"
        buffers[key] = 0.9 * buffers[key] + 0.1 * value
    scale = jax.lax.rsqrt(var + 1e-5) * p[f"{name}.weight"]
    return x * scale + (p[f"{name}.bias"] - mean * scale)


def max_pool(x: Any) -> Any:
    """The most of 3x3 with stride 2 and padding 1, of even heights and widths."""
    # By rows, then by columns: reduce_window has a gradient that takes ten times as long.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    x = jnp.maximum(jnp.maximum(x[:, :-2:2], x[:, 1:-1:2]), x[:, 2::2])
    return jnp.maximum(jnp.maximum(x[:, :, :-2:2], x[:, :, 1:-1:2]), x[:, :, 2::2])


def lstm(p: Parameters, name: str, layer: int, x: Any) -> Any:
    """Runs a layer over [T, N, in] from zeros; returns [T, N, width]."""
    of_input, of_state = (p[f"{name}.weight_{of}_l{layer}"] for of in ("ih", "hh"))
    bias = p[f"{name}.bias_ih_l{layer}"] + p[f"{name}.bias_hh_l{layer}"]
    # The inputs' part of all gates is one product, before the loop.
    return _recur(product(x, of_input) + bias, of_state)


def _hidden(gates: Any, weight: Any) -> Any:
    def step(carried: Any, gates: Any) -> Any:
        h, c = carried
        i, f, g, o = jnp.split(gates + h @ weight, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((gates.shape[1], weight.shape[0]))
    return jax.lax.scan(step, (zeros, zeros), gates)[1]


@jax.custom_vjp
def _recur(gates: Any, weight: Any) -> Any:
    return _hidden(gates, weight)


def _recur_forward(gates: Any, weight: Any) -> tuple[Any, Any]:
    hidden, pull = jax.vjp(lambda gates: _hidden(gates, weight), gates)
    return hidden, (hidden, pull)


def _recur_backward(saved: Any, grad: Any) -> tuple[Any, Any]:
    hidden, pull = saved
    (grad,) = pull(grad)
    # The weight's gradient is one product behind the loop, not a sum in it.
    return grad, jnp.einsum("tnh,tng->hg", hidden[:-1], grad[1:])


_recur.defvjp(_recur_forward, _recur_backward)


def cross_entropy(logits: Any, target: Any) -> Any:
    # Not by log_softmax, which writes all its logarithms.
    picked = jnp.take_along_axis(logits, target[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def binary_cross_entropy(logits: Any, target: Any) -> Any:
    return (jax.nn.softplus(logits) - logits * target).mean()
