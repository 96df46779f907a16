"""examples/digits_pipeline.py: TFRecords, cache, device loader, checkpoints, and going on."""

import re
import shutil
import signal
from pathlib import Path

import pytest
from testing.processes import start_python

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "digits_pipeline.py"


def _run(folder: Path, *arguments: str) -> tuple[int, dict[int, str], str]:
    """Returns the exit status, the losses by step as exact numbers, and the output."""
    options = ("--folder", str(folder), "--size", "600", *arguments)
    result = start_python(str(SCRIPT), *options, timeout=300)
    output = result.stdout + result.stderr
    losses = re.findall(r"^step (\d+): loss [0-9.]+ \((\S+)\)$", result.stdout, re.MULTILINE)
    return result.returncode, {int(step): loss for step, loss in losses}, output


@pytest.mark.multiprocess
@pytest.mark.timeout(900)
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    status, whole, output = _run(tmp_path / "whole")
    assert status == 0, output
    assert list(whole) == list(range(45))
    assert float.fromhex(whole[44]) < 0.5 < float.fromhex(whole[0])
    assert "600/600" in output

    shutil.copytree(tmp_path / "whole" / "cache", tmp_path / "killed" / "cache")
    status, before, output = _run(tmp_path / "killed", "--kill-at", "27")
    assert status == -signal.SIGKILL, output
    assert before == {step: whole[step] for step in range(28)}

    status, after, output = _run(tmp_path / "killed")
    assert status == 0, output
    assert "going on after step 20" in output
    assert after == {step: whole[step] for step in range(21, 45)}
