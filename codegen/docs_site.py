"""Adds pages to the site that are not in docs/: pages of the root and the reference (MkDocs hook).

README.md, CONTRIBUTING.md and CHANGELOG.md become pages. The reference is made from
docstrings, which are read without importing anything, and from the extension's type stub if the
extension was built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "install.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

MODULES = (
    "torch_xla",
    "torch_xla.runtime",
    "torch_xla.core.xla_model",
    "torch_xla.core.functions",
    "torch_xla.config",
    "torch_xla.amp",
    "torch_xla.amp.syncfree",
    "torch_xla.debug.metrics",
    "torch_xla.debug.profiler",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.xla_multiprocessing",
    "torch_xla.distributed.spmd.mesh",
    "torch_xla.distributed.spmd.marking",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel",
    "torch_xla.distributed.zero_redundancy_optimizer",
    "torch_xla.experimental.plugins",
    "torch_xla.experimental.scan",
    "torch_xla.experimental.scan_layers",
    "torch_xla.experimental.gradient_accumulation",
    "torch_xla.library",
    "torch_xla.aot",
    "torch_xla.plugin_check",
    "torch_xla.stablehlo",
    "torch_xla.utils.checkpoint",
    "torch_xla.utils.dlpack",
    "torch_xla.utils.serialization",
    "torch_xla.utils.safetensors",
    "torch_xla.utils.cached_dataset",
    "torch_xla.utils.tf_record_dataset",
    "torch_xla.utils.tf_record_reader",
    "torch_xla.utils.tf_record_writer",
)

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "reference.md", content=_reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files of the repository into links of the site, or into plain text."""
    source = next((s for s, p in PAGES.items() if p == page.file.src_uri), None)
    folder = ROOT if source else (ROOT / "docs" / page.file.src_uri).parent

    def target(match: re.Match[str]) -> str:
        path = (folder / match[1]).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        anchor = match[2] or ""
        if name in PAGES:
            return f"]({PAGES[name]}{anchor})"
        if name.startswith("docs/") and path.suffix == ".md":
            return f"]({name.removeprefix('docs/')}{anchor})"
        return "]{.file}" if path.exists() else match[0]

    # A source file has no page, so only its name stays.
    return re.sub(r"\[([^\]]*)\]\{\.file\}", r"\1", _LINK.sub(target, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Removes the roles of reStructuredText from references in docstrings."""
    return re.sub(r":(?:func|class|data|meth|mod|attr|exc):<code>~?", "<code>", html)


def _reference() -> str:
    parts = ["# Reference\n"]
    parts += [f"::: {name}\n" for name in MODULES]
    for stub in sorted(ROOT.glob("build/*/stubs/torch_xla/_XLAC/hlo.pyi"))[:1]:
        parts.append(
            "## torch_xla.library.hlo\n\nStableHLO's operations, for "
            "`torch_xla.library.stablehlo`. A number is an operand, too.\n\n```python\n"
            + _signatures(stub.read_text())
            + "\n```\n"
        )
    return "\n".join(parts)


def _signatures(stub: str) -> str:
    number = (
        "bool | typing.SupportsIndex | typing.SupportsFloat | typing.SupportsIndex | "
        "typing.SupportsComplex | typing.SupportsFloat | typing.SupportsIndex"
    )
    text = stub.replace(number, "Number").replace("Value | Number", "Operand")
    text = text.replace("typing.SupportsIndex", "int").replace("collections.abc.", "")
    return "\n".join(line for line in text.splitlines() if line.startswith("def "))
