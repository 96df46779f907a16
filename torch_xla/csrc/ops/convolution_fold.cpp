#include "ops/convolution_fold.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace torch_xla::lowering {
namespace {

/// How the positions of one dimension go with those of the kernel.
struct Axis {
  int64_t input, output, kernel, stride, padding, dilation;

  /// Of the output's position 0, which may lie before the input.
  int64_t Start(int64_t tap) const { return tap * dilation - padding; }
  /// The outputs from .first to .second whose inputs for a tap are there.
  std::pair<int64_t, int64_t> Inside(int64_t tap) const {
    const int64_t start = Start(tap);
    const int64_t first = start < 0 ? (-start + stride - 1) / stride : 0;
    const int64_t last = start >= input ? 0 : (input - start + stride - 1) / stride;
    return {std::min(first, output), std::clamp(last, std::min(first, output), output)};
  }
};

/// Adds columns [C * taps, images * outputs] to images [C, inputs].
void Fold(const float* columns, float* images, int64_t count, int64_t channels, const Axis& rows,
          const Axis& row) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < rows.kernel; ++i) {
      const auto [top, bottom] = rows.Inside(i);
      for (int64_t j = 0; j < row.kernel; ++j) {
        const auto [left, right] = row.Inside(j);
        for (int64_t n = 0; n < count; ++n, columns += rows.output * row.output) {
          float* image = images + (n * channels + c) * rows.input * row.input;
          for (int64_t y = top; y < bottom; ++y) {
            const float* from = columns + y * row.output;
            const int64_t start = (y * rows.stride + rows.Start(i)) * row.input + row.Start(j);
            if (row.stride == 1) {
              for (int64_t x = left; x < right; ++x) image[start + x] += from[x];
            } else {
              for (int64_t x = left; x < right; ++x) image[start + x * row.stride] += from[x];
            }
          }
        }
      }
    }
  }
}

}  // namespace

bool PrefersFold(const at::Tensor& dy, const at::Tensor& w, at::IntArrayRef stride) {
  if (dy.scalar_type() != at::kFloat || dy.dim() < 3 || dy.dim() > 4) return false;
  constexpr int64_t kFew = 8, kFewStrided = 32, kTaps = 9, kFewPixels = 64;
  constexpr int64_t kLargest = int64_t{1} << 20;  // columns of an image, which stay in the cache
  const int64_t channels = w.size(1), taps = w[0][0].numel(), pixels = dy[0][0].numel();
  const bool strided = c10::multiply_integers(stride) > 1;
  return pixels >= (taps == 1 ? kFewPixels : 1) && channels * taps * pixels <= kLargest &&
         (channels <= kFew || (strided && channels <= kFewStrided && taps <= kTaps));
}

void FoldInputGradient(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& dx,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  auto axis = [&](int64_t i) {
    return Axis{dx.size(2 + i), dy.size(2 + i), w.size(2 + i), stride[i], padding[i], dilation[i]};
  };
  const bool flat = dx.dim() == 3;
  const Axis rows = flat ? Axis{1, 1, 1, 1, 0, 1} : axis(0), row = axis(flat ? 0 : 1);
  const int64_t channels = dx.size(1), outputs = dy.size(1), pixels = rows.output * row.output;
  const at::Tensor weights = w.view({outputs, -1}).t();
  // So many images at once that their columns stay in the cache.
  constexpr int64_t kCached = int64_t{1} << 18;
  const int64_t chunk = std::clamp<int64_t>(kCached / (weights.size(0) * pixels), 1,
                                            std::max<int64_t>(dy.size(0), 1));
  float* images = dx.mutable_data_ptr<float>();
  std::fill_n(images, dx.numel(), 0.0f);
  at::Tensor columns;
  for (int64_t n = 0; n < dy.size(0); n += chunk) {
    const int64_t count = std::min(chunk, dy.size(0) - n);
    if (!columns.defined() || columns.size(1) != count * pixels) {
      columns = at::empty({weights.size(0), count * pixels}, dy.options());
    }
    const at::Tensor maps = dy.narrow(0, n, count).reshape({count, outputs, pixels});
    at::mm_out(columns, weights, maps.transpose(0, 1).reshape({outputs, count * pixels}));
    Fold(columns.const_data_ptr<float>(), images + n * dx[0].numel(), count, channels, rows, row);
  }
}

}  // namespace torch_xla::lowering
