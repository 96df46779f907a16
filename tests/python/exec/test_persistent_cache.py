"""The cache of compiled programs on disk: torch_xla.runtime.initialize_cache, torch_xla.cache."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testing.plugins import make_toy
from testing.processes import PREAMBLE, run_python, start_python, write_script

from torch_xla import _XLAC, cache

pytestmark = pytest.mark.multiprocess

# Two programs.
SCRIPT = """
x = torch.arange(6.0).view(2, 3).to(device)
y = x * 2.5
torch_xla.sync()
loss = (x + y).sum()
torch_xla.sync()
xm.wait_device_ops()
_XLAC._xla_flush_cache()
def samples(name):
    data = met.metric_data(name)
    return data[0] if data else 0
report(
    compiles=samples("CompileTime"), lowered=samples("LowerTime"), loss=loss.item(),
    hits=count("PersistentCacheHit"),
    misses=count("PersistentCacheMiss"), writes=count("PersistentCacheWrite"),
    rejected=count("CacheRejected"),
)
"""


def run(tmp_path: Path, folder: Path | str, **environment: str) -> dict[str, Any]:
    return run_python(SCRIPT, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder), **environment)[0]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.program"))


def test_what_the_environment_said_first_counts(tmp_path):
    """Lightning's `precision="bf16-true"` sets XLA_USE_BF16 for a while."""
    folder = tmp_path / "cache"
    late = 'torch.ones(1).to(device)\nimport os\nos.environ["XLA_USE_BF16"] = "1"\n'
    first = run_python(late + SCRIPT, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder))[0]
    assert first["compiles"] == 2
    gone = 'torch.ones(1).to(device)\nimport os\ndel os.environ["XLA_USE_BF16"]\n'
    settings = {"XLA_PERSISTENT_CACHE_PATH": str(folder), "XLA_USE_BF16": "1"}
    for code in (SCRIPT, gone + SCRIPT):
        assert run_python(code, tmp_path, **settings)[0]["loss"] == first["loss"]
    assert run(tmp_path, folder)["hits"] == 2


def test_a_second_process_lowers_and_compiles_nothing(tmp_path):
    folder = tmp_path / "cache"
    first = run(tmp_path, folder)
    assert first["compiles"] == first["lowered"] == first["misses"] == first["writes"] == 2
    assert len(entries(folder)) == 2
    assert len(list(folder.glob("*.loads"))) == 1  # that the plugin takes them back, once asked
    second = run(tmp_path, folder)
    assert (second["compiles"], second["lowered"], second["misses"], second["writes"]) == (0,) * 4
    assert (second["hits"], second["loss"]) == (2, first["loss"])
    # Where the environment may lower a graph in another way it is lowered; the program is the same.
    third = run(tmp_path, folder, XLA_SOME_SWITCH="1")
    assert (third["compiles"], third["lowered"], third["hits"]) == (0, 2, 2)


def test_damaged_entries_are_made_anew(tmp_path):
    folder = tmp_path / "cache"
    first = run(tmp_path, folder)
    torn, noise = entries(folder)
    torn.write_bytes(torn.read_bytes()[:100])
    noise.write_bytes(b"\x00not a program\xff" * 50)
    found = cache.entries(str(folder), check=True)
    assert {Path(entry.path) for entry in found if entry.is_damaged} == {torn, noise}
    second = run(tmp_path, folder)
    assert (second["compiles"], second["hits"], second["loss"]) == (2, 0, first["loss"])
    assert not any(entry.is_damaged for entry in cache.entries(str(folder), check=True))
    assert run(tmp_path, folder)["hits"] == 2


NUMBERS = """
import os
order = [int(i) for i in os.environ["TEST_ORDER"].split()]
x = torch.arange(12.0).view(6, 2).to(device)
wrong = []
for i in order:
    row, power = (x[i] + 1).tolist(), (x ** i).tolist()
    written = x.clone()
    written[i] = i + 0.5
    host = torch.arange(12.0).view(6, 2)
    if row != (host[i] + 1).tolist() or power != (host ** i).tolist():
        wrong.append(i)
    host[i] = i + 0.5
    if written.tolist() != host.tolist():
        wrong.append(i)
data = met.metric_data("CompileTime")
report(wrong=wrong, compiles=data[0] if data else 0)
"""


def test_programs_that_differ_in_a_number_alone_are_told_apart(tmp_path):
    """The number is not in the graph's hash: as a constant it is in the key, else a parameter."""
    folder = tmp_path / "cache"

    def numbers(order: str) -> dict[str, Any]:
        return run_python(
            NUMBERS, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder), TEST_ORDER=order
        )[0]

    first = numbers("0 3 1 4 2 5")
    assert first["wrong"] == []
    assert 0 < first["compiles"] <= 3 * 3
    assert numbers("0 3 1 4 2 5") == {"wrong": [], "compiles": 0}
    assert numbers("5 4 3 2 1 0")["wrong"] == []


@pytest.mark.parametrize("flags", ["--xla_cpu_max_isa=SSE4_2"])
def test_other_options_are_other_entries(tmp_path, flags):
    folder = tmp_path / "cache"
    assert run(tmp_path, folder)["misses"] == 2
    assert run(tmp_path, folder, XLA_FLAGS=flags)["misses"] == 2
    assert run(tmp_path, folder, CPU_NUM_DEVICES="2")["misses"] == 2
    assert len(entries(folder)) == 6


WHY = """
found = torch_xla.debug.explain(lambda: (torch.ones(3, device=device) * TEST_NUMBER).tolist())
report(why=[one.disk for one in found.compilations])
"""


def test_why_the_disk_had_no_program(tmp_path):
    folder = tmp_path / "cache"

    def why(number: str, **environment: str) -> str:
        script = WHY.replace("TEST_NUMBER", number)
        path = str(folder)
        (reason,) = run_python(script, tmp_path, XLA_PERSISTENT_CACHE_PATH=path, **environment)[0][
            "why"
        ]
        return reason

    assert why("2.5 + 1").startswith("empty: there is no program in")
    assert why("2.5 + 1") == ""
    assert why("2.5 - 1").startswith("program: none of the 1 entries is this program")
    assert why("2.5 + 1", XLA_FLAGS="--xla_cpu_max_isa=SSE4_2").endswith(
        ": this program is on disk, but compiled for another"
    )
    why("2.5 / 2", XLA_PERSISTENT_CACHE_MAX_BYTES="1")  # leaves no place for any
    assert why("2.5 + 1").startswith("evicted: the entry was removed")


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_it_is_on_by_default(tmp_path, variable):
    code = """
        import os
        del os.environ["XLA_PERSISTENT_CACHE_PATH"]
        if os.environ["TEST_VARIABLE"] == "HOME":
            os.environ.pop("XDG_CACHE_HOME", None)
        (torch.ones(3, device=device) + torch.arange(3, device=device)).cpu()
        report(settings=_XLAC._xla_cache_settings())
    """
    folder = tmp_path / "user"
    (settings,) = run_python(code, tmp_path, TEST_VARIABLE=variable, **{variable: str(folder)})[
        0
    ].values()
    programs = folder / (".cache" if variable == "HOME" else "") / "torch_xla" / "programs"
    assert settings == [str(programs), False, 10 << 30]
    assert entries(programs)
    assert programs.stat().st_mode & 0o777 == 0o700


def test_an_empty_path_is_no_cache(tmp_path):
    assert run(tmp_path, "") == {
        **dict.fromkeys(("hits", "misses", "writes", "rejected"), 0),
        "compiles": 2,
        "lowered": 2,
        "loss": 52.5,
    }


def test_read_only(tmp_path):
    folder = tmp_path / "cache"
    read_only = {"XLA_PERSISTENT_CACHE_READ_ONLY": "1"}
    assert run(tmp_path, folder, **read_only)["misses"] == 2
    run(tmp_path, folder)
    entries(folder)[0].unlink()
    found = run(tmp_path, folder, **read_only)
    assert (found["hits"], found["misses"], found["writes"]) == (1, 1, 0)
    assert len(entries(folder)) == 1


def test_initialize_cache(tmp_path):
    code = """
        import torch_xla.runtime as xr
        xr.initialize_cache({folder!r}, readonly={readonly})
        (torch.arange(3, device=device) + 1).cpu()
        hits, misses = count("PersistentCacheHit"), count("PersistentCacheMiss")
        xr.initialize_cache("")
        (torch.arange(4, device=device) + 1).cpu()
        assert count("PersistentCacheMiss") == misses
        report(hits=hits, misses=misses)
    """
    folder = str(tmp_path / "cache")
    first, _ = run_python(code.format(folder=folder, readonly=False), tmp_path)
    second, _ = run_python(code.format(folder=folder, readonly=True), tmp_path)
    assert (first["hits"], second["misses"]) == (0, 0)
    assert first["misses"] == second["hits"] > 0


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "file").write_text("no folder")
    found, errors = run_python(
        SCRIPT, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(tmp_path / "file" / "cache")
    )
    assert (found["compiles"], found["loss"]) == (2, 52.5)
    assert errors.count("compiled programs cannot be written to") == 1


# The first compilation of all processes ends its process in the middle; each says that it began.
DYING = """
static PJRT_Error* (*compile)(PJRT_Client_Compile_Args*) = api.PJRT_Client_Compile;
api.PJRT_Client_Compile = [](PJRT_Client_Compile_Args* args) -> PJRT_Error* {
  std::fprintf(stderr, "a compilation\\n");
  const bool first = open(std::getenv("TEST_MARK"), O_CREAT | O_EXCL, 0600) >= 0;
  usleep(300000);  // the others wait by now
  if (first) raise(SIGKILL);
  return compile(args);
};
"""


@pytest.mark.parametrize("dies", [False, True])
def test_of_many_processes_one_compiles(tmp_path, dies):
    """If it ends in the middle, another one does; both leave a child behind, as loaders do."""
    library = make_toy(tmp_path, DYING)
    mark = tmp_path / "mark"
    if not dies:
        mark.touch()
    script = write_script(
        tmp_path,
        "import torch, torch_xla, torch_xla.debug.metrics as met, os, sys, json, threading, time\n"
        "x = torch.arange(400.0, device='xla').view(20, 20)\n"
        "for _ in range(40): x = torch.linalg.qr(x.tanh() + x.sin()).Q @ x.cos()\n"
        "def child():\n"
        "    time.sleep(0.1)\n"
        "    if os.fork() == 0:\n"
        "        for stream in range(3): os.close(stream)\n"
        "        time.sleep(300)\n"
        "        os._exit(0)\n"
        "sys.stdin.readline()\n"
        "threading.Thread(target=child).start()\n"
        "x.cpu()\n"
        "names = 'PersistentCacheHit', 'PersistentCacheMiss'\n"
        "print(json.dumps([met.counter_value(name) or 0 for name in names]))",
    )
    environment = {
        **os.environ,
        "XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache"),
        "XLA_COMPILE_PROGRESS": "0.01",
        "PJRT_CPU_LIBRARY_PATH": library,
        "TEST_MARK": str(mark),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:  # and its child
            os.killpg(process.pid, signal.SIGKILL)
    counts = [json.loads(printed) for printed, _ in outputs if printed]
    told = "".join(errors for _, errors in outputs)
    programs = len(entries(tmp_path / "cache"))
    assert programs > 0
    assert len(counts) == 4 - dies, told
    assert sum(misses for _, misses in counts) == programs
    assert sum(hits for hits, _ in counts) == (3 - dies) * programs
    assert told.count("a compilation") == programs + dies
    assert "torch_xla: waiting for another process that is compiling graph" in told


REJECTING = """
  api.PJRT_Executable_DeserializeAndLoad = [](PJRT_Executable_DeserializeAndLoad_Args* args) {
    static char nonsense[] = "nonsense";
    args->serialized_executable = nonsense;
    args->serialized_executable_size = sizeof nonsense;
    return real->PJRT_Executable_DeserializeAndLoad(args);
  };
"""


def test_a_plugin_that_rejects_its_own_programs_is_noticed(tmp_path):
    library = make_toy(tmp_path, REJECTING)
    found, errors = run_python(
        SCRIPT,
        tmp_path,
        XLA_PERSISTENT_CACHE_PATH=str(tmp_path / "cache"),
        PJRT_DEVICE="CPU",
        PJRT_CPU_LIBRARY_PATH=library,
    )
    assert (found["compiles"], found["loss"]) == (2, 52.5)
    assert (found["writes"], found["rejected"]) == (1, 1)
    assert not entries(tmp_path / "cache")
    assert errors.count("refuses to load") == 1


# The CPU's devices, known without a client of them.
COMPILES_WITHOUT_DEVICES = """
  static PJRT_Client* client;
  static const auto topology = [] {
    Args<PJRT_Client_Create_Args> create;
    real->PJRT_Client_Create(&create);
    client = create.client;
    Args<PJRT_Client_TopologyDescription_Args> args;
    args.client = client;
    real->PJRT_Client_TopologyDescription(&args);
    return args.topology;
  };
  api.PJRT_TopologyDescription_Create = [](PJRT_TopologyDescription_Create_Args* args) {
    args->topology = topology();
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Compile = [](PJRT_Compile_Args* args) {
    Args<PJRT_Client_Compile_Args> compile;
    compile.client = client;
    compile.program = args->program;
    compile.compile_options = args->compile_options;
    compile.compile_options_size = args->compile_options_size;
    if (PJRT_Error* error = real->PJRT_Client_Compile(&compile)) return error;
    Args<PJRT_LoadedExecutable_GetExecutable_Args> get;
    get.loaded_executable = compile.executable;
    PJRT_Error* error = real->PJRT_LoadedExecutable_GetExecutable(&get);
    args->executable = get.executable;
    return error;
  };
"""


def test_devices_load_what_was_compiled_without_them(tmp_path):
    """A plugin that stands for a TPU's."""
    library = make_toy(tmp_path, COMPILES_WITHOUT_DEVICES)
    settings = {"PJRT_DEVICE": "TPU", "PJRT_TPU_LIBRARY_PATH": library}
    folder = tmp_path / "cache"
    compiled = run_python(
        SCRIPT.replace("loss=loss.item(),", ""),
        tmp_path,
        XLA_PERSISTENT_CACHE_PATH=str(folder),
        XLA_TOPOLOGY="v5e:1x1",
        **settings,
    )[0]
    assert (compiled["compiles"], compiled["writes"], compiled["hits"]) == (2, 2, 0)
    found = run(tmp_path, folder, **settings)
    assert (found["lowered"], found["compiles"], found["hits"], found["loss"]) == (0, 0, 2, 52.5)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return start_python("-m", "torch_xla.cache", *arguments, **environment)


def test_command_line(tmp_path, capsys):
    folder = tmp_path / "cache"
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch_xla\n"
        "print(sys.argv[1], (torch.arange(3, device='xla') + 1).tolist(), __name__)\n"
    )
    warmed = command("--folder", str(folder), "warm", str(script), "--flag")
    assert warmed.stdout == "--flag [1, 2, 3] __main__\n", warmed.stderr
    programs = len(entries(folder))
    everything = len(cache.entries(str(folder)))  # The records, too.
    assert f"PersistentCacheWrite: {programs}" in warmed.stderr
    assert programs > 0
    again = command("warm", str(script), "x", XLA_PERSISTENT_CACHE_PATH=str(folder))
    assert f"PersistentCacheHit: {programs}" in again.stderr, again.stderr

    def main(*arguments: str) -> tuple[int, str]:
        status = cache.main(["--folder", str(folder), *arguments])
        return status, capsys.readouterr().out

    status, out = main("ls")
    assert (status, len(out.splitlines())) == (0, everything)
    assert sum(" CPU " in line and ".program  " in line for line in out.splitlines()) == programs
    assert f"entries:  {everything}\n" in main("info")[1]
    assert main("verify") == (0, f"{everything} of {everything} entries are whole\n")
    entry = entries(folder)[0]
    entry.write_bytes(entry.read_bytes()[:-1])
    status, out = main("verify")
    assert status == 1
    assert f"damaged: {entry}\n" in out
    (folder / "tunings.XLAprog1").mkdir()  # as a GPU's compiler makes it
    assert main("clear") == (0, f"removed {everything} entries\n")
    assert main("list") == (0, "")
    assert not list(folder.glob("tunings*"))


def test_a_reader_of_the_list_may_go_away(tmp_path):
    """As `head` does; each line says what asked for the program."""
    folder = tmp_path / "cache"
    run(tmp_path, folder)
    lines = command("list", XLA_PERSISTENT_CACHE_PATH=str(folder)).stdout.splitlines()
    assert sum("torch_xla.sync()" in line and "script.py:" in line for line in lines) == 4, lines
    for entry in list(folder.glob("*.record")) * 400:
        name = f"{os.urandom(16).hex()}.record"
        (folder / name).write_bytes(entry.read_bytes())
    listed = subprocess.run(
        f"{sys.executable} -m torch_xla.cache ls | head -n 1; exit ${{PIPESTATUS[0]}}",
        executable="/bin/bash",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": str(folder)},
    )
    assert (listed.returncode, listed.stderr) == (0, "") and len(listed.stdout.splitlines()) == 1


# ------------------------------------------------------------------ files of others


MANY = """
x = torch.ones(3).to(device)
for i in range(40):
    x = x * (i + 1.5) + (torch.ones(i + 2).to(device) * 2).sum()
    torch_xla.sync()
_XLAC._xla_flush_cache()
report(
    value=x.tolist(), evicted=count("PersistentCacheEvict"), writes=count("PersistentCacheWrite")
)
"""


def strangers(folder: Path) -> dict[Path, bytes]:
    """Files of somebody else, all older than any entry, some with names much like an entry's."""
    digits = "0123456789abcdef" * 2
    names = (
        "checkpoint.pt",
        "old.tmp",
        "training.record",
        "locks",
        "evicted",
        "locks.txt",
        digits,
        f"{digits}.program",  # without our beginning
        f"{digits}.pt.tmp",
        f"{digits}.program.1.2.tmp",
        f"{digits}0.program",
        f"{digits[:-1]}.program",
        f"{digits.upper()}.program",
        "tunings/mine.txt",
    )
    files = {}
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 200_000)  # More than the list of what made room may have.
        os.utime(path, (1000, 1000))
        files[path] = path.read_bytes()
    # With our beginning, and another's name.
    copy = folder / "XLAprog1.bin"
    copy.write_bytes(b"XLAprog1" * 5000)
    os.utime(copy, (1000, 1000))
    files[copy] = copy.read_bytes()
    return files


def test_files_of_others_stay(tmp_path):
    """Where programs make room, and where they are removed."""
    folder = tmp_path / "output"
    kept = strangers(folder)
    half_written = folder / f"{'ab' * 16}.program.123.456.tmp"
    half_written.write_bytes(b"XLAprog1 of a process that was killed")
    os.utime(half_written, (1000, 1000))
    settings = {
        "XLA_PERSISTENT_CACHE_PATH": str(folder),
        "XLA_PERSISTENT_CACHE_MAX_BYTES": "300000",
        "XLA_DYNAMIC_SIZES": "0",  # One program for each of the sizes.
    }
    found, _ = run_python(MANY, tmp_path, **settings)
    assert found["writes"] > 10 and found["evicted"] > 0
    assert {path: path.read_bytes() for path in kept} == kept
    assert not half_written.exists()
    assert entries(folder)
    for name in ("verify", "ls", "info", "clear", "clear"):
        cache.main(["--folder", str(folder), name])
        assert {path: path.read_bytes() for path in kept} == kept
    names = {path.name for path in folder.iterdir()}
    assert names - {path.name for path in kept} <= {"locks.XLAprog1", "evicted.XLAprog1", "tunings"}


def test_a_pipe_in_the_place_of_a_program(tmp_path):
    """Whoever can make one there must not stop us."""
    folder = tmp_path / "cache"
    first = run(tmp_path, folder)
    for entry in (*folder.glob("*.program"), *folder.glob("*.record"), folder / "evicted.XLAprog1"):
        entry.unlink(missing_ok=True)
        os.mkfifo(entry)
    assert run(tmp_path, folder)["loss"] == first["loss"]
    for arguments in (("ls",), ("verify",), ("clear",)):
        assert command("--folder", str(folder), *arguments).returncode == 0
    assert run(tmp_path, folder, PT_XLA_DEBUG="1")["loss"] == first["loss"]


def test_a_full_disk_and_a_killed_process(tmp_path):
    """Neither leaves anything that later processes take for a program."""
    folder = tmp_path / "cache"
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    full, errors = run_python(limit + MANY, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder))
    assert "cannot be written to" in errors
    assert not list(folder.glob("*.tmp"))
    killing = """
import os, signal, threading
threading.Timer(TEST_SECONDS, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
"""
    script = tmp_path / "killed.py"
    for seconds in ("0.05", "0.3"):
        script.write_text(PREAMBLE + killing.replace("TEST_SECONDS", seconds) + MANY * 20)
        result = start_python(str(script), XLA_PERSISTENT_CACHE_PATH=str(folder))
        assert result.returncode == -9
    after, _ = run_python(MANY, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder))
    assert after["value"] == full["value"]
    assert not any(entry.is_damaged for entry in cache.entries(str(folder), check=True))


def test_no_thread_can_be_made(tmp_path):
    """Programs are not stored, nor compiled ahead; the process goes on, and ends."""
    code = """
import resource
(torch.ones(2).to(device) + 1).tolist()
_XLAC._xla_flush_cache()
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    import os
    os.setuid(65534)  # The limit is not root's.
except PermissionError:
    pass
import threading
try:
    threading.Thread(target=print).start()
    limited = False
except RuntimeError:
    limited = True
x = torch.arange(4.0).to(device)
torch_xla.sync()
values = []
for i in range(12):
    x = x + torch.ones(i + 1).to(device).sum()
    torch_xla.sync()
report(value=x.tolist(), limited=limited)
"""
    folder = tmp_path / "cache"
    found, _ = run_python(code, tmp_path, XLA_PERSISTENT_CACHE_PATH=str(folder), timeout=60)
    assert found == {"value": [78.0 + i for i in range(4)], "limited": True}


@pytest.mark.parametrize("debug", ["0", "1"])
def test_the_folder_goes_away_meanwhile(tmp_path, debug):
    code = """
import shutil, os
(torch.ones(2).to(device) + 1).tolist()
_XLAC._xla_flush_cache()
folder = os.environ["XLA_PERSISTENT_CACHE_PATH"]
shutil.rmtree(folder)
open(folder, "w").close()
report(value=(torch.ones(3).to(device) * 3 - 1).tolist())
"""
    folder = str(tmp_path / "cache")
    found, _ = run_python(code, tmp_path, XLA_PERSISTENT_CACHE_PATH=folder, PT_XLA_DEBUG=debug)
    assert found == {"value": [2.0] * 3}


def test_commands_need_a_cache():
    result = command("info", XLA_PERSISTENT_CACHE_PATH="")
    assert result.returncode == 2
    assert "there is no cache" in result.stderr
    assert _XLAC._xla_cache_settings() is None  # Tests have none, unless they say so.
