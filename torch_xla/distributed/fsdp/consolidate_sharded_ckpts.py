"""Joins the files of a sharded checkpoint: ``python -m`` this module."""

from __future__ import annotations

import argparse

from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """Joins the files that each replica has saved, as the command line says."""
    parser = argparse.ArgumentParser(
        description="Joins the checkpoints that the replicas of an FSDP model have saved."
    )
    parser.add_argument(
        "--ckpt_prefix", required=True, help="what the files' names begin with, folders included"
    )
    parser.add_argument(
        "--ckpt_suffix", default="_rank-*-of-*.pth", help="a pattern that they end with"
    )
    parser.add_argument(
        "--save_path", default="", help="the file to write; <prefix>_consolidated.pth by default"
    )
    parser.add_argument(
        "--unsafe_pickle",
        action="store_true",
        help="load any object in the files, which may run any code: for files of your own",
    )
    args = parser.parse_args()
    _, path = consolidate_sharded_model_checkpoints(
        args.ckpt_prefix,
        args.ckpt_suffix,
        args.save_path,
        weights_only=not args.unsafe_pickle,
    )
    print(f"saved to {path}")


if __name__ == "__main__":
    main()
