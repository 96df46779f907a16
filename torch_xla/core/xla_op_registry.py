"""Operators of one's own: here :func:`torch_xla.library.register_lowering`."""

from torch_xla._internal.names import missing

_INSTEAD = (
    "define the operator with torch.library and lower it with "
    "torch_xla.library.register_lowering, in PyTorch operators or StableHLO"
)

__getattr__ = missing.getter(__name__, {"Op": _INSTEAD, "register": _INSTEAD})
