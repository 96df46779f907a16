"""Atomic files, checked loading, and caches in remote folders."""
