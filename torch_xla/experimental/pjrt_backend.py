"""Importing ``torch_xla`` registers the backend ``xla`` of ``torch.distributed``; this does so."""
