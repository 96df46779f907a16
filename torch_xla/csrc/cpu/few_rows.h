// Products of a few rows with weights. Such a product reads little else than the weights, so it
// must not copy them: BLAS and XLA's library pack or transpose the weights at each call.

#pragma once

#include <cstdint>

namespace torch_xla::cpu {

/// out[i, j] (+)= sum over l of rows[i, l] * weights[j, l]. `rows` and `weights` are contiguous;
/// the rows of `out` are `out_stride` floats apart. T is float or c10::BFloat16.
template <typename T>
struct FewRows {
  const T* rows;     // [m, k]
  const T* weights;  // [n, k]; or, by columns, [k, n]
  float* out;        // [m, n]
  int64_t m, n, k, out_stride;
  bool by_columns = false;
  bool accumulate = false;

  /// Computes the columns `begin` to `end` of `out`.
  void Run(int64_t begin, int64_t end) const;
};

}  // namespace torch_xla::cpu
