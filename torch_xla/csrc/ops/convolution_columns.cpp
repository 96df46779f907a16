#include "ops/convolution_columns.h"

#include <algorithm>

namespace torch_xla::lowering {
namespace {

/// Calls visit(column, y, left, right, start) for each row of an image's columns: its outputs y
/// from `left` to `right`, whose inputs begin where that of x = 0 would be, at `start`.
template <typename Visit>
void ForEachRow(const Columns& columns, int64_t channels, Visit visit) {
  const auto& [rows, row] = columns;
  int64_t column = 0;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < rows.kernel; ++i) {
      const auto [top, bottom] = rows.Inside(i);
      for (int64_t j = 0; j < row.kernel; ++j, ++column) {
        const auto [left, right] = row.Inside(j);
        for (int64_t y = top; y < bottom; ++y) {
          const int64_t at = y * rows.stride + rows.Start(i);
          visit(column, y, left, right, (c * rows.input + at) * row.input + row.Start(j));
        }
      }
    }
  }
}

}  // namespace

std::pair<int64_t, int64_t> Axis::Inside(int64_t tap) const {
  const int64_t start = Start(tap);
  const int64_t first = start < 0 ? (-start + stride - 1) / stride : 0;
  const int64_t last = start >= input ? 0 : (input - start + stride - 1) / stride;
  return {std::min(first, output), std::clamp(last, std::min(first, output), output)};
}

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

void Columns::Unfold(const float* image, int64_t channels, float* columns, int64_t stride) const {
  for (int64_t k = 0; k < channels * taps(); ++k)
    std::fill_n(columns + k * stride, outputs(), 0.0F);
  ForEachRow(*this, channels,
             [&](int64_t k, int64_t y, int64_t left, int64_t right, int64_t start) {
               float* to = columns + k * stride + y * row.output;
               for (int64_t x = left; x < right; ++x) to[x] = image[start + x * row.stride];
             });
}

void Columns::Fold(const float* columns, int64_t stride, float* image, int64_t channels) const {
  ForEachRow(*this, channels,
             [&](int64_t k, int64_t y, int64_t left, int64_t right, int64_t start) {
               const float* from = columns + k * stride + y * row.output;
               if (row.stride == 1) {
                 for (int64_t x = left; x < right; ++x) image[start + x] += from[x];
               } else {
                 for (int64_t x = left; x < right; ++x) image[start + x * row.stride] += from[x];
               }
             });
}

}  // namespace torch_xla::lowering
