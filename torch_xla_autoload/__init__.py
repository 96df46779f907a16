"""What ``import torch`` runs of torch_xla: nothing, until a device ``xla`` is used.

PyTorch calls :func:`register` at the end of its own import (the entry point group
``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps it from that). ``torch_xla`` is
imported by the first tensor or module on ``xla``, the first name asked of ``torch.xla``, the first
file loaded onto ``xla`` and, where ``PJRT_DEVICE`` asks for xla, by the first question to
``torch.accelerator``. This package lies outside of ``torch_xla``, and swallows whatever is wrong
with itself: a broken installation must not break ``import torch``.
"""

import functools
import os
import sys
import types
import warnings


class _LazyDeviceModule(types.ModuleType):
    """``torch.xla`` until the device is used."""

    def __getattr__(self, name):
        if name.startswith("__"):  # Whoever looks through all modules has not asked for xla.
            raise AttributeError(name)
        import torch

        import torch_xla  # noqa: F401 - takes this module's place

        return getattr(torch.xla, name)


# Functions of torch._C that are behind torch.accelerator, and what is in their places till then.
_accelerator = {}


def _answer_by_import(name, original):
    import torch

    def answer(*args):
        try:
            import torch_xla  # noqa: F401 - puts the functions back, and its own in their places
        except Exception as error:  # noqa: BLE001 - who asks need not want xla
            _put_back()
            warnings.warn(f"torch_xla cannot be imported: {error}", stacklevel=3)
        return getattr(torch._C, name)(*args)

    _accelerator[name] = original
    setattr(torch._C, name, answer)


# Methods of nn.Module that move parameters. The device's own keep those tied that are, which it is
# too late for when the first of them is moved.
_methods = {}


def _move_by_import(name):
    import torch

    original = _methods[name] = getattr(torch.nn.Module, name)

    @functools.wraps(original)
    def move(self, *args, **kwargs):
        device = kwargs.get("device", args[0] if args else None)
        if isinstance(device, (str, torch.device)) and torch.device(device).type == "xla":
            import torch_xla  # noqa: F401 - puts the methods back
        return original(self, *args, **kwargs)

    setattr(torch.nn.Module, name, move)


def _put_back():
    torch = sys.modules["torch"]
    while _methods:
        setattr(torch.nn.Module, *_methods.popitem())
    while _accelerator:
        setattr(torch._C, *_accelerator.popitem())


def _location(storage):
    return None


def _restore(storage, location):
    if not location.startswith("xla"):
        return None
    import torch

    import torch_xla  # noqa: F401 - takes this function's place

    return torch.serialization.default_restore_location(storage, location)


def register():
    """Makes the device load itself, if it is one of this torch's."""
    try:
        import torch

        from torch_xla_autoload import _preload

        same = torch.__version__.split(".")[:2] == _preload.TORCH.split(".")[:2]
        if same and not hasattr(torch, "xla"):
            _preload.register()
            torch._register_device_module("xla", _LazyDeviceModule("torch.xla"))
            torch.serialization.register_package(8, _location, _restore)
            for name in ("to", "to_empty"):
                _move_by_import(name)
            if os.environ.get("PJRT_DEVICE"):
                for name, function in list(vars(torch._C).items()):
                    if name.startswith("_accelerator_"):
                        _answer_by_import(name, function)
    except Exception:  # noqa: BLE001 - `import torch_xla` says what is wrong
        pass


def release():
    """Makes way for the device: the first thing that ``import torch_xla`` does."""
    preload = sys.modules.get("torch_xla_autoload._preload")
    if preload is not None:
        preload.release()
    torch = sys.modules["torch"]
    _put_back()
    registry = torch.serialization._package_registry
    registry[:] = [entry for entry in registry if entry[2] is not _restore]
    if isinstance(getattr(torch, "xla", None), _LazyDeviceModule):
        del torch.xla
        del sys.modules["torch.xla"]
