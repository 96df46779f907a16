"""Runs a piece of Python in a process of its own, with environment variables of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_PREAMBLE = """
import json
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

def count(name):
    return met.counter_value(name) or 0

def report(**values):
    print("REPORT " + json.dumps(values))

device = xm.xla_device()
"""


def run_python(
    code: str, tmp_path: Path, timeout: float = 120, **environment: str
) -> tuple[dict[str, Any], str]:
    """Runs ``code`` as a file named ``script.py`` in ``tmp_path``.

    The code finds ``torch``, ``torch_xla``, ``xm``, ``met``, ``_XLAC``, ``device``,
    ``count(counter)`` and ``report(**values)``.

    Returns:
        What it reported (JSON), and its standard error.
    """
    script = tmp_path / "script.py"
    script.write_text(_PREAMBLE + textwrap.dedent(code))
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    reported: dict[str, Any] = {}
    for line in result.stdout.splitlines():
        if line.startswith("REPORT "):
            reported.update(json.loads(line.removeprefix("REPORT ")))
    return reported, result.stderr
