"""The name under which many scripts import what this package has."""

from torch_xla.distributed.spmd.linear import (
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from torch_xla.distributed.spmd.marking import (
    MarkShardingFunction,
    ShardingSpec,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
)
from torch_xla.distributed.spmd.mesh import (
    HybridMesh,
    Mesh,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_xla.distributed.spmd.partition import PartitionSpec
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    ShardingType,
    XLAShard,
    XLAShardedTensor,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]
