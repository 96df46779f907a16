"""torch_xla.config: the one table of variables, its page, and the warning of a misspelt one."""

import re
from pathlib import Path

import pytest
from testing.processes import start_python

from torch_xla import config
from torch_xla._internal import variables

ROOT = next(path for path in Path(__file__).parents if (path / "torch_xla").is_dir())


def test_the_page_is_that_of_the_table():
    assert (ROOT / "docs" / "configuration.md").read_text() == config.markdown()


def _sources() -> list[tuple[Path, str]]:
    tables = {"variables.py", "xla_env_vars.py"}
    return [
        (path, path.read_text())
        for path in sorted((ROOT / "torch_xla").rglob("*"))
        if path.suffix in (".py", ".h", ".cpp") and path.name not in tables
    ]


def test_no_variable_is_outside_the_table():
    own = re.compile(r'"((?:PT_|TORCH_)?XLA_[A-Z0-9_]*[A-Z0-9]|PJRT_[A-Z0-9_]*[A-Z0-9])"')
    any_read = re.compile(
        r'(?:getenv|EnvFlag|NonEmpty\w*|environ\.get|getenv_as|setdefault)\(\s*"([A-Z][A-Z0-9_]*)"'
        r'|environ\["([A-Z][A-Z0-9_]*)"\]|"([A-Z][A-Z0-9_]*)" (?:not )?in (?:os\.)?environ'
    )
    known = variables.known_names()
    no_variables = {"XLA_PERSISTENT_CACHE", "PT_XLA", "XLA", "XLA_LIB"}  # beginnings, a public name
    unknown, read = [], set()
    for path, text in _sources():
        for match in (*own.finditer(text), *any_read.finditer(text)):
            name = next(group for group in match.groups() if group)
            read.add(name)
            if name not in known | no_variables:
                unknown.append(f"{path.relative_to(ROOT)}: {name}")
    assert not unknown
    unread = {name for name in variables.ALL if "<" not in name} - read
    assert not unread, "in the table, and read nowhere"


def test_one_module_asks_for_the_platform_and_the_topology():
    asked = re.compile(r'environ\S*"(?:PJRT_DEVICE|XLA_TOPOLOGY)"')
    assert {path.name for path, text in _sources() if asked.search(text)} == {"platform_choice.py"}


def test_attributes_have_types(monkeypatch):
    for variable in config.variables():
        assert variable.attribute in dir(config)
        getattr(config, variable.attribute)
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "7")
    assert config.compilation_cache_size == 7
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "")
    assert config.compilation_cache_size == 2048
    monkeypatch.setenv("XLA_COLLECTIVE_TIMEOUT", "1.5")
    assert config.collective_timeout == 1.5
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")  # an alias
    assert config.ir_debug is True
    monkeypatch.setenv("XLA_ON_RECOMPILE", "raise")
    with pytest.raises(ValueError, match=r"XLA_ON_RECOMPILE must be one of ignore\|error, got 'r"):
        _ = config.on_recompile
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "many")
    with pytest.raises(ValueError, match="must be a number, got 'many'"):
        _ = config.compilation_cache_size


def test_a_path_may_begin_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XLA_PERSISTENT_CACHE_PATH", raising=False)
    assert config.persistent_cache_path == f"{tmp_path}/.cache/torch_xla/programs"
    names = ("XLA_PERSISTENT_CACHE_PATH", "XLA_SAVE_TENSORS_FILE", "XLA_METRICS_FILE")
    for name in (*names, "PT_XLA_DEBUG_FILE"):
        monkeypatch.setenv(name, f"~/{name}")
    assert config.persistent_cache_path == f"{tmp_path}/XLA_PERSISTENT_CACHE_PATH"
    code = (
        "import torch, torch_xla\n"
        "x = torch.ones(3).to('xla') * 2\n"
        "torch_xla.sync(wait=True)\n"
        "torch_xla.runtime.initialize_cache('~/later')\n"
        "(x + 5).cpu()\n"
    )
    result = start_python("-c", code, PT_XLA_DEBUG="1")
    assert result.returncode == 0, result.stderr
    for name in (*names, "PT_XLA_DEBUG_FILE", "later"):
        found = tmp_path / name
        assert any(found.iterdir()) if found.is_dir() else found.read_text()


@pytest.mark.parametrize("text", ["False", "OFF", "no", "0", ""])
def test_what_means_off(monkeypatch, text):
    monkeypatch.setenv("XLA_AUTO_STEP", text)
    monkeypatch.setenv("XLA_CHECK_INDICES", text)
    monkeypatch.setenv("PT_XLA_DEBUG", text)
    assert config.auto_step is False
    code = (
        "import torch, torch_xla\n"
        "print(torch_xla.config.check_indices, torch.ones(3, device='xla').add(2).tolist())"
    )
    result = start_python("-c", code)
    assert (result.stdout, result.stderr) == ("False [3.0, 3.0, 3.0]\n", "")


def test_what_cannot_be_assigned_says_what_to_set():
    with pytest.raises(AttributeError, match="set XLA_USE_SPMD before the process starts"):
        config.use_spmd = True
    with pytest.raises(AttributeError, match="has no setting 'check_indexes'"):
        config.check_indexes = True
    with pytest.raises(AttributeError, match="has no setting 'check_indexes'"):
        _ = config.check_indexes


def test_a_misspelt_variable_gets_one_line():
    strange = {
        "XLA_USE_SPDM": "1",
        "PJRT_DEVICES": "CPU",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # jax's
        "PJRT_CHIP_LIBRARY_PATH": "/no/such/file.so",
        "XLA_SYNC_WAIT": "1",
    }
    lines = start_python("-c", "import torch_xla", **strange).stderr.splitlines()
    assert lines == [
        "torch_xla: of the environment PJRT_DEVICES is not read (is PJRT_DEVICE meant?), "
        "XLA_USE_SPDM is not read (is XLA_USE_SPMD meant?)"
    ]
    assert start_python("-c", "import torch_xla", **strange, LOCAL_RANK="1").stderr == ""
