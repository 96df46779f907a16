"""Compares the host's work with that of another commit, in instructions, which noise cannot hide.

    python benchmarks/gate.py COMMIT [--programs trace sync …]

The commit is built in a worktree of its own, build/gate. Then both run the same programs under
callgrind, which counts the instructions of all threads; compiling is no part of them. Ends with 1
where the ratio is above that of gate_limits.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "build" / "gate"
LIMITS: dict[str, float] = json.loads((Path(__file__).parent / "gate_limits.json").read_text())


def _work(root: str) -> None:
    """A process that runs the programs it is told to, with the package in ``root``."""
    # An editable install finds its own package, whatever the path says.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, root)
    import torch
    from torch import nn

    import torch_xla
    import torch_xla.core.xla_model as xm

    torch.manual_seed(0)
    device = xm.xla_device()
    a, b = torch.randn(4, 4).to(device), torch.randn(4, 4).to(device)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def trace() -> None:
        for _ in range(100):
            (a + b).relu().view(16).mul(0.5)[2:].sum()
            a.t().matmul(b).softmax(1).max(dim=0)

    def backward() -> None:
        for _ in range(10):
            model.zero_grad()
            model(a).sum().backward()

    def lower() -> None:
        x = a
        for _ in range(200):
            x = (x * b + a).tanh()
        torch_xla._XLAC._get_xla_tensors_hlo([x])

    def sync() -> None:
        for _ in range(100):
            c = a + b  # noqa: F841 - keeps the result alive, or there is nothing to run
            torch_xla.sync(wait=True)

    def step() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            model(a).sum().backward()
            optimizer.step()
            torch_xla.sync(wait=True)

    programs: dict[str, Callable[[], None]] = {
        "trace": trace,
        "backward": backward,
        "lower": lower,
        "sync": sync,
        "step": step,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        programs[line.strip()]()
        print("done", flush=True)
    os._exit(0)  # Taking down an interpreter takes long under valgrind.


def build(commit: str) -> None:
    """Builds the package of ``commit`` in its worktree, for this environment.

    Args:
        commit: Anything that git takes for one.
    """
    git = ["git", "-C", str(ROOT)]
    if not BASE.exists():
        subprocess.run([*git, "worktree", "prune"], check=True)
        subprocess.run([*git, "worktree", "add", "--detach", BASE, commit], check=True)
    commit = subprocess.check_output([*git, "rev-parse", f"{commit}^{{commit}}"], text=True)
    subprocess.run(
        ["git", "-C", BASE, "checkout", "--quiet", "--detach", commit.strip()], check=True
    )
    folder = BASE / "build" / "gate"
    # ccache knows the units of the other worktree where their paths are relative.
    environment = os.environ | {"CCACHE_BASEDIR": str(BASE), "CCACHE_NOHASHDIR": "1"}
    # The compiler that pip takes, too: ccache tells g++ from c++.
    environment.setdefault("CXX", (sysconfig.get_config_var("CXX") or "c++").split()[0])
    for arguments in (
        [
            "-S",
            BASE,
            "-B",
            folder,
            "-G",
            "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DTORCH_XLA_WERROR=ON",
        ],
        ["--build", folder, "--target", "_XLAC"],
    ):
        subprocess.run(["cmake", *arguments], check=True, env=environment)
    (library,) = folder.glob("_XLAC*.so")
    shutil.copy(library, BASE / "torch_xla")


def count(root: Path, programs: list[str]) -> dict[str, int]:
    """Returns how many instructions each program takes with the package in ``root``.

    Args:
        root: The folder that ``torch_xla`` is in, with its extension.
        programs: Keys of ``LIMITS``.
    """
    environment = os.environ | {
        "PYTHONHASHSEED": "0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PJRT_DEVICE": "CPU",
        "XLA_PERSISTENT_CACHE_PATH": "",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet"]
        process = subprocess.Popen(
            [*valgrind, f"--callgrind-out-file={out}", sys.executable, __file__, "--root", root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdin and process.stdout

        def control(*arguments: str) -> None:
            command = ["callgrind_control", *arguments, str(process.pid)]
            subprocess.run(command, check=True, capture_output=True)

        def run(program: str) -> None:
            process.stdin.write(program + "\n")
            process.stdin.flush()
            if process.stdout.readline() != "done\n":
                raise SystemExit(f"{root}: {program} failed")

        counts = {}
        process.stdout.readline()
        for number, program in enumerate(programs, 1):
            for _ in range(3):  # Compiles, and fills caches.
                run(program)
            control("-i", "on")
            run(program)
            control("-d")
            control("-i", "off")
            dump = Path(f"{out}.{number}").read_text().splitlines()
            (total,) = (line for line in dump if line.startswith("totals:"))
            counts[program] = int(total.split()[1])
        process.stdin.close()
        process.wait(timeout=60)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default="main")
    parser.add_argument("--programs", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--root", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.root:
        _work(args.root)
        return
    for tool in ("valgrind", "cmake"):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is needed: install it with your package manager")

    build(args.commit)
    # The package here is put into one folder with its extension, as that of the commit is.
    import torch_xla

    here = BASE / "build" / "here"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(ROOT / "torch_xla", here / "torch_xla", ignore=shutil.ignore_patterns("csrc"))
    shutil.copy(torch_xla._XLAC.__file__, here / "torch_xla")

    base, head = count(BASE, args.programs), count(here, args.programs)
    worse = False
    print(f"{'instructions':<14}{args.commit[:12]:>14}{'here':>14}{'ratio':>8}{'limit':>8}")
    for program in args.programs:
        ratio = head[program] / base[program]
        worse |= ratio > LIMITS[program]
        print(
            f"{program:<14}{base[program]:>14,}{head[program]:>14,}{ratio:>8.3f}"
            f"{LIMITS[program]:>8.3f}{'  worse' * (ratio > LIMITS[program])}"
        )
    if worse:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
