// Loops over floats, or over bfloat16 converted to floats, a vector at a time.
#pragma once

#include <algorithm>
#include <utility>

#include "cpu/float_vectors.h"

namespace torch_xla::cpu {

constexpr int kFloatLanes = 16;
using FloatLanes = Lanes<kFloatLanes>;

/// Calls body<V>(i) for the vector that begins at element i, or for a single remaining element.
template <typename Body>
C10_ALWAYS_INLINE void ForEach(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kFloatLanes <= count; i += kFloatLanes) body.template operator()<FloatLanes>(i);
  for (; i < count; ++i) body.template operator()<float>(i);
}

/// Adds kSums sums over the elements of some rows. add(sums, row, i) adds the values of the vector
/// that begins at element i of a row, or of a single remaining element.
template <int kSums, typename Sums, typename Add>
C10_ALWAYS_INLINE void SumRows(int64_t rows, int64_t count, Sums& sums, const Add& add) {
  // A float's sum of so few elements loses little.
  constexpr int64_t kBlock = 64 * kFloatLanes, kChains = 4;
  FloatLanes chains[kChains][kSums] = {};
  float rest[kSums] = {};
  int64_t added = 0;
  auto flush = [&]() C10_ALWAYS_INLINE_ATTRIBUTE {
    for (int sum = 0; sum < kSums; ++sum) {
      const FloatLanes lanes =
          (chains[0][sum] + chains[1][sum]) + (chains[2][sum] + chains[3][sum]);
      float halves[kFloatLanes];
      std::memcpy(halves, &lanes, sizeof(lanes));
      for (int64_t width = kFloatLanes / 2; width > 0; width /= 2) {
        for (int64_t lane = 0; lane < width; ++lane) halves[lane] += halves[lane + width];
      }
      sums[sum] += halves[0] + rest[sum];
      rest[sum] = 0;
      for (auto& chain : chains) chain[sum] = FloatLanes{};
    }
    added = 0;
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t from = 0; from < count; from += kBlock) {
      const int64_t to = std::min(count, from + kBlock);
      int64_t i = from;
      for (; i + kChains * kFloatLanes <= to; i += kChains * kFloatLanes) {
        // Unrolled by hand: in a loop the chains would be in memory.
        add(chains[0], row, i);
        add(chains[1], row, i + kFloatLanes);
        add(chains[2], row, i + 2 * kFloatLanes);
        add(chains[3], row, i + 3 * kFloatLanes);
      }
      for (; i + kFloatLanes <= to; i += kFloatLanes) add(chains[0], row, i);
      for (; i < to; ++i) add(rest, row, i);
      added += to - from;
      if (added >= kBlock) flush();
    }
  }
  if (added > 0) flush();
}

template <int kSums, typename Sums, typename Add>
C10_ALWAYS_INLINE void Sum(int64_t count, Sums& sums, const Add& add) {
  SumRows<kSums>(1, count, sums,
                 [&](auto& to, int64_t, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE { add(to, i); });
}

/// The type of the sums that Sum() passes to `add`: a vector or float.
template <typename T>
using Element = std::remove_reference_t<decltype(std::declval<T>()[0])>;

}  // namespace torch_xla::cpu
