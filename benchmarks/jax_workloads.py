"""The jobs of ``workloads.py`` in JAX, with the same weights, batches and optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax_models
import models
import torch
import workloads
from jax_layers import Parameters, binary_cross_entropy, cross_entropy
from torch import nn

# Of parameters, buffers, inputs and targets; returns the new buffers, too.
Loss = Callable[[Parameters, Parameters, Any, Any], tuple[Any, Parameters]]


class Job(NamedTuple):
    """One step, whose result can be waited for."""

    step: Callable[[], Any]
    warm_up: int = 3  # steps until nothing is compiled any more


# ---------------------------------------------------------------- losses


def _plain(forward: Callable[[Parameters, Any], Any], loss: Any = cross_entropy) -> Loss:
    return lambda p, buffers, x, target: (loss(forward(p, x), target), buffers)


def _images(forward: Callable[[Parameters, Parameters, Any], Any]) -> Loss:
    """Of a net with batch norms; images are [N, C, H, W], as a loader gives them."""

    def loss(p: Parameters, buffers: Parameters, x: Any, target: Any) -> tuple[Any, Parameters]:
        buffers = dict(buffers)
        logits = forward(p, buffers, x.transpose(0, 2, 3, 1))
        return cross_entropy(logits, target), buffers

    return loss


def _bert_loss(p: Parameters, buffers: Parameters, x: Any, target: Any) -> tuple[Any, Parameters]:
    key, use = jax.random.split(buffers["key"])
    return cross_entropy(jax_models.bert(p, x, use), target), {"key": key}


def _next_word(logits: Any, words: Any) -> Any:
    return cross_entropy(logits[:, :-1], words[:, 1:])


# ---------------------------------------------------------------- optimizers


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


# ---------------------------------------------------------------- steps


def _arrays(batch: workloads.Batch) -> list[Any]:
    return [jnp.asarray(tensor.numpy()) for tensor in batch]


def _tree(items: Iterable[tuple[str, torch.Tensor]]) -> Parameters:
    return {name: jnp.array(tensor.detach().numpy()) for name, tensor in items}


def _parameters(model: nn.Module) -> Parameters:
    """Returns a model's parameters in the order of ``jax_layers``."""
    p = _tree(model.named_parameters())
    orders = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
    for prefix, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.LSTM, nn.Conv2d)):
            for name, tensor in module.named_parameters(prefix, recurse=False):
                p[name] = p[name].transpose(orders[tensor.ndim])
    return p


def _train(
    workload: models.Workload,
    batches: Iterator[Any],
    loss_of: Loss,
    arrange: Callable[[Parameters], Parameters] = dict,
) -> Callable[[], Any]:
    """Returns a step of training on the next batch, with the parameters arranged for the loss."""
    p = arrange(_parameters(workload.model))
    buffers = _tree(workload.model.named_buffers()) | {"key": jax.random.key(0)}
    zeros = jax.tree.map(jnp.zeros_like, p)
    adamw = workload.make_optimizer is models.adamw
    update = _adamw_update if adamw else _sgd_update
    state = (jnp.zeros(()), zeros, jax.tree.map(jnp.copy, zeros)) if adamw else zeros

    def step(p: Any, buffers: Any, state: Any, inputs: Any, target: Any) -> Any:
        (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(
            p, buffers, inputs, target
        )
        p, state = update(p, grads, state)
        return p, buffers, state, loss

    jitted = jax.jit(step, donate_argnums=(0, 1, 2))
    carried = [p, buffers, state]

    def run() -> Any:
        *carried[:], loss = jitted(*carried, *next(batches))
        return loss

    return run


def _gpt2() -> Job:
    model, words = workloads.gpt2_inputs()
    p, inputs = _parameters(model), _arrays([words])
    jitted = jax.jit(jax_models.gpt2)
    return Job(lambda: jitted(p, *inputs))


def _llama_decode() -> Job:
    model = workloads.Llama()
    p = _parameters(model)
    shape = (workloads.DECODE_ROWS, 4, workloads.DECODE_ROOM, model.dims)
    caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in model.layers]

    def step(p: Any, caches: Any, words: Any, place: Any) -> Any:
        logits, caches = jax_models.llama_next(p, caches, words, place)
        return caches, logits.argmax(-1), (place + 1) % workloads.DECODE_ROOM

    jitted = jax.jit(step, donate_argnums=1)
    carried = [caches, jnp.zeros((workloads.DECODE_ROWS, 1), int), jnp.zeros((), int)]

    def run() -> Any:
        carried[:] = jitted(p, *carried)
        return carried[1]

    return Job(run)


def _train_small_cnn(workload: models.Workload, batches: Iterator[Any]) -> Callable[[], Any]:
    return _train(workload, batches, _images(jax_models.small_cnn))


def _recompile() -> Job:
    batches = [_arrays(batch) for batch in workloads.batches_of_sizes()]
    step = _train_small_cnn(workloads.small_cnn_workload(), itertools.cycle(batches))
    return Job(step, 2 * len(batches))


def _data_bound() -> Job:
    workload = workloads.small_cnn_workload()
    loader = iter(workloads.image_loader())  # Its worker is forked before JAX has threads.
    # A jitted function takes NumPy's arrays without a copy; jnp.asarray makes one.
    return Job(_train_small_cnn(workload, ([x.numpy() for x in batch] for batch in loader)))


# ---------------------------------------------------------------- jobs


def _trained(
    make: Callable[[], models.Workload],
    loss: Loss,
    arrange: Callable[[Parameters], Parameters] = dict,
) -> Callable[[], Job]:
    """Returns what makes the job of a workload's training."""

    def job() -> Job:
        workload = make()
        return Job(_train(workload, itertools.repeat(_arrays(workload.batch)), loss, arrange))

    return job


_JOBS: dict[str, Callable[[], Job]] = {
    "mlp": _trained(models.mlp_workload, _plain(jax_models.mlp)),
    "resnet18": _trained(models.resnet18_workload, _images(jax_models.resnet18)),
    "bert": _trained(models.bert_workload, _bert_loss),
    "resnet50": _trained(workloads.resnet50_workload, _images(jax_models.resnet50)),
    "vit": _trained(workloads.vit_workload, _plain(jax_models.vit)),
    "gpt2": _gpt2,
    "llama": _trained(workloads.llama_workload, _plain(jax_models.llama, _next_word)),
    "llama_decode": _llama_decode,
    "lstm": _trained(workloads.lstm_workload, _plain(jax_models.recurrent)),
    "dlrm": _trained(workloads.dlrm_workload, _plain(jax_models.dlrm, binary_cross_entropy)),
    "scan48": _trained(
        workloads.scan48_workload,
        _plain(jax_models.scanned_gpt, _next_word),
        jax_models.stack_blocks,
    ),
    "recompile": _recompile,
    "data_bound": _data_bound,
}


def make(name: str) -> Job:
    """Returns a job of ``workloads.py``."""
    torch.manual_seed(0)
    return _JOBS[name]()
