"""Pairs that fail today, by the reason; each has to fail, or its line is taken out."""

KNOWN: dict[str, tuple[str, ...]] = {}


def reason(name: str) -> str:
    """Why the pair of this name ("Program x surface") is known to fail, or ""."""
    return next((why for why, names in KNOWN.items() if name in names), "")
