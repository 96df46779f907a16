"""Chrome traces as XSpace, the protobuf that TensorBoard's profile plugin and XProf read."""

from __future__ import annotations

from typing import Any


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _line(number: int, name: str, events: list[tuple[int, int, int]]) -> bytes:
    """XLine; events: (metadata id, begin, duration), in nanoseconds since 1970."""
    start = min(begin for _, begin, _ in events)
    # XLine: id=1, name=2, timestamp_ns=3, events=4. XEvent: metadata_id=1, offset_ps=2,
    # duration_ps=3.
    line = _field(1, number) + _field(2, name) + _field(3, start)
    for metadata, begin, duration in sorted(events, key=lambda event: event[1]):
        event = _field(1, metadata) + _field(2, (begin - start) * 1000) + _field(3, duration * 1000)
        line += _field(4, event)
    return line


def from_chrome(trace: dict[str, Any], host: str) -> bytes:
    """Returns the complete events of a Chrome trace as a serialized XSpace: a plane a process."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    names: dict[tuple[Any, Any], str] = {}
    rows: dict[Any, dict[Any, list[tuple[str, int, int]]]] = {}
    for event in trace["traceEvents"]:
        pid, tid = event.get("pid"), event.get("tid")
        if event.get("ph") == "M" and event.get("name") == "process_name":
            names[pid, None] = str(event["args"]["name"])
        elif event.get("ph") == "M" and event.get("name") == "thread_name":
            names[pid, tid] = str(event["args"]["name"])
        elif event.get("ph") == "X":
            begin = base + round(float(event["ts"]) * 1e3)
            row = rows.setdefault(pid, {}).setdefault(tid, [])
            # An event that had not ended when the recording ended has no end, or a negative
            # duration.
            duration = max(round(float(event.get("dur", 0)) * 1e3), 0)
            row.append((str(event["name"]), begin, duration))
    space = b""
    for number, (pid, threads) in enumerate(rows.items()):
        # TensorBoard finds the host's plane by this name.
        title = "/host:CPU" if number == 0 else f"/host:{names.get((pid, None), pid)}"
        metadata: dict[str, int] = {}
        # XPlane: id=1, name=2, lines=3, event_metadata=4 (a map), XSpace: planes=1, hostnames=4.
        plane = _field(1, number) + _field(2, title)
        for line, (tid, events) in enumerate(threads.items()):
            numbered = [(metadata.setdefault(n, len(metadata) + 1), b, d) for n, b, d in events]
            plane += _field(3, _line(line, names.get((pid, tid), str(tid)), numbered))
        for name, key in metadata.items():
            entry = _field(1, key) + _field(2, name)
            plane += _field(4, _field(1, key) + _field(2, entry))
        space += _field(1, plane)
    return space + _field(4, host)
