"""What compiling costs, and what says so: kernels, several at once, the line of progress."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
from pathlib import Path

import torch
from testing.plugins import make_toy
from testing.processes import python_output, start_python

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.experimental.scan_layers import scan_layers

# Updates alike, each with numbers of its own, then what XLA made of them.
UPDATES = """
import torch, torch_xla
def update(p, i):
    return (p * (2.5 + i)).sin() + p.int() * (i + 3)
cpu = [torch.full((3, 5), 1.0 + i) for i in range(24)]
xla = [p.to("xla") for p in cpu]
torch_xla.sync()
for _ in range(3):  # until the integers are parameters, too
    results = [update(p, i + _) for i, p in enumerate(xla)]
    torch_xla.sync()
for i, (p, result) in enumerate(zip(cpu, results)):
    torch.testing.assert_close(result.cpu(), update(p, i + 2))
"""


def kernels(folder: Path) -> list[int]:
    """How many each program has, in the order in which they were compiled."""
    programs: dict[str, int] = {}
    for file in folder.glob("module_*.o"):
        number = re.match(r"module_(\d+)", file.name)
        assert number
        programs[number[1]] = programs.get(number[1], 0) + 1
    return [programs[number] for number in sorted(programs)]


def test_kernels_alike_but_for_their_numbers_are_one(tmp_path: Path) -> None:
    made = {}
    for kind in "1", "0":
        folder = tmp_path / kind
        python_output(
            UPDATES,
            XLA_CPU_KERNELS=kind,
            XLA_PERSISTENT_CACHE_PATH="",
            XLA_FLAGS=f"--xla_dump_to={folder}",
        )
        made[kind] = kernels(folder)
    assert max(made["1"]) <= 3
    assert max(made["0"]) >= 24  # or this counts something else


def test_a_few_writes_to_short_rows_are_no_scatters(device: torch.device) -> None:
    """Each scatter of a program is compiled by itself: two for each layer with a router."""
    scores = torch.randn(6, 8, device=device, requires_grad=True)
    weights, places = scores.softmax(-1).topk(2)
    torch.zeros_like(scores).scatter(-1, places, weights).square().sum().backward()
    text = torch_xla._XLAC._get_xla_tensors_hlo([scores.grad])
    assert "stablehlo.select" in text and "stablehlo.scatter" not in text
    # A cache is written in place, and a long row is not read for a few writes.
    cache = torch.zeros(6, 512, device=device).scatter_(1, places, weights.detach())
    assert "stablehlo.scatter" in torch_xla._XLAC._get_xla_tensors_hlo([cache])


def test_a_programs_text_for_others_has_no_calls_of_ours(device: torch.device) -> None:
    results = [torch.ones(3, device=device) * (1.5 + i) for i in range(20)]
    text = torch_xla._XLAC._get_xla_tensors_hlo(results)
    assert "custom_call" not in text and "stablehlo.slice" in text


# Kernels of shapes of their own, so that the compilation takes a while.
SLOW = """
import torch, torch_xla
results = [torch.ones(3 + i, device="xla").sin() for i in range(40)]
torch_xla.sync(wait=True)
"""


def on_terminal(code: str, **environment: str) -> bytes:
    """Returns what a process writes to its standard error, a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", **environment},
    )
    os.close(theirs)
    timer = threading.Timer(120, process.kill)
    timer.start()
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:
        pass  # Linux's way to say that the other end is closed
    assert process.wait() == 0, written
    timer.cancel()
    os.close(ours)
    return written


def test_a_long_compilation_shows_a_line_on_a_terminal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW, encoding="utf-8")
    run = f"import runpy; runpy.run_path({str(script)!r})"
    written = on_terminal(run, XLA_COMPILE_PROGRESS="0.001")
    lines = [line.decode() for line in written.split(b"\r\x1b[K")]
    # Nothing before it, and at the end it is erased.
    assert lines[0] == lines[-1] == ""
    assert re.fullmatch(r"compiling graph 1 \(\d+ ops\), .* … \d+ s", lines[1])
    assert all(len(line) < 60 for line in lines)
    assert b"compiling" not in on_terminal(run, XLA_COMPILE_PROGRESS="0")
    assert b"compiling" not in on_terminal(run, XLA_COMPILE_PROGRESS="600")


def test_one_line_stays_where_the_standard_error_is_no_terminal() -> None:
    for seconds, lines in ("0.001", 1), ("0", 0):
        result = start_python(
            "-c", SLOW, XLA_COMPILE_PROGRESS=seconds, XLA_PERSISTENT_CACHE_PATH=""
        )
        pattern = r"torch_xla: compiling graph \d+ \(\d+ ops\).*: 0.002 s so far\n"
        assert result.returncode == 0 and len(re.findall(pattern, result.stderr)) == lines
        assert result.stderr.count("compiling") == lines, result.stderr


def test_seconds_of_the_line_that_are_none() -> None:
    result = start_python("-c", SLOW, XLA_COMPILE_PROGRESS="soon")
    assert result.returncode != 0
    assert "XLA_COMPILE_PROGRESS must be seconds, 0 or more, got 'soon'" in result.stderr


# Each compile waits for another one, a minute at the most, and tells whether it came.
MEETING = r"""
static PJRT_Error* (*compile)(PJRT_Client_Compile_Args*) = api.PJRT_Client_Compile;
api.PJRT_Client_Compile = [](PJRT_Client_Compile_Args* args) -> PJRT_Error* {
  static std::atomic<int> compiling{0};
  const int place = ++compiling;
  for (int i = 0; i < 6000 && compiling < 2; ++i) usleep(10000);
  std::fprintf(stderr, "compile %d: %s\n", place, compiling < 2 ? "alone" : "with another");
  return compile(args);
};
"""


def test_programs_that_wait_in_a_queue_are_compiled_at_the_same_time(tmp_path):
    code = """
        import torch, torch_xla
        x = torch.arange(6.0).to("xla")
        torch_xla.sync()
        first = x * 2 + 1
        torch_xla.sync()
        second = (first - 3).square().sum()
        torch_xla.sync()
        print(first.tolist(), second.item())
    """
    toy = make_toy(tmp_path, MEETING)
    result = start_python(
        "-c", textwrap.dedent(code), PJRT_CPU_LIBRARY_PATH=toy, XLA_PERSISTENT_CACHE_PATH=""
    )
    assert result.stdout == "[1.0, 3.0, 5.0, 7.0, 9.0, 11.0] 124.0\n", result.stderr
    assert "compile 1: with another" in result.stderr
    assert "compile 2: with another" in result.stderr


# A step of layers in a loop, whose parameters are updated one by one.
LAYERS = """
import sys, torch, torch_xla
from torch_xla.experimental.scan_layers import scan_layers
layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(int(sys.argv[1])))
results = []
for device in "cpu", "xla":
    ours = layers.to(device)
    ours.zero_grad()
    x = torch.linspace(-1, 1, 512, device=device).view(2, 256)
    for layer in ours if device == "cpu" else ():
        x = layer(x)
    (x if device == "cpu" else scan_layers(ours, x)).square().sum().backward()
    with torch.no_grad():
        results.append([p - 0.5 * p.grad for p in ours.parameters()])
torch_xla.sync()
for expected, result in zip(*results):
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)
"""


def test_kernels_of_layers_in_a_loop_do_not_grow_with_their_number(tmp_path: Path) -> None:
    made = []
    for layers in "3", "9":
        folder = tmp_path / layers
        python_output(
            f"import sys; sys.argv[1:] = [{layers!r}]" + LAYERS,
            XLA_CPU_KERNELS="1",
            XLA_PERSISTENT_CACHE_PATH="",
            XLA_FLAGS=f"--xla_dump_to={folder}",
        )
        made.append(max(kernels(folder)))
    assert made[1] <= made[0] + 2, made


def test_a_loops_gradients_for_others_have_no_calls_of_ours(device: torch.device) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).to(device)
    scan_layers(layers, torch.ones(2, 4, device=device)).sum().backward()
    gradients = [layer.weight.grad for layer in layers]
    text = torch_xla._XLAC._get_xla_tensors_hlo(gradients)
    assert "custom_call" not in text and "stablehlo.slice" in text


def test_many_results_that_share_nothing_are_several_programs(device: torch.device) -> None:
    """A compiler's passes take time by the square of a program's results."""
    x = torch.arange(3.0, device=device)
    states = [torch.full((2,), float(i)).to(device) for i in range(3)]
    torch_xla.sync(wait=True)
    compiled = met.counter_value("UncachedCompile") or 0
    for _ in range(2):
        results = [(x * (i + 1.5)).sin() for i in range(2500)]
        for i, state in enumerate(states):
            state += i + 1
        torch_xla.sync(wait=True)
    more = (met.counter_value("UncachedCompile") or 0) - compiled
    assert 2 <= more <= 4, more  # parts of one size are one program
    for i in (0, 1, 1023, 1024, 2047, 2048, 2499):
        torch.testing.assert_close(results[i].cpu(), (torch.arange(3.0) * (i + 1.5)).sin())
    assert [state.tolist() for state in states] == [[3 * i + 2.0] * 2 for i in range(3)]


def test_many_results_that_belong_together_are_one_program(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    torch_xla.sync(wait=True)
    compiled = met.counter_value("UncachedCompile") or 0
    total = (x * 3).sin()
    results = [total + float(i) for i in range(2100)]
    torch_xla.sync(wait=True)
    assert met.counter_value("UncachedCompile") == compiled + 1
    torch.testing.assert_close(results[2099].cpu(), (torch.ones(2) * 3).sin() + 2099)
