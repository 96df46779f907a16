// Loops over floats, or over bfloat16 converted to floats, a vector at a time. kLanes is the length
// of the processor's vectors: compilers keep longer ones in memory.
#pragma once

#include <algorithm>
#include <utility>

#include "cpu/float_vectors.h"

namespace torch_xla::cpu {

/// Calls body<V>(i) for the vector that begins at element i, or for a single remaining element.
template <int kLanes, typename Body>
C10_ALWAYS_INLINE void ForEach(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body.template operator()<Lanes<kLanes>>(i);
  for (; i < count; ++i) body.template operator()<float>(i);
}

/// Adds kSums sums over the elements of some rows. add(sums, row, i) adds the values of the vector
/// that begins at element i of a row, or of a single remaining element.
template <int kLanes, int kSums, typename Sums, typename Add>
C10_ALWAYS_INLINE void SumRows(int64_t rows, int64_t count, Sums& sums, const Add& add) {
  // A float's sum of so few elements loses little.
  constexpr int64_t kBlock = 1024, kChains = 4;
  Lanes<kLanes> chains[kChains][kSums] = {};
  float rest[kSums] = {};
  int64_t added = 0;
  auto flush = [&]() C10_ALWAYS_INLINE_ATTRIBUTE {
    for (int sum = 0; sum < kSums; ++sum) {
      const Lanes<kLanes> lanes =
          (chains[0][sum] + chains[1][sum]) + (chains[2][sum] + chains[3][sum]);
      float halves[kLanes];
      std::memcpy(halves, &lanes, sizeof(lanes));
      for (int64_t width = kLanes / 2; width > 0; width /= 2) {
        for (int64_t lane = 0; lane < width; ++lane) halves[lane] += halves[lane + width];
      }
      sums[sum] += halves[0] + rest[sum];
      rest[sum] = 0;
      for (auto& chain : chains) chain[sum] = Lanes<kLanes>{};
    }
    added = 0;
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t from = 0; from < count; from += kBlock) {
      const int64_t to = std::min(count, from + kBlock);
      int64_t i = from;
      for (; i + kChains * kLanes <= to; i += kChains * kLanes) {
        // Unrolled by hand: in a loop the chains would be in memory.
        add(chains[0], row, i);
        add(chains[1], row, i + kLanes);
        add(chains[2], row, i + 2 * kLanes);
        add(chains[3], row, i + 3 * kLanes);
      }
      for (; i + kLanes <= to; i += kLanes) add(chains[0], row, i);
      for (; i < to; ++i) add(rest, row, i);
      added += to - from;
      if (added >= kBlock) flush();
    }
  }
  if (added > 0) flush();
}

template <int kLanes, int kSums, typename Sums, typename Add>
C10_ALWAYS_INLINE void Sum(int64_t count, Sums& sums, const Add& add) {
  SumRows<kLanes, kSums>(1, count, sums,
                         [&](auto& to, int64_t, int64_t i)
                             C10_ALWAYS_INLINE_ATTRIBUTE { add(to, i); });
}

/// The type of the sums that Sum() passes to `add`: a vector or float.
template <typename T>
using Element = std::remove_reference_t<decltype(std::declval<T>()[0])>;

}  // namespace torch_xla::cpu
