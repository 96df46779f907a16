"""What ``import torch`` runs of torch_xla: nothing, until a device ``xla`` is used.

PyTorch calls :func:`register` at the end of its own import (the entry point group
``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps it from that). ``torch_xla`` is
imported by the first tensor on ``xla`` or the first name asked of ``torch.xla``. This package lies
outside of ``torch_xla``, and swallows whatever is wrong with itself: a broken installation must
not break ``import torch``.
"""

import sys
import types


class _LazyDeviceModule(types.ModuleType):
    """``torch.xla`` until the device is used."""

    def __getattr__(self, name):
        if name.startswith("__"):  # Whoever looks through all modules has not asked for xla.
            raise AttributeError(name)
        import torch

        import torch_xla  # noqa: F401 - takes this module's place

        return getattr(torch.xla, name)


def register():
    """Makes the device load itself, if it is one of this torch's."""
    try:
        import torch

        from torch_xla_autoload import _stand_in

        same = torch.__version__.split(".")[:2] == _stand_in.TORCH.split(".")[:2]
        if same and not hasattr(torch, "xla"):
            _stand_in.register()
            torch._register_device_module("xla", _LazyDeviceModule("torch.xla"))
    except Exception:  # noqa: BLE001 - `import torch_xla` says what is wrong
        pass


def release():
    """Makes way for the device: the first thing that ``import torch_xla`` does."""
    stand_in = sys.modules.get("torch_xla_autoload._stand_in")
    if stand_in is not None:
        stand_in.release()
    torch = sys.modules["torch"]
    if isinstance(getattr(torch, "xla", None), _LazyDeviceModule):
        del torch.xla
        del sys.modules["torch.xla"]
