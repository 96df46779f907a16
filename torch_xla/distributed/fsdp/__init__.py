"""Fully sharded data parallelism over replicas."""

from torch_xla.distributed.fsdp.fully_sharded import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.state_dict import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from torch_xla.distributed.fsdp.utils import checkpoint_module

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
