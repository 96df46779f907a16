"""Functions that are said to be pure: their results depend on their arguments alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

import torch_xla.core.xla_model as xm


def assume_pure(
    fn: Callable[..., Any] | None = None, *, add_rng_seed_argument: bool = False
) -> Callable[..., Any]:
    """Returns the function as it is: it is traced at each call.

    torch_xla 2.9 traces it with JAX, once for each set of shapes, to save the time of tracing. Here
    :func:`torch_xla.compile` saves that for a whole step, and without the promise.

    Args:
        fn: The function, of tensors or nested data of them; None: returns a decorator.
        add_rng_seed_argument: The function returned takes ``rng_seed`` besides, a number that alone
            says which random numbers the function draws.
    """
    if fn is None:
        return functools.partial(assume_pure, add_rng_seed_argument=add_rng_seed_argument)
    if not add_rng_seed_argument:
        return fn

    @functools.wraps(fn)
    def seeded(*args: Any, rng_seed: Any, **kwargs: Any) -> Any:
        with xm.fork_rng():
            xm.set_rng_state(int(rng_seed))
            return fn(*args, **kwargs)

    return seeded


class PureModule(nn.Module):
    """A module that is said to be pure; called as it is, see :func:`assume_pure`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)
