// The innermost loop of matrix products: a tile of the result that fits into registers.
#pragma once

#include <utility>

#include "cpu/float_vectors.h"

namespace torch_xla::cpu {

/// c [kRows, kVectors * kLanes] = a [kRows, terms] times b, or += if `adds`. Element (i, l) of a is
/// at i * a_row + l * a_term. Inlined, so that a constant stride of 1 costs nothing.
template <int kLanes, int kVectors, int kRows>
C10_ALWAYS_INLINE void MultiplyTile(const float* a, int64_t a_row, int64_t a_term, const float* b,
                                    int64_t b_term, int64_t terms, float* c, int64_t c_row,
                                    bool adds) {
  Lanes<kLanes> sums[kRows][kVectors] = {};
  if (adds) {
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = Load<Lanes<kLanes>>(c + i * c_row + v * kLanes);
      }
    }
  }
  for (int64_t l = 0; l < terms; ++l) {
    Lanes<kLanes> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = Load<Lanes<kLanes>>(b + l * b_term + v * kLanes);
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) sums[i][v] += row[v] * a[i * a_row + l * a_term];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) Store(sums[i][v], c + i * c_row + v * kLanes);
  }
}

/// Swaps v[i][l] and v[l][i], by swaps at the distances kLanes / 2, ..., 1.
template <int kLanes, int kDistance = kLanes / 2, int... kLane>
C10_ALWAYS_INLINE void Transpose(Lanes<kLanes>* v, std::integer_sequence<int, kLane...> lanes) {
  if constexpr (kDistance > 0) {
    for (int i = 0; i < kLanes; ++i) {
      if (i & kDistance) continue;
      const Lanes<kLanes> a = v[i], b = v[i + kDistance];
      v[i] = __builtin_shufflevector(a, b,
                                     (kLane & kDistance ? kLanes + kLane - kDistance : kLane)...);
      v[i + kDistance] = __builtin_shufflevector(
          a, b, (kLane & kDistance ? kLanes + kLane : kLane + kDistance)...);
    }
    Transpose<kLanes, kDistance / 2>(v, lanes);
  }
}

/// Transposes kLanes vectors of kLanes floats.
template <int kLanes>
C10_ALWAYS_INLINE void Transpose(Lanes<kLanes>* v) {
  Transpose<kLanes>(v, std::make_integer_sequence<int, kLanes>());
}

}  // namespace torch_xla::cpu
