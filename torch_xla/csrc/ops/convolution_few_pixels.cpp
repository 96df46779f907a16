#include "ops/convolution_few_pixels.h"

#include <algorithm>
#include <memory>

#include "lowering/ffi_tensor.h"
#include "lowering/small_product.h"
#include "ops/convolution_columns.h"
#include "runtime/ffi_threads.h"

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;

using Floats = std::unique_ptr<float[]>;

Floats Scratch(int64_t count) { return std::make_unique_for_overwrite<float[]>(count); }

int64_t RoundedUp(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/// Maps [N, C, pixels] as [C, N * pixels], and back; rows of the second are `stride` apart.
struct Images {
  int64_t images, channels, pixels, stride;

  void Join(const float* maps, int64_t begin, int64_t end, float* joined) const {
    for (int64_t c = begin; c < end; ++c) {
      float* to = joined + c * stride;
      for (int64_t n = 0; n < images; ++n, to += pixels) {
        std::copy_n(maps + (n * channels + c) * pixels, pixels, to);
      }
      std::fill(to, joined + (c + 1) * stride, 0.0F);
    }
  }
  /// Of the channels from `begin` on; `joined` begins with the first of them.
  void Part(const float* joined, int64_t begin, int64_t end, const float* bias, float* maps) const {
    for (int64_t c = begin; c < end; ++c, joined += stride) {
      const float more = bias ? bias[c] : 0;
      for (int64_t n = 0; n < images; ++n) {
        float* to = maps + (n * channels + c) * pixels;
        for (int64_t i = 0; i < pixels; ++i) to[i] = joined[n * pixels + i] + more;
      }
    }
  }
};

/// What the three have in common.
struct Sizes {
  explicit Sizes(const FewPixels& call)
      : columns(call.x.sizes(), call.w.sizes(), call.y.sizes(), call.stride, call.padding,
                call.dilation),
        images(call.x.size(0)),
        inputs(call.x.size(1)),
        outputs(call.y.size(1)),
        weights(inputs * columns.taps()),
        pixels(images * columns.outputs()),
        width(RoundedUp(pixels, ProductLanes())),
        maps{images, outputs, columns.outputs(), width} {}

  /// Writes rows of x's columns [weights, width]: those of channels from `begin` to `end`.
  void Unfold(const float* x, int64_t begin, int64_t end, float* to) const {
    for (int64_t n = 0; n < images; ++n) {
      columns.Unfold(x + (n * inputs + begin) * columns.inputs(), end - begin,
                     to + begin * columns.taps() * width + n * columns.outputs(), width);
    }
    for (int64_t k = begin * columns.taps(); k < end * columns.taps(); ++k) {
      std::fill(to + k * width + pixels, to + (k + 1) * width, 0.0F);
    }
  }

  Columns columns;
  int64_t images, inputs, outputs;
  int64_t weights;  // of an output
  int64_t pixels, width;
  Images maps;
};

/// Calls work(begin, end) for parts of `count` things, each of `cost` multiplications, copies or
/// the like, on XLA's threads.
template <typename Work>
void InParts(const XLA_FFI_CallFrame& frame, int64_t count, int64_t cost, int64_t least,
             Work work) {
  const int64_t parts = runtime::FfiParts(frame, count * cost, least, count);
  runtime::RunOnFfiThreads(frame, parts, [&](int64_t part) {
    const DefaultFloatEnvironment environment;
    work(count * part / parts, count * (part + 1) / parts);
  });
}

/// Some rows at a time, and of these some terms, so that what is read and written again stays in
/// the nearest caches.
void MultiplyInBlocks(const SmallProduct& product, int64_t rows, int64_t terms) {
  for (int64_t row = 0; row < product.rows; row += rows) {
    for (int64_t term = 0; term < product.terms; term += terms) {
      SmallProduct block = product;
      block.a += row * product.a_row + term * product.a_term;
      block.b += term * product.b_term;
      block.c += row * product.c_row;
      block.rows = std::min(rows, product.rows - row);
      block.terms = std::min(terms, product.terms - term);
      block.adds = term > 0;
      Multiply(block);
    }
  }
}

// What is worth a second thread.
constexpr int64_t kProducts = 1 << 20, kCopies = 1 << 14;

}  // namespace

bool FewPixels::IsPreferred() const {
  if (w.scalar_type() != at::kFloat || w.dim() < 3 || w.dim() > 4) return false;
  // A gradient of many weights is worth it for more pixels: none is brought back from blocks.
  constexpr int64_t kPixels = 64, kMorePixels = 128, kMany = 1 << 18, kLeast = 1 << 10;
  const int64_t weights = w.numel(), pixels = y.size(0) * y[0][0].numel();
  const bool is_worth_more = part == ConvolutionPart::kWeightGradient && weights >= kMany;
  return weights >= kLeast && w[0].numel() >= PanelWidth() &&
         pixels <= (is_worth_more ? kMorePixels : kPixels);
}

void FewPixels::Run(const XLA_FFI_CallFrame& frame, const std::optional<at::Tensor>& bias) const {
  switch (part) {
    case ConvolutionPart::kForward:
      return Forward(frame, bias);
    case ConvolutionPart::kInputGradient:
      return InputGradient(frame);
    case ConvolutionPart::kWeightGradient:
      return WeightGradient(frame);
  }
}

void FewPixels::Forward(const XLA_FFI_CallFrame& frame,
                        const std::optional<at::Tensor>& bias) const {
  const Sizes sizes(*this);
  const Floats seen = Scratch(sizes.weights * sizes.width);
  InParts(frame, sizes.inputs, sizes.columns.taps() * sizes.width, kCopies,
          [&](int64_t begin, int64_t end) {
            sizes.Unfold(x.const_data_ptr<float>(), begin, end, seen.get());
          });
  InParts(frame, sizes.outputs, sizes.weights * sizes.width, kProducts,
          [&](int64_t begin, int64_t end) {
            const Floats made = Scratch((end - begin) * sizes.width);
            MultiplyInBlocks({.a = w.const_data_ptr<float>() + begin * sizes.weights,
                              .a_row = sizes.weights,
                              .a_term = 1,
                              .b = seen.get(),
                              .b_term = sizes.width,
                              .c = made.get(),
                              .c_row = sizes.width,
                              .rows = end - begin,
                              .columns = sizes.width,
                              .terms = sizes.weights},
                             /*rows=*/64, /*terms=*/128);
            sizes.maps.Part(made.get(), begin, end, bias ? bias->const_data_ptr<float>() : nullptr,
                            y.mutable_data_ptr<float>());
          });
}

void FewPixels::InputGradient(const XLA_FFI_CallFrame& frame) const {
  const Sizes sizes(*this);
  const int64_t taps = sizes.columns.taps();
  const Floats joined = Scratch(sizes.outputs * sizes.width);
  sizes.maps.Join(y.const_data_ptr<float>(), 0, sizes.outputs, joined.get());
  InParts(frame, sizes.inputs, taps * sizes.outputs * sizes.width, kProducts,
          [&](int64_t begin, int64_t end) {
            const int64_t rows = (end - begin) * taps;
            const Floats made = Scratch(rows * sizes.width);
            MultiplyInBlocks({.a = w.const_data_ptr<float>() + begin * taps,
                              .a_row = 1,
                              .a_term = sizes.weights,
                              .b = joined.get(),
                              .b_term = sizes.width,
                              .c = made.get(),
                              .c_row = sizes.width,
                              .rows = rows,
                              .columns = sizes.width,
                              .terms = sizes.outputs},
                             /*rows=*/128, /*terms=*/64);
            for (int64_t n = 0; n < sizes.images; ++n) {
              float* image =
                  x.mutable_data_ptr<float>() + (n * sizes.inputs + begin) * sizes.columns.inputs();
              std::fill_n(image, (end - begin) * sizes.columns.inputs(), 0.0F);
              sizes.columns.Fold(made.get() + n * sizes.columns.outputs(), sizes.width, image,
                                 end - begin);
            }
          });
}

void FewPixels::WeightGradient(const XLA_FFI_CallFrame& frame) const {
  const Sizes sizes(*this);
  const int64_t width = PanelWidth(), panels = (sizes.weights + width - 1) / width;
  const Floats joined = Scratch(sizes.outputs * sizes.width);
  sizes.maps.Join(y.const_data_ptr<float>(), 0, sizes.outputs, joined.get());
  const Floats seen = Scratch(sizes.weights * sizes.width);
  InParts(frame, sizes.inputs, sizes.columns.taps() * sizes.width, kCopies,
          [&](int64_t begin, int64_t end) {
            sizes.Unfold(x.const_data_ptr<float>(), begin, end, seen.get());
          });
  const int64_t panel_size = width * sizes.pixels;
  const Floats packed = Scratch(panels * panel_size);
  InParts(frame, panels, panel_size, kCopies, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      PackPanel(seen.get() + PanelBegin(panel, sizes.weights) * sizes.width, sizes.width,
                sizes.pixels, packed.get() + panel * panel_size);
    }
  });
  InParts(frame, sizes.outputs, sizes.weights * sizes.pixels, kProducts,
          [&](int64_t begin, int64_t end) {
            // Panels that stay in the second cache.
            const int64_t some = std::max<int64_t>(1, (1 << 15) / panel_size);
            for (int64_t panel = 0; panel < panels; panel += some) {
              const int64_t column = PanelBegin(panel, sizes.weights);
              Multiply({.a = joined.get() + begin * sizes.width,
                        .a_row = sizes.width,
                        .a_term = 1,
                        .b = packed.get() + panel * panel_size,
                        .b_term = width,
                        .c = w.mutable_data_ptr<float>() + begin * sizes.weights + column,
                        .c_row = sizes.weights,
                        .rows = end - begin,
                        .columns = std::min(sizes.weights - column, some * width),
                        .terms = sizes.pixels,
                        .b_panel = panel_size});
            }
          });
}

}  // namespace torch_xla::lowering
