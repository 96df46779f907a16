// Functions of floats that work on vectors, or that compilers can vectorize.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu/float_vectors.h"

namespace torch_xla::cpu {

/// exp(x) with an error of a few units in the last place; denormal results are zero. Uses Cody and
/// Waite's reduction and the polynomial of Cephes' expf. `V` is float or Lanes<n>.
template <typename V>
C10_ALWAYS_INLINE V Exp(V x) {
  constexpr int kLanes = sizeof(V) / sizeof(float);
  using Bits = std::conditional_t<std::is_same_v<V, float>, int32_t, Vector<int32_t, kLanes>>;
  const V least = V{} - 88.f, most = V{} + 88.7f;
  x = x < least ? least : x;
  x = x > most ? most : x;
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: what is added to it is rounded
  const V rounded = x * 1.44269504f + kRound, n = rounded - kRound;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.f;
  constexpr auto kBias = int32_t{127} - __builtin_bit_cast(int32_t, kRound);
  return y * __builtin_bit_cast(V, (__builtin_bit_cast(Bits, rounded) + kBias) << 23);
}

}  // namespace torch_xla::cpu
