"""How a program tells the test that runs it what it computed."""

import json
import sys
from typing import Any


def compiles() -> int:
    """Returns how many graphs this process has compiled; 0 where it has not used an xla device."""
    torch_xla = sys.modules.get("torch_xla")
    if torch_xla is None or not torch_xla._XLAC._xla_is_initialized():
        return 0
    from torch_xla.debug import metrics

    return metrics.counter_value("UncachedCompile") or 0


def used_xla() -> bool:
    """Returns whether this process has made a PJRT client."""
    torch_xla = sys.modules.get("torch_xla")
    return torch_xla is not None and torch_xla._XLAC._xla_is_initialized()


def end_step() -> None:
    """Cuts the graph, where there is one: programs of one's own on xla do so."""
    if used_xla():
        sys.modules["torch_xla"].sync()


def report(**values: Any) -> None:
    """Prints values for the test, and whether xla was used."""
    print("REPORT " + json.dumps({"used_xla": used_xla(), **values}), flush=True)
