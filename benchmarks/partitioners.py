"""Shardy against GSPMD: the training step of examples/train_gpt_spmd.py, and ring attention.

    python benchmarks/partitioners.py [turns]

Each run is a process of its own without the cache on disk, in turns. Printed are the time of all
compilations (the least of the turns), the collectives of the largest program, how far the losses
are from one device's, and what the plugin says on standard error of a partitioner that goes away.
Fails where Shardy is worse: more than 1.1 × the time, more bytes of a kind, losses off by 1e-5.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS = {
    "train_gpt_spmd.py": ["--steps", "6"],
    "ring_attention.py": [],
}
CHILD = """
import json, runpy, sys
script, result = sys.argv[1], sys.argv[2]
sys.argv = [script, *sys.argv[3:]]
sys.path.insert(0, script.rpartition("/")[0])
runpy.run_path(script, run_name="__main__")
from torch_xla import _XLAC, aot
import torch_xla.debug.metrics as met
held = {"parameters": 0, "optimizer state": 0}
plans = [aot.Plan(p, None, held) for p in _XLAC._xla_compiled_programs()]
kinds = {}
for kind, (count, size) in max(plans, key=lambda plan: plan.arguments).collectives.items():
    kinds[kind] = [count, size]
found = {"seconds": met.metric_data("CompileTime")[1] / 1e9, "collectives": kinds}
open(result, "w").write(json.dumps(found))
"""


def run(script: str, arguments: list[str], **variables: str) -> dict[str, Any]:
    """Runs an example in a process of its own; returns what it cost and said."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        losses = Path(folder) / "losses.json"
        more = ["--log-losses", str(losses)] if script.startswith("train") else []
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(EXAMPLES / script), result, *arguments, *more],
            env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", "XLA_CACHE": "0", **variables},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(done.stderr)
        found: dict[str, Any] = json.loads(result.read_text())
        found["losses"] = json.loads(losses.read_text())["losses"] if more else []
        lines = done.stderr.splitlines()
        found["deprecated"] = [line for line in lines if "deprecat" in line.lower()]
        return found


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    worse = []
    for script, arguments in RUNS.items():
        runs: dict[str, list[dict[str, Any]]] = {"GSPMD": [], "Shardy": []}
        for _ in range(turns):
            for number, name in enumerate(runs):
                runs[name].append(run(script, arguments, XLA_SHARDY=str(number)))
        seconds = {name: min(one["seconds"] for one in found) for name, found in runs.items()}
        kinds = {name: found[0]["collectives"] for name, found in runs.items()}
        print(f"{script}: compilations " + ", ".join(f"{n} {s:.2f} s" for n, s in seconds.items()))
        if script.startswith("train") and seconds["Shardy"] > 1.1 * seconds["GSPMD"]:
            worse.append(f"{script}: compile time")
        for kind in sorted({*kinds["GSPMD"], *kinds["Shardy"]}):
            pair = {name: found.get(kind, (0, 0)) for name, found in kinds.items()}
            print(
                f"  {kind:20}" + ", ".join(f"{n} {c:3d} of {b:9d} B" for n, (c, b) in pair.items())
            )
            if pair["Shardy"][1] > pair["GSPMD"][1]:
                worse.append(f"{script}: {kind}")
        for line in runs["Shardy"][0]["deprecated"]:
            worse.append(f"{script}: {line}")
        if losses := runs["Shardy"][0]["losses"]:
            one = ["--data", "1", "--model", "1", *arguments]
            expected = run(script, one, CPU_NUM_DEVICES="1")["losses"]
            off = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
            print(f"  largest relative difference of a loss to one device's: {off:.1e}")
            if off > 1e-5:
                worse.append(f"{script}: losses")
    if worse:
        sys.exit("Shardy is worse:\n  " + "\n  ".join(worse))


if __name__ == "__main__":
    main()
