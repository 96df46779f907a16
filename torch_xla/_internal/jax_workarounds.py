"""Guards that programs put around calls of JAX's kernels."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from torch_xla._internal.device import module as device_module

_F = TypeVar("_F", bound=Callable[..., Any])


def jax_import_guard() -> None:
    """Makes this process's PJRT client before JAX can take the devices."""
    device_module.init()


def jax_env_context() -> contextlib.AbstractContextManager[None]:
    """Changes nothing: JAX only traces here, and needs no environment of its own."""
    return contextlib.nullcontext()


def requires_jax(func: _F) -> _F:
    """Decorates a function that imports JAX: an ImportError names it where it is not installed."""

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if importlib.util.find_spec("jax") is None:
            raise ImportError(f"{func.__name__}() needs jax, which is not installed")
        jax_import_guard()
        return func(*args, **kwargs)

    return guarded  # type: ignore[return-value]
