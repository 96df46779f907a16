// Products of a few rows with weights. Such a product reads little else than the weights, so it
// must not copy them: BLAS and XLA's library pack or transpose the weights at each call.
#include <algorithm>
#include <cstring>

#include "cpu/calls.h"
#include "cpu/choices.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/float_vectors.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// out[i, j] = sum over l of rows[i, l] * weights[j, l]. All are contiguous. T is float or
/// c10::BFloat16.
template <typename T>
struct FewRows {
  const T* rows;     // [m, k]
  const T* weights;  // [n, k]; or, by columns, [k, n]
  float* out;        // [m, n]
  int64_t m, n, k;
  bool by_columns;
};

template <int kLanes, typename T>
C10_ALWAYS_INLINE Lanes<kLanes> LoadFirst(const T* from, int64_t count) {
  alignas(kLanes * sizeof(T)) unsigned char some[kLanes * sizeof(T)] = {};
  std::memcpy(some, from, count * sizeof(T));
  return Load<Lanes<kLanes>>(reinterpret_cast<const T*>(some));
}

/// Adds the halves of a vector until four lanes are left.
template <int kLanes>
C10_ALWAYS_INLINE Lanes<4> Fold(Lanes<kLanes> x) {
  if constexpr (kLanes == 16) {
    return Fold<8>(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
  } else if constexpr (kLanes == 8) {
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  } else {
    return x;
  }
}

/// How many elements to prefetch ahead.
template <typename T>
constexpr int64_t kAhead = 8192 / sizeof(T);

/// kRows x kColumns of the result.
template <int kLanes, int kRows, int kColumns, typename T>
C10_ALWAYS_INLINE void Tile(const FewRows<T>& product, int64_t row, int64_t column) {
  const int64_t k = product.k;
  const T* rows = product.rows + row * k;
  const T* weights = product.weights + column * k;
  Lanes<kLanes> sums[kColumns][kRows] = {};
  int64_t l = 0;
  for (; l + kLanes <= k; l += kLanes) {
    Lanes<kLanes> xs[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = Load<Lanes<kLanes>>(rows + i * k + l);
    for (int j = 0; j < kColumns; ++j) {
      // In the order of memory: rows are too short for the processor's prefetcher.
      __builtin_prefetch(weights + kColumns * l + j * kLanes + kAhead<T>);
      const auto w = Load<Lanes<kLanes>>(weights + j * k + l);
      for (int i = 0; i < kRows; ++i) sums[j][i] += w * xs[i];
    }
  }
  if (l < k) {
    Lanes<kLanes> xs[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = LoadFirst<kLanes>(rows + i * k + l, k - l);
    for (int j = 0; j < kColumns; ++j) {
      const auto w = LoadFirst<kLanes>(weights + j * k + l, k - l);
      for (int i = 0; i < kRows; ++i) sums[j][i] += w * xs[i];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float* out = product.out + (row + i) * product.n + column;
    if constexpr (kColumns == 4) {
      const Lanes<4> a = Fold<kLanes>(sums[0][i]), b = Fold<kLanes>(sums[1][i]);
      const Lanes<4> c = Fold<kLanes>(sums[2][i]), d = Fold<kLanes>(sums[3][i]);
      const Lanes<4> ab =
          __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Lanes<4> cd =
          __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
      Lanes<4> sum =
          __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
      std::memcpy(out, &sum, sizeof(sum));
    } else {
      static_assert(kColumns == 1);
      const Lanes<4> a = Fold<kLanes>(sums[0][i]);
      *out = (a[0] + a[2]) + (a[1] + a[3]);
    }
  }
}

/// `kRows` rows at a time, as many as there are registers for.
template <int kLanes, int kRows, typename T>
C10_ALWAYS_INLINE void Columns(const FewRows<T>& product, int64_t column, int64_t end) {
  for (; column + 4 <= end; column += 4) {
    int64_t row = 0;
    for (; row + kRows <= product.m; row += kRows) Tile<kLanes, kRows, 4>(product, row, column);
    for (; row < product.m; ++row) Tile<kLanes, 1, 4>(product, row, column);
  }
  for (; column < end; ++column) {
    for (int64_t row = 0; row < product.m; ++row) Tile<kLanes, 1, 1>(product, row, column);
  }
}

/// Adds `kDepth` terms to the columns of each row. Weights stored by columns need no transposition.
template <int kLanes, int kDepth, typename T>
C10_ALWAYS_INLINE void AddTerms(const FewRows<T>& product, int64_t l, int64_t begin, int64_t end) {
  const T* weights = product.weights + l * product.n;
  const bool starts = l == 0;
  const int64_t ahead = kDepth * std::max<int64_t>(1, kAhead<T> / (kDepth * product.n)) * product.n;
  for (int64_t column = begin; column + kLanes <= end; column += kLanes) {
    Lanes<kLanes> w[kDepth];
    for (int t = 0; t < kDepth; ++t) {
      w[t] = Load<Lanes<kLanes>>(weights + t * product.n + column);
      if constexpr (kDepth > 1) __builtin_prefetch(weights + t * product.n + column + ahead);
    }
    for (int64_t row = 0; row < product.m; ++row) {
      const T* x = product.rows + row * product.k + l;
      float* out = product.out + row * product.n + column;
      Lanes<kLanes> sum = starts ? Lanes<kLanes>{} : Load<Lanes<kLanes>>(out);
      for (int t = 0; t < kDepth; ++t) sum += w[t] * Load<float>(x + t);
      std::memcpy(out, &sum, sizeof(sum));
    }
  }
  for (int64_t column = end - (end - begin) % kLanes; column < end; ++column) {
    for (int64_t row = 0; row < product.m; ++row) {
      const T* x = product.rows + row * product.k + l;
      float& out = product.out[row * product.n + column];
      float sum = starts ? 0 : out;
      for (int t = 0; t < kDepth; ++t)
        sum += Load<float>(weights + t * product.n + column) * Load<float>(x + t);
      out = sum;
    }
  }
}

template <int kLanes, typename T>
C10_ALWAYS_INLINE void Terms(const FewRows<T>& product, int64_t begin, int64_t end) {
  constexpr int kDepth = 8;
  if (product.k == 0) {
    for (int64_t row = 0; row < product.m; ++row) {
      std::fill_n(product.out + row * product.n + begin, end - begin, 0.f);
    }
  }
  int64_t l = 0;
  for (; l + kDepth <= product.k; l += kDepth) AddTerms<kLanes, kDepth>(product, l, begin, end);
  for (; l < product.k; ++l) AddTerms<kLanes, 1>(product, l, begin, end);
}

template <int kLanes, int kRows, typename T>
C10_ALWAYS_INLINE void Compute(const FewRows<T>& product, int64_t begin, int64_t end) {
  if (product.by_columns) return Terms<kLanes>(product, begin, end);
  Columns<kLanes, kRows>(product, begin, end);
}

template <typename T>
void Multiply(const XLA_FFI_CallFrame& frame) {
  const auto& rows = *static_cast<XLA_FFI_Buffer*>(frame.args.args[0]);
  const auto& out = *static_cast<XLA_FFI_Buffer*>(frame.rets.rets[0]);
  const int64_t batch = rows.rank - 2;
  FewRows<T> product{.rows = static_cast<const T*>(rows.data),
                     .weights = FfiData<const T>(frame.args.args[1]),
                     .out = static_cast<float*>(out.data),
                     .m = out.dims[batch],
                     .n = out.dims[batch + 1],
                     .k = rows.dims[batch + 1],
                     .by_columns = CallOf<FewRowsCall>(frame).by_columns != 0};
  const int64_t m = product.m, n = product.n, k = product.k;
  int64_t columns = n;
  for (int64_t i = 0; i < batch; ++i) columns *= out.dims[i];
  if (columns * m == 0) return;
  const auto compute = ForThisProcessor<&Compute<4, 2, T>, &Compute<8, 2, T>, &Compute<16, 4, T>>();
  InParts(frame, columns, k * (1 + m / 4) * choices::kFloat, [&](int64_t column, int64_t end) {
    FewRows<T> some = product;
    while (column < end) {
      const int64_t at = column / n, first = column % n, last = std::min(n, first + end - column);
      some.rows = product.rows + at * m * k;
      some.weights = product.weights + at * n * k;
      some.out = product.out + at * m * n;
      compute(some, first, last);
      column += last - first;
    }
  });
}

}  // namespace

void RunFewRows(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Multiply<float>(frame) : Multiply<c10::BFloat16>(frame);
}

}  // namespace torch_xla::cpu
