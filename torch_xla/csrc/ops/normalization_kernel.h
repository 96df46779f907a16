// Layer and group normalization of float in memory, and their gradients: what takes the moments of
// a group, while the group is in a cache. Every function is for some groups, so that threads can
// share an array.
#pragma once

#include <cstdint>

namespace torch_xla::lowering {

/// `rows` of `groups` each, of `channels` in a group, of `length` elements. Parameters are one for
/// each channel of a row, or, `by_element`, for each element of the one channel.
struct NormalizedForm {
  int64_t rows, groups, channels, length;
  bool by_element;

  int64_t num_groups() const { return rows * groups; }
  int64_t group_size() const { return channels * length; }
  int64_t num_parameters() const { return by_element ? length : groups * channels; }
};

struct Normalization {
  NormalizedForm form;
  double eps;
  const float *input, *weight, *bias;  // weight and bias: or null
  float *output, *mean, *inverse_std;

  /// Of groups `begin` up to `end`.
  void Run(int64_t begin, int64_t end) const;
};

struct NormalizationBackward {
  NormalizedForm form;
  const float *grad, *input, *mean, *inverse_std, *weight;  // weight: or null
  float* of_input;                                          // or null

  /// Of groups `begin` up to `end`, whose part of the parameters' gradients is added to `of_weight`
  /// and `of_bias`, both or neither null.
  void Run(int64_t begin, int64_t end, float* of_weight, float* of_bias) const;
};

}  // namespace torch_xla::lowering
