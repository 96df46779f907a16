"""Settings of this process: each variable of the environment, as an attribute with a type.

    torch_xla.config.compilation_cache_size  # 2048, or what XLA_COMPILATION_CACHE_SIZE says
    torch_xla.config.check_indices = True

``variables()`` lists them with default and meaning (docs/configuration.md). Those that are no
properties below are read when the process starts: assigning to them is an error.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from torch_xla import _XLAC
from torch_xla._internal import variables as _variables
from torch_xla._internal.variables import Variable

_BY_ATTRIBUTE = {variable.attribute: variable for variable in _variables.ALL.values()}


class _Config(ModuleType):
    @property
    def check_indices(self) -> bool:
        """Whether indices out of range raise IndexError (``XLA_CHECK_INDICES``).

        XLA clamps or skips an index that is out of range. Indices that came from the host (a
        list, ``.to("xla")``, a number to fill with) are checked always, at the call and with
        the CPU's class of error, but for a slice of an upload of which another part is out of
        range. With this set, so are all others: ``gather``, ``scatter``, ``index_select``,
        ``embedding``, ``nll_loss`` and the like leave the program to find such indices, and the
        next read of a value raises IndexError with the operator, the line and the index
        (RuntimeError for other data that the CPU refuses: a probability below 0, say).
        Nothing waits for it earlier. On by default under ``PT_XLA_DEBUG=1``.
        """
        return _XLAC._get_check_indices()

    @check_indices.setter
    def check_indices(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"check_indices: expected a bool, got {value!r}")
        _XLAC._set_check_indices(value)

    def __getattr__(self, name: str) -> Any:
        if variable := _BY_ATTRIBUTE.get(name):
            return variable.value()
        raise AttributeError(f"torch_xla.config has no setting {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and not isinstance(getattr(_Config, name, None), property):
            if variable := _BY_ATTRIBUTE.get(name):
                raise AttributeError(
                    f"torch_xla.config.{name} cannot be assigned to: set {variable.name} before "
                    "the process starts"
                )
            raise AttributeError(f"torch_xla.config has no setting {name!r}")
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_BY_ATTRIBUTE})


def variables() -> tuple[Variable, ...]:
    """Returns every variable of the environment that torch_xla reads."""
    return tuple(_variables.ALL.values())


def markdown() -> str:
    """Returns docs/configuration.md."""
    return _variables.markdown()


sys.modules[__name__].__class__ = _Config
_asked = "XLA_CHECK_INDICES" in os.environ
_XLAC._set_check_indices(_variables.is_on("XLA_CHECK_INDICES" if _asked else "PT_XLA_DEBUG"))
