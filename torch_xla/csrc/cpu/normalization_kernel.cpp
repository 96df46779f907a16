#include "cpu/normalization_kernel.h"

#include <algorithm>
#include <cmath>

#include "cpu/float_loops.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

template <typename V, typename T>
C10_ALWAYS_INLINE V Normalized(const T* x, float mean, float inverse_std) {
  return (Load<V>(x) - mean) * inverse_std;
}

template <typename V, typename T>
C10_ALWAYS_INLINE V Scaled(const T* x, const float* weights, int64_t i) {
  return weights ? Load<V>(x) * Load<V>(weights + i) : Load<V>(x);
}

float InverseStd(double squares, double count, double eps) {
  return static_cast<float>(1 / std::sqrt(squares / count + eps));
}

/// Layer and group normalization.
template <int kLanes, typename T>
C10_ALWAYS_INLINE void OfRows(const Normalization<T>& call, int64_t begin, int64_t end) {
  const NormalizedForm& form = call.form;
  const int64_t size = form.group_size();
  for (int64_t group = begin; group < end; ++group) {
    const T* x = call.input + group * size;
    T* y = call.output + group * size;
    double sum[1] = {}, squares[1] = {};
    Sum<kLanes, 1>(size, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      to[0] += Load<Element<decltype(to)>>(x + i);
    });
    const auto mean = static_cast<float>(sum[0] / static_cast<double>(size));
    Sum<kLanes, 1>(size, squares, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const auto centred = Load<Element<decltype(to)>>(x + i) - mean;
      to[0] += centred * centred;
    });
    const float inverse_std = InverseStd(squares[0], static_cast<double>(size), call.eps);
    call.mean[group] = mean;
    call.inverse_std[group] = inverse_std;
    if (form.kind == NormalizedGroups::kLayers) {
      ForEach<kLanes>(size, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        V value = (Load<V>(x + i) - mean) * inverse_std;
        if (call.weight) value *= Load<V>(call.weight + i);
        if (call.bias) value += Load<V>(call.bias + i);
        Store<V>(value, y + i);
      });
      continue;
    }
    for (int64_t channel = 0; channel < form.channels; ++channel) {
      const int64_t parameter = group % form.groups * form.channels + channel;
      const float scale = call.weight ? call.weight[parameter] * inverse_std : inverse_std;
      const float shift = call.bias ? call.bias[parameter] : 0;
      ForEach<kLanes>(form.length, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        Store<V>((Load<V>(x + i) - mean) * scale + shift, y + i);
      });
      x += form.length, y += form.length;
    }
  }
}

/// Gradients for parameters that have one element per element of a group.
template <int kLanes, typename T>
C10_ALWAYS_INLINE void ByElement(const NormalizationBackward<T>& call, int64_t begin, int64_t end,
                                 float* of_weight, float* of_bias) {
  const int64_t size = call.form.length;
  const float* weight = call.weight;
  for (int64_t group = begin; group < end; ++group) {
    const T *grad = call.grad + group * size, *x = call.input + group * size;
    const float mean = call.mean[group], inverse_std = call.inverse_std[group];
    if (of_weight) {
      ForEach<kLanes>(size, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        Store<V>(
            Load<V>(of_weight + i) + Load<V>(grad + i) * Normalized<V>(x + i, mean, inverse_std),
            of_weight + i);
        Store<V>(Load<V>(of_bias + i) + Load<V>(grad + i), of_bias + i);
      });
    }
    if (!call.of_input) continue;
    double sums[2] = {};
    Sum<kLanes, 2>(size, sums, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      using V = Element<decltype(to)>;
      const V g = Scaled<V>(grad + i, weight, i);
      to[0] += g;
      to[1] += g * Normalized<V>(x + i, mean, inverse_std);
    });
    const auto shift = static_cast<float>(sums[0] / static_cast<double>(size));
    const auto slope = static_cast<float>(sums[1] / static_cast<double>(size));
    T* result = call.of_input + group * size;
    ForEach<kLanes>(size, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      Store<V>((Scaled<V>(grad + i, weight, i) - shift -
                Normalized<V>(x + i, mean, inverse_std) * slope) *
                   inverse_std,
               result + i);
    });
  }
}

/// Gradients for parameters that have one element per channel.
template <int kLanes, typename T>
C10_ALWAYS_INLINE void ByChannel(const NormalizationBackward<T>& call, int64_t begin, int64_t end,
                                 float* of_weight, float* of_bias) {
  const NormalizedForm& form = call.form;
  const int64_t size = form.group_size();
  for (int64_t group = begin; group < end; ++group) {
    const T *grad = call.grad + group * size, *x = call.input + group * size;
    const float mean = call.mean[group], inverse_std = call.inverse_std[group];
    const int64_t parameter = group % form.groups * form.channels;
    auto weight = [&](int64_t channel) {
      return call.weight ? call.weight[parameter + channel] : 1;
    };
    double shift = 0, slope = 0;
    for (int64_t channel = 0; channel < form.channels; ++channel) {
      const T *g = grad + channel * form.length, *values = x + channel * form.length;
      double sums[2] = {};
      Sum<kLanes, 2>(form.length, sums, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        using V = Element<decltype(to)>;
        to[0] += Load<V>(g + i);
        to[1] += Load<V>(g + i) * Normalized<V>(values + i, mean, inverse_std);
      });
      shift += weight(channel) * sums[0];
      slope += weight(channel) * sums[1];
      if (of_weight) {
        of_weight[parameter + channel] += static_cast<float>(sums[1]);
        of_bias[parameter + channel] += static_cast<float>(sums[0]);
      }
    }
    if (!call.of_input) continue;
    const auto by_mean = static_cast<float>(shift / static_cast<double>(size));
    const auto by_std = static_cast<float>(slope / static_cast<double>(size));
    for (int64_t channel = 0; channel < form.channels; ++channel) {
      const int64_t from = channel * form.length;
      const float scale = weight(channel);
      const T *g = grad + from, *values = x + from;
      T* result = call.of_input + group * size + from;
      ForEach<kLanes>(form.length, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        const V normalized = Normalized<V>(values + i, mean, inverse_std);
        Store<V>((Load<V>(g + i) * scale - by_mean - normalized * by_std) * inverse_std,
                 result + i);
      });
    }
  }
}

// ---------------------------------------------------------------- batches

/// Whether a channel's part of a row is so short that a row's channels are processed together.
bool IsShort(const NormalizedForm& form) { return form.length < 32; }

/// Writes elements of the output from `at` on; `normalized<V>(i)` is element i before a ReLU.
template <int kLanes, typename T, typename Normalized>
C10_ALWAYS_INLINE void WriteBatch(const Normalization<T>& call, int64_t at, int64_t count,
                                  const Normalized& normalized) {
  T* y = call.output + at;
  if (!call.rectifies) {
    ForEach<kLanes>(count, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      Store<V>(normalized.template operator()<V>(i), y + i);
    });
  } else if (const T* addend = call.addend) {
    ForEach<kLanes>(count, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const V x = normalized.template operator()<V>(i) + Load<V>(addend + at + i);
      Store<V>(x < 0 ? V{} : x, y + i);
    });
  } else {
    ForEach<kLanes>(count, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const V x = normalized.template operator()<V>(i);
      Store<V>(x < 0 ? V{} : x, y + i);
    });
  }
}

/// The gradient at `at`, after the gradient of an optional ReLU, which lets NaN pass.
template <bool kRectified, typename V, typename T>
C10_ALWAYS_INLINE V GradAt(const NormalizationBackward<T>& call, int64_t at) {
  const V grad = Load<V>(call.grad + at);
  if constexpr (kRectified) return Load<V>(call.rectified + at) <= 0 ? V{} : grad;
  return grad;
}

/// Batch normalization of long channels: each channel over all rows, one channel after the other.
template <int kLanes, typename T>
C10_ALWAYS_INLINE void OfBatch(const Normalization<T>& call, int64_t begin, int64_t end) {
  const NormalizedForm& form = call.form;
  const int64_t length = form.length, stride = form.channels * length;
  const auto size = static_cast<double>(form.group_size());
  for (int64_t channel = begin; channel < end; ++channel) {
    const T* x = call.input + channel * length;
    double sum[1] = {}, squares[1] = {};
    SumRows<kLanes, 1>(form.rows, length, sum,
                       [&](auto& to, int64_t row, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
                         to[0] += Load<Element<decltype(to)>>(x + row * stride + i);
                       });
    const auto mean = static_cast<float>(sum[0] / size);
    SumRows<kLanes, 1>(form.rows, length, squares,
                       [&](auto& to, int64_t row, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
                         const auto centred =
                             Load<Element<decltype(to)>>(x + row * stride + i) - mean;
                         to[0] += centred * centred;
                       });
    const float inverse_std = InverseStd(squares[0], size, call.eps);
    call.mean[channel] = mean;
    call.inverse_std[channel] = inverse_std;
    call.running.Update(channel, sum[0] / size, squares[0] / (size - 1));
    const float scale = call.weight ? call.weight[channel] * inverse_std : inverse_std;
    const float shift = call.bias ? call.bias[channel] : 0;
    for (int64_t row = 0; row < form.rows; ++row) {
      const T* of_row = x + row * stride;
      WriteBatch<kLanes>(call, channel * length + row * stride, length,
                         [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
                           return (Load<V>(of_row + i) - mean) * scale + shift;
                         });
    }
  }
}

template <int kLanes, bool kRectified, typename T>
C10_ALWAYS_INLINE void BatchBackward(const NormalizationBackward<T>& call, int64_t begin,
                                     int64_t end, float* of_weight, float* of_bias) {
  const NormalizedForm& form = call.form;
  const int64_t length = form.length, stride = form.channels * length;
  const auto size = static_cast<double>(form.group_size());
  for (int64_t channel = begin; channel < end; ++channel) {
    const int64_t first = channel * length;
    const float mean = call.mean[channel], inverse_std = call.inverse_std[channel];
    double sums[2] = {};
    SumRows<kLanes, 2>(form.rows, length, sums,
                       [&](auto& to, int64_t row, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
                         using V = Element<decltype(to)>;
                         const int64_t at = first + row * stride + i;
                         const V g = GradAt<kRectified, V>(call, at);
                         to[0] += g;
                         to[1] += g * Normalized<V>(call.input + at, mean, inverse_std);
                       });
    if (of_weight) {
      of_weight[channel] += static_cast<float>(sums[1]);
      of_bias[channel] += static_cast<float>(sums[0]);
    }
    if (!call.of_input) continue;
    const auto shift = static_cast<float>(sums[0] / size);
    const auto slope = static_cast<float>(sums[1] / size);
    const float scale = call.weight ? call.weight[channel] * inverse_std : inverse_std;
    for (int64_t row = 0; row < form.rows; ++row) {
      const int64_t from = first + row * stride;
      ForEach<kLanes>(length, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        const V g = GradAt<kRectified, V>(call, from + i);
        const V normalized = Normalized<V>(call.input + from + i, mean, inverse_std);
        Store<V>((g - shift - normalized * slope) * scale, call.of_input + from + i);
      });
    }
  }
}

/// Some neighbouring short channels of each row, which are processed as one run of elements.
class ShortChannels {
 public:
  static constexpr int64_t kMost = 256;  // elements

  ShortChannels(const NormalizedForm& form, int64_t begin, int64_t end)
      : form_(form), begin_(begin), end_(end) {}

  /// The number of channels at a time: as many as fit.
  static int64_t AtATime(const NormalizedForm& form) { return kMost / form.length; }

  int64_t width() const { return (end_ - begin_) * form_.length; }
  /// The index of the first of these elements in a row.
  int64_t Place(int64_t row) const { return (row * form_.channels + begin_) * form_.length; }

  /// Calls use(channel, index of its first element).
  template <typename Use>
  C10_ALWAYS_INLINE void ForEachChannel(const Use& use) const {
    for (int64_t channel = begin_; channel < end_; ++channel) {
      use(channel, (channel - begin_) * form_.length);
    }
  }

  /// Writes value(channel) to each element of the channel.
  template <typename Value>
  C10_ALWAYS_INLINE void Spread(float* to, const Value& value) const {
    ForEachChannel([&](int64_t channel, int64_t from) C10_ALWAYS_INLINE_ATTRIBUTE {
      std::fill_n(to + from, form_.length, value(channel));
    });
  }

  /// Sums over all rows and a channel's elements; `add<T>(row, i)` is the addend for element i.
  template <int kLanes, typename Add>
  C10_ALWAYS_INLINE void Sum(double* sums, const Add& add) const {
    constexpr int64_t kRows = 64;  // few enough to sum in float without much loss
    std::fill_n(sums, end_ - begin_, 0.);
    for (int64_t first = 0; first < form_.rows; first += kRows) {
      float some[kMost] = {};
      for (int64_t row = first; row < std::min(form_.rows, first + kRows); ++row) {
        ForEach<kLanes>(width(), [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
          Store<V>(Load<V>(some + i) + add.template operator()<V>(Place(row) + i, i), some + i);
        });
      }
      ForEachChannel([&](int64_t channel, int64_t from) C10_ALWAYS_INLINE_ATTRIBUTE {
        double sum = 0;
        for (int64_t i = 0; i < form_.length; ++i) sum += some[from + i];
        sums[channel - begin_] += sum;
      });
    }
  }

 private:
  const NormalizedForm& form_;
  const int64_t begin_, end_;
};

template <int kLanes, typename T>
C10_ALWAYS_INLINE void OfShortBatch(const Normalization<T>& call, int64_t begin, int64_t end) {
  constexpr int64_t kMost = ShortChannels::kMost;
  const auto size = static_cast<double>(call.form.group_size());
  for (int64_t step = ShortChannels::AtATime(call.form); begin < end; begin += step) {
    const ShortChannels some(call.form, begin, std::min(end, begin + step));
    double sums[kMost];
    float mean[kMost], scale[kMost], shift[kMost];
    some.Sum<kLanes>(sums, [&]<typename V>(int64_t at, int64_t)
                               C10_ALWAYS_INLINE_ATTRIBUTE { return Load<V>(call.input + at); });
    some.Spread(mean, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      return call.mean[channel] = static_cast<float>(sums[channel - begin] / size);
    });
    some.Sum<kLanes>(sums, [&]<typename V>(int64_t at, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const V centred = Load<V>(call.input + at) - Load<V>(mean + i);
      return centred * centred;
    });
    some.Spread(scale, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      const double squares = sums[channel - begin];
      const float inverse_std = InverseStd(squares, size, call.eps);
      call.inverse_std[channel] = inverse_std;
      call.running.Update(channel, call.mean[channel], squares / (size - 1));
      return call.weight ? call.weight[channel] * inverse_std : inverse_std;
    });
    some.Spread(shift, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      return call.bias ? call.bias[channel] : 0;
    });
    for (int64_t row = 0; row < call.form.rows; ++row) {
      const T* x = call.input + some.Place(row);
      WriteBatch<kLanes>(call, some.Place(row), some.width(),
                         [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
                           const V centred = Load<V>(x + i) - Load<V>(mean + i);
                           return centred * Load<V>(scale + i) + Load<V>(shift + i);
                         });
    }
  }
}

template <int kLanes, bool kRectified, typename T>
C10_ALWAYS_INLINE void ShortBatchBackward(const NormalizationBackward<T>& call, int64_t begin,
                                          int64_t end, float* of_weight, float* of_bias) {
  constexpr int64_t kMost = ShortChannels::kMost;
  const auto size = static_cast<double>(call.form.group_size());
  for (int64_t step = ShortChannels::AtATime(call.form); begin < end; begin += step) {
    const ShortChannels some(call.form, begin, std::min(end, begin + step));
    double sums[kMost], products[kMost];
    float mean[kMost], inverse_std[kMost], shift[kMost], slope[kMost], scale[kMost];
    some.Spread(mean, [&](int64_t channel) { return call.mean[channel]; });
    some.Spread(inverse_std, [&](int64_t channel) { return call.inverse_std[channel]; });
    some.Sum<kLanes>(sums, [&]<typename V>(int64_t at, int64_t) C10_ALWAYS_INLINE_ATTRIBUTE {
      return GradAt<kRectified, V>(call, at);
    });
    some.Sum<kLanes>(products, [&]<typename V>(int64_t at, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      return GradAt<kRectified, V>(call, at) * (Load<V>(call.input + at) - Load<V>(mean + i)) *
             Load<V>(inverse_std + i);
    });
    some.ForEachChannel([&](int64_t channel, int64_t) C10_ALWAYS_INLINE_ATTRIBUTE {
      if (!of_weight) return;
      of_weight[channel] += static_cast<float>(products[channel - begin]);
      of_bias[channel] += static_cast<float>(sums[channel - begin]);
    });
    if (!call.of_input) continue;
    some.Spread(shift, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      return static_cast<float>(sums[channel - begin] / size);
    });
    some.Spread(slope, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      return static_cast<float>(products[channel - begin] / size) * call.inverse_std[channel];
    });
    some.Spread(scale, [&](int64_t channel) C10_ALWAYS_INLINE_ATTRIBUTE {
      const float weight = call.weight ? call.weight[channel] : 1;
      return weight * call.inverse_std[channel];
    });
    for (int64_t row = 0; row < call.form.rows; ++row) {
      const int64_t from = some.Place(row);
      ForEach<kLanes>(some.width(), [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        const V g = GradAt<kRectified, V>(call, from + i);
        const V centred = Load<V>(call.input + from + i) - Load<V>(mean + i);
        Store<V>((g - Load<V>(shift + i) - centred * Load<V>(slope + i)) * Load<V>(scale + i),
                 call.of_input + from + i);
      });
    }
  }
}

// ---------------------------------------------------------------- for the processor

template <int kLanes, typename T>
C10_ALWAYS_INLINE void Forward(const Normalization<T>& call, int64_t begin, int64_t end) {
  if (!call.form.is_batch()) return OfRows<kLanes>(call, begin, end);
  IsShort(call.form) ? OfShortBatch<kLanes>(call, begin, end) : OfBatch<kLanes>(call, begin, end);
}

template <int kLanes, bool kRectified, typename T>
C10_ALWAYS_INLINE void OfBatch(const NormalizationBackward<T>& call, int64_t begin, int64_t end,
                               float* of_weight, float* of_bias) {
  IsShort(call.form) ? ShortBatchBackward<kLanes, kRectified>(call, begin, end, of_weight, of_bias)
                     : BatchBackward<kLanes, kRectified>(call, begin, end, of_weight, of_bias);
}

template <int kLanes, typename T>
C10_ALWAYS_INLINE void Backward(const NormalizationBackward<T>& call, int64_t begin, int64_t end,
                                float* of_weight, float* of_bias) {
  switch (call.form.kind) {
    case NormalizedGroups::kLayers:
      return ByElement<kLanes>(call, begin, end, of_weight, of_bias);
    case NormalizedGroups::kGroups:
      return ByChannel<kLanes>(call, begin, end, of_weight, of_bias);
    case NormalizedGroups::kBatch:
      return call.rectified ? OfBatch<kLanes, true>(call, begin, end, of_weight, of_bias)
                            : OfBatch<kLanes, false>(call, begin, end, of_weight, of_bias);
  }
}

}  // namespace

template <typename T>
void Normalization<T>::Run(int64_t begin, int64_t end) const {
  ForThisProcessor<&Forward<4, T>, &Forward<8, T>, &Forward<16, T>>()(*this, begin, end);
}

template <typename T>
void NormalizationBackward<T>::Run(int64_t begin, int64_t end, float* of_weight,
                                   float* of_bias) const {
  ForThisProcessor<&Backward<4, T>, &Backward<8, T>, &Backward<16, T>>()(*this, begin, end,
                                                                         of_weight, of_bias);
}

template struct Normalization<float>;
template struct Normalization<c10::BFloat16>;
template struct NormalizationBackward<float>;
template struct NormalizationBackward<c10::BFloat16>;

}  // namespace torch_xla::cpu
