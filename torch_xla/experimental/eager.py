"""Eager mode: each operator runs when it is called, as on other devices.

For looking into a program, and for code whose graphs never repeat. What :func:`torch_xla.compile`
wraps is traced and compiled as a whole in this mode, too. ``XLA_USE_EAGER_DEBUG_MODE=1`` makes
each operator wait for its end, so that an error of the device is raised at the line that caused it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_xla._internal.compile import eager


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off, for this thread and the backward passes that it starts.

    Args:
        enable: Whether each operator runs at once, or graphs are traced until a cut.
    """
    if not isinstance(enable, bool):
        raise TypeError(f"eager_mode(): expected `enable` to be a bool, got {enable!r}")
    eager.set_enabled(enable)


def is_eager_mode() -> bool:
    """Returns whether eager mode is on."""
    return eager.is_enabled()


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Turns eager mode on or off for the block."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)


__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]
