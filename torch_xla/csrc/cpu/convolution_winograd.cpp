#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/convolution_ways.h"
#include "cpu/ffi_parts.h"
#include "cpu/small_product.h"
#include "cpu/winograd_tiles.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;
using namespace winograd;

/// The number of channels in the vector that begins at `channel`.
int64_t ChannelsFrom(int64_t channel, int64_t channels) {
  return std::min(ProductLanes(), channels - channel);
}

/// A strip of an image, and the index of its first tile among the tiles of all strips.
struct ImageStrip {
  Strip strip;
  int64_t image;
  int64_t tile;
};

/// The number of rows and columns of tiles of each image.
struct Tiling {
  int64_t rows, columns;

  /// Splits rows `begin` to `end` of the rows of all images by image. `map` has the pixels' places.
  std::vector<ImageStrip> Strips(const Strip& map, int64_t begin, int64_t end) const {
    std::vector<ImageStrip> strips;
    int64_t next;
    for (int64_t row = begin; row < end; row = next) {
      next = std::min(end, (row / rows + 1) * rows);
      strips.push_back({map, row / rows, (row - begin) * columns});
      Strip& strip = strips.back().strip;
      strip.first_row = row % rows;
      strip.rows = next - row;
      strip.columns = columns;
    }
    return strips;
  }
};

/// The operands or results of products, [terms, rows, row].
struct Matrices {
  float* data;
  int64_t terms, rows, row;

  // Without this distance the caches would place the terms of a tile in few of their sets.
  static constexpr int64_t kApart = 16;
  int64_t stride() const { return rows * row + kApart; }
  int64_t size() const { return terms * stride(); }
  float* At(int64_t term, int64_t i = 0) const { return data + term * stride() + i * row; }
  Terms Transformed(int64_t i, int64_t channel) const {
    return {At(0, i) + channel, stride(), row};
  }
};

/// Where the pixels of a phase begin in a dimension of the maps, and the first tap of the phase.
struct PhaseBegin {
  int64_t from, to, tap;
};

PhaseBegin BeginOf(const ConvolutionProduct& call, int64_t dim, int64_t phase, int64_t step) {
  const int64_t padding = call.padding[dim];
  if (call.part != ConvolutionPart::kInputGradient) return {phase - padding, 0, phase};
  // Pixel r of x meets tap t of output (r + padding - t) / step.
  const int64_t last = call.w.size(2 + dim) / step - 1;
  return {(phase + padding) / step - last, phase, (phase + padding) % step};
}

/// A convolution with stride 1 by some of the taps. A convolution with a stride of `step` is a sum
/// of phases, or its gradient consists of phases: each has the pixels that are `step` apart.
struct Phase {
  Strip from, to;
  int64_t tap;  // the first
};

std::vector<Phase> PhasesOf(const ConvolutionProduct& call, int64_t step) {
  const bool is_of_inputs = call.part == ConvolutionPart::kInputGradient;
  auto strip = [](const at::Tensor& maps, int64_t step, int64_t top, int64_t left) {
    return Strip{maps.size(2), maps.size(3), step, top, left};
  };
  std::vector<Phase> phases;
  for (int64_t i = 0; i < step * step; ++i) {
    const PhaseBegin y = BeginOf(call, 0, i / step, step), x = BeginOf(call, 1, i % step, step);
    phases.push_back(
        {strip(is_of_inputs ? call.y : call.x, is_of_inputs ? 1 : step, y.from, x.from),
         strip(is_of_inputs ? call.x : call.y, is_of_inputs ? step : 1, y.to, x.to),
         y.tap * call.w.size(3) + x.tap});
  }
  return phases;
}

/// Products sum over the channels of the maps `from`. The channels of the maps `to` are in panels
/// of two vectors, for each phase.
class Convolution {
 public:
  Convolution(const ConvolutionProduct& call, const float* bias, const Transforms& transforms)
      : transforms_(transforms),
        part_(call.part),
        from_(call.part == ConvolutionPart::kInputGradient ? call.y : call.x),
        to_(call.part == ConvolutionPart::kInputGradient ? call.x : call.y),
        w_(call.w),
        bias_(bias),
        phases_(PhasesOf(call, transforms.step)),
        tiling_{TilesOf(2), TilesOf(3)},
        terms_(from_.size(1)),
        channels_(to_.size(1)),
        vectors_(InVectors(terms_)),
        panels_(InPanels(channels_)) {}

  /// Whether each thread has enough tiles to use all weights by itself. For gradients of weights,
  /// which are read and written once for some tiles, the answer does not depend on the threads.
  bool IsByTiles(int64_t threads) const {
    const int64_t tiles = rows() * tiling_.columns / (is_of_weights() ? 2 : threads);
    const int64_t weights_of_tile = !is_of_weights()               ? choices::kTilesWeights
                                    : tiles >= choices::kTilesMany ? choices::kTilesManyGradients
                                                                   : choices::kTilesGradients;
    return tiles * weights_of_tile >= terms_ * channels_;
  }

  /// Takes all channels, and some rows of tiles on each thread.
  bool RunByTiles(const XLA_FFI_CallFrame& frame) {
    const int64_t panels = phases() * panels_, weights = panels * PanelSize();
    const int64_t tiles = rows() * tiling_.columns;
    const int64_t cost =
        tiles * phases() * transforms_.terms * terms_ * channels_ * choices::kProduct;
    const int64_t most = std::min(choices::kSums, tiles / choices::kTilesOfSum);
    const int64_t parts = is_of_weights() ? PartsWorthAThread(cost, std::min(most, rows()))
                                          : FfiParts(frame, cost, rows());
    std::vector<Floats> sums(parts);  // of the weights' gradients
    Floats shared;
    if (!is_of_weights()) {
      shared = Scratch(weights);
      InParts(frame, panels, PanelSize() * choices::kMoved, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) TakeWeights(panel, shared.get());
      });
    }
    RunParts(frame, parts, rows(), [&](int64_t part, int64_t begin, int64_t end) {
      if (is_of_weights()) sums[part] = Scratch(weights);
      float* all = (is_of_weights() ? sums[part] : shared).get();
      const int64_t some = RowsAtOnce(choices::kTilesInputs, end - begin);
      const Floats inputs = Scratch(Tiles(nullptr, some).size());
      const MadeTiles made(*this, panels_, 1, some);
      for (int64_t row = begin; row < end; row += some) {
        const int64_t last = std::min(end, row + some);
        const Matrices tiles = Tiles(inputs.get(), last - row);
        for (int64_t phase = 0; phase < phases(); ++phase) {
          for (const ImageStrip& at : tiling_.Strips(phases_[phase].from, row, last)) {
            for (int64_t v = 0; v < vectors_; ++v) TakeInputs(at, v, tiles);
          }
          for (int64_t i = 0; i < panels_; ++i) {
            MultiplyTiles(row, last, tiles, 0, phase * panels_ + i, all, made.At(i, 0),
                          row > begin);
          }
        }
      }
    });
    if (is_of_weights()) {
      InParts(frame, panels, parts * PanelSize() * choices::kFloat,
              [&](int64_t begin, int64_t end) {
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

  /// Takes all tiles, and some channels on each thread.
  bool RunByChannels(const XLA_FFI_CallFrame& frame) {
    const int64_t some = RowsAtOnce(choices::kTilesManyInputs, rows());
    const int64_t few = RowsAtOnce(choices::kTilesInputs, some);
    const int64_t size = Tiles(nullptr, some).size();
    const Floats inputs = Scratch(phases() * size);
    const Floats weights = Scratch(phases() * panels_ * PanelSize());
    for (int64_t row = 0; row < rows(); row += some) {
      const int64_t last = std::min(rows(), row + some);
      auto tiles = [&](int64_t phase) { return Tiles(inputs.get() + phase * size, last - row); };
      InParts(frame, phases() * vectors_, size / vectors_ * choices::kMoved,
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t phase = i / vectors_;
                  for (const ImageStrip& at : tiling_.Strips(phases_[phase].from, row, last)) {
                    TakeInputs(at, i % vectors_, tiles(phase));
                  }
                }
              });
      InParts(frame, panels_, phases() * tiles(0).size() * PanelWidth() * choices::kProduct,
              [&](int64_t begin, int64_t end) {
                const MadeTiles made(*this, end - begin, (some + few - 1) / few, few);
                for (int64_t phase = 0; phase < phases(); ++phase) {
                  for (int64_t i = begin; i < end; ++i) {
                    const int64_t panel = phase * panels_ + i;
                    if (row == 0 && !is_of_weights()) TakeWeights(panel, weights.get());
                    for (int64_t first = row; first < last; first += few) {
                      MultiplyTiles(first, std::min(last, first + few), tiles(phase),
                                    (first - row) * tiling_.columns, panel, weights.get(),
                                    made.At(i - begin, (first - row) / few), first > 0);
                    }
                    if (last == rows() && is_of_weights()) GiveWeights(panel, weights.get());
                  }
                }
              });
    }
    return is_finite_;
  }

 private:
  bool is_of_weights() const { return part_ == ConvolutionPart::kWeightGradient; }
  bool is_of_inputs() const { return part_ == ConvolutionPart::kInputGradient; }
  /// Whether an output is the sum of the results of the phases.
  bool ArePhasesAdded() const { return part_ == ConvolutionPart::kForward && phases() > 1; }
  int64_t phases() const { return phases_.size(); }
  int64_t rows() const { return from_.size(0) * tiling_.rows; }
  int64_t RowsAtOnce(int64_t inputs, int64_t most) const {
    constexpr int64_t kLeast = 16, kMost = 128;
    // The sums of gradients are read and written once for each group of rows.
    const int64_t size = transforms_.terms * terms_;
    const int64_t tiles = std::clamp((is_of_weights() ? 2 : 1) * inputs / size, kLeast, kMost);
    return std::clamp<int64_t>(tiles / tiling_.columns, 1, most);
  }

  /// The tiles in a dimension of the maps `to`, in the phase with the most pixels.
  int64_t TilesOf(int64_t dim) const {
    const int64_t step = phases_[0].to.step, pixels = (to_.size(dim) + step - 1) / step;
    return (pixels + 1) / 2;
  }
  Matrices Tiles(float* inputs, int64_t rows) const {
    return {inputs, transforms_.terms, rows * tiling_.columns, vectors_ * ProductLanes()};
  }
  Matrices Made(float* made, int64_t rows) const {
    return {made, transforms_.terms, rows * tiling_.columns, PanelWidth()};
  }

  /// The results of products of tiles: of one panel and one group of rows at a time, or of all
  /// panels and groups if phases are added up.
  class MadeTiles {
   public:
    MadeTiles(const Convolution& convolution, int64_t panels, int64_t groups, int64_t rows)
        : size_(convolution.Made(nullptr, rows).size()),
          groups_(groups),
          keeps_(convolution.ArePhasesAdded()),
          data_(Scratch(keeps_ ? panels * groups * size_ : size_)) {}
    float* At(int64_t panel, int64_t group) const {
      return data_.get() + (keeps_ ? (panel * groups_ + group) * size_ : 0);
    }

   private:
    const int64_t size_, groups_;
    const bool keeps_;
    const Floats data_;
  };

  Matrices PanelOf(float* weights) const {
    return {weights, transforms_.terms, terms_, PanelWidth()};
  }
  int64_t PanelSize() const { return PanelOf(nullptr).size(); }
  Matrices Weights(int64_t panel, float* weights) const {
    return PanelOf(weights + panel * PanelSize());
  }
  const Phase& PhaseOf(int64_t panel) const { return phases_[panel / panels_]; }

  /// Calls visit(channel, column) for each vector of a panel, with its first channel, and with the
  /// index of that channel in the panel.
  template <typename Visit>
  void ForEachVector(int64_t panel, Visit visit) const {
    const int64_t begin = panel % panels_ * PanelWidth();
    const int64_t end = std::min(channels_, begin + PanelWidth());
    for (int64_t channel = begin; channel < end; channel += ProductLanes()) {
      visit(channel, channel - begin);
    }
  }

  int64_t WeightAt(int64_t panel, int64_t channel) const {
    return channel * channel_stride() + PhaseOf(panel).tap;
  }
  int64_t channel_stride() const { return w_.stride(is_of_inputs() ? 1 : 0); }
  Kernels KernelsAt(int64_t channel) const {
    return {.channels = ChannelsFrom(channel, channels_),
            .channel_stride = channel_stride(),
            .count = terms_,
            .stride = w_.stride(is_of_inputs() ? 0 : 1)};
  }

  void TakeInputs(const ImageStrip& at, int64_t vector, const Matrices& to) const {
    const int64_t channel = vector * ProductLanes();
    transforms_.inputs(from_.const_data_ptr<float>() +
                           (at.image * terms_ + channel) * at.strip.height * at.strip.width,
                       ChannelsFrom(channel, terms_), at.strip, to.Transformed(at.tile, channel));
  }
  void TakeWeights(int64_t panel, float* to) const {
    const float* weights = w_.const_data_ptr<float>();
    ForEachVector(panel, [&](int64_t channel, int64_t column) {
      transforms_.weights(weights + WeightAt(panel, channel), KernelsAt(channel), is_of_inputs(),
                          Weights(panel, to).Transformed(0, column));
    });
  }
  void GiveWeights(int64_t panel, float* from) {
    float* weights = w_.mutable_data_ptr<float>();
    ForEachVector(panel, [&](int64_t channel, int64_t column) {
      const bool is_finite =
          transforms_.weight_gradients(Weights(panel, from).Transformed(0, column),
                                       KernelsAt(channel), weights + WeightAt(panel, channel));
      if (!is_finite) is_finite_ = false;
    });
  }

  /// Multiplies a panel with rows of tiles, whose transformed inputs begin at `first_tile` of
  /// `tiles`.
  void MultiplyTiles(int64_t begin_row, int64_t end_row, const Matrices& tiles, int64_t first_tile,
                     int64_t panel, float* weights, float* scratch, bool adds) {
    const Matrices w = Weights(panel, weights), made = Made(scratch, end_row - begin_row);
    const int64_t rest = channels_ - panel % panels_ * PanelWidth();
    const int64_t columns = std::min<int64_t>(2, InVectors(rest)) * ProductLanes();
    auto each = [&](auto visit) {
      for (const ImageStrip& at : tiling_.Strips(PhaseOf(panel).to, begin_row, end_row)) {
        const int64_t map = at.strip.height * at.strip.width;
        ForEachVector(panel, [&](int64_t channel, int64_t column) {
          visit(at.strip, channel, (at.image * channels_ + channel) * map,
                made.Transformed(at.tile, column));
        });
      }
    };
    if (is_of_weights()) {
      each([&](const Strip& strip, int64_t channel, int64_t map, const Terms& terms) {
        transforms_.gradients(to_.const_data_ptr<float>() + map, ChannelsFrom(channel, channels_),
                              strip, terms);
      });
      for (int64_t k = 0; k < transforms_.terms; ++k) {
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
    for (int64_t k = 0; k < transforms_.terms; ++k) {
      Multiply({.a = tiles.At(k, first_tile),
                .a_row = tiles.row,
                .a_term = 1,
                .b = w.At(k),
                .b_term = w.row,
                .c = made.At(k),
                .c_row = made.row,
                .rows = made.rows,
                .columns = columns,
                .terms = terms_,
                .adds = ArePhasesAdded() && panel >= panels_});
    }
    const bool is_last = panel >= (phases() - 1) * panels_;
    if (ArePhasesAdded() && !is_last) return;
    each([&](const Strip& strip, int64_t channel, int64_t map, const Terms& terms) {
      if (!transforms_.outputs(terms, bias_ ? bias_ + channel : nullptr,
                               ChannelsFrom(channel, channels_), strip,
                               to_.mutable_data_ptr<float>() + map)) {
        is_finite_ = false;
      }
    });
  }

  const Transforms& transforms_;
  const ConvolutionPart part_;
  const at::Tensor &from_, &to_, &w_;
  const float* const bias_;
  const std::vector<Phase> phases_;
  const Tiling tiling_;
  const int64_t terms_, channels_;
  const int64_t vectors_;  // of terms
  const int64_t panels_;   // of channels
  std::atomic<bool> is_finite_ = true;
};

/// The transforms for a convolution's kernel; null if there are none, or if there is too little
/// work.
const Transforms* TransformsFor(const ConvolutionProduct& call) {
  auto all = [](at::IntArrayRef values, int64_t wanted) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == wanted; });
  };
  if (call.w.dim() != 4 || !all(call.dilation, 1) ||
      std::min(call.w.size(0), call.w.size(1)) < choices::kTilesChannels ||
      call.y.numel() * call.w.numel() / call.w.size(0) < choices::kTilesLeast) {
    return nullptr;
  }
  const at::IntArrayRef kernel = call.w.sizes().slice(2);
  if (all(kernel, 3) && all(call.stride, 1)) return &TransformsOf3x3();
  if (all(kernel, 4) && all(call.stride, 2)) return &TransformsOf4x4();
  return nullptr;
}

}  // namespace

bool WinogradHalvesProducts(const ConvolutionProduct& call) {
  const Transforms* transforms = TransformsFor(call);
  if (!transforms) return false;
  const int64_t height = call.y.size(2), width = call.y.size(3), step = transforms->step;
  const int64_t tiles = ((height + 1) / 2) * ((width + 1) / 2);
  const int64_t taps = call.w.size(2) * call.w.size(3);
  return 2 * tiles * transforms->terms * step * step <= height * width * taps;
}

bool RunWinograd(const ConvolutionProduct& call, const XLA_FFI_CallFrame& frame,
                 const float* bias) {
  const Transforms* transforms = TransformsFor(call);
  if (!transforms) return false;
  Convolution convolution(call, bias, *transforms);
  return convolution.IsByTiles(FfiThreads(frame)) ? convolution.RunByTiles(frame)
                                                  : convolution.RunByChannels(frame);
}

}  // namespace torch_xla::cpu
