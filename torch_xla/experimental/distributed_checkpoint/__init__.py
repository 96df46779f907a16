"""Checkpoints of training runs, over ``torch.distributed.checkpoint``."""

from torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.distributed_checkpoint.util import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
