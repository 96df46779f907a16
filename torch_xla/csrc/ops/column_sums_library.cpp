#include "ops/column_sums_library.h"

#include <algorithm>

#include "XLAOps.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_loops.h"
#include "cpu/instruction_sets.h"
#include "ir/attributes.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_column_sums";

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
template <int kRows, typename T>
C10_ALWAYS_INLINE void AddFew(const Rows<T>& rows, int64_t columns, float* sums) {
  ForEach(columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    V lanes[kRows];
    for (int row = 0; row < kRows; ++row) lanes[row] = Load<V>(rows.data + row * rows.stride + i);
    for (int left = kRows / 2; left > 0; left /= 2) {
      for (int row = 0; row < left; ++row) lanes[row] += lanes[row + left];
    }
    Store<V>(Load<V>(sums + i) + lanes[0], sums + i);
  });
}

/// Adds the rows to sums[0] … sums[columns - 1].
template <typename T>
C10_ALWAYS_INLINE void Add(const Rows<T>& rows, int64_t columns, double* sums) {
  constexpr int kFew = 8;           // rows at once
  constexpr int64_t kBlock = 64;    // rows, so few that a float's sum does not lose much
  constexpr int64_t kWidth = 1024;  // columns, whose sums stay in the first cache
  float block[kWidth];
  for (int64_t column = 0; column < columns; column += kWidth) {
    const int64_t width = std::min(kWidth, columns - column);
    for (int64_t row = 0; row < rows.count; row += kBlock) {
      const int64_t end = std::min(rows.count, row + kBlock);
      std::fill_n(block, width, 0.0F);
      int64_t next = row;
      for (; next + kFew <= end; next += kFew) AddFew<kFew>(rows.From(next, column), width, block);
      for (; next < end; ++next) AddFew<1>(rows.From(next, column), width, block);
      for (int64_t i = 0; i < width; ++i) sums[column + i] += block[i];
    }
  }
}

template <typename T>
using AddRows = void (*)(const Rows<T>&, int64_t, double*);

template <typename T>
void Baseline(const Rows<T>& rows, int64_t columns, double* sums) {
  Add(rows, columns, sums);
}
template <typename T>
TORCH_XLA_AVX2 void Avx2(const Rows<T>& rows, int64_t columns, double* sums) {
  Add(rows, columns, sums);
}
template <typename T>
TORCH_XLA_AVX512 void Avx512(const Rows<T>& rows, int64_t columns, double* sums) {
  Add(rows, columns, sums);
}

// ---------------------------------------------------------------- the call

template <typename T>
void Sum(const XLA_FFI_CallFrame& frame, const Rows<T>& rows, int64_t columns, float* results) {
  static const auto add = ForThisProcessor<AddRows<T>>(&Baseline<T>, &Avx2<T>, &Avx512<T>);
  const int64_t parts = cpu::FfiParts(frame, rows.count * columns, 1 << 15);
  // Threads take columns, or rows where these are few.
  const bool by_rows = columns < 64 * parts;
  std::vector<double> sums((by_rows ? parts : 1) * columns);
  const int64_t groups = (columns + kFloatLanes - 1) / kFloatLanes;
  RunParts(frame, parts, by_rows ? rows.count : groups, [&](int64_t i, int64_t begin, int64_t end) {
    if (by_rows) {
      Rows<T> some = rows.From(begin, 0);
      some.count = end - begin;
      return add(some, columns, sums.data() + i * columns);
    }
    begin *= kFloatLanes;
    end = std::min(end * kFloatLanes, columns);
    add(rows.From(0, begin), end - begin, sums.data() + begin);
  });
  for (int64_t part = 1; by_rows && part < parts; ++part) {
    for (int64_t i = 0; i < columns; ++i) sums[i] += sums[part * columns + i];
  }
  for (int64_t i = 0; i < columns; ++i) results[i] = static_cast<float>(sums[i]);
}

void Handle(const XLA_FFI_CallFrame& frame) {
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

[[maybe_unused]] const bool registered = lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>();

/// Whether a view shows all elements of its operand, those of a row next to each other: products
/// read transposed matrices as they are, so that they need not be in memory.
bool ShowsRows(const ir::Node& view) {
  ir::AttributeReader words(view.attributes());
  const c10::IntArrayRef sizes = words.IntList(), strides = words.IntList();
  return !sizes.empty() && strides.back() == 1 &&
         view.shape(0)->numel == view.operands()[0].shape()->numel;
}

/// Whether what the node that is lowered reads is in memory: a parameter of the program, or what
/// others read, too. Else XLA may sum what it computes. Each reader has views of its own.
bool IsInMemory(LoweringContext& cx) {
  const ir::Node* reader = &cx.node();
  for (;;) {
    const ir::Value& operand = reader->operands()[0];
    const ir::Node& node = *operand.node;
    const bool is_view = &node.op() == &ir::ops::as_strided;
    if (is_view && !ShowsRows(node)) return false;
    if (operand.index > 0 || cx.SoleReader(node) != reader) return true;
    if (!is_view) return &node.op() == &ir::ops::device_data;
    reader = &node;
  }
}

}  // namespace

std::optional<Value> CallColumnSums(LoweringContext& cx, Value x, const Dims& dims) {
  const auto reduced = std::ssize(dims);
  const bool is_first =
      std::all_of(dims.begin(), dims.end(), [&](int64_t i) { return i < reduced; });
  if (!is_first || reduced == x.rank() || x.type().num_elements() == 0 ||
      (x.element() != ElementType::kF32 && x.element() != ElementType::kBF16) || !IsInMemory(cx)) {
    return std::nullopt;
  }
  const Dims kept(x.dims().begin() + reduced, x.dims().end());
  const bool is_large = x.type().num_elements() >= 1 << 12;
  if (ChooseKernel(cx, "column_sums", {is_large ? "large" : "small"},
                   {Kernel::kStableHlo, Kernel::kLibrary}) != Kernel::kLibrary) {
    return std::nullopt;
  }
  return CallLibrary(kTarget, {x}, {{ElementType::kF32, kept}})[0];
}

}  // namespace torch_xla::lowering
