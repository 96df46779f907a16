"""Prints how many files and lines each folder has, and ends with 1 where one is over its budget.

    python benchmarks/lines.py

The budgets are in line_budgets.json, as [files, lines]. A commit that needs more raises its budget
there, and says in its message what for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS: dict[str, list[int]] = json.loads(
    (Path(__file__).parent / "line_budgets.json").read_text()
)


def count() -> dict[str, tuple[int, int]]:
    """Files and lines of each folder that has a budget, with the folders in it."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    counts = dict.fromkeys(BUDGETS, (0, 0))
    for name in filter(None, tracked.split("\0")):
        folders = [str(parent) for parent in Path(name).parents if str(parent) in counts]
        if not folders or not (ROOT / name).is_file():
            continue
        lines = (ROOT / name).read_bytes().count(b"\n")
        for folder in folders:
            files, total = counts[folder]
            counts[folder] = (files + 1, total + lines)
    return counts


def over_budget(counts: dict[str, tuple[int, int]]) -> list[str]:
    """A line for each folder that has more than its budget."""
    return [
        f"{folder}: {files} files, {lines} lines; the budget is {BUDGETS[folder]}"
        for folder, (files, lines) in counts.items()
        if files > BUDGETS[folder][0] or lines > BUDGETS[folder][1]
    ]


def main() -> int:
    print(f"{'folder':34}{'files':>7}{'budget':>8}{'lines':>9}{'budget':>9}")
    counts = count()
    for folder, (files, lines) in counts.items():
        most_files, most_lines = BUDGETS[folder]
        print(f"{folder:34}{files:7}{most_files:8}{lines:9}{most_lines:9}")
    over = over_budget(counts)
    print(*over, sep="\n", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
