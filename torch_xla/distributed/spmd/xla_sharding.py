"""The name under which many scripts import what this package has."""

from torch_xla.distributed import spmd as _spmd
from torch_xla.distributed.spmd import *  # noqa: F403

__all__ = _spmd.__all__
__getattr__ = _spmd.__getattr__
