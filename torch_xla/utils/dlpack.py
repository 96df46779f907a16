"""DLPack: tensors handed to other libraries, and arrays taken from them, without a copy."""

from torch_xla._internal.device.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
