// Sums over the rows of a matrix, such as the gradient of a linear layer's bias, by a call if the
// matrix is in memory in any case. XLA:CPU would compile two kernels for each shape: one sums
// windows of the rows, and the other sums the results.
#include <algorithm>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_loops.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

// ---------------------------------------------------------------- the kernel

template <typename T>
struct Rows {
  const T* data;
  int64_t stride, count;

  Rows From(int64_t row, int64_t column) const {
    return {data + row * stride + column, stride, count - row};
  }
};

/// sums[i] += rows[0][i] + … + rows[kRows - 1][i]
template <int kLanes, int kRows, typename T>
C10_ALWAYS_INLINE void AddFew(const Rows<T>& rows, int64_t columns, float* sums) {
  ForEach<kLanes>(columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    V lanes[kRows];
    for (int row = 0; row < kRows; ++row) lanes[row] = Load<V>(rows.data + row * rows.stride + i);
    for (int left = kRows / 2; left > 0; left /= 2) {
      for (int row = 0; row < left; ++row) lanes[row] += lanes[row + left];
    }
    Store<V>(Load<V>(sums + i) + lanes[0], sums + i);
  });
}

/// Adds the rows to sums[0] … sums[columns - 1].
template <int kLanes, typename T>
C10_ALWAYS_INLINE void Add(const Rows<T>& rows, int64_t columns, double* sums) {
  constexpr int kFew = 8;           // rows at once
  constexpr int64_t kBlock = 64;    // rows; few enough to sum in float without much loss
  constexpr int64_t kWidth = 1024;  // columns, whose sums stay in the first cache
  float block[kWidth];
  for (int64_t column = 0; column < columns; column += kWidth) {
    const int64_t width = std::min(kWidth, columns - column);
    for (int64_t row = 0; row < rows.count; row += kBlock) {
      const int64_t end = std::min(rows.count, row + kBlock);
      std::fill_n(block, width, 0.0F);
      int64_t next = row;
      for (; next + kFew <= end; next += kFew)
        AddFew<kLanes, kFew>(rows.From(next, column), width, block);
      for (; next < end; ++next) AddFew<kLanes, 1>(rows.From(next, column), width, block);
      for (int64_t i = 0; i < width; ++i) sums[column + i] += block[i];
    }
  }
}

// ---------------------------------------------------------------- the call

template <typename T>
void Sum(const XLA_FFI_CallFrame& frame, const Rows<T>& rows, int64_t columns, float* results) {
  const auto add = ForThisProcessor<&Add<4, T>, &Add<8, T>, &Add<16, T>>();
  // Threads take columns, or rows if there are few columns.
  const int64_t cost = rows.count * columns * choices::kFloat;
  const int64_t row_parts = PartsWorthAThread(cost, choices::kMostParts);
  const bool by_rows = columns < 64 * row_parts;
  const int64_t parts = by_rows ? row_parts : FfiParts(frame, cost);
  std::vector<double> sums((by_rows ? parts : 1) * columns);
  constexpr int64_t kGroup = 16;
  const int64_t groups = (columns + kGroup - 1) / kGroup;
  RunParts(frame, parts, by_rows ? rows.count : groups, [&](int64_t i, int64_t begin, int64_t end) {
    if (by_rows) {
      Rows<T> some = rows.From(begin, 0);
      some.count = end - begin;
      return add(some, columns, sums.data() + i * columns);
    }
    begin *= kGroup;
    end = std::min(end * kGroup, columns);
    add(rows.From(0, begin), end - begin, sums.data() + begin);
  });
  for (int64_t part = 1; by_rows && part < parts; ++part) {
    for (int64_t i = 0; i < columns; ++i) sums[i] += sums[part * columns + i];
  }
  for (int64_t i = 0; i < columns; ++i) results[i] = static_cast<float>(sums[i]);
}

}  // namespace

void RunColumnSums(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = FfiTensor(frame.args.args[0]), result = FfiTensor(frame.rets.rets[0]);
  const int64_t columns = result.numel(), count = x.numel() / columns;
  auto* const results = result.mutable_data_ptr<float>();
  if (x.scalar_type() == at::kFloat) {
    Sum(frame, Rows<float>{x.const_data_ptr<float>(), columns, count}, columns, results);
  } else {
    using c10::BFloat16;
    Sum(frame, Rows<BFloat16>{x.const_data_ptr<BFloat16>(), columns, count}, columns, results);
  }
}

}  // namespace torch_xla::cpu
