"""Writes the type stub of the extension: torch_xla/_XLAC/*.pyi.

The extension is imported alone, without the Python package around it, which may be that of
another build, or none. What it says in signatures is all that is in the stub; a C++ type that
Python has no name for becomes `...`, which tests/python/package/test_types.py refuses.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import types
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extension", type=Path, required=True, help="the built module")
    parser.add_argument("--output-dir", type=Path, required=True)
    arguments = parser.parse_args()

    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import pybind11_stubgen
    import torch.distributed  # noqa: F401  Types of its own are in signatures.

    # By its file: by its name an editable install would find the one that was installed last.
    sys.modules["torch_xla"] = types.ModuleType("torch_xla")
    spec = importlib.util.spec_from_file_location("torch_xla._XLAC", arguments.extension)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    sys.argv[1:] = ["torch_xla._XLAC", "--output-dir", str(arguments.output_dir)]
    pybind11_stubgen.main()

    for path in (arguments.output_dir / "torch_xla" / "_XLAC").glob("*.pyi"):
        path.write_text(_brief(path.read_text()))


def _brief(stub: str) -> str:
    """pybind11 takes a Python int and what converts to one: shorter, and what callers mean."""
    stub = stub.replace("typing.SupportsInt | typing.SupportsIndex", "typing.SupportsIndex")
    # Another class's object may be on the right: NotImplemented is then returned.
    return re.sub(r"(def __eq__\(self, arg0: )\w+(\))", r"\1object\2", stub)


if __name__ == "__main__":
    main()
