"""The StableHLO of operators that on the CPU are PyTorch's kernels, which XLA_CPU_KERNELS=0
switches off: their tests, once more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPS = Path(__file__).parents[1] / "ops"
# Of test_ops_linalg.py test_without_cpu_kernels does the same.
TESTS = {
    "test_ops_reduction.py": ("test_scans", "test_other_scans", "test_gradients"),
    "test_ops_order.py": ("test_sort", "test_median", "test_kthvalue", "test_mode"),
}


def test_without_cpu_kernels() -> None:
    names = [f"{OPS / file}::{test}" for file, tests in TESTS.items() for test in tests]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *names],
        env={**os.environ, "XLA_CPU_KERNELS": "0"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
