#include "cpu/winograd_tiles.h"

#include <algorithm>
#include <array>
#include <memory>

#include "cpu/instruction_sets.h"
#include "cpu/product_tile.h"

namespace torch_xla::cpu::winograd {

namespace {

/// Rows of maps, with zeros around them where the map ends. Each pixel is a vector of channels.
template <int kLanes>
class Pixels {
 public:
  /// The pixels of the tiles' outputs, and `after` more rows and columns.
  Pixels(const Strip& strip, int64_t after)
      : strip_(strip),
        width_(2 * strip.columns + after),
        height_(2 * strip.rows + after),
        first_(2 * strip.first_row),
        rows_(Inside(strip.top, strip.height, first_, height_)),
        columns_(Inside(strip.left, strip.width, 0, width_)),
        data_(std::make_unique_for_overwrite<float[]>(height_ * width_ * kLanes)) {}

  float* Pixel(int64_t y, int64_t x) const { return data_.get() + (y * width_ + x) * kLanes; }

  C10_ALWAYS_INLINE void Take(const float* maps, int64_t channels) const {
    std::fill_n(data_.get(), height_ * width_ * kLanes, 0.0F);
    const int64_t map = strip_.height * strip_.width;
    if (!AreWholeRows()) {
      ForEach(channels, [&](int64_t pixel, int64_t channel, float* at) {
        *at = maps[channel * map + pixel];
      });
      return;
    }
    ForEachBlock([&](int64_t first, int64_t count, auto each) {
      Lanes<kLanes> block[kLanes] = {};
      if (count == kLanes && channels == kLanes) {
        for (int c = 0; c < kLanes; ++c) block[c] = Load<Lanes<kLanes>>(maps + c * map + first);
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          std::memcpy(&block[c], maps + c * map + first, count * sizeof(float));
        }
      }
      Transpose<kLanes>(block);
      each([&](int64_t i, float* at) { Store(block[i], at); });
    });
  }

  C10_ALWAYS_INLINE void Give(float* maps, int64_t channels) const {
    const int64_t map = strip_.height * strip_.width;
    if (!AreWholeRows()) {
      ForEach(channels, [&](int64_t pixel, int64_t channel, const float* at) {
        maps[channel * map + pixel] = *at;
      });
      return;
    }
    ForEachBlock([&](int64_t first, int64_t count, auto each) {
      Lanes<kLanes> block[kLanes] = {};
      each([&](int64_t i, const float* at) { block[i] = Load<Lanes<kLanes>>(at); });
      Transpose<kLanes>(block);
      if (count == kLanes && channels == kLanes) {
        for (int c = 0; c < kLanes; ++c) Store(block[c], maps + c * map + first);
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          std::memcpy(maps + c * map + first, &block[c], count * sizeof(float));
        }
      }
    });
  }

 private:
  struct Range {
    int64_t begin, end;
    int64_t count() const { return std::max<int64_t>(end - begin, 0); }
  };

  /// The part of `count` rows or columns from `first` on that lies within the map.
  Range Inside(int64_t origin, int64_t extent, int64_t first, int64_t count) const {
    auto steps = [&](int64_t to) {
      return (std::max<int64_t>(to, 0) + strip_.step - 1) / strip_.step;
    };
    return {std::max(first, steps(-origin)), std::min(first + count, steps(extent - origin))};
  }

  bool AreWholeRows() const { return strip_.step == 1 && columns_.count() == strip_.width; }

  /// Calls visit(index in the map, channel, index here) for each pixel.
  template <typename Visit>
  C10_ALWAYS_INLINE void ForEach(int64_t channels, Visit visit) const {
    for (int64_t y = rows_.begin; y < rows_.end; ++y) {
      const int64_t row = (strip_.top + strip_.step * y) * strip_.width + strip_.left;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t x = columns_.begin; x < columns_.end; ++x) {
          visit(row + strip_.step * x, c, Pixel(y - first_, x) + c);
        }
      }
    }
  }

  /// Calls visit(index in the map, pixels, each) for up to as many pixels as a vector has floats;
  /// each(f) then calls f(number, index here) for these pixels.
  template <typename Visit>
  C10_ALWAYS_INLINE void ForEachBlock(Visit visit) const {
    const int64_t pixels = rows_.count() * strip_.width;
    const int64_t begin = (strip_.top + rows_.begin) * strip_.width;
    const int64_t skip = (width_ - strip_.width) * kLanes;
    float* at = Pixel(rows_.begin - first_, columns_.begin);
    int64_t x = 0;
    for (int64_t first = 0; first < pixels; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, pixels - first);
      visit(begin + first, count, [&](auto f) {
        for (int64_t i = 0; i < count; ++i) {
          f(i, at);
          at += kLanes;
          if (++x == strip_.width) {
            x = 0;
            at += skip;
          }
        }
      });
    }
  }

  const Strip strip_;
  const int64_t width_, height_, first_;
  const Range rows_, columns_;
  const std::unique_ptr<float[]> data_;
};

template <typename V, int n>
using Some = std::array<V, n>;

/// The transforms of tiles for 3 x 3 kernels, in one dimension.
struct Of3x3 {
  static constexpr int kTaps = 3, kStep = 1;

  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 4> Inputs(const Some<V, 4>& d) {
    return {d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 4> Gradients(const Some<V, 2>& y) {
    return {y[0], y[0] + y[1], y[0] - y[1], -y[1]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 2> Outputs(const Some<V, 4>& m) {
    return {m[0] + m[1] + m[2], m[1] - m[2] - m[3]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 4> Weights(const Some<V, 3>& w) {
    const V ends = (w[0] + w[2]) * 0.5F, middle = w[1] * 0.5F;
    return {w[0], ends + middle, ends - middle, w[2]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 3> WeightGradients(const Some<V, 4>& m) {
    const V half = (m[1] + m[2]) * 0.5F;
    return {m[0] + half, (m[1] - m[2]) * 0.5F, half + m[3]};
  }
};

/// The transforms of tiles for 2 x 2 kernels, whose taps are every second tap of 4 x 4.
struct Of4x4 {
  static constexpr int kTaps = 2, kStep = 2;

  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 3> Inputs(const Some<V, 3>& d) {
    return {d[0] - d[1], d[1], d[1] - d[2]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 3> Gradients(const Some<V, 2>& y) {
    return {y[0], y[0] + y[1], -y[1]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 2> Outputs(const Some<V, 3>& m) {
    return {m[0] + m[1], m[1] - m[2]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 3> Weights(const Some<V, 2>& w) {
    return {w[0], w[0] + w[1], w[1]};
  }
  template <typename V>
  static C10_ALWAYS_INLINE Some<V, 2> WeightGradients(const Some<V, 3>& m) {
    return {m[0] + m[1], m[1] + m[2]};
  }
};

/// The number of inputs of a tile, in one dimension.
template <typename Tile>
constexpr int kInputs = Tile::kTaps + 1;
constexpr int kOutputs = 2;

/// Calls store(i, j, made) for the results of `kOf` for the rows of a matrix, given by columns.
template <auto kOf, typename Row, typename Columns, typename StoreAt>
C10_ALWAYS_INLINE void MakeRows(const Columns& columns, StoreAt store) {
  for (size_t i = 0; i < columns[0].size(); ++i) {
    Row row;
    for (size_t j = 0; j < row.size(); ++j) row[j] = columns[j][i];
    const auto made = kOf(row);
    for (size_t j = 0; j < made.size(); ++j) store(i, j, made[j]);
  }
}

/// The same for the results for the columns of vectors at(i, j), and then for their rows.
template <auto kOf, typename Row, typename At, typename StoreAt>
C10_ALWAYS_INLINE void Make(At at, StoreAt store) {
  constexpr size_t kSide = std::tuple_size_v<Row>;
  std::array<decltype(kOf(Row{})), kSide> columns;
  for (size_t j = 0; j < kSide; ++j) {
    Row column;
    for (size_t i = 0; i < kSide; ++i) column[i] = Load<typename Row::value_type>(at(i, j));
    columns[j] = kOf(column);
  }
  MakeRows<kOf, Row>(columns, store);
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE void Inputs(const float* maps, int64_t channels, const Strip& strip,
                              const Terms& to) {
  using V = Lanes<kLanes>;
  constexpr int kSide = kInputs<Tile>;
  using Row = Some<V, kSide>;
  const Pixels<kLanes> pixels(strip, kSide - kOutputs);
  pixels.Take(maps, channels);
  float* tile = to.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    std::array<Row, kSide> columns;
    auto take = [&](int j, int64_t x) {
      Row inputs;
      for (int i = 0; i < kSide; ++i) inputs[i] = Load<V>(pixels.Pixel(kOutputs * y + i, x));
      columns[j] = Tile::template Inputs<V>(inputs);
    };
    for (int j = kOutputs; j < kSide; ++j) take(j, j - kOutputs);
    for (int64_t x = 0; x < strip.columns; ++x, tile += to.item_stride) {
      for (int j = kOutputs; j < kSide; ++j) columns[j - kOutputs] = columns[j];
      for (int j = kSide - kOutputs; j < kSide; ++j) take(j, kOutputs * x + j);
      MakeRows<&Tile::template Inputs<V>, Row>(columns, [&](int i, int j, const V& made) {
        Store(made, tile + (kSide * i + j) * to.stride);
      });
    }
  }
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE void Gradients(const float* maps, int64_t channels, const Strip& strip,
                                 const Terms& to) {
  using V = Lanes<kLanes>;
  using Row = Some<V, kOutputs>;
  const Pixels<kLanes> pixels(strip, 0);
  pixels.Take(maps, channels);
  float* tile = to.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    for (int64_t x = 0; x < strip.columns; ++x, tile += to.item_stride) {
      Make<&Tile::template Gradients<V>, Row>(
          [&](int i, int j) { return pixels.Pixel(kOutputs * y + i, kOutputs * x + j); },
          [&](int i, int j, const V& made) {
            Store(made, tile + (kInputs<Tile> * i + j) * to.stride);
          });
    }
  }
}

/// Whether a sum of products with zero is zero, so that no factor was infinite or NaN.
template <int kLanes>
C10_ALWAYS_INLINE bool IsZero(const Lanes<kLanes>& sum) {
  bool is_zero = true;
  for (int i = 0; i < kLanes; ++i) is_zero &= sum[i] == 0;
  return is_zero;
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE bool Outputs(const Terms& from, const float* bias, int64_t channels,
                               const Strip& strip, float* maps) {
  using V = Lanes<kLanes>;
  constexpr int kSide = kInputs<Tile>;
  using Row = Some<V, kSide>;
  const Pixels<kLanes> pixels(strip, 0);
  V addend = {};
  if (bias) std::memcpy(&addend, bias, channels * sizeof(float));
  V zero = {};
  const float* tile = from.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    for (int64_t x = 0; x < strip.columns; ++x, tile += from.item_stride) {
      Make<&Tile::template Outputs<V>, Row>(
          [&](int i, int j) { return tile + (kSide * i + j) * from.stride; },
          [&](int i, int j, const V& made) {
            const V output = made + addend;
            zero += output * 0;
            Store(output, pixels.Pixel(kOutputs * y + i, kOutputs * x + j));
          });
    }
  }
  pixels.Give(maps, channels);
  return IsZero<kLanes>(zero);
}

/// The taps of the kernels of a vector of channels.
template <typename Tile, int kLanes>
using Taps = float[Tile::kTaps * Tile::kTaps][kLanes];

/// The number of kernels to read or write at once: enough that scattered elements are stored long
/// before the vectors of them are loaded.
constexpr int64_t kKernels = 8;

/// Calls block(lane, tap) for blocks of `kSome` contiguous lanes and taps, if there are any, and
/// each(lane, tap, index in the weights) for the others.
template <typename Tile, int kLanes, int kSome, typename Block, typename Each>
C10_ALWAYS_INLINE void ForEachTap(const Kernels& kernels, Block block, Each each) {
  constexpr int kTaps = Tile::kTaps, kCount = kTaps * kTaps;
  const bool has_blocks = Tile::kStep == 1 && kernels.channels == kLanes;
  const int in_blocks = has_blocks ? kCount / kSome * kSome : 0;
  for (int tap = 0; tap < in_blocks; tap += kSome) {
    for (int lane = 0; lane < kLanes; lane += kSome) block(lane, tap);
  }
  for (int64_t lane = 0; lane < kernels.channels; ++lane) {
    for (int tap = in_blocks; tap < kCount; ++tap) {
      const int place = Tile::kStep * (tap / kTaps * Tile::kStep * kTaps + tap % kTaps);
      each(lane, tap, lane * kernels.channel_stride + place);
    }
  }
}

template <int kLanes>
constexpr int kBlock = kLanes < 8 ? kLanes : 8;

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE void TakeTaps(const float* weights, const Kernels& kernels,
                                Taps<Tile, kLanes>& taps) {
  constexpr int kSome = kBlock<kLanes>;
  ForEachTap<Tile, kLanes, kSome>(
      kernels,
      [&](int lane, int tap) {
        Lanes<kSome> block[kSome];
        for (int i = 0; i < kSome; ++i) {
          block[i] = Load<Lanes<kSome>>(weights + (lane + i) * kernels.channel_stride + tap);
        }
        Transpose<kSome>(block);
        for (int i = 0; i < kSome; ++i) Store(block[i], &taps[tap + i][lane]);
      },
      [&](int64_t lane, int tap, int64_t place) { taps[tap][lane] = weights[place]; });
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE void GiveTaps(const Taps<Tile, kLanes>& taps, const Kernels& kernels,
                                float* weights) {
  constexpr int kSome = kBlock<kLanes>;
  ForEachTap<Tile, kLanes, kSome>(
      kernels,
      [&](int lane, int tap) {
        Lanes<kSome> block[kSome];
        for (int i = 0; i < kSome; ++i) block[i] = Load<Lanes<kSome>>(&taps[tap + i][lane]);
        Transpose<kSome>(block);
        for (int i = 0; i < kSome; ++i) {
          Store(block[i], weights + (lane + i) * kernels.channel_stride + tap);
        }
      },
      [&](int64_t lane, int tap, int64_t place) { weights[place] = taps[tap][lane]; });
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE void Weights(const float* weights, const Kernels& kernels, bool flipped,
                               const Terms& to) {
  using V = Lanes<kLanes>;
  constexpr int kTaps = Tile::kTaps, kLast = kTaps * kTaps - 1;
  using Row = Some<V, kTaps>;
  Taps<Tile, kLanes> taps[kKernels] = {};
  for (int64_t first = 0; first < kernels.count; first += kKernels) {
    const int64_t count = std::min(kKernels, kernels.count - first);
    for (int64_t k = 0; k < count; ++k) {
      TakeTaps<Tile, kLanes>(weights + (first + k) * kernels.stride, kernels, taps[k]);
    }
    for (int64_t k = 0; k < count; ++k) {
      float* item = to.data + (first + k) * to.item_stride;
      Make<&Tile::template Weights<V>, Row>(
          [&](int i, int j) {
            const int tap = kTaps * i + j;
            return taps[k][flipped ? kLast - tap : tap];
          },
          [&](int i, int j, const V& made) {
            Store(made, item + (kInputs<Tile> * i + j) * to.stride);
          });
    }
  }
}

template <typename Tile, int kLanes>
C10_ALWAYS_INLINE bool WeightGradients(const Terms& from, const Kernels& kernels, float* weights) {
  using V = Lanes<kLanes>;
  constexpr int kSide = kInputs<Tile>;
  using Row = Some<V, kSide>;
  Taps<Tile, kLanes> taps[kKernels];
  V zero = {};
  for (int64_t first = 0; first < kernels.count; first += kKernels) {
    const int64_t count = std::min(kKernels, kernels.count - first);
    for (int64_t k = 0; k < count; ++k) {
      const float* item = from.data + (first + k) * from.item_stride;
      Make<&Tile::template WeightGradients<V>, Row>(
          [&](int i, int j) { return item + (kSide * i + j) * from.stride; },
          [&](int i, int j, const V& made) {
            zero += made * 0;
            Store(made, taps[k][Tile::kTaps * i + j]);
          });
    }
    for (int64_t k = 0; k < count; ++k) {
      GiveTaps<Tile, kLanes>(taps[k], kernels, weights + (first + k) * kernels.stride);
    }
  }
  return IsZero<kLanes>(zero);
}

template <typename Tile>
const Transforms& Chosen() {
  static const Transforms transforms = {
      .step = Tile::kStep,
      .terms = kInputs<Tile> * kInputs<Tile>,
      .inputs = ForThisProcessor<&Inputs<Tile, 4>, &Inputs<Tile, 8>, &Inputs<Tile, 16>>(),
      .gradients =
          ForThisProcessor<&Gradients<Tile, 4>, &Gradients<Tile, 8>, &Gradients<Tile, 16>>(),
      .outputs = ForThisProcessor<&Outputs<Tile, 4>, &Outputs<Tile, 8>, &Outputs<Tile, 16>>(),
      .weights = ForThisProcessor<&Weights<Tile, 4>, &Weights<Tile, 8>, &Weights<Tile, 16>>(),
      .weight_gradients = ForThisProcessor<&WeightGradients<Tile, 4>, &WeightGradients<Tile, 8>,
                                           &WeightGradients<Tile, 16>>()};
  return transforms;
}

}  // namespace

const Transforms& TransformsOf3x3() { return Chosen<Of3x3>(); }
const Transforms& TransformsOf4x4() { return Chosen<Of4x4>(); }

}  // namespace torch_xla::cpu::winograd
