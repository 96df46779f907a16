// Attention of the CPU's flash kernel, called from the program on the device's memory: it keeps no
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

/// So few queries take keys and values as a cache has them.
inline constexpr int64_t kFewQueries = 4;

struct AttentionCall {
  bool is_causal;
  std::optional<double> scale;
};

/// (query, key, value, mask if there is one) -> output, logsumexp; each [N, heads, length, width],
/// the logsumexp [N, heads, length].
std::vector<Value> CallAttention(const std::vector<Value>& operands, const AttentionCall& call,
                                 const std::vector<stablehlo::Type>& results);
/// (output's gradient, query, key, value, output, logsumexp, mask if there is one) -> gradients of
/// query, key and value.
std::vector<Value> CallAttentionBackward(const std::vector<Value>& operands,
                                         const AttentionCall& call,
                                         const std::vector<stablehlo::Type>& results);

}  // namespace torch_xla::lowering
