"""The PJRT plugins: which are installed, what they can do, and their topologies."""
