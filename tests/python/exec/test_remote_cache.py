"""Compiled programs in a folder of fsspec's."""

from pathlib import Path
from typing import Any

import pytest
from testing.processes import run_python, start_python

pytestmark = pytest.mark.multiprocess

SCRIPT = """
x = torch.arange(6.0).view(2, 3).to(device)
value = (x * 2.5).sum().item()
report(
    value=value, hits=count("PersistentCacheHit"), misses=count("PersistentCacheMiss"),
    compiles=met.metric_data("CompileTime")[0] if met.metric_data("CompileTime") else 0,
)
"""


def run(tmp_path: Path, host: str, place: str, **environment: str) -> tuple[dict[str, Any], str]:
    return run_python(
        SCRIPT,
        tmp_path,
        XLA_PERSISTENT_CACHE_PATH=place,
        XDG_CACHE_HOME=str(tmp_path / host),  # Each host has a mirror of its own.
        **environment,
    )


def programs(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.suffix in (".program", ".record")}


def test_one_host_compiles_for_all(tmp_path):
    remote = tmp_path / "bucket" / "programs"
    place = f"file://{remote}"
    first, _ = run(tmp_path, "one", place)
    assert (first["hits"], first["misses"], first["compiles"]) == (0, 1, 1)
    assert len(programs(remote)) == 2 and not list(remote.glob("*.tmp"))
    second, _ = run(tmp_path, "two", place)
    assert (second["hits"], second["misses"], second["compiles"]) == (1, 0, 0)
    assert second["value"] == first["value"]
    assert programs(tmp_path / "two") == programs(remote)


def test_a_read_only_place_gets_nothing(tmp_path):
    remote = tmp_path / "bucket"
    found, _ = run(tmp_path, "one", f"file://{remote}", XLA_PERSISTENT_CACHE_READ_ONLY="1")
    assert found["compiles"] == 1
    assert not remote.exists()


def test_a_place_that_cannot_be_reached_is_told_once(tmp_path):
    (tmp_path / "bucket").write_text("no folder")
    found, errors = run(tmp_path, "one", f"file://{tmp_path / 'bucket' / 'programs'}")
    assert found["compiles"] == 1
    assert errors.count("torch_xla: compiled programs in file://") == 1


def test_commands_are_of_the_remote_folder(tmp_path):
    remote = tmp_path / "bucket"
    script = tmp_path / "warm.py"
    script.write_text(
        "import sys, torch, torch_xla\n(torch.ones(3).to('xla') * 3).cpu()\nsys.exit(3)\n"
    )

    def command(host: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        caches = {"XDG_CACHE_HOME": str(tmp_path / host), **environment}
        result = start_python("-m", "torch_xla.cache", *arguments, **caches)
        return result.returncode, result.stdout, result.stderr

    place = f"file://{remote}"
    status, _, errors = command("one", "--folder", place, "warm", str(script))
    assert (status, errors.count("PersistentCacheWrite: 1")) == (3, 1), errors
    assert len(programs(remote)) == 2
    _, out, _ = command("two", "--folder", place, "info")
    assert "entries:  2\n" in out and f", for {place}\n" in out
    assert command("two", "clear", XLA_PERSISTENT_CACHE_PATH=place)[:2] == (
        0,
        "removed 2 entries\n",
    )
    assert not programs(remote) and not programs(tmp_path / "two")
    status, _, errors = command("one", "warm", str(tmp_path / "none.py"))
    assert status == 2 and errors.endswith(f"there is no script {tmp_path / 'none.py'}\n")
