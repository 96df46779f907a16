"""Seeing what torch_xla does."""
