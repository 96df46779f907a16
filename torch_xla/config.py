"""Settings of this process, each an attribute with a type; assigning another one is an error.

    torch_xla.config.check_indices = True

Each has a variable of the environment that it begins as (named in its docstring).
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from torch_xla import _XLAC
from torch_xla._internal import sync_variables


class _Config(ModuleType):
    @property
    def check_indices(self) -> bool:
        """Whether indices out of range raise IndexError (``XLA_CHECK_INDICES``).

        XLA clamps or skips an index that is out of range. With this set, ``gather``,
        ``scatter``, ``index_select``, ``embedding``, ``nll_loss`` and the like leave the
        program to find such indices, and the next read of a value raises IndexError with the
        operator, the line and the index. Nothing waits for it earlier. On by default under
        ``PT_XLA_DEBUG=1``.
        """
        return _XLAC._get_check_indices()

    @check_indices.setter
    def check_indices(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"check_indices: expected a bool, got {value!r}")
        _XLAC._set_check_indices(value)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and not isinstance(getattr(_Config, name, None), property):
            raise AttributeError(f"torch_xla.config has no setting {name!r}")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Config
_asked = "XLA_CHECK_INDICES" in os.environ
_XLAC._set_check_indices(sync_variables.is_on("XLA_CHECK_INDICES" if _asked else "PT_XLA_DEBUG"))
