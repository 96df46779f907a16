"""The table of docs/operators.md: `make conformance` writes rows, `make platforms` two columns."""

# By the topology's kind of chip.
TITLES = {"v5e": "TPU v5e", "h100": "H100"}
_HEAD = "| operator | float32 |"


def _table(lines: list[str]) -> slice:
    start = next(i for i, line in enumerate(lines) if line.startswith(_HEAD))
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("|")), None)
    return slice(start, len(lines) if end is None else end)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def read_platforms(text: str) -> dict[str, dict[str, str]]:
    """Returns the marks by operator, by the title of a platform's column."""
    lines = text.split("\n")
    head, _, *rows = [_cells(line) for line in lines[_table(lines)]]
    found = {title: head.index(title) for title in TITLES.values() if title in head}
    return {title: {row[0]: row[at] for row in rows} for title, at in found.items()}


def with_platforms(text: str, platforms: dict[str, dict[str, str]]) -> str:
    """Returns the page with these columns of platforms, and no others."""
    lines = text.split("\n")
    table = _table(lines)
    head, _, *rows = [_cells(line) for line in lines[table]]
    kept = [i for i, title in enumerate(head) if title not in TITLES.values()]
    made = [[head[i] for i in kept] + list(platforms)]
    made += [
        [row[i] for i in kept] + [marks.get(row[0], "") for marks in platforms.values()]
        for row in rows
    ]
    page = [f"| {' | '.join(row)} |" for row in made]
    lines[table] = [page[0], "|---" * len(made[0]) + "|", *page[1:]]
    return "\n".join(lines)
