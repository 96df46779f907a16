#include "cpu/row_sums.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "cpu/ffi_tensor.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

C10_ALWAYS_INLINE void Add(const float* from, float scale, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i] * scale;
}

const runtime::pjrt::XLA_FFI_Buffer& Buffer(const void* buffer) {
  return *static_cast<const runtime::pjrt::XLA_FFI_Buffer*>(buffer);
}

}  // namespace

FfiIntegers::FfiIntegers(const void* buffer)
    : data_(Buffer(buffer).data),
      is_long_(Buffer(buffer).dtype == runtime::pjrt::XLA_FFI_DataType_S64),
      size_(Buffer(buffer).rank > 0 ? Buffer(buffer).dims[0] : 1) {}

AddRow FindAddRow() { return ForThisProcessor<&Add>(); }

RowSums::RowSums(const runtime::pjrt::XLA_FFI_CallFrame& frame, const AddedRowsCall& call,
                 int64_t rows) {
  auto operand = [&](int64_t place) { return place < 0 ? nullptr : frame.args.args[place]; };
  void* const grads = operand(call.grad);
  void *const of_buffer = operand(call.of), *const scale_buffer = operand(call.scale);
  const auto* grad = FfiData<const float>(grads);
  const int64_t grad_rows = Buffer(grads).dims[0];
  columns_ = Buffer(grads).dims[1];
  constexpr uint64_t kFew = 4096;  // elements
  shift_ = std::bit_width(std::max<uint64_t>(kFew / columns_, 1)) - 1;
  const FfiIntegers index(operand(call.index)), of(of_buffer ? of_buffer : operand(call.index));
  const auto* scale = scale_buffer ? FfiData<const float>(scale_buffer) : nullptr;
  const int64_t padding = FfiIntegers(operand(call.padding))[0];
  auto for_each = [&](const auto& use) {
    for (int64_t k = 0; k < index.size(); ++k) {
      const int64_t row = index[k], from = of_buffer ? of[k] : k;
      if (row < 0 || row >= rows || row == padding || from < 0 || from >= grad_rows) continue;
      use(Added{row, grad + from * columns_, scale ? scale[k] : 1});
    }
  };
  // A counting sort.
  starts_.assign(((rows - 1) >> shift_) + 2, 0);
  for_each([&](const Added& added) { ++starts_[(added.row >> shift_) + 1]; });
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  added_.resize(starts_.back());
  std::vector<int64_t> next = starts_;
  for_each([&](const Added& added) { added_[next[added.row >> shift_]++] = added; });
}

void RowSums::Make(int64_t begin, int64_t end, float* to) const {
  std::memset(to, 0, (end - begin) * columns_ * sizeof(float));
  if (begin == end) return;
  const AddRow add = FindAddRow();
  const int64_t first = starts_[begin >> shift_], last = starts_[((end - 1) >> shift_) + 1];
  for (int64_t i = first; i < last; ++i) {
    const Added& added = added_[i];
    if (added.row < begin || added.row >= end) continue;
    add(added.from, added.scale, to + (added.row - begin) * columns_, columns_);
  }
}

}  // namespace torch_xla::cpu
