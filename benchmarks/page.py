"""Writes docs/benchmarks.md and docs/jobs.svg from the runs in benchmarks/results/.

    python benchmarks/page.py
    python benchmarks/page.py --record jobs_intel run.json --machine TEXT --command TEXT

A file of results/ is one run: the machine in words, the commit and the date at which the repository
recorded it, the command, the unit, the columns and the rows. ``--record`` makes such a file of what
``all_backends.py --json`` wrote, before the page is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "jobs.svg"

OTHERS = ("eager", "inductor", "jax")
BACKENDS = (*OTHERS, "traced", "replayed")
COLORS = {"inductor": "#c9a227", "jax": "#5b8c5a", "traced": "#7aa6d1", "replayed": "#1f4e8c"}
HIGHEST = 1.5  # of the picture
MEANING = {
    "mlp": "MLP, training",
    "resnet18": "ResNet-18, training",
    "bert": "BERT, training",
    "resnet50": "ResNet-50, training",
    "vit": "vision transformer, training",
    "gpt2": "GPT-2, forward",
    "llama": "Llama, training",
    "llama_decode": "Llama, next word",
    "lstm": "LSTM, training",
    "dlrm": "DLRM, training",
    "scan48": "48 equal layers, training",
    "recompile": "small CNN, batches of 20 sizes",
    "data_bound": "small CNN, fed by a loader",
}

_READ: set[str] = set()  # what the page has shown

Row = dict[str, Any]
# The answer, the table and where the figures are from.
Section = tuple[str, list[str], tuple[str, ...]]


class Run(NamedTuple):
    """One file of results/."""

    machine: str
    commit: str
    date: str
    command: str
    unit: str
    rows: list[Row]

    @property
    def source(self) -> str:
        return f"{self.machine}, `{self.commit}` of {self.date}: `{self.command}`"


def read(name: str) -> Run:
    """Reads results/<name>.json.

    Raises:
        ValueError: A row has another number of cells than there are columns.
    """
    _READ.add(name)
    data = json.loads((RESULTS / f"{name}.json").read_text())
    columns = data.pop("columns")
    rows = [dict(zip(columns, row, strict=True)) for row in data.pop("rows")]
    return Run(rows=rows, **data)


# ---------------------------------------------------------------- the page


def cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]


def title(backend: str) -> str:
    return "JAX" if backend == "jax" else backend


def over_best(row: Row, backend: str) -> float:
    """A backend's step over the best of the others."""
    return row[f"{backend} ms"] / min(row[f"{other} ms"] for other in OTHERS)


def steps() -> Section:
    intel, amd = read("jobs_intel"), read("jobs_amd")
    there = {row["job"]: row for row in amd.rows}
    ahead = [sum(over_best(row, "replayed") <= 1 for row in run.rows) for run in (intel, amd)]
    behind = [f"`{row['job']}`" for row in intel.rows if over_best(row, "traced") > 1.1]
    text = (
        f"Replayed steps are at least as fast as the best of eager PyTorch, inductor and JAX in "
        f"{ahead[0]} of {len(intel.rows)} jobs on an Intel, and in {ahead[1]} on an AMD. Traced "
        f"steps also pay for Python: on the Intel {' and '.join(behind)} are behind the best. "
        f"Differences of ten percent are noise."
    )
    rows = (
        [
            f"`{row['job']}`: {MEANING[row['job']]}",
            *(row[f"{backend} ms"] for backend in BACKENDS),
            f"{over_best(row, 'replayed'):.2f}",
            f"{over_best(there[row['job']], 'replayed'):.2f}",
        ]
        for row in intel.rows
    )
    head = ("ms a step, Intel", *map(title, BACKENDS), "replayed / best other", "the same, AMD")
    picture = ["![Steps over eager's, by job and backend](jobs.svg)", "", *table(head, rows)]
    return text, picture, (intel.source, amd.source)


def first_steps() -> Section:
    run = read("jobs_intel")
    text = (
        'The first step compiles. "Cold" is a process that finds nothing on disk, "warm" is one '
        "that finds its programs there. Eager PyTorch compiles nothing. The run is the Intel's "
        "of the first table."
    )
    shown = [(b, w) for w in ("cold", "warm") for b in ("inductor", "jax", "traced")]
    rows = (
        [
            f"`{row['job']}`",
            row["eager cold first step s"],
            *(row[f"{b} {w} first step s"] for b, w in shown),
        ]
        for row in run.rows
    )
    head = ("first step, s", "eager", *(f"{title(b)}, {w}" for b, w in shown))
    return text, table(head, rows), ()


def memory() -> Section:
    run = read("jobs_intel")
    ratios = [row["replayed warm peak MB"] / row["eager warm peak MB"] for row in run.rows]
    text = (
        f"With its programs on disk (warm), a process that replays needs {min(ratios):.2f} to "
        f"{max(ratios):.2f} times what eager PyTorch needs. A process that compiles (cold) needs "
        f"more. The run is the Intel's of the first table."
    )
    names = {f"{title(b)}, warm": f"{b} warm peak MB" for b in BACKENDS}
    names |= {f"{title(b)}, cold": f"{b} cold peak MB" for b in ("jax", "replayed")}
    rows = ([f"`{row['job']}`", *(row[name] for name in names.values())] for row in run.rows)
    return text, table(("peak MB", *names), rows), ()


def gpu() -> Section:
    large, small = read("steps_gpu"), read("jobs_gpu")
    text = (
        "Replay is faster than eager PyTorch. A traced step of a large model is, too, if the loop "
        "does not wait for each step: the next step is traced while the GPU computes. A range is "
        "that of two processes."
    )
    rows = [
        [
            row["job"],
            row["eager"],
            row["traced, each step waited for"],
            row["replayed, each step waited for"],
            None,
            row["traced"],
        ]
        for row in large.rows
    ]
    names = ("eager", "traced", "replayed", "jax", "traced ten at once")
    rows += [[f"`{row['job']}`, float32", *(row[n] for n in names)] for row in small.rows]
    head = ("ms a step", "eager", "traced", "replayed", "JAX", "traced, several steps at once")
    return text, table(head, rows), (large.source, small.source)


def host() -> Section:
    run = read("replay")
    text = f"For small models the host decides. The table has {run.unit}."
    return text, table(run.rows[0], (row.values() for row in run.rows)), (run.source,)


def depth() -> Section:
    run = read("scan_layers")
    text = "The program of a loop does not grow with the layers. The model is a decoder."
    head = ("layers", *(n.replace(" ", " layers, ", 1) for n in run.rows[0] if n != "layers"))
    return text, table(head, (row.values() for row in run.rows)), (run.source,)


def replicas() -> Section:
    run = read("replicas")
    text = "On two cores little: one process of ours uses both cores already."
    head = [run.unit, *list(run.rows[0])[1:]]
    return text, table(head, (row.values() for row in run.rows)), (run.source,)


def plans() -> Section:
    run = read("plan_peak")
    text = "The peak that `python -m torch_xla.aot` predicts, beside the process's real peak."
    rows = (
        [row["model"], row["predicted"], row["real"], f"{row['predicted'] / row['real'] - 1:+.1%}"]
        for row in run.rows
    )
    return text, table(("MB", "predicted", "real", "off"), rows), (run.source,)


SECTIONS: dict[str, Callable[[], Section]] = {
    "How long does a step take?": steps,
    "How long does the first step take?": first_steps,
    "How much memory does a process need?": memory,
    "How long does a step take on a GPU?": gpu,
    "What does a step cost the host?": host,
    "What does depth cost?": depth,
    "What does a second process give?": replicas,
    "Is a plan right?": plans,
}
HEAD = """\
<!-- Written by: python benchmarks/page.py -->
# Benchmarks

Each table is one run in which all columns took turns, with PyTorch 2.13 and float32 if nothing else
is said. Compare the columns of a table, not tables. "Traced" is a plain step, "replayed" is
[`torch_xla.compile(replay=True)`](replay.md). Further runs are in `benchmarks/results/`: {others}.
[benchmarks/](../benchmarks/README.md) tells how to measure.
"""


def page() -> str:
    """Returns docs/benchmarks.md."""
    lines = []
    _READ.clear()
    for question, section in SECTIONS.items():
        text, body, sources = section()
        lines += [f"## {question}\n", text + "\n", *body, ""]
        if sources:
            lines += [*(f"- {source}" for source in sources), ""]
    others = sorted({file.stem for file in RESULTS.glob("*.json")} - _READ)
    head = HEAD.format(others=", ".join(f"`{name}`" for name in others))
    return "\n".join([head, *lines]).rstrip() + "\n"


def picture() -> str:
    """Returns docs/jobs.svg: each job's steps over eager's, cut off at HIGHEST times eager's."""
    run = read("jobs_intel")
    bar, gap, height, left, top = 9, 12, 180, 40, 30
    job_width = bar * len(COLORS) + gap
    width = left + job_width * len(run.rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + height + 80}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for level in (0, 0.5, 1, HIGHEST):
        y = top + height * (1 - level / HIGHEST)
        line = "black" if level == 1 else "#ddd"
        parts.append(f'<path d="M{left} {y:g}H{width}" stroke="{line}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{level:g}</text>')
    for i, (backend, color) in enumerate(COLORS.items()):
        x = left + 130 * i
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 15}" y="17">{backend} / eager</text>')
    for i, row in enumerate(run.rows):
        x = left + gap / 2 + i * job_width
        for k, (backend, color) in enumerate(COLORS.items()):
            ratio = min(row[f"{backend} ms"] / row["eager ms"], HIGHEST)
            size = height * ratio / HIGHEST
            parts.append(
                f'<rect x="{x + bar * k:g}" y="{top + height - size:.1f}" width="{bar}"'
                f' height="{size:.1f}" fill="{color}"/>'
            )
        middle, y = x + bar * len(COLORS) / 2, top + height + 14
        parts.append(
            f'<text x="{middle:g}" y="{y}" text-anchor="end"'
            f' transform="rotate(-35 {middle:g} {y})">{row["job"]}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


# ---------------------------------------------------------------- a run that is new


def record(run: dict[str, dict[str, Row]], machine: str, command: str) -> str:
    """Returns the file of results/ for what all_backends.py measured.

    Args:
        run: Its JSON.
        machine: In words, without a name.
        command: What was run.
    """
    named = {"traced": "xla", "replayed": "replay"}
    kinds = {
        "cold peak MB": "cold_mb",
        "warm peak MB": "memory_mb",
        "cold first step s": "cold_s",
        "warm first step s": "warm_s",
    }
    names = {f"{b} ms": (named.get(b, b), "step_s", 1e3) for b in BACKENDS}
    for kind, key in kinds.items():
        names |= {f"{b} {kind}": (named.get(b, b), key, 1) for b in BACKENDS}

    def cells(found: dict[str, Row]) -> list[float]:
        return [float(f"{found[b][key] * scale:.3g}") for b, key, scale in names.values()]

    rows = [[job, *cells(found)] for job, found in run.items()]
    git = ("git", "log", "-1", "--date=short", "--format=%h %ad")
    commit, date = subprocess.check_output(git, cwd=ROOT, text=True).split()
    data = {"machine": machine, "commit": commit, "date": date, "command": command}
    data |= {"unit": "in the columns' names"}
    text = json.dumps(data | {"columns": ["job", *names]}, indent=2)
    body = ",\n".join("    " + json.dumps(row) for row in rows)
    return f'{text[:-2]},\n  "rows": [\n{body}\n  ]\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", nargs=2, metavar=("NAME", "FILE"), help="a run that is new")
    parser.add_argument("--machine", help="of the new run, in words")
    parser.add_argument("--command", help="of the new run")
    args = parser.parse_args()
    if args.record:
        if not (args.machine and args.command):
            parser.error("--record needs --machine and --command")
        name, file = args.record
        run = json.loads(Path(file).read_text())
        (RESULTS / f"{name}.json").write_text(record(run, args.machine, args.command))
    PAGE.write_text(page())
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
