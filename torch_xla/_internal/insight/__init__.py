"""Reports for people: what the runtime did, and what is in memory."""
