"""Generates the dispatcher glue of torch_xla from xla_native_functions.yaml.

    python codegen/gen.py --yaml codegen/xla_native_functions.yaml --output-dir build/generated
    python codegen/gen.py --yaml … --output-dir … --list-outputs    # lists the files

torchgen (in the torch wheel) is the data model: it supplies PyTorch's own schemas, groups of
variants and C++ signatures. docs/codegen.md describes the entries of the yaml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ops_yaml import load_ops
from templates import (
    autograd_registration,
    foreach_kernels,
    kernel_shard,
    lowering_declarations,
    meta_shard,
    native_functions_header,
    op_specs_header,
    op_specs_shard,
    registration_shard,
)

# Small translation units compile in parallel and need little memory.
SHARDS = 4


def outputs(yaml_path: Path) -> dict[str, str]:
    """Returns the generated files: name -> content."""
    ops = load_ops(yaml_path)
    files = {
        "XLANativeFunctions.h": native_functions_header(ops),
        "XLAOps.h": op_specs_header(ops),
        "XLALowerings.h": lowering_declarations(ops),
        "RegisterAutogradXLA.cpp": autograd_registration(ops),
        "XLANativeFunctions_foreach.cpp": foreach_kernels(ops),
    }
    for shard in range(SHARDS):
        files[f"XLANativeFunctions_{shard}.cpp"] = kernel_shard(ops, shard, SHARDS)
        files[f"XLAOps_{shard}.cpp"] = op_specs_shard(ops, shard, SHARDS)
        files[f"XLAMeta_{shard}.cpp"] = meta_shard(ops, shard, SHARDS)
        files[f"RegisterXLA_{shard}.cpp"] = registration_shard(ops, shard, SHARDS)
    return files


def write_if_changed(path: Path, content: str) -> None:
    if not path.exists() or path.read_text() != content:
        path.write_text(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yaml", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--list-outputs", action="store_true")
    args = parser.parse_args()
    files = outputs(args.yaml)
    if args.list_outputs:
        print("\n".join(str(args.output_dir / name) for name in files))
        return
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_if_changed(args.output_dir / name, content)


if __name__ == "__main__":
    main()
