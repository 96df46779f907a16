"""Compiles training steps and modules for chips that are not there, beside the operators.

    python tests/python/platform_programs.py v5e              # all: `make platforms`
    python tests/python/platform_programs.py h100 -k 256

The examples' training steps on one device, by SPMD on 4 and on 256, and as one of so many replicas;
the replicas' collectives, each in several dtypes; each module of PyTorch's database with its
gradients. All go through the chip's own compiler (docs/platforms.md) and nothing runs. Exits with 1
where one is refused.
"""

import argparse
import copy
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# The extents of one device, of 4, of 256 and of 8.
EXTENTS = {"v5e": ("1x1", "2x2", "16x16", "2x4"), "h100": ("1", "4", "32x8", "8")}

if __name__ == "__main__":
    kind = sys.argv[1].partition(":")[0] if len(sys.argv) > 1 else ""
    if kind in EXTENTS:
        os.environ["XLA_TOPOLOGY"] = f"{kind}:{EXTENTS[kind][0]}"
        import torch_xla  # sets PJRT_DEVICE, before the suite does

HERE = Path(__file__).resolve().parent
SPMD, REPLICA = "train_gpt_spmd.py", "train_digits_mp.py"
# Name, which extent, the command.
PROGRAMS = (
    ("train_digits", 0, ("train_digits.py",)),
    ("train_gpt", 0, ("train_gpt.py",)),
    ("spmd on 4", 1, (SPMD, "--data", "2", "--model", "2")),
    ("spmd on 256", 2, (SPMD, "--data", "64", "--model", "4", "--batch-size", "256")),
    ("ring attention", 3, ("ring_attention.py", "--plan")),
    ("replica of 4", 1, (REPLICA,)),
    ("replica of 256", 2, (REPLICA, "--batch-size", "4", "--epochs", "1")),
)

COLLECTIVES = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

def replica(index):
    count = xr.world_size()
    assert count == {count} and index == 0
    made = 0
    floats = (torch.float32, torch.bfloat16, torch.float64)
    integers = (torch.int32, torch.uint8, torch.int64)
    dtypes = (*floats, *integers, torch.complex64)
    for dtype in dtypes if count <= 4 else (torch.float32,):
        x = torch.ones(count, 3, dtype=dtype).to("xla")
        kinds = ["sum"] if dtype.is_complex else ["sum", "min", "max"]
        if dtype in integers:
            kinds += ["and", "or"]
        if dtype not in (torch.int64, torch.complex64):
            kinds.append("mul")
        halves = [list(range(count // 2)), list(range(count // 2, count))]
        results = [xm.all_reduce(kind, x) for kind in kinds]
        results += [
            xm.reduce_scatter(kind, x, 1.0, scatter_dim=0, shard_count=count) for kind in kinds
        ]
        results += [
            xm.all_reduce("sum", x, groups=halves),
            xm.all_gather(x),
            xm.reduce_scatter("sum", x, 1.0, scatter_dim=0, shard_count=count),
            xm.all_to_all(x, 0, 1, count),
            xm.collective_permute(x, [[i, (i + 1) % count] for i in range(count)]),
        ]
        shapes = [tuple(r.shape) for r in results[-4:]]
        assert shapes == [(count * count, 3), (1, 3), (1, 3 * count), (count, 3)], shapes
        y = x + 1
        xm.collective_broadcast([y])
        torch_xla.sync(wait=True)
        made += len(results) + 1
    print(made, "collectives")

torch_xla.launch(replica)
"""


def _run_script(topology: str, command: tuple[str, ...]) -> str:
    script = HERE.parents[1] / "examples" / command[0]
    call = ["-m", "torch_xla.aot", "--topology", topology, str(script), *command[1:]]
    return _run(call, {})


def _run(call: list[str], environment: dict[str, str]) -> str:
    """What was wrong; nothing where it compiled."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PJRT_DEVICE", "XLA_TOPOLOGY")}
    run = subprocess.run(
        [sys.executable, *call],
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, **environment, "XLA_PERSISTENT_CACHE_PATH": ""},
    )
    return "" if run.returncode == 0 else (run.stderr + run.stdout)[-2000:]


def compile_module(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One step of a module, with the gradients of its parameters and inputs; in a process."""
    import torch
    from test_modules import _run as run_step
    from torch.testing._internal.common_modules import module_db

    info = next(info for info in module_db if info.name == name)
    torch.set_num_threads(1)
    dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=True
    )
    first = next(x for x in inputs if x.forward_input is not None)
    constructor = first.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype)
    if info.is_lazy:
        with torch.no_grad():
            module(*first.forward_input.args, **first.forward_input.kwargs)
    try:
        run_step(copy.deepcopy(module), first.forward_input, "cpu")
    except (RuntimeError, NotImplementedError):
        return [{"failures": []}]  # Neither does the CPU.
    try:
        kept = run_step(module.to("xla"), first.forward_input, "xla")
    except RuntimeError as error:
        if "for compiling only" not in str(error):
            raise
        kept = {"output": None}  # It looks at a value.
    torch_xla.sync(wait=True)
    return [{"failures": [] if "output" in kept else ["it gave no output"]}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chip", help="v5e or h100; what is behind a colon does not count")
    parser.add_argument("-k", default="", help="only programs whose name contains this")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one module")
    parser.set_defaults(work=compile_module, json=None, quiet=True)
    args = parser.parse_args()
    kind = args.chip.partition(":")[0]
    if kind not in EXTENTS:
        parser.error(f"expected {' or '.join(EXTENTS)}, got {args.chip!r}")
    start = time.monotonic()
    bad = made = 0

    def say(name: str, wrong: str) -> None:
        nonlocal bad, made
        bad, made = bad + bool(wrong), made + 1
        if wrong:
            print(f"FAIL {kind} {name}: {wrong}")

    for name, extent, command in PROGRAMS:
        if args.k in name:
            say(name, _run_script(f"{kind}:{EXTENTS[kind][extent]}", command))
    for extent, count in ((1, 4), (2, 256)):
        if args.k in (name := f"collectives of {count}"):
            topology = f"{kind}:{EXTENTS[kind][extent]}"
            code = COLLECTIVES.format(count=count)
            say(name, _run(["-c", code], {"XLA_TOPOLOGY": topology}))
    programs = made

    sys.path.insert(0, str(HERE / "ops"))
    from conformance import run_all
    from torch.testing._internal.common_modules import module_db

    names = [info.name for info in module_db if args.k in info.name]
    for name, result in run_all(names, args).items():
        say(name, result if isinstance(result, str) else "")
    seconds = time.monotonic() - start
    print(f"{kind}: {programs} programs, {made - programs} modules, {bad} refused; {seconds:.0f} s")
    return int(bad > 0 or made == 0)


if __name__ == "__main__":
    sys.exit(main())
