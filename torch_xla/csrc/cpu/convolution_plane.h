// One channel of an image, laid out so that a row of outputs reads side by side.
#pragma once

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace torch_xla::cpu {

/// One dimension of a convolution.
struct Axis {
  int64_t input, output, kernel, stride, padding, dilation;

  /// How many positions the outputs depend on, counted from the first padded one.
  int64_t seen() const { return (output - 1) * stride + (kernel - 1) * dilation + 1; }
  /// The largest number of these positions that are equal modulo the stride.
  int64_t seen_together() const { return (seen() + stride - 1) / stride; }
};

/// Copies a short run, four floats at a time; the last four may overlap the ones before.
C10_ALWAYS_INLINE void CopyRun(const float* from, int64_t count, float* to) {
  constexpr int64_t kSome = 4;
  if (count < kSome) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i + kSome < count; i += kSome) {
    std::memcpy(to + i, from + i, kSome * sizeof(float));
  }
  const int64_t last = count - kSome;
  std::memcpy(to + last, from + last, kSome * sizeof(float));
}

/// The channel with its padding. Positions that are equal modulo the stride lie side by side, and
/// rows likewise: position x is number x / stride of those with the remainder x % stride. So the
/// positions that a row of outputs reads for one tap of the kernel are contiguous.
class Plane {
 public:
  /// How many floats past a position may be read; those past the end are zero.
  static constexpr int64_t kBehind = 64;

  Plane(const Axis& rows, const Axis& row);

  /// The positions that the first row of outputs reads for the tap (i, j) of the kernel. Those of
  /// the next row are row.seen_together() floats farther on.
  float* Seen(int64_t i, int64_t j) const {
    const int64_t x = j * row_.dilation;
    return Row(i * rows_.dilation, x % row_.stride) + x / row_.stride;
  }

  void Clear() { std::fill_n(data_.get(), size(), 0.0F); }
  /// Copies the channel into the plane and leaves the padding as it is.
  void Take(const float* channel);
  /// Copies the plane into the channel, with zeros where no output depends on it.
  void Give(float* channel) const;

 private:
  int64_t size() const { return rows_.stride * row_.stride * height_ * width_; }
  /// The part of row y whose columns have the remainder `rest` modulo the stride.
  float* Row(int64_t y, int64_t rest) const {
    const int64_t plane = y % rows_.stride * row_.stride + rest;
    return data_.get() + (plane * height_ + y / rows_.stride) * width_;
  }

  /// Floats that are contiguous in the plane and a stride apart in the channel.
  struct Run {
    int64_t inside, channel, count;
  };

  const Axis rows_, row_;
  const int64_t height_, width_;  // of the positions that have the same remainders
  std::unique_ptr<float[]> data_;
  std::vector<Run> runs_;
  int64_t num_seen_ = 0;
};

}  // namespace torch_xla::cpu
