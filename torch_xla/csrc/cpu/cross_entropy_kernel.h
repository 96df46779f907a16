// What cross entropy of long rows reads and writes once: logarithms of softmax are not written.
#pragma once

#include <cstdint>

namespace torch_xla::cpu {

/// Rows [rows, columns] of floats: `x`, and `bias` [columns], which is added to each, or null.
struct BiasedFloats {
  const float* x;
  const float* bias;
  int64_t columns;
};

/// Writes the maximum of each row from `begin` to `end`, and the logarithm of the sum of
/// exp(x - maximum).
void SumExponentials(const BiasedFloats& rows, int64_t begin, int64_t end, float* maximum,
                     float* log_sum);

/// What the gradient of log-softmax's argument is made of.
struct CrossEntropyGradient {
  BiasedFloats rows;
  const float *maximum, *log_sum;  // [rows]
  const int64_t* classes;          // [rows]
  const float* grad;               // [rows], of the class's logarithm; those of others are zero
};

/// Writes grad * ((column is the class) - softmax(x)).
void WriteGradient(const CrossEntropyGradient& call, int64_t begin, int64_t end, float* result);

}  // namespace torch_xla::cpu
