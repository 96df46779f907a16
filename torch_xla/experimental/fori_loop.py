"""Loops that are part of the program, under the path of torch_xla 2.9."""

from torch_xla._internal.compile.control_flow import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]
