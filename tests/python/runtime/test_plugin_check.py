"""python -m torch_xla.plugin_check: the CPU's plugin, and toys that lack things."""

import functools
import re
from pathlib import Path

import pytest
from testing.plugins import SOURCES, cpu_plugin, make_toy
from testing.processes import start_python

from torch_xla import plugin_check
from torch_xla._internal.plugins.functions import FUNCTIONS


@pytest.fixture
def toy(tmp_path):
    """Makes a plugin whose table was changed by a statement of C++."""
    return functools.partial(make_toy, tmp_path)


def test_the_functions_are_those_of_the_header():
    if not SOURCES.is_dir():
        pytest.skip("needs the sources")
    text = (SOURCES / "runtime" / "pjrt_abi.h").read_text()
    table = text[text.index("struct PJRT_Api {") :]
    table = table[: table.index("};")]
    slots = re.findall(r"(void\*|PJRT_Function<\w+>|void \(\*)\s*(\w+)", table)
    slots = [(kind, name) for kind, name in slots if name.startswith("PJRT_")]
    called = set(re.findall(r"\bPJRT_[A-Z]\w+", "".join(map(_uses, SOURCES.rglob("*.cpp")))))
    expected = [
        (slot, name)
        for slot, (kind, name) in enumerate(slots)
        if kind != "void*" and name in called
    ]
    assert [(function.slot, function.name) for function in FUNCTIONS] == expected


def _uses(path: Path) -> str:
    return re.sub(r"PJRT_\w+_Args", "", path.read_text())


def test_the_cpu_s_plugin_has_all_that_is_needed():
    result = start_python("-m", "torch_xla.plugin_check", cpu_plugin())
    assert result.returncode == 0, result.stdout + result.stderr
    assert "All that is needed works." in result.stdout
    assert re.search(r"PJRT_LoadedExecutable_Execute +works\n", result.stdout)
    assert re.search(r"PJRT_Executable_DeserializeAndLoad +works\n", result.stdout)
    # It may fail at this, and says so.
    assert re.search(r"PJRT_Device_MemoryStats +fails: .*no figures", result.stdout)


def test_what_is_missing_fails_or_crashes_is_told(toy):
    library = toy(
        "api.PJRT_Executable_Serialize = nullptr;"
        "api.PJRT_LoadedExecutable_Execute = nullptr;"
        "api.PJRT_Buffer_ToHostBuffer = [](PJRT_Buffer_ToHostBuffer_Args*) -> PJRT_Error* {"
        "  std::abort(); };"
    )
    report = plugin_check.check(library)
    assert report.functions["PJRT_Client_Create"] == "works"
    assert report.functions["PJRT_Executable_Serialize"] == "missing"
    assert report.functions["PJRT_LoadedExecutable_Execute"] == "missing"
    assert report.functions["PJRT_Buffer_ToHostBuffer"] == "does not return"
    assert report.ended == "ended by signal 6"
    problems = " ".join(report.problems())
    assert "PJRT_LoadedExecutable_Execute missing" in problems
    assert "PJRT_Executable_Serialize" not in problems  # It may be missing.


def test_the_plugin_s_own_words_are_shown(toy, capsys):
    # A client that cannot be made: the error is the plugin's own.
    library = toy(
        "api.PJRT_Client_Create = [](PJRT_Client_Create_Args* args) -> PJRT_Error* {"
        "  args->struct_size = 1; return real->PJRT_Client_Create(args); };"
    )
    assert plugin_check.main([library]) == 1
    output = capsys.readouterr().out
    assert re.search(r"PJRT_Client_Create +fails: .*PJRT_Client_Create_Args", output)
    assert "WRONG: a client with devices: fails" in output


def test_a_file_that_is_no_plugin(tmp_path, capsys):
    (tmp_path / "text.so").write_text("not a library")
    for path, words in (
        (tmp_path / "text.so", "no PJRT plugin"),
        (tmp_path / "nothing.so", "no such file"),
    ):
        assert plugin_check.main([str(path)]) == 2
        assert words in capsys.readouterr().out


def test_options_are_typed():
    option = plugin_check._option
    assert [option(text) for text in ("a=true", "b=3", "c=x", "d=[1, 2]", "e=")] == [
        ("a", True),
        ("b", 3),
        ("c", "x"),
        ("d", [1, 2]),
        ("e", ""),
    ]
