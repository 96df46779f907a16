"""The device API of the lazy tensors: see :mod:`torch_xla.core.xla_model`."""
