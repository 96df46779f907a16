// A channel of an image, as what the positions of a convolution's output see of it.
#pragma once

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace torch_xla::cpu {

/// How the positions of one dimension go with those of the kernel.
struct Axis {
  int64_t input, output, kernel, stride, padding, dilation;

  /// How many positions, from the first of the padding on, the outputs see.
  int64_t seen() const { return (output - 1) * stride + (kernel - 1) * dilation + 1; }
  /// Of these the most that a stride takes together.
  int64_t seen_together() const { return (seen() + stride - 1) / stride; }
};

/// Runs are short: four floats at a time, of which the last may be taken twice.
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

/// The channel with its padding. Positions that a stride takes together lie side by side, so that
/// what a row of outputs sees does, too: position x is number x / stride of those with its rest,
/// and so are rows.
class Plane {
 public:
  /// So many floats may be read from where there is but one; they are zero.
  static constexpr int64_t kBehind = 64;

  Plane(const Axis& rows, const Axis& row);

  /// What the outputs of the first row see by the tap (i, j); what those of the next do is
  /// row.seen_together() farther on.
  float* Seen(int64_t i, int64_t j) const {
    const int64_t x = j * row_.dilation;
    return Row(i * rows_.dilation, x % row_.stride) + x / row_.stride;
  }

  void Clear() { std::fill_n(data_.get(), size(), 0.0F); }
  /// Its padding is left alone.
  void Take(const float* channel);
  /// Where nothing sees the channel it is zero.
  void Give(float* channel) const;

 private:
  int64_t size() const { return rows_.stride * row_.stride * height_ * width_; }
  /// Of the columns with a rest.
  float* Row(int64_t y, int64_t rest) const {
    const int64_t plane = y % rows_.stride * row_.stride + rest;
    return data_.get() + (plane * height_ + y / rows_.stride) * width_;
  }

  /// Floats that lie side by side in the plane, and a stride apart in the channel.
  struct Run {
    int64_t inside, channel, count;
  };

  const Axis rows_, row_;
  const int64_t height_, width_;  // of what has the same rests
  std::unique_ptr<float[]> data_;
  std::vector<Run> runs_;
  int64_t num_seen_ = 0;
};

}  // namespace torch_xla::cpu
