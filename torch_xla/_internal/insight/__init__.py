"""What the runtime did and what is in memory, for people to read."""
