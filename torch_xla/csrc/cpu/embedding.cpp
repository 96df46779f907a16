// Sums of a table's rows by bag, and their gradients. XLA would find the bags by a scatter and a
// prefix sum, and would fill or copy a table of zeros to add a few rows to it.
#include <algorithm>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"
#include "cpu/row_sums.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

struct Matrix {
  explicit Matrix(void* buffer) {
    const auto& given = *static_cast<XLA_FFI_Buffer*>(buffer);
    data = FfiData<float>(buffer);
    rows = given.dims[0];
    columns = given.dims[1];
  }
  float* Row(int64_t i) const { return data + i * columns; }

  float* data;
  int64_t rows, columns;
};

}  // namespace

void RunAddRows(const XLA_FFI_CallFrame& frame) {
  const Matrix result(frame.rets.rets[0]);
  const RowSums sums(frame, CallOf<AddedRowsCall>(frame), result.rows);
  InParts(frame, result.rows, result.columns * choices::kFloat,
          [&](int64_t begin, int64_t end) { sums.Make(begin, end, result.Row(begin)); });
}

void RunEmbeddingBag(const XLA_FFI_CallFrame& frame) {
  const auto [is_mean, padding] = CallOf<EmbeddingBagCall>(frame);
  void** const args = frame.args.args;
  const Matrix weight(args[0]);
  const FfiIntegers indices(args[1]), offsets(args[2]);
  const float* scale = frame.args.size > 3 ? FfiData<const float>(args[3]) : nullptr;
  const Matrix output(frame.rets.rets[0]);
  auto* const bags = FfiData<int64_t>(frame.rets.rets[1]);
  auto* const sizes = FfiData<int64_t>(frame.rets.rets[2]);
  const int64_t count = indices.size();
  // The first index of a bag, clamped, since offsets may be out of range.
  auto begin_of = [&](int64_t bag) {
    return bag < offsets.size() ? std::clamp<int64_t>(offsets[bag], 0, count) : count;
  };
  const AddRow add = FindAddRow();
  std::fill_n(bags, begin_of(0), -1);
  // The last bag reaches to the end, even if another offset follows.
  const int64_t cost = (1 + count / std::max<int64_t>(output.rows, 1)) * output.columns;
  InParts(frame, output.rows, cost * choices::kFloat, [&](int64_t first, int64_t last) {
    for (int64_t bag = first; bag < last; ++bag) {
      float* row = output.Row(bag);
      std::fill_n(row, output.columns, 0.0F);
      const int64_t end = bag + 1 < output.rows ? begin_of(bag + 1) : count;
      int64_t size = 0;
      for (int64_t k = begin_of(bag); k < end; ++k) {
        bags[k] = bag;
        if (indices[k] == padding) continue;
        ++size;
        const int64_t from = std::clamp<int64_t>(indices[k], 0, weight.rows - 1);
        add(weight.Row(from), scale ? scale[k] : 1, row, output.columns);
      }
      sizes[bag] = size;
      if (!is_mean || size < 2) continue;
      for (int64_t i = 0; i < output.columns; ++i) row[i] /= static_cast<float>(size);
    }
  });
}

}  // namespace torch_xla::cpu
