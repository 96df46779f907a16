"""The device as PyTorch sees it: its module, memory, streams and tensors."""
