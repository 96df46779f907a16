"""SPMD: programs that XLA partitions over all devices of the process.

See ``docs/spmd.md``.
"""

from torch_xla._internal.names import missing
from torch_xla.distributed.spmd.debugging import visualize_sharding, visualize_tensor_sharding
from torch_xla.distributed.spmd.dtensor import xla_distribute_module, xla_distribute_tensor
from torch_xla.distributed.spmd.hybrid_mesh import HybridMesh
from torch_xla.distributed.spmd.linear import (
    EinsumLinear,
    XLAPatchedLinear,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from torch_xla.distributed.spmd.manual import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    axis_size,
    disable_manual_sharding,
    enable_manual_sharding,
    local_map,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    reduce_scatter,
    shard_map,
)
from torch_xla.distributed.spmd.marking import (
    MarkShardingFunction,
    ShardingSpec,
    apply_backward_optimization_barrier,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
)
from torch_xla.distributed.spmd.mesh import (
    Mesh,
    PartitionSpec,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    ShardingType,
    XLAShard,
    XLAShardedTensor,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)

__getattr__ = missing.getter(
    __name__,
    {
        "annotate_custom_sharding": "mark_sharding",
        "auto_policy": "mark_sharding says how each tensor lies",
        "shard_as": "mark_sharding of both",
    },
)

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "axis_index",
    "axis_size",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "local_map",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "reduce_scatter",
    "set_global_mesh",
    "shard_map",
    "unwrap_sharded_tensor",
    "visualize_sharding",
    "visualize_tensor_sharding",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]
