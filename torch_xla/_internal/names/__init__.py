"""Names of torch_xla 2.9: those that moved and those that are missing."""
