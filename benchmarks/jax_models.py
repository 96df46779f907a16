"""The models of ``models.py`` and ``workloads.py`` in JAX, by PyTorch's parameters.

Parameters and buffers go by the names of the modules; a net with batch norms replaces its buffers.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax_layers as nn
from jax_layers import Parameters


def mlp(p: Parameters, x: Any) -> Any:
    for i in (0, 2, 4):
        x = jax.nn.relu(nn.linear(p, str(i), x))
    return nn.linear(p, "6", x)


def _basic_block(p: Parameters, buffers: Parameters, name: str, x: Any, stride: int) -> Any:
    y = nn.conv(p, f"{name}.conv1", x, stride, 1)
    y = nn.conv(p, f"{name}.conv2", jax.nn.relu(nn.batch_norm(p, buffers, f"{name}.bn1", y)), 1, 1)
    return nn.batch_norm(p, buffers, f"{name}.bn2", y)


def _bottleneck(p: Parameters, buffers: Parameters, name: str, x: Any, stride: int) -> Any:
    y = nn.conv(p, f"{name}.body.0", x, 1, 0)
    y = jax.nn.relu(nn.batch_norm(p, buffers, f"{name}.body.1", y))
    y = nn.conv(p, f"{name}.body.3", y, stride, 1)
    y = jax.nn.relu(nn.batch_norm(p, buffers, f"{name}.body.4", y))
    return nn.batch_norm(p, buffers, f"{name}.body.7", nn.conv(p, f"{name}.body.6", y, 1, 0))


def _resnet(p: Parameters, buffers: Parameters, x: Any, block: Any, blocks: int) -> Any:
    x = nn.batch_norm(p, buffers, "1", nn.conv(p, "0", x, 2, 3))
    x = nn.max_pool(jax.nn.relu(x))
    for i in range(4, 4 + blocks):
        has_shortcut = f"{i}.shortcut.0.weight" in p
        stride = 2 if has_shortcut and i > 4 else 1
        y = block(p, buffers, str(i), x, stride)
        if has_shortcut:
            x = nn.conv(p, f"{i}.shortcut.0", x, stride, 0)
            x = nn.batch_norm(p, buffers, f"{i}.shortcut.1", x)
        x = jax.nn.relu(x + y)
    return nn.linear(p, str(6 + blocks), x.mean((1, 2)))


def resnet18(p: Parameters, buffers: Parameters, x: Any) -> Any:
    return _resnet(p, buffers, x, _basic_block, 8)


def resnet50(p: Parameters, buffers: Parameters, x: Any) -> Any:
    return _resnet(p, buffers, x, _bottleneck, 16)


def small_cnn(p: Parameters, buffers: Parameters, x: Any) -> Any:
    for i in (0, 3, 6):
        x = jax.nn.relu(nn.batch_norm(p, buffers, str(i + 1), nn.conv(p, str(i), x, 2, 1)))
    return nn.linear(p, "11", x.mean((1, 2)))


def bert(p: Parameters, words: Any, key: Any) -> Any:
    keys = iter(jax.random.split(key, 1 + 3 * 4))
    x = p["word.weight"][words] + p["position.weight"][: words.shape[1]] + p["kind.weight"][0]
    x = nn.dropout(nn.layer_norm(p, "norm", x, 1e-12), next(keys))
    for i in range(4):
        name = f"layers.{i}"
        qkv = (nn.linear(p, f"{name}.{part}", x) for part in ("query", "key", "value"))
        y = nn.attend(*(nn.heads(part, 4) for part in qkv), key=next(keys))
        y = nn.dropout(nn.linear(p, f"{name}.output", y), next(keys))
        x = nn.layer_norm(p, f"{name}.norm1", x + y, 1e-12)
        y = jax.nn.gelu(nn.linear(p, f"{name}.up", x), approximate=False)
        y = nn.dropout(nn.linear(p, f"{name}.down", y), next(keys))
        x = nn.layer_norm(p, f"{name}.norm2", x + y, 1e-12)
    x = jax.nn.gelu(nn.linear(p, "transform.0", x), approximate=False)
    x = nn.layer_norm(p, "transform.2", x)
    return nn.product(x, p["word.weight"].T) + p["bias"]


def _block(p: Parameters, name: str, x: Any, count: int, mask: Any = None) -> Any:
    """Attention and MLP, of so many heads, as ``workloads.Block``."""
    qkv = jnp.split(nn.linear(p, f"{name}.qkv", nn.layer_norm(p, f"{name}.norm1", x)), 3, -1)
    y = nn.attend(*(nn.heads(part, count) for part in qkv), mask)
    x = x + nn.linear(p, f"{name}.output", y)
    y = jax.nn.gelu(nn.linear(p, f"{name}.up", nn.layer_norm(p, f"{name}.norm2", x)))
    return x + nn.linear(p, f"{name}.down", y)


def vit(p: Parameters, x: Any) -> Any:
    n, channels, height, width = x.shape
    x = x.reshape(n, channels, height // 8, 8, width // 8, 8).transpose(0, 2, 4, 3, 5, 1)
    x = nn.product(x.reshape(n, -1, 64 * channels), p["patches.weight"].reshape(64 * channels, -1))
    x = x + p["patches.bias"] + p["position"]
    for i in range(6):
        x = _block(p, f"blocks.{i}", x, 3)
    return nn.linear(p, "head", nn.layer_norm(p, "norm", x).mean(1))


def _gpt(p: Parameters, words: Any, run_blocks: Any) -> Any:
    x = p["word.weight"][words] + p["position.weight"][: words.shape[1]]
    x = run_blocks(x, nn.causal(words.shape[1]))
    return nn.linear(p, "head", nn.layer_norm(p, "norm", x))


def gpt2(p: Parameters, words: Any) -> Any:
    def run_blocks(x: Any, mask: Any) -> Any:
        for i in range(8):
            x = _block(p, f"blocks.{i}", x, 8, mask)
        return x

    return _gpt(p, words, run_blocks)


def stack_blocks(p: Parameters) -> Parameters:
    """Makes one array of the same weight of all blocks."""
    names = {name.split(".", 2)[2] for name in p if name.startswith("blocks.")}
    stacked = {
        f"blocks.{name}": jnp.stack([p[f"blocks.{i}.{name}"] for i in range(48)]) for name in names
    }
    return {name: x for name, x in p.items() if not name.startswith("blocks.")} | stacked


def scanned_gpt(p: Parameters, words: Any) -> Any:
    """A GPT whose blocks are stacked, in one loop."""
    blocks = {name: x for name, x in p.items() if name.startswith("blocks.")}

    def run_blocks(x: Any, mask: Any) -> Any:
        # Computed again for the gradient: a third less time than to write it all and read it.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def run_block(x: Any, block: Parameters) -> tuple[Any, None]:
            return _block(block, "blocks", x, 2, mask), None

        return jax.lax.scan(run_block, x, blocks)[0]

    return _gpt(p, words, run_blocks)


def _llama_layer(
    p: Parameters, name: str, x: Any, turn: Any, mask: Any, cache: Any = None, place: Any = None
) -> tuple[Any, Any]:
    """Returns the output, and the keys and values: the cache, if any, with the new ones in it."""
    qkv = jnp.split(nn.linear(p, f"{name}.qkv", nn.rms_norm(p, f"{name}.norm1", x)), 3, -1)
    q, k, v = (nn.heads(part, 4) for part in qkv)
    q, k = nn.rotate(q, turn), nn.rotate(k, turn)
    if cache:
        update = jax.lax.dynamic_update_slice_in_dim
        k, v = (update(old, new, place, 2) for old, new in zip(cache, (k, v), strict=True))
    x = x + nn.linear(p, f"{name}.output", nn.attend(q, k, v, mask))
    y = nn.rms_norm(p, f"{name}.norm2", x)
    y = jax.nn.silu(nn.linear(p, f"{name}.gate", y)) * nn.linear(p, f"{name}.up", y)
    return x + nn.linear(p, f"{name}.down", y), (k, v)


def llama(p: Parameters, words: Any) -> Any:
    x, length = p["word.weight"][words], words.shape[1]
    turn, mask = nn.rotation(jnp.arange(length), 64), nn.causal(length)
    for i in range(6):
        x, _ = _llama_layer(p, f"layers.{i}", x, turn, mask)
    return nn.linear(p, "head", nn.rms_norm(p, "norm", x))


def llama_next(p: Parameters, caches: list[Any], words: Any, place: Any) -> tuple[Any, list[Any]]:
    """Returns the logits behind words [N, 1] at a place, and the caches with them."""
    x, new = p["word.weight"][words], []
    turn, mask = nn.rotation(place[None], 64), jnp.arange(caches[0][0].shape[2]) <= place
    for i, cache in enumerate(caches):
        x, cache = _llama_layer(p, f"layers.{i}", x, turn, mask, cache, place)
        new.append(cache)
    return nn.linear(p, "head", nn.rms_norm(p, "norm", x)), new


def recurrent(p: Parameters, x: Any) -> Any:
    x = x.swapaxes(0, 1)
    for layer in range(2):
        x = nn.lstm(p, "lstm", layer, x)
    return nn.linear(p, "head", x[-1])


def dlrm(p: Parameters, x: Any) -> Any:
    dense = nn.linear(p, "bottom.2", jax.nn.relu(nn.linear(p, "bottom.0", x[:, :13])))
    rows = x[:, 13:].astype(int).reshape(-1, 8, 4)
    bags = [p[f"tables.{i}.weight"][rows[:, i]].sum(1) for i in range(8)]
    each = jnp.stack([dense, *bags], 1)
    products = each @ each.swapaxes(1, 2)
    pairs = [products[:, i, i + 1 :] for i in range(8)]
    x = jnp.concatenate([dense, *pairs], 1)
    return nn.linear(p, "top.2", jax.nn.relu(nn.linear(p, "top.0", x)))[:, 0]
