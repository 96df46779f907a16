// Layer, group and batch normalization of float or bfloat16 in memory, with parameters and moments
// of float, and their gradients: what takes the moments of a group, while the group is in a cache.
// Every function is for some groups, so that threads can share an array.
#pragma once

#include <cstdint>

#include "cpu/calls.h"

namespace torch_xla::cpu {

/// Of a batch: running = momentum * that of the batch + (1 - momentum) * running, with the unbiased
/// variance. The results may lie where the operands do.
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
  // Of a batch: ReLU(normalized + addend), where `rectifies`.
  bool rectifies = false;
  const T* addend = nullptr;  // or null

  /// Of groups `begin` up to `end`.
  void Run(int64_t begin, int64_t end) const;
};

template <typename T>
struct NormalizationBackward {
  NormalizedForm form;
  const T *grad, *input;
  const float *mean, *inverse_std, *weight;  // weight: or null
  T* of_input;                               // or null
  // Of a batch: the ReLU of the output, which the gradient is of; or null.
  const T* rectified = nullptr;

  /// Of groups `begin` up to `end`, whose part of the parameters' gradients is added to `of_weight`
  /// and `of_bias`, both or neither null.
  void Run(int64_t begin, int64_t end, float* of_weight, float* of_bias) const;
};

}  // namespace torch_xla::cpu
