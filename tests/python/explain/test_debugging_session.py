"""The worked session of docs/debugging.md: its commands are run, its outputs are theirs.

``UPDATE_DOCS=1`` writes the outputs anew.
"""

import functools
import os
import re
from pathlib import Path

import pytest
from testing.processes import start_python

ROOT = next(path for path in Path(__file__).parents if (path / "torch_xla").is_dir())
PAGE = ROOT / "docs" / "debugging.md"
SCRIPT = "examples/debug_training.py"
# What of each command's output is there: what does not depend on the machine's speed.
KEPT = {
    "--show compiles": "compilations, the last|cause: |shape: ",
    "--show time": "steps, .* ms each|waiting for input|^the device|by line",
    "--show memory": "device memory: |: autograd, |^the largest|, autograd, made at",
}
BLOCK = re.compile(rf"```\n\$ python {SCRIPT} ([^\n]*)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.multiprocess


@functools.cache
def output(arguments: str) -> str:
    result = start_python(
        str(ROOT / SCRIPT),
        *arguments.split(),
        PJRT_DEVICE="CPU",
        XLA_PERSISTENT_CACHE_PATH="",
        XLA_RECOMPILE_WARNING="0",
        XLA_AUTO_STEP="0",
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.replace(f"{ROOT}/", "")


def lines(arguments: str) -> list[str]:
    """Those that are kept, one of a kind, without trailing blanks."""
    found: dict[str, str] = {}
    for one in output(arguments).splitlines():
        if re.search(KEPT[arguments], one):
            found.setdefault(masked(one), one.rstrip())
    return list(found.values())


def masked(text: str) -> str:
    """Without hashes, and numbers that are no line's or shape's."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "#", text.strip())
    text = re.sub(r"\bf32\[[\d,]*\]", "f32[]", text)
    return re.sub(r"(?<![\w:])\d[\d.]*( [KMG]?i?B\b)?", "#", text)


def test_its_outputs_are_those_of_its_commands():
    page = PAGE.read_text()
    blocks = BLOCK.findall(page)
    assert [arguments for arguments, _ in blocks] == list(KEPT)
    made = BLOCK.sub(
        lambda found: "```\n$ python {} {}\n{}\n```".format(
            SCRIPT, found[1], "\n".join(lines(found[1]))
        ),
        page,
    )
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(made)
        page = made
    for arguments, written in BLOCK.findall(page):
        now = [masked(line) for line in lines(arguments)]
        assert [masked(line) for line in written.splitlines()] == now, arguments


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else 0.0


def test_each_remedy_removes_its_message():
    before, after = output("--show compiles"), output("--show compiles --pad")
    assert "pad it to one of a few sizes" in before
    assert "pad it to one of a few sizes" not in after
    compiled = r"^(\d+) compilations"
    assert number(compiled, after) <= 3 < 10 <= number(compiled, before)

    waiting = r"([\d.]+) %  waiting for input\n"
    waits = number(waiting, output("--show time"))
    assert waits > 0
    assert number(waiting, output("--show time --pad --cache")) < 0.8 * waits

    assert re.search(r"autograd, \d+ arrays", output("--show memory"))
    assert "autograd" not in output("--show memory --no-grad")
