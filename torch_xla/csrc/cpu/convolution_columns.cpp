#include "cpu/convolution_columns.h"

#include <algorithm>

namespace torch_xla::cpu {
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
  Plane plane(rows, row);
  const int64_t apart = row.seen_together();
  for (int64_t c = 0; c < channels; ++c) {
    plane.Take(image + c * inputs());
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < row.kernel; ++j, columns += stride) {
        const float* from = plane.Seen(i, j);
        float* to = columns;
        for (int64_t y = 0; y < rows.output; ++y, from += apart, to += row.output) {
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
  Plane plane(rows, row);
  const int64_t apart = row.seen_together();
  for (int64_t c = 0; c < channels; ++c) {
    plane.Clear();
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < row.kernel; ++j, columns += stride) {
        const float* from = columns;
        float* to = plane.Seen(i, j);
        for (int64_t y = 0; y < rows.output; ++y, from += row.output, to += apart) {
          for (int64_t x = 0; x < row.output; ++x) to[x] += from[x];
        }
      }
    }
    plane.Give(image + c * inputs());
  }
}

}  // namespace torch_xla::cpu
