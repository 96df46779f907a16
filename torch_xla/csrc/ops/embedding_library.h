// Rows of a table, summed by bag, and their gradients, by calls of ours: XLA finds the bags by a
// scatter and a prefix sum, and fills or copies a table of zeros before it adds a few rows to it.
// Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"
#include "lowering/row_sums.h"

namespace torch_xla::lowering {

/// [num_weights, columns] of float, zeros but for those sums; none where a call is not the fastest.
std::optional<Value> CallAddRows(LoweringContext& cx, const AddedRows& rows, int64_t num_weights);

/// Bags of the sum, or the mean, of rows, as PyTorch's embedding_bag has them.
struct BagCall {
  Value weight, indices, offsets;
  std::optional<Value> per_sample_weights;
  bool is_mean;
  bool include_last_offset;
  int64_t padding_idx;
};

/// Output, the bag of each index and the sizes of bags, without paddings (both s64).
std::optional<std::vector<Value>> CallEmbeddingBag(const LoweringContext& cx, const BagCall& call);

}  // namespace torch_xla::lowering
