"""What a platform's compiler does not take, by platform and operator, with the reason."""

REFUSED: dict[tuple[str, str], str] = {}
