"""Functions whose calls are recorded and done again without their Python."""
