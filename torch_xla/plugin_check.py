"""Tries a PJRT plugin: ``python -m torch_xla.plugin_check libmychip.so [--option name=value]``.

A small program uses the plugin as this package does, in a child process, and what becomes of each
function that is asked of it is shown: it works, is missing, fails, ends the process, or was not
asked for. For one that may be missing it says what is not there then. The status is 0 where all
that is needed works, 1 where it does not, 2 where the file is no plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from torch_xla._internal.plugins.functions import FUNCTIONS, Function

_EXTENSIONS = {
    5: ("FFI", "no lowerings that call the host, no kernels of the CPU"),
    3: ("Stream", "no streams of other libraries"),
}
# Checks that a plugin may fail.
_MAY_FAIL = ("figures of device memory", "figures of programs", "arrays shared by DLPack")


class Report(NamedTuple):
    """What became of a plugin's functions and of what was tried with it.

    Attributes:
        version: The PJRT API that it speaks; empty where the file is no plugin.
        extensions: The types of its extensions, as PJRT numbers them.
        functions: ``works``, ``missing``, ``not asked`` or what went wrong, by name.
        tries: ``works``, or what went wrong, by what was tried.
        ended: How the child process ended, where it did so early.
    """

    version: str
    extensions: tuple[int, ...]
    functions: dict[str, str]
    tries: dict[str, str]
    ended: str

    def problems(self) -> list[str]:
        """Returns a sentence for each thing that is needed and does not work."""
        found = [
            f"{function.name} {self.functions[function.name]}, and nothing works without it."
            for function in FUNCTIONS
            if function.without is None
            and self.functions[function.name] not in ("works", "not asked")
        ]
        found += [
            f"{name}: {result}"
            for name, result in self.tries.items()
            if result != "works" and name not in _MAY_FAIL
        ]
        return found + ([f"The process that tried it {self.ended}."] if self.ended else [])


def check(library: str, options: dict[str, object] | None = None, timeout: float = 120) -> Report:
    """Tries a plugin in a child process.

    Args:
        library: The shared library that exports ``GetPjrtApi``.
        options: The PJRT options that its client is made with.
        timeout: Seconds until the child is ended.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PJRT_DEVICE": "CHECKED",
            "XLA_PERSISTENT_CACHE_PATH": cache,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        for name in ("XLA_TOPOLOGY", "PJRT_LIBRARY_PATH", "XLA_USE_SPMD", "RANK", "WORLD_SIZE"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "torch_xla._plugin_probe"]
        process = subprocess.Popen(
            [*command, os.path.realpath(library), json.dumps(options or {})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
            late = False
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            late = True
    return _read(output, errors, process.returncode, timeout if late else None)


def _read(output: str, errors: str, status: int, late: float | None) -> Report:
    functions = {function.name: "not asked" for function in FUNCTIONS}
    tries: dict[str, str] = {}
    version, extensions, done = "", [], False
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, words = rest.partition(" ")
        if kind == "V":
            version = rest
        elif kind == "X":
            extensions.append(int(rest))
        elif kind == "M":
            functions[name] = "missing"
        elif kind == "B":
            functions[name] = "does not return"
        elif kind == "E":
            functions[name] = "works"
        elif kind == "F" and functions[name] != "works":
            functions[name] = f"fails: {words}"
        elif kind == "S":
            tries[rest] = "does not end"
        elif kind == "T" and name == "ok":
            tries[words] = "works"
        elif kind == "T":
            what, _, message = words.partition(": ")
            tries[what] = f"fails: {message}"
        elif kind == "D":
            done = True
    ended = ""
    if late is not None:
        ended = f"did not end within {late:g} seconds"
    elif status < 0:
        ended = f"ended by signal {-status}"
    elif not done:
        ended = "ended early: " + (errors.strip().splitlines() or ["without a word"])[-1]
    return Report(version, tuple(extensions), functions, tries, ended)


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    try:
        return name, json.loads(value)  # true, 3, 0.5, [1, 2]
    except json.JSONDecodeError:
        return name, value


def _note(function: Function, result: str) -> str:
    needed = result not in ("works", "not asked")
    return f"  ({function.without})" if needed and function.without else ""


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_xla.plugin_check", description=__doc__)
    parser.add_argument("library", help="the shared library that exports GetPjrtApi")
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option that the client is made with; true, 3, 0.5 and [1, 2] are what they look",
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds; 120")
    given = parser.parse_args(arguments)
    if not Path(given.library).is_file():
        print(f"{given.library}: there is no such file")
        return 2
    report = check(given.library, dict(given.option), given.timeout)
    if not report.version:
        print(f"{given.library}: this is no PJRT plugin; the process that loaded it {report.ended}")
        return 2
    print(f"{given.library}: PJRT API {report.version}\n")
    width = max(len(function.name) for function in FUNCTIONS)
    for function in FUNCTIONS:
        result = report.functions[function.name]
        print(f"  {function.name:<{width}}  {result}{_note(function, result)}")
    for number, (name, without) in _EXTENSIONS.items():
        there = number in report.extensions
        label = f"{name} extension"
        print(f"  {label:<{width}}  " + ("there" if there else f"missing  ({without})"))
    print()
    for name, result in report.tries.items():
        print(f"  {name:<{width}}  {result}")
    print()
    problems = report.problems()
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        print("All that is needed works.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
