"""Processes of tests: a piece of Python with variables of its own, a forked child."""

import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

PREAMBLE = """
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


def start_python(
    *args: str, timeout: float = 120, cwd: Path | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs the interpreter with these arguments and variables, None for unset, till its end."""
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
    )


def write_script(folder: Path, code: str) -> str:
    """Writes ``code``, which may be indented, to a file in the folder, and returns its path."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return str(script)


def run_tests(*arguments: str, timeout: float = 300, **environment: str | None) -> str:
    """Has pytest run tests in a process of its own, all of which must pass; returns its output."""
    options = ("-m", "pytest", "-p", "no:cacheprovider", "-n0")
    result = start_python(*options, *arguments, timeout=timeout, **environment)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
    return result.stdout


def python_output(code: str, **environment: str) -> str:
    """Returns what ``code``, which may be indented, printed in a process of its own."""
    result = start_python("-c", textwrap.dedent(code), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# Compiles small programs in less than half the time. The emitters that it takes sometimes scatter
# wrongly, so it is for tests of what is above them.
QUICK_COMPILES = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)


class Interpreter:
    """A process with variables of its own that runs one piece of Python after the other.

    The import of torch takes longer than most pieces. Each has its own names, and finds no program
    and no count of those before it.
    """

    def __init__(self, **environment: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        arguments = (theirs, environment)
        self._process = spawn.Process(target=_run_pieces, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def run(self, code: str, timeout: float = 300) -> str:
        """Returns what the code printed; fails with its traceback, or if it ended the process."""
        self._pipe.send(code)
        if not self._pipe.poll(timeout):
            self._process.kill()
            raise TimeoutError(f"it ran for {timeout} seconds")
        good, printed = self._pipe.recv()
        assert good, printed[-4000:]
        return printed

    def is_alive(self) -> bool:
        return self._process.is_alive()


def _run_pieces(pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    import torch

    import torch_xla
    from torch_xla.debug import metrics

    while True:
        try:
            code = pipe.recv()
        except EOFError:
            return
        torch_xla._XLAC._xla_clear_programs()
        metrics.clear_all()
        torch.manual_seed(0)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        except Exception:  # noqa: BLE001 - whoever asked sees it
            pipe.send((False, traceback.format_exc()))
        else:
            pipe.send((True, printed.getvalue()))


def fork_child(work: Callable[[IO[bytes]], None]) -> tuple[int, int, IO[bytes]]:
    """Forks a child that answers ``work`` through a pipe, and ends with status 0 if it could.

    Returns:
        The child's process id, the end of the pipe to read from, and what it writes to stderr.
    """
    read, write = os.pipe()
    stderr = tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            os.dup2(stderr.fileno(), 2)
            with os.fdopen(write, "wb") as pipe:
                work(pipe)
            status = 0
        except BaseException as error:  # noqa: BLE001 - the parent reads it in stderr
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    os.close(write)
    return pid, read, stderr


def run_python(
    code: str, tmp_path: Path, timeout: float = 120, **environment: str
) -> tuple[dict[str, Any], str]:
    """Runs ``code`` as a file named ``script.py`` in ``tmp_path``.

    The code finds ``torch``, ``torch_xla``, ``xm``, ``met``, ``_XLAC``, ``device``,
    ``count(counter)`` and ``report(**values)``.

    Returns:
        What it reported (JSON), and its standard error.
    """
    script = write_script(tmp_path, PREAMBLE + textwrap.dedent(code))
    result = start_python(script, timeout=timeout, **environment)
    assert result.returncode == 0, result.stderr[-4000:]
    reported: dict[str, Any] = {}
    for line in result.stdout.splitlines():
        if line.startswith("REPORT "):
            reported.update(json.loads(line.removeprefix("REPORT ")))
    return reported, result.stderr
