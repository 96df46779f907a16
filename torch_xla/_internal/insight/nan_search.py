"""What programs report that search for NaN, behind :class:`torch_xla.debug.find_nan`."""

from __future__ import annotations

import sys

from torch_xla._internal.replicas import replication

# The texts of the reports of this process, without their runs.
_told: set[str] = set()
_waiting: list[list[str]] = []  # Of the blocks that are open, the innermost last.


def report(found: tuple[str, bool, list[str]], run: int) -> None:
    """Tells of an operation that made a NaN: once each, or to the innermost block.

    Args:
        found: Of ``_XLAC._xla_nan_of``.
        run: The number of the program's run.
    """
    op, is_input, lines = found
    if is_input and _told:
        return  # It is the NaN that was told of, in the next program.
    what = "an input of a program" if is_input else op
    place = lines[0] if lines else "an unknown line"
    text = f"NaN made first by {what} at {place}" if not is_input else f"NaN in {what}, {place}"
    replica = replication.topology()
    if replica.world_size > 1:
        text += f", replica {replica.rank}"
    if text in _told:
        return
    _told.add(text)
    text += f", in run {run} of its program"
    text += "".join(f"\n  called at {line}" for line in lines[1:])
    if _waiting:
        _waiting[-1].append(text)
    else:
        print(f"torch_xla: {text}", file=sys.stderr, flush=True)


def open_block() -> None:
    """Collects the reports until :func:`close_block`."""
    _told.clear()
    _waiting.append([])


def close_block() -> list[str]:
    """Ends the innermost block; returns its reports."""
    return _waiting.pop()
