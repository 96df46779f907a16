#include "ops/normalization_kernel.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lowering/cpu_vectors.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // of functions that are inlined
#endif

namespace torch_xla::lowering {
namespace {

constexpr int64_t kLanes = 16;
using Lanes __attribute__((vector_size(kLanes * sizeof(float)))) = float;

/// T is float or Lanes: one element, or some of them, wherever they lie.
template <typename T>
C10_ALWAYS_INLINE T Load(const float* from) {
  T x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
template <typename T>
C10_ALWAYS_INLINE void Store(const T& x, float* to) {
  std::memcpy(to, &x, sizeof(x));
}

template <typename T>
C10_ALWAYS_INLINE T Normalized(const float* x, float mean, float inverse_std) {
  return (Load<T>(x) - mean) * inverse_std;
}

template <typename T>
C10_ALWAYS_INLINE T Scaled(const float* x, const float* weights, int64_t i) {
  return weights ? Load<T>(x) * Load<T>(weights + i) : Load<T>(x);
}

/// Calls body<T>(i) for elements i and on of a vector or, those left, for one.
template <typename Body>
C10_ALWAYS_INLINE void ForEach(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body.template operator()<Lanes>(i);
  for (; i < count; ++i) body.template operator()<float>(i);
}

/// Of several values for each element: add(lanes of sums, i) for a vector or for one.
template <int kSums, typename Sums, typename Add>
C10_ALWAYS_INLINE void Sum(int64_t count, Sums& sums, const Add& add) {
  // So few in a float's sum that it does not lose much.
  constexpr int64_t kBlock = 64 * kLanes, kChains = 4;
  for (int64_t from = 0; from < count; from += kBlock) {
    const int64_t to = std::min(count, from + kBlock);
    Lanes chains[kChains][kSums] = {};
    float rest[kSums] = {};
    int64_t i = from;
    for (; i + kChains * kLanes <= to; i += kChains * kLanes) {
      for (int64_t chain = 0; chain < kChains; ++chain) add(chains[chain], i + chain * kLanes);
    }
    for (; i + kLanes <= to; i += kLanes) add(chains[0], i);
    for (; i < to; ++i) add(rest, i);
    for (int sum = 0; sum < kSums; ++sum) {
      const Lanes lanes = (chains[0][sum] + chains[1][sum]) + (chains[2][sum] + chains[3][sum]);
      float halves[kLanes];
      std::memcpy(halves, &lanes, sizeof(lanes));
      for (int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (int64_t lane = 0; lane < width; ++lane) halves[lane] += halves[lane + width];
      }
      sums[sum] += halves[0] + rest[sum];
    }
  }
}

/// The kind of value that `add` of Sum() is given a place for.
template <typename T>
using Element = std::remove_reference_t<decltype(std::declval<T>()[0])>;

C10_ALWAYS_INLINE void Forward(const Normalization& call, int64_t begin, int64_t end) {
  const NormalizedForm& form = call.form;
  const int64_t size = form.group_size();
  for (int64_t group = begin; group < end; ++group) {
    const float* x = call.input + group * size;
    float* y = call.output + group * size;
    double sum[1] = {}, squares[1] = {};
    Sum<1>(size, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      to[0] += Load<Element<decltype(to)>>(x + i);
    });
    const auto mean = static_cast<float>(sum[0] / static_cast<double>(size));
    Sum<1>(size, squares, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const auto centred = Load<Element<decltype(to)>>(x + i) - mean;
      to[0] += centred * centred;
    });
    const auto inverse_std =
        static_cast<float>(1 / std::sqrt(squares[0] / static_cast<double>(size) + call.eps));
    call.mean[group] = mean;
    call.inverse_std[group] = inverse_std;
    if (form.by_element) {
      ForEach(size, [&]<typename T>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        T value = (Load<T>(x + i) - mean) * inverse_std;
        if (call.weight) value *= Load<T>(call.weight + i);
        if (call.bias) value += Load<T>(call.bias + i);
        Store<T>(value, y + i);
      });
      continue;
    }
    for (int64_t channel = 0; channel < form.channels; ++channel) {
      const int64_t parameter = group % form.groups * form.channels + channel;
      const float scale = call.weight ? call.weight[parameter] * inverse_std : inverse_std;
      const float shift = call.bias ? call.bias[parameter] : 0;
      ForEach(form.length, [&]<typename T>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        Store<T>((Load<T>(x + i) - mean) * scale + shift, y + i);
      });
      x += form.length, y += form.length;
    }
  }
}

/// Gradients of groups whose parameters are one for each element.
C10_ALWAYS_INLINE void ByElement(const NormalizationBackward& call, int64_t begin, int64_t end,
                                 float* of_weight, float* of_bias) {
  const int64_t size = call.form.length;
  const float* weight = call.weight;
  for (int64_t group = begin; group < end; ++group) {
    const float *grad = call.grad + group * size, *x = call.input + group * size;
    const float mean = call.mean[group], inverse_std = call.inverse_std[group];
    if (of_weight) {
      ForEach(size, [&]<typename T>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        Store<T>(
            Load<T>(of_weight + i) + Load<T>(grad + i) * Normalized<T>(x + i, mean, inverse_std),
            of_weight + i);
        Store<T>(Load<T>(of_bias + i) + Load<T>(grad + i), of_bias + i);
      });
    }
    if (!call.of_input) continue;
    double sums[2] = {};
    Sum<2>(size, sums, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      using T = Element<decltype(to)>;
      const T g = Scaled<T>(grad + i, weight, i);
      to[0] += g;
      to[1] += g * Normalized<T>(x + i, mean, inverse_std);
    });
    const auto shift = static_cast<float>(sums[0] / static_cast<double>(size));
    const auto slope = static_cast<float>(sums[1] / static_cast<double>(size));
    float* result = call.of_input + group * size;
    ForEach(size, [&]<typename T>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      Store<T>((Scaled<T>(grad + i, weight, i) - shift -
                Normalized<T>(x + i, mean, inverse_std) * slope) *
                   inverse_std,
               result + i);
    });
  }
}

/// Gradients of groups whose parameters are one for each channel.
C10_ALWAYS_INLINE void ByChannel(const NormalizationBackward& call, int64_t begin, int64_t end,
                                 float* of_weight, float* of_bias) {
  const NormalizedForm& form = call.form;
  const int64_t size = form.group_size();
  for (int64_t group = begin; group < end; ++group) {
    const float *grad = call.grad + group * size, *x = call.input + group * size;
    const float mean = call.mean[group], inverse_std = call.inverse_std[group];
    const int64_t parameter = group % form.groups * form.channels;
    auto weight = [&](int64_t channel) {
      return call.weight ? call.weight[parameter + channel] : 1;
    };
    double shift = 0, slope = 0;
    for (int64_t channel = 0; channel < form.channels; ++channel) {
      const float *g = grad + channel * form.length, *values = x + channel * form.length;
      double sums[2] = {};
      Sum<2>(form.length, sums, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        using T = Element<decltype(to)>;
        to[0] += Load<T>(g + i);
        to[1] += Load<T>(g + i) * Normalized<T>(values + i, mean, inverse_std);
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
      const float *g = grad + from, *values = x + from;
      float* result = call.of_input + group * size + from;
      ForEach(form.length, [&]<typename T>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
        const T normalized = Normalized<T>(values + i, mean, inverse_std);
        Store<T>((Load<T>(g + i) * scale - by_mean - normalized * by_std) * inverse_std,
                 result + i);
      });
    }
  }
}

C10_ALWAYS_INLINE void Backward(const NormalizationBackward& call, int64_t begin, int64_t end,
                                float* of_weight, float* of_bias) {
  call.form.by_element ? ByElement(call, begin, end, of_weight, of_bias)
                       : ByChannel(call, begin, end, of_weight, of_bias);
}

using ForwardFunction = void (*)(const Normalization&, int64_t, int64_t);
using BackwardFunction = void (*)(const NormalizationBackward&, int64_t, int64_t, float*, float*);

void Baseline(const Normalization& call, int64_t begin, int64_t end) { Forward(call, begin, end); }
TORCH_XLA_AVX2 void Avx2(const Normalization& call, int64_t begin, int64_t end) {
  Forward(call, begin, end);
}
TORCH_XLA_AVX512 void Avx512(const Normalization& call, int64_t begin, int64_t end) {
  Forward(call, begin, end);
}

void Baseline(const NormalizationBackward& call, int64_t begin, int64_t end, float* w, float* b) {
  Backward(call, begin, end, w, b);
}
TORCH_XLA_AVX2 void Avx2(const NormalizationBackward& call, int64_t begin, int64_t end, float* w,
                         float* b) {
  Backward(call, begin, end, w, b);
}
TORCH_XLA_AVX512 void Avx512(const NormalizationBackward& call, int64_t begin, int64_t end,
                             float* w, float* b) {
  Backward(call, begin, end, w, b);
}

}  // namespace

void Normalization::Run(int64_t begin, int64_t end) const {
  static const auto best = ForThisProcessor<ForwardFunction>(&Baseline, &Avx2, &Avx512);
  best(*this, begin, end);
}

void NormalizationBackward::Run(int64_t begin, int64_t end, float* of_weight,
                                float* of_bias) const {
  static const auto best = ForThisProcessor<BackwardFunction>(&Baseline, &Avx2, &Avx512);
  best(*this, begin, end, of_weight, of_bias);
}

}  // namespace torch_xla::lowering
