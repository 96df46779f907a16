#include "ops/convolution_columns.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace torch_xla::lowering {
namespace {

/// A channel of an image with its padding. Columns that a stride takes together lie side by side,
/// so that what a row of outputs sees does, too: position x is number x / stride of those with its
/// rest.
class Plane {
 public:
  explicit Plane(const Columns& columns)
      : rows_(columns.rows),
        row_(columns.row),
        width_((row_.seen() + row_.stride - 1) / row_.stride),
        data_(std::make_unique<float[]>(rows_.seen() * row_.stride * width_)) {}

  /// What the outputs of the first row see by the tap (i, j), and how far on the next row does.
  float* Seen(int64_t i, int64_t j) const {
    const int64_t x = j * row_.dilation;
    return Row(i * rows_.dilation) + x % row_.stride * width_ + x / row_.stride;
  }
  int64_t step() const { return rows_.stride * row_.stride * width_; }

  void Clear() { std::fill_n(data_.get(), rows_.seen() * row_.stride * width_, 0.0F); }
  /// Its padding is left alone.
  void Take(const float* channel) {
    ForEachInside([&](float* inside, int64_t y, int64_t x, int64_t count, int64_t step) {
      const float* from = channel + y * row_.input + x;
      for (int64_t k = 0; k < count; ++k) inside[k] = from[k * step];
    });
  }
  /// Where nothing sees the channel it is zero.
  void Give(float* channel) const {
    std::fill_n(channel, rows_.input * row_.input, 0.0F);
    ForEachInside([&](const float* inside, int64_t y, int64_t x, int64_t count, int64_t step) {
      float* to = channel + y * row_.input + x;
      for (int64_t k = 0; k < count; ++k) to[k * step] = inside[k];
    });
  }

 private:
  float* Row(int64_t y) const { return data_.get() + y * row_.stride * width_; }

  /// Calls visit(inside, y, x, count, step) for positions (y, x + k * step) that lie side by side.
  template <typename Visit>
  C10_ALWAYS_INLINE void ForEachInside(Visit visit) const {
    const int64_t stride = row_.stride;
    const int64_t end = std::min(row_.seen() - row_.padding, row_.input);
    const int64_t bottom = std::min(rows_.seen() - rows_.padding, rows_.input);
    for (int64_t y = 0; y < bottom; ++y) {
      for (int64_t rest = 0; rest < stride; ++rest) {
        // The first such position that is not padding.
        const int64_t first = (std::max<int64_t>(row_.padding - rest, 0) + stride - 1) / stride;
        const int64_t x = first * stride + rest - row_.padding;
        if (x >= end) continue;
        float* inside = Row(y + rows_.padding) + rest * width_ + first;
        const int64_t count = (end - x + stride - 1) / stride;
        if (stride == 1) {
          visit(inside, y, x, count, 1);
        } else if (stride == 2) {
          visit(inside, y, x, count, 2);
        } else {
          visit(inside, y, x, count, stride);
        }
      }
    }
  }

  const Axis rows_, row_;
  const int64_t width_;
  std::unique_ptr<float[]> data_;
};

/// Runs are short: four floats at a time, of which the last may be taken twice.
C10_ALWAYS_INLINE void CopyRun(const float* from, int64_t count, float* to) {
  constexpr int64_t kSome = 4;
  if (count < kSome) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count; i += kSome) {
    const int64_t at = std::min(i, count - kSome);
    std::memcpy(to + at, from + at, kSome * sizeof(float));
  }
}

}  // namespace

Columns::Columns(at::IntArrayRef x, at::IntArrayRef w, at::IntArrayRef y, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation)
    : rows{1, 1, 1, 1, 0, 1} {
  auto axis = [&](int64_t i) {
    return Axis{x[2 + i], y[2 + i], w[2 + i], stride[i], padding[i], dilation[i]};
  };
  const bool flat = x.size() == 3;
  if (!flat) rows = axis(0);
  row = axis(flat ? 0 : 1);
}

bool Columns::is_same() const {
  auto is_same = [](const Axis& axis) {
    return axis.kernel == 1 && axis.stride == 1 && axis.padding == 0;
  };
  return is_same(rows) && is_same(row);
}

void Columns::Unfold(const float* image, int64_t channels, float* columns, int64_t stride) const {
  if (is_same()) {
    for (int64_t c = 0; c < channels; ++c) {
      std::copy_n(image + c * inputs(), inputs(), columns + c * stride);
    }
    return;
  }
  Plane plane(*this);
  for (int64_t c = 0; c < channels; ++c) {
    plane.Take(image + c * inputs());
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < row.kernel; ++j, columns += stride) {
        const float* from = plane.Seen(i, j);
        float* to = columns;
        for (int64_t y = 0; y < rows.output; ++y, from += plane.step(), to += row.output) {
          CopyRun(from, row.output, to);
        }
      }
    }
  }
}

void Columns::Fold(const float* columns, int64_t stride, float* image, int64_t channels) const {
  if (is_same()) {
    for (int64_t c = 0; c < channels; ++c) {
      std::copy_n(columns + c * stride, inputs(), image + c * inputs());
    }
    return;
  }
  Plane plane(*this);
  for (int64_t c = 0; c < channels; ++c) {
    plane.Clear();
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < row.kernel; ++j, columns += stride) {
        const float* from = columns;
        float* to = plane.Seen(i, j);
        for (int64_t y = 0; y < rows.output; ++y, from += row.output, to += plane.step()) {
          for (int64_t x = 0; x < row.output; ++x) to[x] += from[x];
        }
      }
    }
    plane.Give(image + c * inputs());
  }
}

}  // namespace torch_xla::lowering
