"""A quarter of the matrix, which changes with the sources; `make matrix` runs all pairs."""

import functools
from pathlib import Path

import pytest
from testing.processes import start_python

_run = functools.partial(start_python, str(Path(__file__).with_name("matrix.py")), timeout=900)


@pytest.mark.multiprocess
def test_a_wrong_pair_is_seen_and_what_ends_a_process_does_not_end_the_run():
    result = _run("--check-runner")
    assert result.returncode == 0, result.stdout + result.stderr[-1000:]
    assert result.stdout.splitlines() == [
        "Numbers: equal",
        "_Wrong: different",
        "_Aliases: different",
        "_Raises: raised",
        "_Poisons: poisoned",
        "_Ends: ended the process",
        "_Hangs: hung",
        "Numbers: equal",
    ]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "groups",
    [
        ("lazy", "eager"),
        ("replay", "profile", "devices"),
        ("dynamo",),
        ("export", "copies"),
        ("replicas",),
        ("spmd2", "spmd4"),
        ("fork", "spawn", "plain"),
    ],
    ids="+".join,
)
def test_a_quarter(groups):
    result = _run("--seed", "sources", "--group", *groups)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
