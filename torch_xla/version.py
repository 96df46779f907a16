"""The version of the package."""

from torch_xla import __version__

__all__ = ["__version__"]
