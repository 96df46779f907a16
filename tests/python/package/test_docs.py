"""The Python in README.md and docs/ runs; generated pages are what their generators write."""

import ast
import json
import re
import runpy
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from testing.processes import start_python

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# What a page takes for granted: the reader's own model, data, kernels.
MODEL = """
import torch, torch_xla, tempfile
from torch import nn, optim
import torch_xla.core.xla_model as xm
folder = tempfile.mkdtemp()
device = torch.device("xla")
class MNIST(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 3), nn.LogSoftmax(1))
Model = MNIST
model = MNIST().to(device)
optimizer = optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.NLLLoss()
batches = [(torch.randn(2, 6), torch.tensor([0, 2])) for _ in range(3)]
"""
SETUP = {
    "custom_ops.md": "import numpy as np\n"
    "def my_c_kernel(x, scale): return np.tanh(x * scale)\n"
    "def my_cpu_kernel(x, y, *, alpha=1): return alpha * y + x * x",
    "data.md": MODEL
    + """
import numpy, torch_xla.utils.dlpack
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
steps = 2
def train_step(): pass
tensor = torch.ones(3, device=device)
torch_xla.sync()
""",
    "debugging.md": MODEL + "def train_step(x): return (x + 1).sum().item()\n"
    "def train(): pass\n"
    "batch = torch.ones(3, device=device)",
    "deploy.md": "import tempfile; folder = tempfile.mkdtemp()",
    "replay.md": MODEL + "x = batch = torch.ones(2, 6, device=device)",
    "replication.md": MODEL
    + "import torch_xla.distributed.parallel_loader as pl\nloader = batches",
}
# What is called or compared afterwards.
AFTER = {
    "control_flow.md": "assert model.blocks(torch.ones(2, 3)).shape == (2, 3)",
    "custom_ops.md": """
x, gate = torch.randn(2, 3), torch.randn(2, 3)
on = x.to("xla"), gate.to("xla")
torch.testing.assert_close(scaled_tanh(on[0], 2.0).cpu(), scaled_tanh(x, 2.0))
y = torch.ops.mine.square_plus(x, gate, alpha=2)
torch.testing.assert_close(torch.ops.mine.square_plus(*on, alpha=2).cpu(), y)
torch.testing.assert_close(gated(*on, 0.5).cpu(), gated(x, gate, 0.5))
torch.testing.assert_close(gated_from_text(*on, 0.5).cpu(), gated(x, gate, 0.5))
""",
    "data.md": "assert len(dataset) == 1",
    "plugins.md": "assert Plugin().client_create_options()['cores'] == 2",
    "replication.md": "train(0)",
    "torch_compile.md": "assert model(torch.ones(2, 6, device='xla')).shape == (2, 3)",
    "README.md": "assert torch.isfinite(loss).item()",
    "train.md": "assert torch.isfinite(loss).item()",
}
# SPMD mode is a process's.
ALONE = {"spmd.md": {"CPU_NUM_DEVICES": "4"}}


class Block(NamedTuple):
    line: int
    code: str
    excuse: str


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(
        r"^(?:<!-- not run: ([^\n]+) -->\n)?^( *)```(?:python|py)\n(.*?)^\2```",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return [Block(text[: m.start(3)].count("\n"), textwrap.dedent(m[3]), m[1] or "") for m in found]


def _program(pages: list[Path]) -> str:
    """Runs the pages, each in a namespace of its own, with the lines of the files in errors."""
    parts = []
    for page in pages:
        blocks = ["\n" * block.line + block.code for block in _blocks(page) if not block.excuse]
        if blocks:
            name = page.name
            parts.append((name, SETUP.get(name, ""), blocks, AFTER.get(name, "")))
    return f"""
import traceback
failed = False
for name, setup, blocks, after in {parts!r}:
    space = {{"__name__": "docs"}}
    try:
        for file, code in [("setup", setup), *((name, b) for b in blocks), ("after", after)]:
            exec(compile(code, f"{{file}} of {{name}}" if file != name else name, "exec"), space)
    except Exception:
        failed = True
        print("FAILED", name, traceback.format_exc())
    else:
        print("RAN", name, len(blocks))
raise SystemExit(failed)
"""


def test_python_in_the_docs_runs():
    pages = [page for page in PAGES if page.name not in ALONE and page.name in SETUP | AFTER]
    result = start_python("-c", _program(pages), timeout=250, PJRT_DEVICE="CPU")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    ran = set(re.findall(r"RAN (\S+)", result.stdout))
    assert ran == {page.name for page in pages}


def test_first_blocks_run_as_pasted():
    """What a reader tries first, without what the page takes for granted below it."""
    names = ("README.md", "train.md", "torch_compile.md", "control_flow.md", "data.md")
    code = ""
    for page in PAGES:
        if page.name in names:
            code += f"exec({_blocks(page)[0].code!r}, {{'__name__': {page.name!r}}})\n"
    result = start_python("-c", code, PJRT_DEVICE="CPU")
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("name", ALONE)
def test_python_in_a_process_of_its_own_runs(name):
    page = ROOT / "docs" / name
    result = start_python("-c", _program([page]), PJRT_DEVICE="CPU", **ALONE[name])
    assert f"RAN {name}" in result.stdout, result.stdout[-4000:] + result.stderr[-2000:]


def test_every_block_is_python():
    for page in PAGES:
        for block in _blocks(page):
            ast.parse(block.code, f"{page.name}:{block.line}")


def test_what_is_run():
    # A page with Python is run, or each of its blocks says why not.
    for page in PAGES:
        runs = [block for block in _blocks(page) if not block.excuse]
        known = page.name in SETUP | AFTER | ALONE
        assert not runs or known, f"{page.name}:{runs[0].line} is not run by {__file__}"


def test_benchmarks_are_written_from_the_results():
    generator = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    assert (ROOT / "docs" / "benchmarks.md").read_text() == generator["page"]()
    assert (ROOT / "docs" / "jobs.svg").read_text() == generator["picture"]()
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        run = generator["read"](file.stem)  # raises for a row with another number of cells
        assert run.rows and run.machine and run.command, file.name
        assert re.fullmatch(r"[0-9a-f]{7,}", run.commit), file.name


def test_the_readme_has_the_figures_of_the_results():
    generator = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    rows = {row["job"]: row for row in generator["read"]("jobs_intel").rows}
    text = (ROOT / "README.md").read_text()
    for job, name in (("resnet18", "ResNet-18"), ("bert", "BERT")):
        figures = (rows[job][f"{b} ms"] for b in ("replayed", "eager", "inductor", "jax"))
        assert f"| {name}, a training step | {' | '.join(f'{f:.0f} ms' for f in figures)} |" in text


def test_a_run_of_all_backends_becomes_a_file_of_results():
    generator = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    keys = ("step_s", "cold_mb", "memory_mb", "cold_s", "warm_s")
    backends = ("eager", "inductor", "jax", "xla", "replay")
    run = {"mlp": {b: {k: i + j / 10 for j, k in enumerate(keys)} for i, b in enumerate(backends)}}
    made = json.loads(generator["record"](run, "two cores", "a command"))
    row = dict(zip(made["columns"], made["rows"][0], strict=True))
    assert row["job"] == "mlp" and row["traced ms"] == 3000
    assert row["replayed warm peak MB"] == 4.2 and row["jax warm first step s"] == 2.4
    assert sorted(row) == sorted(generator["read"]("jobs_amd").rows[0])


def _prose(page: Path) -> str:
    """What stands neither in a block of code nor in a table."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def test_figures_are_in_the_results_and_pages_are_short():
    pages = [*PAGES, ROOT / "CHANGELOG.md"]
    found = {page.name: re.findall(r"\d ?(?:ms|µs|MB|GB|GB/s)\b", _prose(page)) for page in pages}
    assert not {name: figures for name, figures in found.items() if figures}
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert max(release.count("\n") for release in releases) <= 60
    assert (ROOT / "README.md").read_text().count("\n") <= 90
    assert (ROOT / "docs" / "benchmarks.md").read_text().count("\n") <= 150


def test_links_lead_somewhere():
    def anchors(page: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {name}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {name}#{anchor}"
