"""Which kernels the lowering chose on the CPU."""

import os

import pytest

from torch_xla import _XLAC

# Whether programs may call the CPU's kernels.
CALLS = os.environ.get("XLA_CPU_KERNELS") != "0"
needs_calls = pytest.mark.skipif(not CALLS, reason="calls are switched off")


def chosen(operation: str, kernel: str = "library") -> set[str]:
    """The kinds of an operation for which a kernel was chosen."""
    return {
        kind
        for name, kind, chosen_kernel in _XLAC._kernel_choices()
        if (name, chosen_kernel) == (operation, kernel)
    }
