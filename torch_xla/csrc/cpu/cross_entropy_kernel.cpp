#include "cpu/cross_entropy_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/float_loops.h"
#include "cpu/float_math.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

template <typename V>
C10_ALWAYS_INLINE V Biased(const BiasedFloats& rows, const float* x, int64_t column) {
  return rows.bias ? Load<V>(x + column) + Load<V>(rows.bias + column) : Load<V>(x + column);
}

template <typename V>
C10_ALWAYS_INLINE V Larger(V a, V b) {
  return a < b ? b : a;
}

C10_ALWAYS_INLINE float Maximum(const BiasedFloats& rows, const float* x) {
  float all[kFloatLanes];
  std::fill_n(all, kFloatLanes, -std::numeric_limits<float>::infinity());
  auto lanes = Load<FloatLanes>(all);
  ForEach(rows.columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    if constexpr (std::is_same_v<V, float>) {
      lanes[0] = Larger<float>(lanes[0], Biased<V>(rows, x, i));
    } else {
      lanes = Larger<V>(lanes, Biased<V>(rows, x, i));
    }
  });
  Store(lanes, all);
  return *std::max_element(all, all + kFloatLanes);
}

C10_ALWAYS_INLINE void Sums(const BiasedFloats& rows, int64_t begin, int64_t end, float* maximum,
                            float* log_sum) {
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = rows.x + row * rows.columns;
    // Of what is NaN the sum is, too.
    const float largest = maximum[row] = Maximum(rows, x);
    double sum[1] = {};
    Sum<1>(rows.columns, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      using V = Element<decltype(to)>;
      to[0] += Exp<V>(Biased<V>(rows, x, i) - largest);
    });
    log_sum[row] = static_cast<float>(std::log(sum[0]));
  }
}

C10_ALWAYS_INLINE void Gradients(const CrossEntropyGradient& call, int64_t begin, int64_t end,
                                 float* result) {
  const BiasedFloats& rows = call.rows;
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = rows.x + row * rows.columns;
    float* const to = result + row * rows.columns;
    const float grad = call.grad[row], maximum = call.maximum[row], log_sum = call.log_sum[row];
    if (grad == 0 && std::isfinite(maximum) && std::isfinite(log_sum)) {  // one that is ignored
      std::fill_n(to, rows.columns, 0.0F);
      continue;
    }
    ForEach(rows.columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      Store<V>(V{} - Exp<V>(Biased<V>(rows, x, i) - maximum - log_sum) * grad, to + i);
    });
    const int64_t place = call.classes[row];
    if (place >= 0 && place < rows.columns) to[place] += grad;
  }
}

#define TORCH_XLA_EACH(Name, target)                                                             \
  struct Name {                                                                                  \
    target static void OfSums(const BiasedFloats& rows, int64_t begin, int64_t end,              \
                              float* maximum, float* log_sum) {                                  \
      Sums(rows, begin, end, maximum, log_sum);                                                  \
    }                                                                                            \
    target static void OfGradients(const CrossEntropyGradient& call, int64_t begin, int64_t end, \
                                   float* result) {                                              \
      Gradients(call, begin, end, result);                                                       \
    }                                                                                            \
  };

TORCH_XLA_EACH(Baseline, )
TORCH_XLA_EACH(Avx2, TORCH_XLA_AVX2)
TORCH_XLA_EACH(Avx512, TORCH_XLA_AVX512)

}  // namespace

void SumExponentials(const BiasedFloats& rows, int64_t begin, int64_t end, float* maximum,
                     float* log_sum) {
  static const auto best = ForThisProcessor(&Baseline::OfSums, &Avx2::OfSums, &Avx512::OfSums);
  best(rows, begin, end, maximum, log_sum);
}

void WriteGradient(const CrossEntropyGradient& call, int64_t begin, int64_t end, float* result) {
  static const auto best =
      ForThisProcessor(&Baseline::OfGradients, &Avx2::OfGradients, &Avx512::OfGradients);
  best(call, begin, end, result);
}

}  // namespace torch_xla::cpu
