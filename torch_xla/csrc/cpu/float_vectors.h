// Vectors of floats, loaded from and stored to float or bfloat16 at any alignment.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // of functions that are inlined
#endif

namespace torch_xla::cpu {

template <typename T, int kLanes>
struct VectorOf {
  using Type __attribute__((vector_size(kLanes * sizeof(T)))) = T;
};
template <typename T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::Type;
template <int kLanes>
using Lanes = Vector<float, kLanes>;

/// `V` is float or Lanes<n>: loads one element or n.
template <typename V>
C10_ALWAYS_INLINE V Load(const float* from) {
  V x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

/// A bfloat16 is the upper half of a float.
template <typename V>
C10_ALWAYS_INLINE V Load(const c10::BFloat16* from) {
  if constexpr (std::is_same_v<V, float>) {
    return __builtin_bit_cast(float, uint32_t{from->x} << 16);
  } else {
    constexpr int kLanes = sizeof(V) / sizeof(float);
    Vector<uint16_t, kLanes> halves;
    std::memcpy(&halves, from, sizeof(halves));
    return reinterpret_cast<V>(__builtin_convertvector(halves, Vector<uint32_t, kLanes>) << 16);
  }
}

template <typename V>
C10_ALWAYS_INLINE void Store(const V& x, float* to) {
  std::memcpy(to, &x, sizeof(x));
}

/// Rounds to nearest, ties to even.
template <typename V>
C10_ALWAYS_INLINE void Store(const V& x, c10::BFloat16* to) {
  if constexpr (std::is_same_v<V, float>) {
    *to = c10::BFloat16(x);
  } else {
    constexpr int kLanes = sizeof(V) / sizeof(float);
    constexpr uint32_t kNan = 0x7fc0;
    const auto bits = reinterpret_cast<Vector<uint32_t, kLanes>>(x);
    const auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const auto is_nan = reinterpret_cast<Vector<uint32_t, kLanes>>(x != x);
    const auto halves =
        __builtin_convertvector((rounded & ~is_nan) | (kNan & is_nan), Vector<uint16_t, kLanes>);
    std::memcpy(to, &halves, sizeof(halves));
  }
}

}  // namespace torch_xla::cpu
