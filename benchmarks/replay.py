"""A replayed training step against the traced one, eager PyTorch and JAX's jitted step.

    python benchmarks/replay.py [--steps 300] [--rounds 7]

A small MLP (64-128-128-10, batch 32, SGD with momentum). All take turns in one process, round by
round: each time is the median of the rounds. *Blocking*: each step is waited for; the median of
steps. *Pipelined*: one wait behind all steps. *Host* is the time that a call takes until it
returns, where nothing is in flight; *guards* that of finding that a call is one that was recorded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
os.environ["XLA_REPLAY_CHECK"] = "0"

import torch

import torch_xla
from torch_xla import _XLAC
from torch_xla._internal.replay import functions as replay

WIDTHS = (64, 128, 128, 10)
BATCH = 32


def torch_step(device: str, wrap: Callable[..., Any]) -> tuple[Callable[[], Any], Any]:
    """Returns a step, and the function that was compiled."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for width, following in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(BATCH, WIDTHS[0]).to(device)
    y = torch.randint(0, WIDTHS[-1], (BATCH,)).to(device)

    @wrap
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x, y), (step, (x, y))


def jax_step() -> Callable[[], Any] | None:
    """The same in JAX; None where it is not installed."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    keys = jax.random.split(jax.random.key(0), 8)
    parameters = [
        (jax.random.normal(key, (a, b)) * a**-0.5, jnp.zeros(b))
        for key, a, b in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=False)
    ]
    momentum = jax.tree.map(jnp.zeros_like, parameters)
    x = jax.random.normal(keys[-1], (BATCH, WIDTHS[0]))
    y = jax.random.randint(keys[-2], (BATCH,), 0, WIDTHS[-1])

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        for weight, bias in parameters[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = parameters[-1]
        logits = jax.nn.log_softmax(x @ weight + bias)
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    def update(parameters: Any, momentum: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(parameters, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.01 * m, parameters, momentum), momentum, loss

    jitted = jax.jit(update, donate_argnums=(0, 1))
    state = [parameters, momentum]

    def step() -> Any:
        *state[:], loss = jitted(*state, x, y)
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    replayed, (function, arguments) = torch_step("xla", lambda f: torch_xla.compile(f, replay=True))
    traced, _ = torch_step("xla", torch_xla.compile)
    eager, _ = torch_step("cpu", lambda f: f)
    xla_wait = lambda _: _XLAC._xla_wait_device_ops()  # noqa: E731
    runs: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "replayed": (replayed, xla_wait),
        "traced": (traced, xla_wait),
        "eager": (eager, lambda _: None),
    }
    if (jax := jax_step()) is not None:
        runs["jax"] = (jax, lambda loss: loss.block_until_ready())
    times: dict[str, dict[str, list[float]]] = {
        name: {"blocking": [], "pipelined": [], "host": []} for name in runs
    }
    for step, wait in runs.values():
        for _ in range(10):
            wait(step())
    for _ in range(args.rounds):
        for name, (step, wait) in runs.items():
            # The median: on a busy machine some steps wait for a scheduler's tick.
            single = []
            for _ in range(args.steps):
                start = time.perf_counter()
                wait(step())
                single.append(time.perf_counter() - start)
            times[name]["blocking"].append(statistics.median(single))
            start = time.perf_counter()
            for _ in range(args.steps):
                loss = step()
            wait(loss)
            times[name]["pipelined"].append((time.perf_counter() - start) / args.steps)
            single = []
            for _ in range(args.steps):
                start = time.perf_counter()
                loss = step()
                single.append(time.perf_counter() - start)
                wait(loss)
            times[name]["host"].append(statistics.median(single))
    (state,) = function._xla_replay
    assert state.status().replayed > args.steps, state.status()
    recording = state._recordings[0]
    _XLAC._xla_wait_device_ops()
    start = time.perf_counter()
    for _ in range(args.steps):
        recording.holds(arguments, {})
    guards = (time.perf_counter() - start) / args.steps
    print(f"{'µs':<10}{'blocking':>10}{'pipelined':>11}{'host':>8}")
    for name, found in times.items():
        blocking, pipelined, host = (1e6 * statistics.median(found[key]) for key in found)
        print(f"{name:<10}{blocking:>10.0f}{pipelined:>11.0f}{host:>8.0f}")
    print(f"guards: {1e6 * guards:.1f} µs")
    print(*replay.statuses(), sep="\n")


if __name__ == "__main__":
    main()
