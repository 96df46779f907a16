"""Trains tiny models of transformers and timm on xla and on the CPU; writes docs/models.md.

``make models``. One process for each model; what is measured stays in a file, so that a run goes
on where the last one ended, and the document is written after each. ``make models
ARGS=--compiled`` compares inference with ``torch.compile(backend="openxla")`` instead, and prints;
``ARGS=--sizes`` trains with another batch size and length in each step, with sizes as arguments and
NaN in their padding, and writes the section of docs/dynamic_sizes.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "models.md"
SIZES_DOCUMENT = ROOT / "docs" / "dynamic_sizes.md"
SIZES_MARK = "<!-- written by benchmarks/architectures.py -->"
STEPS, ALL_STEPS = 3, 8
TOLERANCE = 1e-3

INTRODUCTION = f"""# Models

Does a model train as on the eager CPU, and does it stop compiling after the second step? `make
models` writes this page. Each model is a tiny configuration with random weights in a process of its
own. It takes {STEPS} steps of SGD on xla (CPU plugin) and on the eager CPU, from the same weights,
without dropout.

- **difference**: the largest relative difference of the {STEPS} losses and of the parameters (their
  distance to eager's, over the length of the way that eager's went). Up to {TOLERANCE:g} is equal.
  "f64": the model was compared in double precision. Batch normalization over few numbers makes
  single precision chaotic, on the eager CPU alone, too.
- **graphs**: programs that {ALL_STEPS} steps compiled.
- **late**: programs that were compiled after the second step.
- **compile**: seconds, all graphs.
- **fallbacks**: operators that ran on the CPU after the second step, with their number.
- **ratio**: the shortest of the last {ALL_STEPS - 2} steps on xla, over eager's. Models this small
  measure the overhead of a step and no more. "busy": the machine had more work than cores.
"""


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
        for rate in ("drop_rate", "drop_prob"):  # timm's, for functions
            if hasattr(module, rate):
                setattr(module, rate, 0.0)
    return model


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    if "x" in batch:
        from torch.nn.functional import cross_entropy

        out = model(batch["x"])
        outs = out if isinstance(out, (list, tuple)) else [out]
        return sum(cross_entropy(o, batch["labels"]) for o in outs)
    extra = {"return_loss": True} if "labels" not in batch else {}
    return model(**batch, **extra).loss


def measure(name: str) -> dict[str, Any]:
    """Returns the row of one model."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import architecture_list
    import torch

    import torch_xla
    import torch_xla.debug.metrics as met

    def seconds(metric: str) -> float:
        data = met.metric_data(metric)
        return data[1] / 1e9 if data else 0.0

    def flat(model: torch.nn.Module) -> torch.Tensor:
        parameters = [p.detach().cpu().double().flatten() for p in model.parameters()]
        return torch.cat(parameters)

    def fallbacks() -> dict[str, int]:
        return {n: met.counter_value(n) for n in met.executed_fallback_ops()}

    architecture = architecture_list.ALL[name]
    torch.manual_seed(0)
    reference = without_dropout(architecture.make().train())
    batch = architecture.batch()
    late: dict[str, Any] = {}

    def train(device: str, dtype: torch.dtype, steps: int) -> tuple[list[float], Any, list[float]]:
        """Returns the losses, the parameters after ``STEPS``, and the seconds of each step."""
        model = copy.deepcopy(reference).to(device, dtype)
        moved = {
            key: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for key, value in batch.items()
        }
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        torch_xla.sync(wait=True)
        losses, times, state = [], [], None
        for step in range(steps):
            if step == 2 and device == "xla":
                late["compiles"] = met.counter_value("UncachedCompile") or 0
                late["fallbacks"] = fallbacks()
            began = time.perf_counter()
            loss = loss_of(model, moved)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            losses.append(loss.item())
            torch_xla.sync(wait=True)
            times.append(time.perf_counter() - began)
            if step == STEPS - 1:
                state = flat(model)
        return losses, state, times

    def difference(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> float:
        pairs = zip(ours[0][:STEPS], theirs[0][:STEPS], strict=True)
        losses = [abs(a - b) / max(abs(b), 1e-6) for a, b in pairs]
        way = (theirs[1] - flat(reference)).norm().item()
        return max(*losses, (ours[1] - theirs[1]).norm().item() / way)

    cpu = train("cpu", torch.float32, ALL_STEPS)
    start = met.counter_value("UncachedCompile") or 0
    xla = train("xla", torch.float32, ALL_STEPS)
    after, compiled = fallbacks(), met.counter_value("UncachedCompile")
    before, compile_seconds = late["fallbacks"], seconds("CompileTime")
    row: dict[str, Any] = {
        "parameters": sum(p.numel() for p in reference.parameters()),
        "difference": difference(xla, cpu),
        "graphs": compiled - start,
        "late": compiled - late["compiles"],
        "compile": compile_seconds,
        "fallbacks": {n: c - before.get(n, 0) for n, c in after.items() if c > before.get(n, 0)},
        "busy": os.getloadavg()[0] > (os.cpu_count() or 1) + 1,
        "ratio": min(xla[2][2:]) / min(cpu[2][2:]),
    }
    if row["difference"] > TOLERANCE:
        double = [train(device, torch.float64, STEPS) for device in ("xla", "cpu")]
        row["double"] = difference(*double)
    return row


def measure_sizes(name: str) -> dict[str, Any]:
    """Returns which operators of a model's training took a batch size and length as arguments."""
    graphs = Path(os.environ["XLA_SAVE_TENSORS_FILE"])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import architecture_list
    import torch

    import torch_xla
    import torch_xla.debug.metrics as met
    from torch_xla.debug import explain

    torch_xla._XLAC._xla_clear_programs()
    architecture = architecture_list.ALL[name]
    torch.manual_seed(0)
    models = {"cpu": without_dropout(architecture.make().train())}
    models["xla"] = copy.deepcopy(models["cpu"]).to("xla")
    optimizers = {to: torch.optim.SGD(m.parameters(), lr=1e-2) for to, m in models.items()}
    batch = architecture.batch()
    served: set[str] = set()
    every: set[str] = set()
    row: dict[str, Any] = {"steps": 0, "served": 0, "difference": 0.0, "refused": []}
    seen = max((e.number for e in explain.all()), default=0)
    for size, length in ((2, 8), (3, 9), (5, 13), (4, 11)):
        given = {}
        for key, value in batch.items():
            value = value[torch.arange(size) % len(value)]
            if value.dim() == 2 and not value.is_floating_point():  # words; labels have fewer
                words = value.shape[1] + length - architecture_list.LENGTH
                value = value[:, torch.arange(words) % value.shape[1]]
            given[key] = value
        losses = {}
        for to, model in models.items():
            torch_xla.sync()
            graphs.unlink(missing_ok=True)
            before = met.counter_value("DynamicSizes") or 0
            loss = loss_of(model, {key: value.to(to) for key, value in given.items()})
            loss.backward()
            optimizers[to].step()
            optimizers[to].zero_grad()
            torch_xla.sync()
            losses[to] = loss.item()
        operators = set(re.findall(r"\b(?:aten|xla)::\w+", graphs.read_text()))
        every |= operators
        if (met.counter_value("DynamicSizes") or 0) > before:
            served |= operators
            row["served"] += 1
        row["steps"] += row["steps"] > 0 or size != 2  # the first one has no other to be compared
        off = abs(losses["xla"] - losses["cpu"]) / max(abs(losses["cpu"]), 1e-6)
        row["difference"] = max(row["difference"], off)
    for found in explain.all():
        texts = [r.text for r in found.reasons if r.kind == "sizes" and found.number > seen]
        row["refused"] += [
            t.split(": ", 1)[1] for t in texts if "are part of" in t and "family" not in t
        ]
    return row | {"operators": sorted(every), "bounded": sorted(served)}


def print_sizes(names: list[str], results: Path) -> None:
    """All in this process: the import of a library takes longer than a model."""
    os.environ.update(
        XLA_DYNAMIC_SIZES="poison", XLA_PERSISTENT_CACHE_PATH="", XLA_RECOMPILE_WARNING="0",
        HF_HUB_OFFLINE="1", XLA_SAVE_TENSORS_FILE=str(Path(tempfile.mkdtemp()) / "graphs"),
    )  # fmt: skip
    rows = json.loads(results.read_text()) if results.exists() else {}
    for name in names:
        if name in rows:
            continue
        try:
            rows[name] = measure_sizes(name)
        except Exception as error:  # noqa: BLE001 - it is a row
            rows[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        row = rows[name]
        found = row.get("error") or (
            f"{row['served']} of {row['steps']} steps, difference {row['difference']:.0e} "
            f"{'; '.join(sorted(set(row['refused'])))}"
        )
        print(f"{name:<36}", found, flush=True)
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(rows, indent=1))
    text = sizes_table(rows)
    print(text)
    before, _, after = SIZES_DOCUMENT.read_text().split(SIZES_MARK)
    SIZES_DOCUMENT.write_text(f"{before}{SIZES_MARK}\n\n{text}\n\n{SIZES_MARK}{after}")


def sizes_table(rows: dict[str, dict[str, Any]]) -> str:
    """The share of the models' operators that take sizes as arguments, as Markdown.

    An operator of which no model had a program for many sizes counts if it generalizes in PyTorch's
    operator database, by the results of tests/python/dynamic_sizes_ops.py.
    """
    file = ROOT / "build" / "dynamic_sizes_ops.json"
    database = json.loads(file.read_text()) if file.exists() else {}
    good = {name: row for name, row in rows.items() if "error" not in row}
    models: dict[str, set[str]] = {}
    reasons: dict[str, set[str]] = {}
    for name, row in good.items():
        for op in set(row["operators"]) - {"xla::device_data", "xla::scalar"}:
            models.setdefault(op, set()).add(name.split("/", 1)[1])
        for refusal in row["refused"]:
            op, _, why = refusal.partition(" ")
            reasons.setdefault(op, set()).add(why.rpartition(": ")[2] or refusal)

    def kind(op: str) -> str:
        name = op.removeprefix("aten::").strip("_")
        title = name.removesuffix("_backward") + (" gradient" if name.endswith("_backward") else "")
        found = database.get(title) or database.get(f"nn.functional.{title}") or {}
        return found.get("kind", "")

    bounded = {op for row in good.values() for op in row["bounded"]} & {*models}
    others = {op for op in {*models} - bounded if kind(op) == "generalizes" and op not in reasons}
    whole = sum(row["served"] >= row["steps"] for row in good.values())
    share = 100 * len(bounded | others) / len(models)
    lines = [
        f"{whole} of {len(good)} models had a program of their own for the first step only. "
        f"{len(bounded)} of the {len(models)} operators of all models' graphs were in a program",
        f"for many sizes; {len(others)} were only in graphs that something else kept from it, and "
        f"generalize in the table below: {share:.0f} %.",
        "These were refused in some model, or in none of its graphs:",
        "",
        "| operator | in a program for many sizes | models that have it | refused, because |",
        "|---|---|---|---|",
    ]
    for op in sorted({*models} - bounded - others | {*reasons} & {*models}):
        some = sorted(models[op])
        shown = ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
        why = "; ".join(sorted(reasons.get(op, ()))) or "another one of the graph was"
        lines.append(f"| `{op}` | {'also' if op in bounded else 'never'} | {shown} | {why} |")
    kept = [n for n, r in good.items() if r["served"] < r["steps"] and not r["refused"]]
    if kept:
        names = ", ".join(name.split("/", 1)[1] for name in kept)
        lines += ["", f"Each length is another graph, which loops over time, in {names}."]
    return "\n".join(lines)


def measure_compiled(name: str) -> dict[str, Any]:
    """Returns what inference of a model does with torch.compile, beside the eager CPU."""
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # Compiles are counted.
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import architecture_list
    import torch
    from torch._dynamo.utils import counters

    import torch_xla.debug.metrics as met

    architecture = architecture_list.ALL[name]
    torch.manual_seed(0)
    reference = architecture.make().eval()
    batch = architecture.batch()

    def infer(model: torch.nn.Module, device: str) -> list[torch.Tensor]:
        moved = {key: value.to(device) for key, value in batch.items()}
        with torch.no_grad():
            out = model(moved["x"]) if "x" in moved else model(**moved)
        values = out.values() if isinstance(out, dict) else [out]
        return [value.cpu() for value in values if isinstance(value, torch.Tensor)]

    theirs = infer(reference, "cpu")
    compiled = torch.compile(copy.deepcopy(reference).to("xla"), backend="openxla")
    runs = [infer(compiled, "xla")]
    compiles = met.metric_data("CompileTime")[0]
    runs.append(infer(compiled, "xla"))
    difference = max(
        (a.double() - b.double()).norm().item() / max(b.double().norm().item(), 1e-6)
        for ours in runs
        for a, b in zip(ours, theirs, strict=True)
    )
    return {
        "difference": difference,
        "graphs": counters["stats"]["unique_graphs"],
        "compiles": compiles,
        "late": met.metric_data("CompileTime")[0] - compiles,
        "fallbacks": met.executed_fallback_ops(),
    }


def print_compiled(names: list[str], timeout: float) -> None:
    good = 0
    for name in names:
        row = one(name, timeout, "--compiled")
        good += "error" not in row and row["difference"] <= TOLERANCE and not row["late"]
        print(f"{name:<36}", row.get("error") or row, flush=True)
    print(f"{good} of {len(names)} equal to the CPU, with no compile in the second call")


def shown_difference(row: dict[str, Any]) -> float:
    """Returns the difference that counts: in double precision where that was looked at."""
    return row.get("double", row["difference"])


def table(rows: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
    lines = [
        "| model | parameters | difference | graphs | late | compile | fallbacks | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        title, row = name.split("/", 1)[1], rows.get(name)
        if row is None:
            lines.append(f"| {title} | | not run | | | | | |")
        elif "error" in row:
            lines.append(f"| {title} | | **{row['error']}** | | | | | |")
        else:
            shown = shown_difference(row)
            mark = "" if shown <= TOLERANCE else "**"
            kind = " f64" if "double" in row else ""
            fallbacks = ", ".join(f"`{n}` {c}" for n, c in row["fallbacks"].items()) or "–"
            lines.append(
                f"| {title} | {row['parameters']:,} | {mark}{shown:.0e}{kind}{mark} "
                f"| {row['graphs']} | {row['late']} | {row['compile']:.1f} s | {fallbacks} "
                f"| {'busy' if row['busy'] else format(row['ratio'], '.2f')} |"
            )
    return lines


def write(rows: dict[str, dict[str, Any]], names: list[str]) -> None:
    parts = [INTRODUCTION]
    for library in ("transformers", "timm"):
        of = [name for name in names if name.startswith(library + "/")]
        done = [rows[name] for name in of if name in rows]
        good = [r for r in done if "error" not in r and shown_difference(r) <= TOLERANCE]
        steady = [r for r in good if not r["late"] and not r["fallbacks"]]
        parts.append(
            f"## {library}: {len(good)} of {len(of)} equal to the CPU, {len(steady)} of them with "
            "no compile and no fallback after the second step\n"
        )
        parts.append("\n".join(table(rows, of)) + "\n")
    DOCUMENT.write_text("\n".join(parts))


def one(name: str, timeout: float, *options: str) -> dict[str, Any]:
    """Measures a model in a process of its own; what fails is a row, too."""
    command = [sys.executable, __file__, "--one", name, *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PJRT_DEVICE": "CPU"}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {timeout:.0f} s"}
    for line in result.stdout.splitlines():
        if line.startswith("ROW "):
            return json.loads(line.removeprefix("ROW "))
    last = (result.stderr.strip().splitlines() or [f"ended with {result.returncode}"])[-1]
    return {"error": last[:200].replace("|", "/")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all models without")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "models.json")
    parser.add_argument("--again", action="store_true", help="measure anew what has been")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--compiled", action="store_true", help="inference with torch.compile")
    parser.add_argument("--sizes", action="store_true", help="a batch of other sizes in each step")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        row = (measure_compiled if options.compiled else measure)(options.one)
        print("ROW " + json.dumps(row), flush=True)
        return
    import architecture_list
    from tqdm import tqdm

    names = list(architecture_list.ALL)
    rows = json.loads(options.results.read_text()) if options.results.exists() else {}
    wanted = [n for n in names if not options.names or any(part in n for part in options.names)]
    if options.sizes:
        print_sizes(wanted, options.results.with_name("sizes.json"))
        return
    if options.compiled:
        print_compiled(wanted, options.timeout)
        return
    with tqdm(wanted if options.again else [n for n in wanted if n not in rows]) as progress:
        for name in progress:
            progress.set_description(name)
            rows[name] = one(name, options.timeout)
            options.results.parent.mkdir(parents=True, exist_ok=True)
            options.results.write_text(json.dumps(rows, indent=1))
            write(rows, names)
            if rows[name].get("error"):
                progress.write(f"{name}: {rows[name]['error']}")
    write(rows, names)


if __name__ == "__main__":
    main()
