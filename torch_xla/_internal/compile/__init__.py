"""Tracing functions into programs: branches, loops, regions, recomputation."""
