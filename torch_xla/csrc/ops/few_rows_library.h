// Products of a few rows with weights, by a function of this library: BLAS and XLA's library pack
// the weights, or transpose them, at each call, and the weights are nearly all that such a product
// has to read. Table lowering/kernel_table.inc says where.
#pragma once

#include <cstdint>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Of more rows the weights are no longer nearly all, and packing them pays.
inline constexpr int64_t kFewRows = 32;

/// out[i, j] (+)= sum over l of rows[i, l] * weights[j, l]; all without gaps but for the rows of
/// `out`, which are `out_stride` apart. T is float or c10::BFloat16.
template <typename T>
struct FewRows {
  const T* rows;     // [m, k]
  const T* weights;  // [n, k]; or, by columns, [k, n]
  float* out;        // [m, n]
  int64_t m, n, k, out_stride;
  bool by_columns = false;
  bool accumulate = false;

  /// The columns from `begin` to `end` of `out`.
  void Run(int64_t begin, int64_t end) const;
};

/// Whether there is such a product of that element type.
inline bool HasFewRows(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kBF16;
}

/// rows [*, m, k] times weights [*, n, k], transposed, or, by columns, [*, k, n]: [*, m, n] of
/// float. Both are of f32 or of bf16.
Value CallFewRows(Value rows, Value weights, bool by_columns = false);

}  // namespace torch_xla::lowering
