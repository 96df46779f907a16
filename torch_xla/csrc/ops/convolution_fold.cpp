#include "ops/convolution_fold.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lowering/cpu_vectors.h"
#include "lowering/float_vectors.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

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

/// Of an image: weights [outputs, taps] transposed, times maps [outputs, pixels]. Both lie as the
/// sums need them. (MKL packs them into buffers of megabytes, which each thread keeps.)
struct Product {
  const float* weights;
  const float* maps;
  float* columns;  // [taps, pixels]
  int64_t taps, pixels, outputs;
};

template <int kLanes, int kVectors, int kTaps>
C10_ALWAYS_INLINE void Tile(const Product& product, int64_t tap, int64_t pixel) {
  Lanes<kLanes> sums[kTaps][kVectors] = {};
  const float* weights = product.weights + tap;
  const float* maps = product.maps + pixel;
  for (int64_t o = 0; o < product.outputs; ++o, weights += product.taps, maps += product.pixels) {
    for (int v = 0; v < kVectors; ++v) {
      const auto map = Load<Lanes<kLanes>>(maps + v * kLanes);
      for (int i = 0; i < kTaps; ++i) sums[i][v] += map * weights[i];
    }
  }
  float* columns = product.columns + tap * product.pixels + pixel;
  for (int i = 0; i < kTaps; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      Store(sums[i][v], columns + i * product.pixels + v * kLanes);
    }
  }
}

/// All taps of some pixels. The last tile may overlap the one before.
template <int kLanes, int kVectors, int kTaps>
C10_ALWAYS_INLINE void Taps(const Product& product, int64_t pixel) {
  if constexpr (kTaps > 1) {
    if (product.taps < kTaps) return Taps<kLanes, kVectors, kTaps / 2>(product, pixel);
  }
  for (int64_t tap = 0; tap < product.taps; tap += kTaps) {
    Tile<kLanes, kVectors, kTaps>(product, std::min(tap, product.taps - kTaps), pixel);
  }
}

template <int kLanes, int kVectors, int kTaps>
C10_ALWAYS_INLINE void Multiply(const Product& product) {
  constexpr int kPixels = kLanes * kVectors;
  if (product.pixels < kPixels) {
    if constexpr (kVectors > 1) return Multiply<kLanes, 1, 2 * kTaps>(product);
    if constexpr (kLanes > 1) return Multiply<kLanes / 2, 1, kTaps>(product);
  }
  for (int64_t pixel = 0; pixel < product.pixels; pixel += kPixels) {
    Taps<kLanes, kVectors, kTaps>(product, std::min(pixel, product.pixels - kPixels));
  }
}

void Baseline(const Product& product) { Multiply<4, 2, 4>(product); }
TORCH_XLA_AVX2 void Avx2(const Product& product) { Multiply<8, 2, 4>(product); }
TORCH_XLA_AVX512 void Avx512(const Product& product) { Multiply<16, 2, 8>(product); }

/// Adds columns [C * taps, outputs] to an image [C, inputs].
void Fold(const float* columns, float* image, int64_t channels, const Axis& rows, const Axis& row) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < rows.kernel; ++i) {
      const auto [top, bottom] = rows.Inside(i);
      for (int64_t j = 0; j < row.kernel; ++j, columns += rows.output * row.output) {
        const auto [left, right] = row.Inside(j);
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
    image += rows.input * row.input;
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
  static const auto multiply =
      ForThisProcessor<void (*)(const Product&)>(&Baseline, &Avx2, &Avx512);
  const int64_t channels = dx.size(1), inputs = channels * rows.input * row.input;
  const int64_t outputs = dy.size(1), pixels = rows.output * row.output;
  const int64_t taps = w[0].numel();
  const auto columns = std::make_unique_for_overwrite<float[]>(taps * pixels);
  float* image = dx.mutable_data_ptr<float>();
  std::fill_n(image, dx.numel(), 0.0f);
  const float* maps = dy.const_data_ptr<float>();
  for (int64_t n = 0; n < dy.size(0); ++n, maps += outputs * pixels, image += inputs) {
    multiply({w.const_data_ptr<float>(), maps, columns.get(), taps, pixels, outputs});
    Fold(columns.get(), image, channels, rows, row);
  }
}

}  // namespace torch_xla::lowering
