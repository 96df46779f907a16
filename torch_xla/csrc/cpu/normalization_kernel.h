// Layer, group and batch normalization of float or bfloat16, with parameters and moments in float,
// and their gradients. Moments and results of a group are computed while the group is in a cache.
// Every function takes a range of groups, so that threads can share an array.
#pragma once

#include <cstdint>

#include "cpu/calls.h"

namespace torch_xla::cpu {

/// Updates running = momentum * (that of the batch) + (1 - momentum) * running, with the unbiased
/// variance. The results may share the memory of the operands.
struct RunningStatistics {
  const float *mean = nullptr, *variance = nullptr;
  float *new_mean = nullptr, *new_variance = nullptr;  // or null
  double momentum = 0;

  void Update(int64_t channel, double of_mean, double of_variance) const {
    if (new_mean) new_mean[channel] = Moved(mean[channel], of_mean);
    if (new_variance) new_variance[channel] = Moved(variance[channel], of_variance);
  }

 private:
  float Moved(float running, double to) const {
    return static_cast<float>(momentum * to + (1 - momentum) * running);
  }
};

template <typename T>
struct Normalization {
  NormalizedForm form;
  double eps;
  const T* input;
  const float *weight, *bias;  // or null
  T* output;
  float *mean, *inverse_std;
  RunningStatistics running;
  // Batch norm only: the output is ReLU(normalized + addend).
  bool rectifies = false;
  const T* addend = nullptr;  // or null

  /// Computes groups `begin` to `end`.
  void Run(int64_t begin, int64_t end) const;
};

template <typename T>
struct NormalizationBackward {
  NormalizedForm form;
  const T *grad, *input;
  const float *mean, *inverse_std, *weight;  // weight: or null
  T* of_input;                               // or null
  // Batch norm only: the output of the ReLU whose gradient `grad` is; or null.
  const T* rectified = nullptr;

  /// Computes groups `begin` to `end`, and adds their share of the gradients of the parameters to
  /// `of_weight` and `of_bias`, which are both null or both not.
  void Run(int64_t begin, int64_t end, float* of_weight, float* of_bias) const;
};

}  // namespace torch_xla::cpu
