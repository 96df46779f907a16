"""Feeding the devices and replicating over them."""
