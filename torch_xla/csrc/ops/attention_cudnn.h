// Attention by cuDNN's flash kernel, which XLA's CUDA plugin provides as a custom call. The kernel
// does not store the scores of all queries and keys. lowering/kernel_table.inc decides when the
// kernel is used.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The layout, from minor to major, of arrays [N, heads, length, width] in which the length is
/// outside of the heads. The matrix products that write and read these arrays use the same layout,
/// so the arrays are not copied.
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

/// The number of queries and keys, their width and their element type, which is a half type.
struct AttentionShape {
  stablehlo::ElementType element;
  int64_t queries, keys, width;
};
/// Whether the devices have the kernel and the kernel supports the shape.
bool FitsCudnnAttention(const AttentionShape& shape, bool is_causal);

/// Whether programs over several devices may contain the calls below. This requires that the plugin
/// asks how to partition the calls, and that Shardy propagates the shardings of their arrays. Each
/// device then calls the kernel with its part of the batch and of the heads.
bool PartitionsCudnnAttention();

/// (query, key, value, optional mask) -> (output, logsumexp). Arrays are [N, heads, length, width];
/// logsumexp is [N, heads, length] in float. The output of a query that may attend to no key is
/// zero, and the gradients of that query are zero.
std::vector<Value> CallCudnnAttention(const std::vector<Value>& operands,
                                      const AttentionCall& call);
/// (gradient of output, query, key, value, output, logsumexp, optional mask) -> gradients of query,
/// key and value.
std::vector<Value> CallCudnnAttentionBackward(const std::vector<Value>& operands,
                                              const AttentionCall& call);

}  // namespace torch_xla::lowering
