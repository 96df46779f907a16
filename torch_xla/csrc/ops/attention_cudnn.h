// Attention of cuDNN's flash kernel: custom calls that XLA's CUDA plugin knows itself. It keeps no
// scores of all queries with all keys. Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Minor to major, of [N, heads, length, width]: by lengths before heads, as the products that make
/// these arrays and take them have it, so that none is copied.
inline const Dims& HeadsInside() {
  static const Dims layout{3, 1, 2, 0};
  return layout;
}

struct AttentionCall {
  bool is_causal;
  std::optional<double> scale;
};

/// Whether the devices are GPUs that have it: of compute capability 8.0 or more.
bool HasCudnnAttention();

/// Whether it takes so many queries and keys of such a width: half types alone.
struct AttentionShape {
  stablehlo::ElementType element;
  int64_t queries, keys, width;
};
bool FitsCudnnAttention(const AttentionShape& shape, bool is_causal);

/// Whether programs over several devices may have the calls below: the plugin asks how to partition
/// them, and Shardy says how their arrays lie. Each device then calls the kernel with its part of
/// the batch and of the heads.
bool PartitionsCudnnAttention();

/// (query, key, value, mask if there is one) -> output, logsumexp in float; each [N, heads, length,
/// width], the logsumexp [N, heads, length]. A query that may attend to nothing gets zeros, as its
/// gradients do.
std::vector<Value> CallCudnnAttention(const std::vector<Value>& operands,
                                      const AttentionCall& call);
/// (output's gradient, query, key, value, output, logsumexp, mask if there is one) -> gradients of
/// query, key and value.
std::vector<Value> CallCudnnAttentionBackward(const std::vector<Value>& operands,
                                              const AttentionCall& call);

}  // namespace torch_xla::lowering
