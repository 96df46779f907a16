"""The runtime's rows in the files of torch.profiler."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import timeline

_PROCESS = "torch_xla runtime"
_IDLE = "device idle"


def _rows(begin: float, end: float) -> list[tuple[str, str, float, float]]:
    found = [
        (row.removesuffix("Time"), row, start, stop)
        for row in timeline.ROWS
        for start, stop in timeline.intervals(row, begin, end)
        if start >= begin
    ]
    return found + [
        (f"device idle: {kind}", _IDLE, start, stop)
        for start, stop, kind in timeline.idle(begin, end)
    ]


def add_rows(path: str | os.PathLike[str]) -> None:
    """Adds the runtime's events to the file of a recorded trace, if there are any."""
    name = os.fspath(path)
    is_zipped = name.endswith(".gz")
    opener: Any = gzip.open if is_zipped else open
    with opener(name, "rt") as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"]
    if not spans:
        return
    # Kineto's times are microseconds since `baseTimeNanoseconds`.
    base = float(trace.get("baseTimeNanoseconds", 0)) * 1e-9
    begin = base + min(start for start, _ in spans) * 1e-6
    end = base + max(stop for _, stop in spans) * 1e-6
    rows = _rows(begin, end)
    if all(row == _IDLE for _, row, _, _ in rows):
        return
    events.append({"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": _PROCESS}})
    for label, row, start, stop in rows:
        events.append(
            {
                "ph": "X",
                "name": label,
                "pid": _PROCESS,
                "tid": row,
                "ts": (start - base) * 1e6,
                "dur": (stop - start) * 1e6,
            }
        )
    text = json.dumps(trace).encode()
    write_file(name, gzip.compress(text) if is_zipped else text)
