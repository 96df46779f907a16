"""The StableHLO of operators that on the CPU are PyTorch's kernels, which XLA_CPU_KERNELS=0
switches off: their tests, once more."""

from pathlib import Path

from testing.operators_page import read_platforms, with_platforms
from testing.processes import run_tests

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"
OPS = Path(__file__).parents[1] / "ops"
# Of test_ops_linalg.py test_without_cpu_kernels does the same.
TESTS = {
    "test_ops_reduction.py": ("test_scans", "test_other_scans", "test_gradients"),
    "test_ops_order.py": ("test_sort", "test_median", "test_kthvalue", "test_mode"),
}


def test_without_cpu_kernels() -> None:
    names = [f"{OPS / file}::{test}" for file, tests in TESTS.items() for test in tests]
    assert " passed" in run_tests(*names, timeout=280, XLA_CPU_KERNELS="0")


def test_the_page_of_operators_keeps_its_platforms() -> None:
    text = PAGE.read_text()
    platforms = read_platforms(text)
    assert with_platforms(text, platforms) == text
    assert all(marks["addmm"] == "✓" for marks in platforms.values()) and len(platforms) == 2
    one = {"H100": {"addmm": "r"}}
    assert read_platforms(with_platforms(text, one))["H100"]["addmm"] == "r"
