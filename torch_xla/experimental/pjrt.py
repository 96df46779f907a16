"""The path in 2.0 of :mod:`torch_xla.runtime`."""

from torch_xla.core.xla_model import broadcast_master_param, xla_device  # noqa: F401
from torch_xla.runtime import *  # noqa: F403
