// Layer, group and batch normalization of float or bfloat16 in memory, with parameters and moments
// of float, and their gradients: what takes the moments of a group, while the group is in a cache.
// Every function is for some groups, so that threads can share an array.
#pragma once

#include <cstdint>

namespace torch_xla::cpu {

/// What has moments of its own, and what a weight is for.
enum class NormalizedGroups : int64_t {
  kLayers,  // a row; an element of it
  kGroups,  // some channels of a row; a channel
  kBatch,   // a channel of all rows; the channel
};

/// An array of `rows` of `groups` each, of `channels` in a group, of `length` elements. There is
/// one group of one channel in a layer's row, and one of all channels in a batch's.
struct NormalizedForm {
  NormalizedGroups kind;
  int64_t rows, groups, channels, length;

  bool is_batch() const { return kind == NormalizedGroups::kBatch; }
  int64_t num_groups() const { return is_batch() ? channels : rows * groups; }
  int64_t group_size() const { return (is_batch() ? rows : channels) * length; }
  int64_t num_parameters() const {
    return kind == NormalizedGroups::kLayers ? length : groups * channels;
  }
};

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
