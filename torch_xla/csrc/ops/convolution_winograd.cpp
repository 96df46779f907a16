#include "ops/convolution_winograd.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "lowering/ffi_parts.h"
#include "lowering/small_product.h"
#include "ops/winograd_tiles.h"

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;
using namespace winograd;

/// Channels of the vector that begins there.
int64_t ChannelsFrom(int64_t channel, int64_t channels) {
  return std::min(ProductLanes(), channels - channel);
}

/// A strip of an image, and where its tiles are among those of others.
struct ImageStrip {
  Strip strip;
  int64_t image;
  int64_t tile;
};

/// Rows of tiles of maps [images, channels, height, width].
struct Tiling {
  Tiling(at::IntArrayRef maps, at::IntArrayRef outputs, int64_t padding)
      : height(maps[2]),
        width(maps[3]),
        padding(padding),
        rows((outputs[2] + 1) / 2),
        columns((outputs[3] + 1) / 2) {}

  /// Of the rows of all images, those of each image.
  std::vector<ImageStrip> Strips(int64_t begin, int64_t end) const {
    std::vector<ImageStrip> strips;
    int64_t next;
    for (int64_t row = begin; row < end; row = next) {
      next = std::min(end, (row / rows + 1) * rows);
      strips.push_back({.strip = {.height = height,
                                  .width = width,
                                  .padding = padding,
                                  .first_row = row % rows,
                                  .rows = next - row,
                                  .columns = columns},
                        .image = row / rows,
                        .tile = (row - begin) * columns});
    }
    return strips;
  }

  int64_t height, width, padding;
  int64_t rows, columns;  // of tiles, of an image
};

/// Floats that a product reads or writes, [kTerms, rows, row].
struct Matrices {
  float* data;
  int64_t rows, row;

  // A tile's terms would else share few places of the caches.
  static constexpr int64_t kApart = 16;
  int64_t stride() const { return rows * row + kApart; }
  int64_t size() const { return kTerms * stride(); }
  float* At(int64_t term, int64_t i = 0) const { return data + term * stride() + i * row; }
  Terms Transformed(int64_t i, int64_t channel) const {
    return {At(0, i) + channel, stride(), row};
  }
};

/// Products are over the channels of the maps `from`; those of the maps `to` are in panels of two
/// vectors.
class Convolution {
 public:
  Convolution(const ConvolutionProduct& call, const float* bias)
      : part_(call.part),
        from_(call.part == ConvolutionPart::kInputGradient ? call.y : call.x),
        to_(call.part == ConvolutionPart::kInputGradient ? call.x : call.y),
        w_(call.w),
        bias_(bias),
        inputs_(from_.sizes(), to_.sizes(),
                call.part == ConvolutionPart::kInputGradient ? kKernel - 1 - call.padding[0]
                                                             : call.padding[0]),
        outputs_(to_.sizes(), to_.sizes(), 0),
        terms_(from_.size(1)),
        channels_(to_.size(1)),
        vectors_(InVectors(terms_)),
        panels_(InPanels(channels_)) {}

  /// Whether each thread has tiles enough to go through all weights by itself.
  bool IsByTiles(int64_t threads) const {
    constexpr int64_t kWeightsOfTile = 32;
    return rows() * inputs_.columns / threads * kWeightsOfTile >= terms_ * channels_;
  }

  /// All channels, and on each thread some rows of tiles.
  bool RunByTiles(const XLA_FFI_CallFrame& frame) {
    const int64_t weights = panels_ * PanelSize();
    std::vector<Floats> sums(runtime::FfiThreads(frame));  // of the weights' gradients
    Floats shared;
    if (!is_of_weights()) {
      shared = Scratch(weights);
      InParts(frame, panels_, PanelSize(), kCopies, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) TakeWeights(panel, shared.get());
      });
    }
    const int64_t parts =
        InParts(frame, rows(), inputs_.columns * kTerms * terms_ * channels_, kProducts,
                [&](int64_t part, int64_t begin, int64_t end) {
                  if (is_of_weights()) sums[part] = Scratch(weights);
                  const int64_t some = RowsAtOnce(kInputs, end - begin);
                  const Floats inputs = Scratch(Tiles(nullptr, some).size());
                  const Floats made = Scratch(Made(nullptr, some).size());
                  for (int64_t row = begin; row < end; row += some) {
                    const int64_t last = std::min(end, row + some);
                    const Matrices tiles = Tiles(inputs.get(), last - row);
                    for (const ImageStrip& at : inputs_.Strips(row, last)) {
                      for (int64_t v = 0; v < vectors_; ++v) TakeInputs(at, v, tiles);
                    }
                    for (int64_t panel = 0; panel < panels_; ++panel) {
                      MultiplyTiles(row, last, tiles, 0, panel,
                                    Weights(panel, (is_of_weights() ? sums[part] : shared).get()),
                                    made.get(), row > begin);
                    }
                  }
                });
    if (is_of_weights()) {
      InParts(frame, panels_, parts * PanelSize(), kCopies,
              [&](int64_t, int64_t begin, int64_t end) {
                for (int64_t part = 1; part < parts; ++part) {
                  for (int64_t i = begin * PanelSize(); i < end * PanelSize(); ++i) {
                    sums[0][i] += sums[part][i];
                  }
                }
                for (int64_t panel = begin; panel < end; ++panel) GiveWeights(panel, sums[0].get());
              });
    }
    return is_finite_;
  }

  /// All tiles, and on each thread some channels.
  bool RunByChannels(const XLA_FFI_CallFrame& frame) {
    const int64_t some = RowsAtOnce(kManyInputs, rows()), few = RowsAtOnce(kInputs, some);
    const Floats inputs = Scratch(Tiles(nullptr, some).size());
    const Floats weights = Scratch(panels_ * PanelSize());
    for (int64_t row = 0; row < rows(); row += some) {
      const int64_t last = std::min(rows(), row + some);
      const Matrices tiles = Tiles(inputs.get(), last - row);
      const std::vector<ImageStrip> strips = inputs_.Strips(row, last);
      const int64_t count = strips.size();
      InParts(frame, count * vectors_, tiles.size() / (count * vectors_), kCopies,
              [&](int64_t, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  TakeInputs(strips[i / vectors_], i % vectors_, tiles);
                }
              });
      InParts(frame, panels_, tiles.rows * kTerms * terms_ * PanelWidth(), kProducts,
              [&](int64_t, int64_t begin, int64_t end) {
                const Floats made = Scratch(Made(nullptr, few).size());
                for (int64_t panel = begin; panel < end; ++panel) {
                  const Matrices w = Weights(panel, weights.get());
                  if (row == 0 && !is_of_weights()) TakeWeights(panel, weights.get());
                  for (int64_t first = row; first < last; first += few) {
                    MultiplyTiles(first, std::min(last, first + few), tiles,
                                  (first - row) * inputs_.columns, panel, w, made.get(), first > 0);
                  }
                  if (last == rows() && is_of_weights()) GiveWeights(panel, weights.get());
                }
              });
    }
    return is_finite_;
  }

 private:
  static constexpr int64_t kProducts = 1 << 20, kCopies = 1 << 14;
  /// Transformed inputs, one of a tile's, that stay in the second cache.
  static constexpr int64_t kInputs = 1 << 12, kManyInputs = 1 << 14;

  bool is_of_weights() const { return part_ == ConvolutionPart::kWeightGradient; }
  bool is_of_inputs() const { return part_ == ConvolutionPart::kInputGradient; }
  int64_t rows() const { return from_.size(0) * inputs_.rows; }
  int64_t RowsAtOnce(int64_t inputs, int64_t most) const {
    constexpr int64_t kLeast = 16, kMost = 128;
    // The sums of gradients are read and written each time.
    const int64_t tiles = std::clamp((is_of_weights() ? 2 : 1) * inputs / terms_, kLeast, kMost);
    return std::clamp<int64_t>(tiles / inputs_.columns, 1, most);
  }

  Matrices Tiles(float* inputs, int64_t rows) const {
    return {inputs, rows * inputs_.columns, vectors_ * ProductLanes()};
  }
  Matrices Made(float* made, int64_t rows) const {
    return {made, rows * inputs_.columns, PanelWidth()};
  }
  int64_t PanelSize() const { return Matrices{nullptr, terms_, PanelWidth()}.size(); }
  Matrices Weights(int64_t panel, float* weights) const {
    return {weights + panel * PanelSize(), terms_, PanelWidth()};
  }

  /// Calls visit(channel, column) for the vectors of a panel: what each begins with, of all and in
  /// the panel.
  template <typename Visit>
  void ForEachVector(int64_t panel, Visit visit) const {
    const int64_t begin = panel * PanelWidth(), end = std::min(channels_, begin + PanelWidth());
    for (int64_t channel = begin; channel < end; channel += ProductLanes()) {
      visit(channel, channel - begin);
    }
  }

  int64_t WeightAt(int64_t channel) const {
    return channel * kTaps * (is_of_inputs() ? 1 : terms_);
  }
  Kernels KernelsAt(int64_t channel) const {
    return {.channels = ChannelsFrom(channel, channels_),
            .channel_stride = kTaps * (is_of_inputs() ? 1 : terms_),
            .count = terms_,
            .stride = kTaps * (is_of_inputs() ? channels_ : 1)};
  }

  void TakeInputs(const ImageStrip& at, int64_t vector, const Matrices& to) const {
    const int64_t channel = vector * ProductLanes();
    TransformInputs(from_.const_data_ptr<float>() +
                        (at.image * terms_ + channel) * at.strip.height * at.strip.width,
                    ChannelsFrom(channel, terms_), at.strip, to.Transformed(at.tile, channel));
  }
  void TakeWeights(int64_t panel, float* to) const {
    const float* weights = w_.const_data_ptr<float>();
    ForEachVector(panel, [&](int64_t channel, int64_t column) {
      TransformWeights(weights + WeightAt(channel), KernelsAt(channel), is_of_inputs(),
                       Weights(panel, to).Transformed(0, column));
    });
  }
  void GiveWeights(int64_t panel, float* from) {
    float* weights = w_.mutable_data_ptr<float>();
    ForEachVector(panel, [&](int64_t channel, int64_t column) {
      const bool is_finite =
          TransformWeightGradients(Weights(panel, from).Transformed(0, column), KernelsAt(channel),
                                   weights + WeightAt(channel));
      if (!is_finite) is_finite_ = false;
    });
  }

  /// Of a panel and rows of tiles, whose transformed inputs are in `tiles` from `first_tile` on.
  void MultiplyTiles(int64_t begin_row, int64_t end_row, const Matrices& tiles, int64_t first_tile,
                     int64_t panel, const Matrices& w, float* scratch, bool adds) {
    const Matrices made = Made(scratch, end_row - begin_row);
    const int64_t vectors = std::min<int64_t>(2, InVectors(channels_ - panel * PanelWidth()));
    const int64_t columns = vectors * ProductLanes();
    auto each = [&](auto visit) {
      for (const ImageStrip& at : outputs_.Strips(begin_row, end_row)) {
        const int64_t map = at.strip.height * at.strip.width;
        ForEachVector(panel, [&](int64_t channel, int64_t column) {
          visit(at.strip, channel, (at.image * channels_ + channel) * map,
                made.Transformed(at.tile, column));
        });
      }
    };
    if (is_of_weights()) {
      each([&](const Strip& strip, int64_t channel, int64_t map, const Terms& terms) {
        TransformGradients(to_.const_data_ptr<float>() + map, ChannelsFrom(channel, channels_),
                           strip, terms);
      });
      for (int64_t k = 0; k < kTerms; ++k) {
        Multiply({.a = tiles.At(k, first_tile),
                  .a_row = 1,
                  .a_term = tiles.row,
                  .b = made.At(k),
                  .b_term = made.row,
                  .c = w.At(k),
                  .c_row = w.row,
                  .rows = terms_,
                  .columns = columns,
                  .terms = made.rows,
                  .adds = adds});
      }
      return;
    }
    for (int64_t k = 0; k < kTerms; ++k) {
      Multiply({.a = tiles.At(k, first_tile),
                .a_row = tiles.row,
                .a_term = 1,
                .b = w.At(k),
                .b_term = w.row,
                .c = made.At(k),
                .c_row = made.row,
                .rows = made.rows,
                .columns = columns,
                .terms = terms_});
    }
    each([&](const Strip& strip, int64_t channel, int64_t map, const Terms& terms) {
      if (!TransformOutputs(terms, bias_ ? bias_ + channel : nullptr,
                            ChannelsFrom(channel, channels_), strip,
                            to_.mutable_data_ptr<float>() + map)) {
        is_finite_ = false;
      }
    });
  }

  const ConvolutionPart part_;
  const at::Tensor &from_, &to_, &w_;
  const float* const bias_;
  const Tiling inputs_, outputs_;
  const int64_t terms_, channels_;
  const int64_t vectors_;  // of terms
  const int64_t panels_;   // of channels
  std::atomic<bool> is_finite_ = true;
};

}  // namespace

bool RunWinograd(const ConvolutionProduct& call, const XLA_FFI_CallFrame& frame,
                 const float* bias) {
  auto all = [](at::IntArrayRef values, int64_t wanted) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == wanted; });
  };
  if (call.w.dim() != 4 || !all(call.w.sizes().slice(2), kKernel) || !all(call.stride, 1) ||
      !all(call.dilation, 1) || !all(call.padding, call.padding[0]) || call.padding[0] >= kKernel) {
    return false;
  }
  // Fewer channels do not fill vectors; less work is not worth the transforms.
  constexpr int64_t kChannels = 16, kLeast = 1 << 20;
  if (std::min(call.w.size(0), call.w.size(1)) < kChannels ||
      call.y.numel() * call.w.numel() / call.w.size(0) < kLeast) {
    return false;
  }
  Convolution convolution(call, bias);
  return convolution.IsByTiles(runtime::FfiThreads(frame)) ? convolution.RunByTiles(frame)
                                                           : convolution.RunByChannels(frame);
}

}  // namespace torch_xla::lowering
