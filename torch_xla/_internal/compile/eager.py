"""The switch of eager mode: a dispatch key whose fallback runs what an operator traced."""

from __future__ import annotations

import torch

_KEY = "TESTING_ONLY_GenericMode"  # See csrc/aten/eager.cpp.


def is_enabled() -> bool:
    """Returns whether operators of this thread run at once."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_KEY)


def set_enabled(enable: bool) -> None:
    """Switches eager mode for this thread; what was traced before runs with the next operator."""
    if enable:
        # A higher-order operator has no fallback; the operators that it calls run at once.
        key = torch._C._dispatch_key_parse(_KEY)
        for operator in torch._ops._higher_order_ops.values():
            if operator.non_fallthrough_keys.has(key):
                operator.fallthrough(key)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, enable)
