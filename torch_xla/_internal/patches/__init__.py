"""What is replaced in PyTorch and in accelerate: see docs/torch_patches.md."""
