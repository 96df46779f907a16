#include "cpu/convolution_plane.h"

#include "cpu/float_vectors.h"

namespace torch_xla::cpu {
namespace {

/// to[k] = from[k * stride].
void Gather(const float* from, int64_t stride, int64_t count, float* to) {
  if (stride == 1) return CopyRun(from, count, to);
  int64_t k = 0;
  if (stride == 2) {
    using V = Lanes<4>;
    // Elements behind the last one are not read.
    for (; k + 4 < count; k += 4) {
      const V a = Load<V>(from + 2 * k), b = Load<V>(from + 2 * k + 4);
      Store(__builtin_shufflevector(a, b, 0, 2, 4, 6), to + k);
    }
  }
  for (; k < count; ++k) to[k] = from[k * stride];
}

/// to[k * stride] = from[k].
void Scatter(const float* from, int64_t stride, int64_t count, float* to) {
  if (stride == 1) return CopyRun(from, count, to);
  for (int64_t k = 0; k < count; ++k) to[k * stride] = from[k];
}

/// `a` has as many elements as `b`, or one more.
void Interleave(const float* a, int64_t num_a, const float* b, int64_t num_b, float* to) {
  for (int64_t k = 0; k < num_b; ++k) {
    to[2 * k] = a[k];
    to[2 * k + 1] = b[k];
  }
  if (num_a > num_b) to[2 * num_b] = a[num_b];
}

}  // namespace

Plane::Plane(const Axis& rows, const Axis& row)
    : rows_(rows),
      row_(row),
      height_(rows.seen_together()),
      width_(row.seen_together()),
      data_(std::make_unique<float[]>(size() + kBehind)) {
  const int64_t stride = row.stride;
  const int64_t end = std::min(row.seen() - row.padding, row.input);
  const int64_t bottom = std::min(rows.seen() - rows.padding, rows.input);
  for (int64_t y = 0; y < bottom; ++y) {
    for (int64_t x = 0; x < std::min(stride, end); ++x) {
      const int64_t position = x + row.padding, count = (end - x + stride - 1) / stride;
      const float* inside = Row(y + rows.padding, position % stride) + position / stride;
      runs_.push_back({inside - data_.get(), y * row.input + x, count});
      num_seen_ += count;
    }
  }
}

void Plane::Take(const float* channel) {
  for (const Run& run : runs_) {
    Gather(channel + run.channel, row_.stride, run.count, data_.get() + run.inside);
  }
}

void Plane::Give(float* channel) const {
  const int64_t all = rows_.input * row_.input;
  if (num_seen_ < all) std::fill_n(channel, all, 0.0F);
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    const float* from = data_.get() + run.inside;
    float* to = channel + run.channel;
    if (row_.stride == 2 && i + 1 < runs_.size() && runs_[i + 1].channel == run.channel + 1) {
      // The elements between these are the next run.
      const float* next = data_.get() + runs_[++i].inside;
      Interleave(from, run.count, next, runs_[i].count, to);
    } else {
      Scatter(from, row_.stride, run.count, to);
    }
  }
}

}  // namespace torch_xla::cpu
