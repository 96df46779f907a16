// Attention by cuDNN's flash kernel, a custom call that XLA's CUDA plugin knows. It stores no
// scores of all queries and keys. lowering/kernel_table.inc says when it is used.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The layout, minor to major, of [N, heads, length, width]: lengths are outside of heads. The
/// products that write and read these arrays have the same layout, so none is copied.
inline const Dims& HeadsInside() {
  static const Dims layout{3, 1, 2, 0};
  return layout;
}

struct AttentionCall {
  bool is_causal;
  std::optional<double> scale;
};

/// Whether the devices are GPUs with the kernel: compute capability 8.0 or higher.
bool HasCudnnAttention();

/// Whether the kernel supports this many queries and keys of this width and (half) type.
struct AttentionShape {
  stablehlo::ElementType element;
  int64_t queries, keys, width;
};
bool FitsCudnnAttention(const AttentionShape& shape, bool is_causal);

/// Whether programs over several devices may have the calls below: the plugin asks how to partition
/// them, and Shardy says how their arrays lie. Each device then calls the kernel with its part of
/// the batch and of the heads.
bool PartitionsCudnnAttention();

/// (query, key, value, optional mask) -> (output, logsumexp). Arrays are [N, heads, length, width];
/// logsumexp is [N, heads, length] in float. The output of a query that may attend to no key is
/// zero, and so are its gradients.
std::vector<Value> CallCudnnAttention(const std::vector<Value>& operands,
                                      const AttentionCall& call);
/// (gradient of output, query, key, value, output, logsumexp, optional mask) -> gradients of query,
/// key and value.
std::vector<Value> CallCudnnAttentionBackward(const std::vector<Value>& operands,
                                              const AttentionCall& call);

}  // namespace torch_xla::lowering
