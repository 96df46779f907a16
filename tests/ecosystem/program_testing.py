"""Runs a program of ``programs/`` as a user would, and gives what it reported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"
TOOLS = Path(sys.executable).parent


def run(
    program: str,
    *arguments: str,
    launcher: tuple[str, ...] = (),
    timeout: float = 400,
    **environment: str,
) -> list[dict[str, Any]]:
    """Returns the reports of a program, one for each replica that printed one.

    Args:
        program: The file, without its folder and suffix.
        *arguments: Its arguments.
        launcher: A tool beside the interpreter and its arguments, instead of the interpreter.
        timeout: The seconds after which the program has failed.
        **environment: Variables, besides those of this process.
    """
    start = [str(TOOLS / launcher[0]), *launcher[1:]] if launcher else [sys.executable]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(PROGRAMS),
        "XLA_PERSISTENT_CACHE_PATH": "",
        **environment,
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    result = subprocess.run(
        [*start, str(PROGRAMS / f"{program}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    lines = [line for line in result.stdout.splitlines() if line.startswith("REPORT ")]
    return [json.loads(line.removeprefix("REPORT ")) for line in lines]


def run_one(program: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """Returns the report of a program that is one process; see :func:`run`."""
    (report,) = run(program, *arguments, **options)
    return report


def run_without_xla(program: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """Returns the report of the same program where torch_xla is as if it were not installed."""
    report = run_one(program, *arguments, USE_TORCH_XLA="0", **options)
    assert not report.pop("used_xla")
    return report


def assert_same(actual: dict[str, Any], expected: dict[str, Any], *names: str, rel: float) -> None:
    """Asserts that numbers and lists of numbers agree, and that the lists are not constant."""
    for name in names:
        assert actual[name] == pytest.approx(expected[name], rel=rel, abs=rel / 10), name
        if isinstance(expected[name], list) and len(expected[name]) > 2:
            assert len(set(expected[name])) > 1, f"{name} says nothing"
