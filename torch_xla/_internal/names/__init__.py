"""Names of torch_xla 2.9: those that lead elsewhere and those that are missing."""
