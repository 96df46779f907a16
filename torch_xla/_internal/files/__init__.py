"""Files that are written whole, loaded with care, and kept by others."""
