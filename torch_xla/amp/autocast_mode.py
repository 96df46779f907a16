"""The path at which torch_xla 2.9 defines :class:`torch_xla.amp.autocast`."""

from torch_xla.amp import autocast

__all__ = ["autocast"]
