"""The path before 2.2 of :mod:`torch_xla.distributed.spmd.xla_sharded_tensor`."""

from torch_xla.distributed.spmd.xla_sharded_tensor import *  # noqa: F403
