#include "ops/few_rows_library.h"

#include <ATen/Version.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "lazy/cpu_handler.h"
#include "lowering/ffi_tensor.h"
#include "lowering/library_call.h"
#include "runtime/ffi_threads.h"
#include "stablehlo/text.h"

#if defined(__x86_64__) && defined(__linux__)
#define HAS_X86_LEVELS
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#pragma GCC diagnostic ignored "-Wpsabi"  // of functions that are inlined
#endif
#define INLINE inline __attribute__((always_inline))

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_few_rows";

template <int kLanes>
struct Vector {
  using Type __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias)) = float;
};
template <int kLanes>
using Lanes = typename Vector<kLanes>::Type;

template <int kLanes>
INLINE Lanes<kLanes> Load(const float* from) {
  return *reinterpret_cast<const Lanes<kLanes>*>(from);
}

template <int kLanes>
INLINE Lanes<kLanes> LoadFirst(const float* from, int64_t count) {
  Lanes<kLanes> lanes{};
  std::memcpy(&lanes, from, count * sizeof(float));
  return lanes;
}

/// Sums of lanes, four of them left.
template <int kLanes>
INLINE Lanes<4> Fold(Lanes<kLanes> x) {
  if constexpr (kLanes == 16) {
    return Fold<8>(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
  } else if constexpr (kLanes == 8) {
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  } else {
    return x;
  }
}

constexpr int64_t kAhead = 2048;  // elements, of what memory gives in the meantime

/// kRows x kColumns of the result.
template <int kLanes, int kRows, int kColumns>
INLINE void Tile(const FewRows& product, int64_t row, int64_t column) {
  const int64_t k = product.k;
  const float* rows = product.rows + row * k;
  const float* weights = product.weights + column * k;
  Lanes<kLanes> sums[kColumns][kRows] = {};
  int64_t l = 0;
  for (; l + kLanes <= k; l += kLanes) {
    Lanes<kLanes> xs[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = Load<kLanes>(rows + i * k + l);
    for (int j = 0; j < kColumns; ++j) {
      // As the weights lie: rows are too short for the processor to see where it goes.
      __builtin_prefetch(weights + kColumns * l + j * kLanes + kAhead);
      const auto w = Load<kLanes>(weights + j * k + l);
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
    float* out = product.out + (row + i) * product.out_stride + column;
    if constexpr (kColumns == 4) {
      const Lanes<4> a = Fold<kLanes>(sums[0][i]), b = Fold<kLanes>(sums[1][i]);
      const Lanes<4> c = Fold<kLanes>(sums[2][i]), d = Fold<kLanes>(sums[3][i]);
      const Lanes<4> ab =
          __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Lanes<4> cd =
          __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
      Lanes<4> sum =
          __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
      if (product.accumulate) sum += Load<4>(out);
      std::memcpy(out, &sum, sizeof(sum));
    } else {
      static_assert(kColumns == 1);
      const Lanes<4> a = Fold<kLanes>(sums[0][i]);
      const float sum = (a[0] + a[2]) + (a[1] + a[3]);
      *out = product.accumulate ? *out + sum : sum;
    }
  }
}

/// `kRows` at a time, as many as there are registers for.
template <int kLanes, int kRows>
INLINE void Columns(const FewRows& product, int64_t column, int64_t end) {
  for (; column + 4 <= end; column += 4) {
    int64_t row = 0;
    for (; row + kRows <= product.m; row += kRows) Tile<kLanes, kRows, 4>(product, row, column);
    for (; row < product.m; ++row) Tile<kLanes, 1, 4>(product, row, column);
  }
  for (; column < end; ++column) {
    for (int64_t row = 0; row < product.m; ++row) Tile<kLanes, 1, 1>(product, row, column);
  }
}

/// `kDepth` terms of the sums of a row's columns: weights that lie by columns are read as they lie.
template <int kLanes, int kDepth>
INLINE void AddTerms(const FewRows& product, int64_t l, int64_t begin, int64_t end) {
  const float* weights = product.weights + l * product.n;
  const bool starts = l == 0 && !product.accumulate;
  const int64_t ahead = kDepth * std::max<int64_t>(1, kAhead / (kDepth * product.n)) * product.n;
  for (int64_t column = begin; column + kLanes <= end; column += kLanes) {
    Lanes<kLanes> w[kDepth];
    for (int t = 0; t < kDepth; ++t) {
      w[t] = Load<kLanes>(weights + t * product.n + column);
      if constexpr (kDepth > 1) __builtin_prefetch(weights + t * product.n + column + ahead);
    }
    for (int64_t row = 0; row < product.m; ++row) {
      const float* x = product.rows + row * product.k + l;
      float* out = product.out + row * product.out_stride + column;
      Lanes<kLanes> sum = starts ? Lanes<kLanes>{} : Load<kLanes>(out);
      for (int t = 0; t < kDepth; ++t) sum += w[t] * x[t];
      std::memcpy(out, &sum, sizeof(sum));
    }
  }
  for (int64_t column = end - (end - begin) % kLanes; column < end; ++column) {
    for (int64_t row = 0; row < product.m; ++row) {
      const float* x = product.rows + row * product.k + l;
      float& out = product.out[row * product.out_stride + column];
      float sum = starts ? 0 : out;
      for (int t = 0; t < kDepth; ++t) sum += weights[t * product.n + column] * x[t];
      out = sum;
    }
  }
}

template <int kLanes>
INLINE void Terms(const FewRows& product, int64_t begin, int64_t end) {
  constexpr int kDepth = 8;
  int64_t l = 0;
  for (; l + kDepth <= product.k; l += kDepth) AddTerms<kLanes, kDepth>(product, l, begin, end);
  for (; l < product.k; ++l) AddTerms<kLanes, 1>(product, l, begin, end);
}

template <int kLanes, int kRows>
INLINE void Compute(const FewRows& product, int64_t begin, int64_t end) {
  if (product.by_columns) return Terms<kLanes>(product, begin, end);
  Columns<kLanes, kRows>(product, begin, end);
}

using Function = void (*)(const FewRows&, int64_t, int64_t);

void Baseline(const FewRows& product, int64_t begin, int64_t end) {
  Compute<4, 2>(product, begin, end);
}

// Chosen at run time, as the package is built for any processor of the architecture.
#if defined(HAS_X86_LEVELS)
__attribute__((target("avx2,fma"))) void Avx2(const FewRows& product, int64_t begin, int64_t end) {
  Compute<8, 2>(product, begin, end);
}
__attribute__((target("avx512f,avx512vl,avx2,fma"))) void Avx512(const FewRows& product,
                                                                 int64_t begin, int64_t end) {
  Compute<16, 4>(product, begin, end);
}

Function Best() {
  const std::string capability = at::get_cpu_capability();  // or what ATEN_CPU_CAPABILITY says
  return capability == "AVX512" ? &Avx512 : capability == "AVX2" ? &Avx2 : &Baseline;
}
#else
Function Best() { return &Baseline; }
#endif

void Handle(const XLA_FFI_CallFrame& frame) {
  const auto& rows = *static_cast<XLA_FFI_Buffer*>(frame.args.args[0]);
  const auto& weights = *static_cast<XLA_FFI_Buffer*>(frame.args.args[1]);
  const auto& out = *static_cast<XLA_FFI_Buffer*>(frame.rets.rets[0]);
  const int64_t batch = rows.rank - 2;
  const int64_t m = out.dims[batch], n = out.dims[batch + 1], k = rows.dims[batch + 1];
  int64_t columns = n;
  for (int64_t i = 0; i < batch; ++i) columns *= out.dims[i];
  if (columns * m == 0) return;
  const bool by_columns = FfiAttributes(frame.attrs).List("by_columns")[0] != 0;
  // Less than this is not worth a second thread.
  constexpr int64_t kLeast = 1 << 17;
  const int64_t parts =
      std::clamp<int64_t>(columns * k * (1 + m / 4) / kLeast, 1, runtime::FfiThreads(frame));
  runtime::RunOnFfiThreads(frame, parts, [&](int64_t part) {
    const int64_t end = columns * (part + 1) / parts;
    for (int64_t column = columns * part / parts; column < end;) {
      const int64_t at = column / n, first = column % n;
      const int64_t last = std::min(n, first + end - column);
      FewRows{.rows = static_cast<const float*>(rows.data) + at * m * k,
              .weights = static_cast<const float*>(weights.data) + at * n * k,
              .out = static_cast<float*>(out.data) + at * m * n,
              .m = m,
              .n = n,
              .k = k,
              .out_stride = n,
              .by_columns = by_columns}
          .Run(first, last);
      column += last - first;
    }
  });
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, lazy::CpuHandler<Handle>>();

}  // namespace

void FewRows::Run(int64_t begin, int64_t end) const {
  static const Function best = Best();
  if (k == 0 && !accumulate) {
    for (int64_t i = 0; i < m; ++i)
      std::fill(out + i * out_stride + begin, out + i * out_stride + end, 0.f);
  }
  best(*this, begin, end);
}

Value CallFewRows(Value rows, Value weights, bool by_columns) {
  Dims dims = rows.dims();
  dims.back() = weights.dim(weights.rank() - (by_columns ? 1 : 2));
  return CallLibrary(kTarget, {rows, weights}, {{rows.element(), dims}},
                     "by_columns = " + stablehlo::I64Array(Dims{by_columns}))[0];
}

}  // namespace torch_xla::lowering
