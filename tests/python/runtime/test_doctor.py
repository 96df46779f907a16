"""python -m torch_xla.doctor."""

import os
import re
import subprocess

from testing.processes import start_python


def run(**environment: str) -> subprocess.CompletedProcess:
    ours = [name for name in os.environ if re.match(r"(PT_)?XLA_|PJRT_", name)]
    variables = {"PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": "", **environment}
    return start_python(
        "-m", "torch_xla.doctor", timeout=280, **{**dict.fromkeys(ours), **variables}
    )


def problems(result: subprocess.CompletedProcess) -> list[str]:
    assert result.returncode in (0, 1), result.stderr[-2000:]
    return [line for line in result.stdout.splitlines() if line.startswith("WRONG: ")]


def test_all_is_well():
    result = run(CPU_NUM_DEVICES="2")
    assert problems(result) == [], result.stdout
    assert result.returncode == 0
    assert re.search(r"CPU +\S*xla\S* \S+, API 0\.\d+, /", result.stdout), result.stdout
    assert "xla:1" in result.stdout
    assert "runs, " in result.stdout


def test_what_is_wrong_and_its_mend(tmp_path):
    library = tmp_path / "plugin.so"
    library.write_text("no library")
    result = run(
        PJRT_CHIP_LIBRARY_PATH="/no/such/file.so",
        PJRT_CPU_LIBRARY_PATH=str(library),
        XLA_USE_BF61="1",
    )
    assert result.returncode == 1
    found = problems(result)
    for part in (
        "The plugin of CHIP, /no/such/file.so, is not there: reinstall",
        "The plugin of CPU cannot be loaded",
        "does not read XLA_USE_BF61: unset it; if XLA_USE_BF16 is meant",
        f"small program does not run (RuntimeError: Cannot load the PJRT plugin {library}",
    ):
        assert any(part in line for line in found), (part, found)
    assert len(found) == 4, found
