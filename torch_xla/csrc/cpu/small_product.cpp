#include "cpu/small_product.h"

#include <algorithm>

#include "cpu/instruction_sets.h"
#include "cpu/product_tile.h"

namespace torch_xla::cpu {
namespace {

/// Some columns of all rows; as many rows at a time as there are registers for.
template <bool kByTerm, int kLanes, int kVectors, int kRows>
C10_ALWAYS_INLINE void Rows(const SmallProduct& product, const float* b, int64_t b_term,
                            int64_t row, int64_t end, int64_t column) {
  for (; row + kRows <= end; row += kRows) {
    const float* a = product.a + row * (kByTerm ? 1 : product.a_row);
    MultiplyTile<kLanes, kVectors, kRows>(
        a, kByTerm ? 1 : product.a_row, kByTerm ? product.a_term : 1, b, b_term, product.terms,
        product.c + row * product.c_row + column, product.c_row, product.adds);
  }
  if constexpr (kRows > 1) {
    Rows<kByTerm, kLanes, kVectors, kRows / 2>(product, b, b_term, row, end, column);
  }
}

/// All columns of rows that stay in the nearest cache.
template <bool kByTerm, int kLanes, int kVectors, int kRows>
C10_ALWAYS_INLINE void Columns(const SmallProduct& product, int64_t row, int64_t end) {
  constexpr int kWidth = kLanes * kVectors;
  if constexpr (kVectors > 1) {
    // Eight independent sums hide the latency of additions.
    if (product.columns < kWidth) {
      return Columns<kByTerm, kLanes, 1, std::max(kRows, 8)>(product, row, end);
    }
  }
  int64_t column = 0;
  for (int64_t panel = 0; column < product.columns; column += kWidth, ++panel) {
    if constexpr (kVectors > 1) {
      // One vector is left. It must not overlap columns that were added already.
      if (product.adds && column + kWidth > product.columns) {
        Rows<kByTerm, kLanes, 1, std::max(kRows, 8)>(product, product.b + column, product.b_term,
                                                     row, end, column);
        break;
      }
    }
    const int64_t begin = std::min(column, product.columns - kWidth);
    const bool packed = product.b_panel > 0;
    const float* b = product.b + (packed ? panel * product.b_panel : begin);
    Rows<kByTerm, kLanes, kVectors, kRows>(product, b, packed ? kWidth : product.b_term, row, end,
                                           begin);
  }
}

template <int kLanes, int kVectors, int kRows>
C10_ALWAYS_INLINE void MultiplyBy(const SmallProduct& product) {
  constexpr int64_t kBlock = 32;
  for (int64_t row = 0; row < product.rows; row += kBlock) {
    const int64_t end = std::min(row + kBlock, product.rows);
    if (product.a_row == 1) {
      Columns<true, kLanes, kVectors, kRows>(product, row, end);
    } else {
      Columns<false, kLanes, kVectors, kRows>(product, row, end);
    }
  }
}

template <int kLanes>
C10_ALWAYS_INLINE void Pack(const float* from, int64_t stride, int64_t terms, float* panel) {
  for (int64_t term = 0; term < terms; term += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, terms - term);
    for (int half = 0; half < 2; ++half) {
      Lanes<kLanes> block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = Load<Lanes<kLanes>>(from + (half * kLanes + i) * stride + term);
      }
      Transpose<kLanes>(block);
      for (int64_t i = 0; i < count; ++i) {
        Store(block[i], panel + (2 * (term + i) + half) * kLanes);
      }
    }
  }
}

}  // namespace

int64_t ProductLanes() {
  static const auto lanes = ChooseForProcessor<int64_t>(4, 8, 16);
  return lanes;
}

void Multiply(const SmallProduct& product) {
  ForThisProcessor<&MultiplyBy<4, 2, 4>, &MultiplyBy<8, 2, 4>, &MultiplyBy<16, 2, 8>>()(product);
}

void PackPanel(const float* from, int64_t stride, int64_t terms, float* panel) {
  ForThisProcessor<&Pack<4>, &Pack<8>, &Pack<16>>()(from, stride, terms, panel);
}

}  // namespace torch_xla::cpu
