"""What runs closures: see :func:`torch_xla.core.xla_model.add_step_closure`."""

from torch_xla._internal.compile.step_closures import AsyncClosureHandler, ClosureHandler

__all__ = ["AsyncClosureHandler", "ClosureHandler"]
