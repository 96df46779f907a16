"""Writes the type stub of the extension: torch_xla/_XLAC/*.pyi.

The extension is imported alone, without the Python package around it, since that package may
belong to another build or be missing. The stub is made only from the extension's own signatures.
A C++ type without a Python name becomes `...`, which tests/python/package/test_types.py refuses.
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
    import torch.distributed  # noqa: F401  Signatures use its types.

    # Import by file: by name, an editable install would find the extension installed last.
    sys.modules["torch_xla"] = types.ModuleType("torch_xla")
    spec = importlib.util.spec_from_file_location("torch_xla._XLAC", arguments.extension)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    sys.argv[1:] = ["torch_xla._XLAC", "--output-dir", str(arguments.output_dir)]
    pybind11_stubgen.main()

    for path in (arguments.output_dir / "torch_xla" / "_XLAC").glob("*.pyi"):
        path.write_text(_brief(path.read_text()))


def _brief(stub: str) -> str:
    """Shortens the types of ints and gives containers the arguments that `mypy --strict` expects.

    pybind11 also accepts other convertible types for an int.
    """
    stub = stub.replace("typing.SupportsInt | typing.SupportsIndex", "typing.SupportsIndex")
    for names, arguments in (
        (r"list|set|collections\.abc\.Iterable", "typing.Any"),
        ("dict", "typing.Any, typing.Any"),
        ("tuple", "typing.Any, ..."),
    ):
        stub = re.sub(rf"(?<=[ \[])({names})(?=[],):|\s])", rf"\1[{arguments}]", stub)
    # The right side may be of another class; then NotImplemented is returned.
    return re.sub(r"(def __eq__\(self, arg0: )\w+(\))", r"\1object\2", stub)


if __name__ == "__main__":
    main()
