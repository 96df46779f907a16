#include "ops/convolution_fold.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <memory>

#include "lowering/small_product.h"
#include "ops/convolution_columns.h"

namespace torch_xla::lowering {

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
  const Columns columns(dx.sizes(), w.sizes(), dy.sizes(), stride, padding, dilation);
  const int64_t channels = dx.size(1), terms = dy.size(1);
  const int64_t pixels = columns.outputs(), taps = channels * columns.taps();
  const auto products = std::make_unique_for_overwrite<float[]>(taps * pixels);
  float* image = dx.mutable_data_ptr<float>();
  std::fill_n(image, dx.numel(), 0.0F);
  const float* maps = dy.const_data_ptr<float>();
  for (int64_t n = 0; n < dy.size(0); ++n) {
    Multiply({.a = w.const_data_ptr<float>(),
              .a_row = 1,
              .a_term = taps,
              .b = maps + n * terms * pixels,
              .b_term = pixels,
              .c = products.get(),
              .c_row = pixels,
              .rows = taps,
              .columns = pixels,
              .terms = terms});
    columns.Fold(products.get(), pixels, image + n * channels * columns.inputs(), channels);
  }
}

}  // namespace torch_xla::lowering
