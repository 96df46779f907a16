"""Helpers around the device."""
