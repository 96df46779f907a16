"""Settings that mean nothing are refused, or warned about, before XLA sees them."""

import subprocess
from pathlib import Path

import pytest
from testing.processes import start_python

_COMPUTE = """
import torch, torch_xla
print("RESULT", (torch.ones(2, device="xla") + 1).tolist())
"""


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    """A process that computes on the CPU platform under these variables."""
    return start_python("-c", _COMPUTE, **{"PJRT_DEVICE": "CPU", **environment})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("XLA_COMPILATION_CACHE_SIZE", "abc", "must be a positive integer, got 'abc'"),
        ("XLA_COMPILATION_CACHE_SIZE", "-1", "must be a positive integer, got '-1'"),
        ("XLA_USE_SPMD", "abc", "XLA_USE_SPMD must be 0, 1, true or false, got 'abc'"),
        ("CPU_NUM_DEVICES", "100000", "an integer from 1 to 128, got '100000'"),
        ("XLA_FLAGS", "--xla_nonsense=1", "Unknown flag in XLA_FLAGS: --xla_nonsense=1"),
        ("XLA_FLAGS", "nonsense", "Could not open file"),
        (
            "XLA_FLAGS",
            "--xla_dump_to= --xla_backend_optimization_level=abc",
            "value in --xla_backend_optimization_level=abc is not of the flag's type",
        ),
    ],
)
def test_refused_in_one_line(name: str, value: str, message: str) -> None:
    result = start(**{name: value})
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(("RuntimeError", "ValueError")), result.stderr
    assert name in last and message in last
    assert "F0000" not in result.stderr  # XLA did not end the process


def test_taken(tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    flags.write_text("--xla_backend_optimization_level=1\n")
    for text in ('--xla_cpu_multi_thread_eigen=false --xla_cpu_max_isa="AVX2"', str(flags)):
        result = start(XLA_COMPILATION_CACHE_SIZE="7", XLA_USE_SPMD="false", XLA_FLAGS=text)
        assert result.returncode == 0, result.stderr
        assert "RESULT [2.0, 2.0]" in result.stdout


def test_a_cache_folder_that_cannot_be_written_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cache"
    result = start(XLA_PERSISTENT_CACHE_PATH=str(folder))
    assert result.returncode == 0, result.stderr
    assert f"cannot be written to '{folder}'" in result.stderr
    usable = tmp_path / "cache"
    result = start(XLA_PERSISTENT_CACHE_PATH=str(usable))
    assert "cannot be written" not in result.stderr
    assert list(usable.glob("*.program"))
    assert usable.stat().st_mode & 0o777 == 0o700


def test_a_cache_folder_is_not_made_to_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    result = start(XLA_PERSISTENT_CACHE_PATH=str(folder), XLA_PERSISTENT_CACHE_READ_ONLY="1")
    assert result.returncode == 0, result.stderr
    assert not folder.exists()
    assert f"cannot be read from '{folder}'" in result.stderr
    folder.mkdir(mode=0o500)
    result = start(XLA_PERSISTENT_CACHE_PATH=str(folder), XLA_PERSISTENT_CACHE_READ_ONLY="1")
    assert "cannot be" not in result.stderr
