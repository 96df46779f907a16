#include <c10/util/accumulate.h>

#include <algorithm>
#include <vector>

#include "cpu/convolution_columns.h"
#include "cpu/convolution_ways.h"
#include "cpu/ffi_parts.h"
#include "cpu/small_product.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// The distance of rows of `count` floats: an odd number of vectors, because the caches would place
/// rows at other distances in few of their sets.
int64_t RowOf(int64_t count) { return (InVectors(count) | 1) * ProductLanes(); }

/// Multiplies some rows and some of their terms at a time, so that the data stays in the nearest
/// caches until it is used again.
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

/// The number of weights of an output.
int64_t WeightsOf(const ConvolutionProduct& call) { return call.w.numel() / call.w.size(0); }
/// The number of pixels of an output image.
int64_t PixelsOf(const ConvolutionProduct& call) {
  return call.y.numel() / (call.y.size(0) * call.y.size(1));
}
int64_t ProductsOf(const ConvolutionProduct& call) {
  return call.y.size(0) * PixelsOf(call) * call.w.numel();
}

/// Some images of a convolution. Matrices of their pixels have rows of `width`, `row` floats apart.
class Images {
 public:
  Images(const ConvolutionProduct& call, int64_t first, int64_t count)
      : columns(call.x.sizes(), call.w.sizes(), call.y.sizes(), call.stride, call.padding,
                call.dilation),
        inputs(call.x.size(1)),
        outputs(call.y.size(1)),
        taps(columns.taps()),
        weights(inputs * taps),
        count(count),
        pixels(count * columns.outputs()),
        width(InVectors(pixels) * ProductLanes()),
        row(RowOf(pixels)),
        x_(call.x.mutable_data_ptr<float>() + first * inputs * columns.inputs()),
        w_(call.w.const_data_ptr<float>()),
        y_(call.y.mutable_data_ptr<float>() + first * outputs * columns.outputs()) {}

  /// The inputs that the weights multiply, [weights, width]: writes the rows of some channels.
  void Unfold(int64_t begin, int64_t end, float* seen) const {
    for (int64_t n = 0; n < count; ++n) {
      columns.Unfold(x_ + (n * inputs + begin) * columns.inputs(), end - begin,
                     seen + begin * taps * row + n * columns.outputs(), row);
    }
    for (int64_t k = begin * taps; k < end * taps; ++k) {
      std::fill(seen + k * row + pixels, seen + k * row + width, 0.0F);
    }
  }

  /// The outputs' gradients of all images as one matrix, [outputs, width].
  Floats Joined() const {
    Floats joined = Scratch(outputs * row);
    for (int64_t o = 0; o < outputs; ++o) {
      float* to = joined.get() + o * row;
      for (int64_t n = 0; n < count; ++n, to += columns.outputs()) {
        std::copy_n(y_ + (n * outputs + o) * columns.outputs(), columns.outputs(), to);
      }
      std::fill(to, joined.get() + o * row + width, 0.0F);
    }
    return joined;
  }

  /// Computes some outputs.
  void Forward(int64_t begin, int64_t end, const float* seen, const float* bias) const {
    const Floats made = Scratch((end - begin) * row);
    MultiplyInBlocks({.a = w_ + begin * weights,
                      .a_row = weights,
                      .a_term = 1,
                      .b = seen,
                      .b_term = row,
                      .c = made.get(),
                      .c_row = row,
                      .rows = end - begin,
                      .columns = width,
                      .terms = weights},
                     /*rows=*/64, /*terms=*/128);
    for (int64_t o = begin; o < end; ++o) {
      const float* from = made.get() + (o - begin) * row;
      const float more = bias ? bias[o] : 0;
      for (int64_t n = 0; n < count; ++n, from += columns.outputs()) {
        float* to = y_ + (n * outputs + o) * columns.outputs();
        for (int64_t i = 0; i < columns.outputs(); ++i) to[i] = from[i] + more;
      }
    }
  }

  /// Computes the gradient of some channels.
  void InputGradient(int64_t begin, int64_t end, const float* joined) const {
    const int64_t rows = (end - begin) * taps;
    const Floats made = Scratch(rows * row);
    MultiplyInBlocks({.a = w_ + begin * taps,
                      .a_row = 1,
                      .a_term = weights,
                      .b = joined,
                      .b_term = row,
                      .c = made.get(),
                      .c_row = row,
                      .rows = rows,
                      .columns = width,
                      .terms = outputs},
                     /*rows=*/128, /*terms=*/64);
    for (int64_t n = 0; n < count; ++n) {
      columns.Fold(made.get() + n * columns.outputs(), row,
                   x_ + (n * inputs + begin) * columns.inputs(), end - begin);
    }
  }

  const Columns columns;
  const int64_t inputs, outputs, taps;
  const int64_t weights;  // of an output
  const int64_t count, pixels, width, row;

 private:
  float* const x_;
  const float* const w_;
  float* const y_;
};

/// The inputs that the weights multiply, transposed: panels of `columns` of the rows of `seen`.
class Panels {
 public:
  Panels(int64_t columns, int64_t terms)
      : columns_(columns),
        terms_(terms),
        size_(PanelWidth() * terms),
        data_(Scratch(count() * size_)) {}

  int64_t count() const { return InPanels(columns_); }

  void Pack(int64_t begin, int64_t end, const float* seen, int64_t row) {
    for (int64_t panel = begin; panel < end; ++panel) {
      PackPanel(seen + PanelBegin(panel, columns_) * row, row, terms_, data_.get() + panel * size_);
    }
  }

  /// Writes, or adds to, the gradients of the weights of some outputs, [rows, columns].
  void WeightGradient(const float* joined, int64_t row, int64_t rows, float* to, bool adds) const {
    // As many panels as stay in the second-level cache.
    const int64_t some = std::max<int64_t>(1, (1 << 15) / size_);
    for (int64_t panel = 0; panel < count(); panel += some) {
      const int64_t column = PanelBegin(panel, columns_);
      Multiply({.a = joined,
                .a_row = row,
                .a_term = 1,
                .b = data_.get() + panel * size_,
                .b_term = PanelWidth(),
                .c = to + column,
                .c_row = columns_,
                .rows = rows,
                .columns = std::min(columns_ - column, some * PanelWidth()),
                .terms = terms_,
                .adds = adds,
                .b_panel = size_});
    }
  }

 private:
  const int64_t columns_, terms_, size_;
  const Floats data_;
};

/// Takes all images at once, and a part of the weights on each thread.
void RunByWeights(const ConvolutionProduct& call, const XLA_FFI_CallFrame& frame,
                  const float* bias) {
  const Images all(call, 0, call.x.size(0));
  if (call.part == ConvolutionPart::kInputGradient) {
    const Floats joined = all.Joined();
    InParts(frame, all.inputs, all.taps * all.outputs * all.width * choices::kProduct,
            [&](int64_t begin, int64_t end) { all.InputGradient(begin, end, joined.get()); });
    return;
  }
  const Floats seen = Scratch(all.weights * all.row);
  InParts(frame, all.inputs, all.taps * all.width * choices::kMoved,
          [&](int64_t begin, int64_t end) { all.Unfold(begin, end, seen.get()); });
  if (call.part == ConvolutionPart::kForward) {
    InParts(frame, all.outputs, all.weights * all.width * choices::kProduct,
            [&](int64_t begin, int64_t end) { all.Forward(begin, end, seen.get(), bias); });
    return;
  }
  Panels panels(all.weights, all.pixels);
  InParts(frame, panels.count(), PanelWidth() * all.pixels * choices::kMoved,
          [&](int64_t begin, int64_t end) { panels.Pack(begin, end, seen.get(), all.row); });
  const Floats joined = all.Joined();
  InParts(frame, all.outputs, all.weights * all.pixels * choices::kProduct,
          [&](int64_t begin, int64_t end) {
            panels.WeightGradient(joined.get() + begin * all.row, all.row, end - begin,
                                  call.w.mutable_data_ptr<float>() + begin * all.weights,
                                  /*adds=*/false);
          });
}

/// Takes all weights, and some of the images on each thread, a few images at a time.
void RunByImages(const ConvolutionProduct& call, const XLA_FFI_CallFrame& frame,
                 const float* bias) {
  const int64_t outputs = call.w.size(0), weights = WeightsOf(call), pixels = PixelsOf(call);
  const int64_t images = call.x.size(0), cost = ProductsOf(call) * choices::kProduct;
  const int64_t some = std::max<int64_t>(1, choices::kPixelsAtOnce / pixels);
  const int64_t row = RowOf(some * pixels);
  const int64_t rows = InPanels(weights) * PanelWidth();
  const bool sees = call.part != ConvolutionPart::kInputGradient;
  const bool is_sum = call.part == ConvolutionPart::kWeightGradient;
  const int64_t most = std::min(choices::kSums, images * pixels / choices::kPixelsOfSum);
  const int64_t parts =
      is_sum ? PartsWorthAThread(cost, std::min(most, images)) : FfiParts(frame, cost, images);
  std::vector<Floats> sums(parts);  // of a weight's gradient, [outputs, rows]
  RunParts(frame, parts, images, [&](int64_t part, int64_t begin, int64_t end) {
    const Floats seen = sees ? Scratch(rows * row) : nullptr;
    if (seen) std::fill(seen.get() + weights * row, seen.get() + rows * row, 0.0F);
    for (int64_t first = begin; first < end; first += some) {
      const Images images(call, first, std::min(some, end - first));
      if (seen) images.Unfold(0, images.inputs, seen.get());
      if (call.part == ConvolutionPart::kForward) {
        images.Forward(0, outputs, seen.get(), bias);
      } else if (call.part == ConvolutionPart::kInputGradient) {
        images.InputGradient(0, images.inputs, images.Joined().get());
      } else {
        if (!sums[part]) sums[part] = Scratch(outputs * rows);
        Panels panels(rows, images.pixels);
        panels.Pack(0, panels.count(), seen.get(), images.row);
        panels.WeightGradient(images.Joined().get(), images.row, outputs, sums[part].get(),
                              /*adds=*/first > begin);
      }
    }
  });
  if (!is_sum) return;
  InParts(frame, outputs, parts * weights * choices::kFloat, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      float* to = call.w.mutable_data_ptr<float>() + o * weights;
      std::copy_n(sums[0].get() + o * rows, weights, to);
      for (int64_t part = 1; part < parts; ++part) {
        const float* more = sums[part].get() + o * rows;
        for (int64_t k = 0; k < weights; ++k) to[k] += more[k];
      }
    }
  });
}

bool IsByWeights(const ConvolutionProduct& call) {
  // oneDNN would have to copy a gradient of many weights from its blocked layout. Winograd's tiles
  // may be faster still.
  const int64_t weights = call.w.numel(), pixels = call.y.size(0) * PixelsOf(call);
  const bool is_worth_more = call.part == ConvolutionPart::kWeightGradient &&
                             weights >= choices::kByWeightsMany && !WinogradHalvesProducts(call);
  return weights >= choices::kByWeightsLeast && WeightsOf(call) >= PanelWidth() &&
         pixels <= (is_worth_more ? choices::kByWeightsManyPixels : choices::kByWeightsPixels);
}

bool IsByImages(const ConvolutionProduct& call) {
  const int64_t pixels = PixelsOf(call), products = ProductsOf(call);
  // A single image would use a single thread.
  if (call.y.size(0) == 1 && PartsWorthAThread(products * choices::kProduct, 2) > 1) return false;
  const int64_t columns = WeightsOf(call) * pixels;
  if (call.w.numel() <= choices::kByImagesWeights && columns <= choices::kByImagesColumns &&
      (call.part != ConvolutionPart::kWeightGradient || pixels <= choices::kByImagesPixels ||
       products <= choices::kByImagesProducts)) {
    return true;
  }
  // oneDNN computes the gradient of an input with few channels slowly.
  const int64_t channels = call.w.size(1), taps = WeightsOf(call) / channels;
  const bool is_strided = c10::multiply_integers(call.stride) > 1;
  return call.part == ConvolutionPart::kInputGradient && columns <= choices::kFoldedColumns &&
         pixels >= (taps == 1 ? choices::kFoldedPixels : 1) &&
         (channels <= choices::kFoldedChannels ||
          (is_strided && channels <= choices::kFoldedStridedChannels &&
           taps <= choices::kFoldedTaps));
}

}  // namespace

bool RunProducts(const ConvolutionProduct& call, const XLA_FFI_CallFrame& frame,
                 const float* bias) {
  if (call.w.dim() < 3 || call.w.dim() > 4) return false;
  if (IsByWeights(call)) {
    RunByWeights(call, frame, bias);
    return true;
  }
  if (RunWinograd(call, frame, bias)) return true;
  if (!IsByImages(call)) return false;
  RunByImages(call, frame, bias);
  return true;
}

}  // namespace torch_xla::cpu
