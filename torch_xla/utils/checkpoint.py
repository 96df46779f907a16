"""Memory for time: what a function computes on the way is computed again when it is needed.

As :mod:`torch.utils.checkpoint`, which does the same for xla tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import (
    CheckpointFunction,
    get_device_states,
    set_device_states,
)
from torch.utils.checkpoint import checkpoint as _checkpoint


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """Calls ``function(*args)``, and again in the backward pass instead of keeping its results.

    Args:
        function: The function.
        *args: Its arguments: nested data with tensors.
        use_reentrant: See :func:`torch.utils.checkpoint.checkpoint`.
        **kwargs: Those of :func:`torch.utils.checkpoint.checkpoint` (``preserve_rng_state``,
            ``context_fn``, ``determinism_check``, ``debug``); with ``use_reentrant=False`` also of
            ``function``.
    """
    return _checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)


__all__ = ["CheckpointFunction", "checkpoint", "get_device_states", "set_device_states"]
