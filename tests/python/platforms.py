"""Compiles the operator database's programs for chips that are not there.

    python tests/python/platforms.py v5e:2x2                  # all: `make platforms`
    python tests/python/platforms.py h100:1 -k linalg -v

One sample per operator and dtype, and its gradient in float32, bfloat16 and complex64, is traced,
lowered and compiled through the chip's own plugin (docs/platforms.md); nothing runs. All of them
make a column of docs/operators.md. Exits with 1 where a compiler refuses a program, or the device a
call that the CPU takes.
"""

import argparse
import collections
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["XLA_TOPOLOGY"] = sys.argv[1] if len(sys.argv) > 1 else ""
    import torch_xla  # sets PJRT_DEVICE, before the suite does

import torch
from conformance import ROOT, run_all
from testing.operators_page import TITLES, read_platforms, with_platforms
from testing.opinfo_cases import OPS, _attempt, dtype_name, dtypes_of, make_cases
from testing.opinfo_exceptions import EXCEPTIONS
from testing.platforms_exceptions import REFUSED

import torch_xla
import torch_xla.core.xla_model as xm

GRADIENTS = (torch.float32, torch.bfloat16, torch.complex64)
# What a read of a tensor without a value says.
READ = "for compiling only"


def _sync() -> str:
    """What the compiler says to the pending graph; nothing where it takes it."""
    try:
        torch_xla.sync(wait=True)
    except Exception as error:  # noqa: BLE001 - it is the result
        return str(error).strip()[:600]
    return ""


def compile_op(op: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compiles one operator in all its dtypes at once, and alone where that is refused."""
    torch.set_num_threads(1)
    device, cpu = torch.device(xm.xla_device()), torch.device("cpu")
    reports, kept, cases = [], [], []

    def add(name: str, what: str, message: str = "") -> None:
        # What no device takes has its excuse in the operator suite.
        known = any(
            not e.widens and e.covers("forward", name.partition(" ")[0], message)
            for e in EXCEPTIONS.get(op, ())
        )
        failures = [message] if what in ("refused", "compiler") and not known else []
        reports.append({"dtype": name, "what": what, "failures": failures})

    for dtype in dtypes_of(OPS[op]):
        for check in ("forward", "grad") if dtype in GRADIENTS else ("forward",):
            for case in list(make_cases(OPS[op], dtype, check, 1))[:1]:
                if isinstance(_attempt(case.run, cpu), Exception):
                    continue
                name = dtype_name(dtype) + (" grad" if check == "grad" else "")
                result = _attempt(case.run, device)
                if isinstance(result, Exception):
                    what = "reads" if READ in str(result) else "refused"
                    add(name, what, f"{type(result).__name__}: {str(result)[:600]}")
                else:
                    kept.append(result)
                    cases.append((name, case))
    if not _sync():
        for name, _ in cases:
            add(name, "compiled")
        return reports
    kept.clear()
    for name, case in cases:
        kept = _attempt(case.run, device)
        message = _sync()
        add(name, "compiler" if message else "compiled", message)
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", help="v5e:2x2, h100:1, …")
    parser.add_argument("-k", default="", help="only operators whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="one operator of so many")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one operator")
    parser.add_argument("--json", type=Path, help="reports go here; those there are kept")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("-v", "--verbose", action="store_true", help="every failure")
    parser.set_defaults(work=compile_op)
    args = parser.parse_args()
    ops = [name for name, op in OPS.items() if args.k in name and op.dtypes][:: args.every]
    platform = os.environ["PJRT_DEVICE"]
    start = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    bad = 0
    marks = {}
    for op, result in run_all(ops, args).items():
        if isinstance(result, str):
            result = [{"dtype": "", "what": "crashed", "failures": [result]}]
        counts.update(report["what"] for report in result)
        failures = [r for r in result if r["failures"]]
        reads = any(report["what"] == "reads" for report in result)
        marks[op] = "✗" if failures else "r" if reads else "✓" if result else ""
        excuse = REFUSED.get((platform, op))
        if not failures:
            if excuse:
                bad += 1
                print(f"PASS {op}: excused for “{excuse}”, and nothing needed it")
            continue
        if excuse:
            continue
        bad += 1
        print(f"FAIL {op}")
        for report in failures if args.verbose else failures[:1]:
            print(f"     {report['dtype']} {report['what']}: {report['failures'][0]}")
    title = TITLES.get(args.topology.partition(":")[0])
    if title and not args.k and args.every == 1:
        page = ROOT / "docs" / "operators.md"
        text = page.read_text()
        page.write_text(with_platforms(text, {**read_platforms(text), title: marks}))
    totals = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{args.topology}: {len(ops)} operators: {totals}; {time.monotonic() - start:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
