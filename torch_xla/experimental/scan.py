"""Loops over the first dimension of tensors, as one loop of the program."""

from torch_xla._internal.compile.scan import Scan, scan

__all__ = ["Scan", "scan"]
