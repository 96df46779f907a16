"""What the package needs and users do not: no name in here is stable."""
