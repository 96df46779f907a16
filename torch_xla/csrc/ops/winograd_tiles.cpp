#include "ops/winograd_tiles.h"

#include <algorithm>
#include <memory>

#include "lowering/cpu_vectors.h"
#include "lowering/product_tile.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace torch_xla::lowering::winograd {
namespace {

/// Rows of maps with what is missing around them, each pixel a vector of channels.
template <int kLanes>
class Pixels {
 public:
  /// `margin` rows and columns before, and as many after the tiles' outputs as tiles need.
  Pixels(const Strip& strip, int64_t margin, int64_t after)
      : strip_(strip),
        margin_(margin),
        width_(2 * strip.columns + after),
        height_(2 * strip.rows + after),
        begin_(std::max<int64_t>(2 * strip.first_row - margin, 0)),
        end_(std::min(2 * strip.first_row - margin + height_, strip.height)),
        data_(std::make_unique_for_overwrite<float[]>(height_ * width_ * kLanes)) {}

  float* Pixel(int64_t y, int64_t x) const { return data_.get() + (y * width_ + x) * kLanes; }

  C10_ALWAYS_INLINE void Take(const float* maps, int64_t channels) const {
    std::fill_n(data_.get(), height_ * width_ * kLanes, 0.0F);
    const int64_t map = strip_.height * strip_.width, pixels = count();
    const int64_t skip = (width_ - strip_.width) * kLanes;
    maps += begin_ * strip_.width;
    float* to = First();
    int64_t x = 0;
    for (int64_t first = 0; first < pixels; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, pixels - first);
      Lanes<kLanes> block[kLanes] = {};
      if (count == kLanes && channels == kLanes) {
        for (int c = 0; c < kLanes; ++c) block[c] = Load<Lanes<kLanes>>(maps + c * map + first);
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          std::memcpy(&block[c], maps + c * map + first, count * sizeof(float));
        }
      }
      Transpose<kLanes>(block);
      for (int64_t i = 0; i < count; ++i) {
        Store(block[i], to);
        to += kLanes;
        if (++x == strip_.width) {
          x = 0;
          to += skip;
        }
      }
    }
  }

  C10_ALWAYS_INLINE void Give(float* maps, int64_t channels) const {
    const int64_t map = strip_.height * strip_.width, pixels = count();
    const int64_t skip = (width_ - strip_.width) * kLanes;
    maps += begin_ * strip_.width;
    const float* from = First();
    int64_t x = 0;
    for (int64_t first = 0; first < pixels; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, pixels - first);
      Lanes<kLanes> block[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        block[i] = Load<Lanes<kLanes>>(from);
        from += kLanes;
        if (++x == strip_.width) {
          x = 0;
          from += skip;
        }
      }
      Transpose<kLanes>(block);
      if (count == kLanes && channels == kLanes) {
        for (int c = 0; c < kLanes; ++c) Store(block[c], maps + c * map + first);
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          std::memcpy(maps + c * map + first, &block[c], count * sizeof(float));
        }
      }
    }
  }

 private:
  int64_t count() const { return std::max<int64_t>(end_ - begin_, 0) * strip_.width; }
  float* First() const { return Pixel(begin_ - (2 * strip_.first_row - margin_), margin_); }

  const Strip strip_;
  const int64_t margin_, width_, height_;
  const int64_t begin_, end_;  // rows of the map
  const std::unique_ptr<float[]> data_;
};

template <typename V>
struct Four {
  V at[4];
};

/// B' v.
template <typename V>
C10_ALWAYS_INLINE Four<V> OfInputs(const V& a, const V& b, const V& c, const V& d) {
  return {{a - c, b + c, c - b, b - d}};
}

template <int kLanes>
C10_ALWAYS_INLINE void Inputs(const float* maps, int64_t channels, const Strip& strip,
                              const Terms& to) {
  using V = Lanes<kLanes>;
  const Pixels<kLanes> pixels(strip, strip.padding, 2);
  pixels.Take(maps, channels);
  float* tile = to.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    auto column = [&](int64_t x) {
      return OfInputs(Load<V>(pixels.Pixel(2 * y, x)), Load<V>(pixels.Pixel(2 * y + 1, x)),
                      Load<V>(pixels.Pixel(2 * y + 2, x)), Load<V>(pixels.Pixel(2 * y + 3, x)));
    };
    Four<V> a = column(0), b = column(1);
    for (int64_t x = 0; x < strip.columns; ++x, tile += to.item_stride) {
      const Four<V> c = column(2 * x + 2), d = column(2 * x + 3);
      for (int i = 0; i < 4; ++i) {
        const Four<V> row = OfInputs(a.at[i], b.at[i], c.at[i], d.at[i]);
        for (int j = 0; j < 4; ++j) Store(row.at[j], tile + (4 * i + j) * to.stride);
      }
      a = c;
      b = d;
    }
  }
}

template <int kLanes>
C10_ALWAYS_INLINE void Gradients(const float* maps, int64_t channels, const Strip& strip,
                                 const Terms& to) {
  using V = Lanes<kLanes>;
  const Pixels<kLanes> pixels(strip, 0, 0);
  pixels.Take(maps, channels);
  auto of = [](const V& a, const V& b) { return Four<V>{{a, a + b, a - b, -b}}; };
  float* tile = to.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    for (int64_t x = 0; x < strip.columns; ++x, tile += to.item_stride) {
      auto column = [&](int64_t j) {
        return of(Load<V>(pixels.Pixel(2 * y, 2 * x + j)),
                  Load<V>(pixels.Pixel(2 * y + 1, 2 * x + j)));
      };
      const Four<V> a = column(0), b = column(1);
      for (int i = 0; i < 4; ++i) {
        const Four<V> row = of(a.at[i], b.at[i]);
        for (int j = 0; j < 4; ++j) Store(row.at[j], tile + (4 * i + j) * to.stride);
      }
    }
  }
}

/// Whether a sum of products with zero is zero: nothing in it was infinite or NaN.
template <int kLanes>
C10_ALWAYS_INLINE bool IsZero(const Lanes<kLanes>& sum) {
  bool is_zero = true;
  for (int i = 0; i < kLanes; ++i) is_zero &= sum[i] == 0;
  return is_zero;
}

template <int kLanes>
C10_ALWAYS_INLINE bool Outputs(const Terms& from, const float* bias, int64_t channels,
                               const Strip& strip, float* maps) {
  using V = Lanes<kLanes>;
  const Pixels<kLanes> pixels(strip, 0, 0);
  V more = {};
  if (bias) std::memcpy(&more, bias, channels * sizeof(float));
  V zero = {};
  const float* tile = from.data;
  for (int64_t y = 0; y < strip.rows; ++y) {
    for (int64_t x = 0; x < strip.columns; ++x, tile += from.item_stride) {
      V rows[2][4];
      for (int j = 0; j < 4; ++j) {
        auto m = [&](int i) { return Load<V>(tile + (4 * i + j) * from.stride); };
        const V b = m(1), c = m(2);
        rows[0][j] = m(0) + b + c;
        rows[1][j] = b - c - m(3);
      }
      for (int i = 0; i < 2; ++i) {
        const V* row = rows[i];
        const V left = row[0] + row[1] + row[2] + more, right = row[1] - row[2] - row[3] + more;
        zero += left * 0 + right * 0;
        Store(left, pixels.Pixel(2 * y + i, 2 * x));
        Store(right, pixels.Pixel(2 * y + i, 2 * x + 1));
      }
    }
  }
  pixels.Give(maps, channels);
  return IsZero<kLanes>(zero);
}

/// The taps of a vector of channels' kernels.
template <int kLanes>
using Taps = float[kTaps][kLanes];

/// As many kernels as are taken or given at once: vectors of what lay elsewhere are stored long
/// before they are loaded.
constexpr int64_t kKernels = 8;

template <int kLanes>
C10_ALWAYS_INLINE void TakeTaps(const float* weights, const Kernels& kernels, Taps<kLanes>& taps) {
  constexpr int kSome = kLanes < 8 ? kLanes : 8;
  static_assert(kTaps % kSome == 1);
  if (kernels.channels == kLanes) {
    for (int lane = 0; lane < kLanes; lane += kSome) {
      for (int tap = 0; tap + kSome <= kTaps; tap += kSome) {
        Lanes<kSome> block[kSome];
        for (int i = 0; i < kSome; ++i) {
          block[i] = Load<Lanes<kSome>>(weights + (lane + i) * kernels.channel_stride + tap);
        }
        Transpose<kSome>(block);
        for (int i = 0; i < kSome; ++i) Store(block[i], &taps[tap + i][lane]);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      taps[kTaps - 1][lane] = weights[lane * kernels.channel_stride + kTaps - 1];
    }
    return;
  }
  for (int64_t lane = 0; lane < kernels.channels; ++lane) {
    for (int t = 0; t < kTaps; ++t) taps[t][lane] = weights[lane * kernels.channel_stride + t];
  }
}

template <int kLanes>
C10_ALWAYS_INLINE void GiveTaps(const Taps<kLanes>& taps, const Kernels& kernels, float* weights) {
  constexpr int kSome = kLanes < 8 ? kLanes : 8;
  if (kernels.channels == kLanes) {
    for (int lane = 0; lane < kLanes; lane += kSome) {
      for (int tap = 0; tap + kSome <= kTaps; tap += kSome) {
        Lanes<kSome> block[kSome];
        for (int i = 0; i < kSome; ++i) block[i] = Load<Lanes<kSome>>(&taps[tap + i][lane]);
        Transpose<kSome>(block);
        for (int i = 0; i < kSome; ++i) {
          Store(block[i], weights + (lane + i) * kernels.channel_stride + tap);
        }
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      weights[lane * kernels.channel_stride + kTaps - 1] = taps[kTaps - 1][lane];
    }
    return;
  }
  for (int64_t lane = 0; lane < kernels.channels; ++lane) {
    for (int t = 0; t < kTaps; ++t) weights[lane * kernels.channel_stride + t] = taps[t][lane];
  }
}

template <int kLanes>
C10_ALWAYS_INLINE void Weights(const float* weights, const Kernels& kernels, bool flipped,
                               const Terms& to) {
  using V = Lanes<kLanes>;
  Taps<kLanes> taps[kKernels] = {};
  auto of = [](const V& a, const V& b, const V& c) {
    const V ends = (a + c) * 0.5F, middle = b * 0.5F;
    return Four<V>{{a, ends + middle, ends - middle, c}};
  };
  for (int64_t first = 0; first < kernels.count; first += kKernels) {
    const int64_t count = std::min(kKernels, kernels.count - first);
    for (int64_t k = 0; k < count; ++k) {
      TakeTaps<kLanes>(weights + (first + k) * kernels.stride, kernels, taps[k]);
    }
    for (int64_t k = 0; k < count; ++k) {
      auto tap = [&](int i, int j) {
        const int t = kKernel * i + j;
        return Load<V>(taps[k][flipped ? kTaps - 1 - t : t]);
      };
      auto column = [&](int j) { return of(tap(0, j), tap(1, j), tap(2, j)); };
      const Four<V> a = column(0), b = column(1), c = column(2);
      float* item = to.data + (first + k) * to.item_stride;
      for (int i = 0; i < 4; ++i) {
        const Four<V> row = of(a.at[i], b.at[i], c.at[i]);
        for (int j = 0; j < 4; ++j) Store(row.at[j], item + (4 * i + j) * to.stride);
      }
    }
  }
}

template <int kLanes>
C10_ALWAYS_INLINE bool WeightGradients(const Terms& from, const Kernels& kernels, float* weights) {
  using V = Lanes<kLanes>;
  Taps<kLanes> taps[kKernels];
  V zero = {};
  for (int64_t first = 0; first < kernels.count; first += kKernels) {
    const int64_t count = std::min(kKernels, kernels.count - first);
    for (int64_t k = 0; k < count; ++k) {
      const float* item = from.data + (first + k) * from.item_stride;
      V columns[kKernel][4];
      for (int j = 0; j < 4; ++j) {
        auto m = [&](int i) { return Load<V>(item + (4 * i + j) * from.stride); };
        const V half = (m(1) + m(2)) * 0.5F;
        columns[0][j] = m(0) + half;
        columns[1][j] = (m(1) - m(2)) * 0.5F;
        columns[2][j] = half + m(3);
      }
      for (int i = 0; i < kKernel; ++i) {
        const V* row = columns[i];
        const V half = (row[1] + row[2]) * 0.5F;
        const V made[kKernel] = {row[0] + half, (row[1] - row[2]) * 0.5F, half + row[3]};
        for (int j = 0; j < kKernel; ++j) {
          zero += made[j] * 0;
          Store(made[j], taps[k][kKernel * i + j]);
        }
      }
    }
    for (int64_t k = 0; k < count; ++k) {
      GiveTaps<kLanes>(taps[k], kernels, weights + (first + k) * kernels.stride);
    }
  }
  return IsZero<kLanes>(zero);
}

#define TORCH_XLA_EACH(Name, kLanes, target)                                                     \
  target void Inputs##Name(const float* maps, int64_t channels, const Strip& strip,              \
                           const Terms& to) {                                                    \
    Inputs<kLanes>(maps, channels, strip, to);                                                   \
  }                                                                                              \
  target void Gradients##Name(const float* maps, int64_t channels, const Strip& strip,           \
                              const Terms& to) {                                                 \
    Gradients<kLanes>(maps, channels, strip, to);                                                \
  }                                                                                              \
  target bool Outputs##Name(const Terms& from, const float* bias, int64_t channels,              \
                            const Strip& strip, float* maps) {                                   \
    return Outputs<kLanes>(from, bias, channels, strip, maps);                                   \
  }                                                                                              \
  target void Weights##Name(const float* weights, const Kernels& kernels, bool flipped,          \
                            const Terms& to) {                                                   \
    Weights<kLanes>(weights, kernels, flipped, to);                                              \
  }                                                                                              \
  target bool WeightGradients##Name(const Terms& from, const Kernels& kernels, float* weights) { \
    return WeightGradients<kLanes>(from, kernels, weights);                                      \
  }

TORCH_XLA_EACH(Baseline, 4, )
TORCH_XLA_EACH(Avx2, 8, TORCH_XLA_AVX2)
TORCH_XLA_EACH(Avx512, 16, TORCH_XLA_AVX512)

struct Functions {
  decltype(&TransformInputs) inputs;
  decltype(&TransformGradients) gradients;
  decltype(&TransformOutputs) outputs;
  decltype(&TransformWeights) weights;
  decltype(&TransformWeightGradients) weight_gradients;
};

const Functions& Chosen() {
  static const Functions functions = ForThisProcessor<Functions>(
      {&InputsBaseline, &GradientsBaseline, &OutputsBaseline, &WeightsBaseline,
       &WeightGradientsBaseline},
      {&InputsAvx2, &GradientsAvx2, &OutputsAvx2, &WeightsAvx2, &WeightGradientsAvx2},
      {&InputsAvx512, &GradientsAvx512, &OutputsAvx512, &WeightsAvx512, &WeightGradientsAvx512});
  return functions;
}

}  // namespace

void TransformInputs(const float* maps, int64_t channels, const Strip& strip, const Terms& to) {
  Chosen().inputs(maps, channels, strip, to);
}

void TransformGradients(const float* maps, int64_t channels, const Strip& strip, const Terms& to) {
  Chosen().gradients(maps, channels, strip, to);
}

bool TransformOutputs(const Terms& from, const float* bias, int64_t channels, const Strip& strip,
                      float* maps) {
  return Chosen().outputs(from, bias, channels, strip, maps);
}

void TransformWeights(const float* weights, const Kernels& kernels, bool flipped, const Terms& to) {
  Chosen().weights(weights, kernels, flipped, to);
}

bool TransformWeightGradients(const Terms& from, const Kernels& kernels, float* weights) {
  return Chosen().weight_gradients(from, kernels, weights);
}

}  // namespace torch_xla::lowering::winograd
