// Products of a few rows with weights, by a function of this library: BLAS and XLA's library pack
// the weights, or transpose them, at each call, and the weights are nearly all that such a product
// has to read.
#pragma once

#include <cstdint>

namespace torch_xla::cpu {

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

}  // namespace torch_xla::cpu
