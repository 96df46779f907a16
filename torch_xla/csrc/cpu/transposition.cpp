// The call that makes a transposition in memory (stablehlo/transposition.h), one square after the
// other, so that the cache lines of both sides stay in the first cache until they are used up.
#include <algorithm>
#include <cstdint>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

constexpr int64_t kSquare = 16;

/// Columns `begin` to `end` of [rows, columns] become rows of [columns, rows].
template <typename T>
void Transpose(const T* from, T* to, int64_t rows, int64_t columns, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += kSquare) {
    const int64_t width = std::min(kSquare, end - column);
    for (int64_t row = 0; row < rows; row += kSquare) {
      const int64_t height = std::min(kSquare, rows - row);
      for (int64_t c = column; c < column + width; ++c) {
        for (int64_t r = row; r < row + height; ++r) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
}

template <typename T>
void TransposeAll(const XLA_FFI_CallFrame& frame) {
  const auto& operand = *static_cast<XLA_FFI_Buffer*>(frame.args.args[0]);
  const auto& result = *static_cast<XLA_FFI_Buffer*>(frame.rets.rets[0]);
  const int64_t batch = operand.dims[0], rows = operand.dims[1], columns = operand.dims[2];
  const int64_t strips = (columns + kSquare - 1) / kSquare, all = batch * strips;
  InParts(frame, all, rows * kSquare * choices::kMoved, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i % strips * kSquare, at = i / strips * rows * columns;
      Transpose(static_cast<const T*>(operand.data) + at, static_cast<T*>(result.data) + at, rows,
                columns, begin, std::min(columns, begin + kSquare));
    }
  });
}

}  // namespace

void RunTransposition(const XLA_FFI_CallFrame& frame) {
  const at::Tensor operand = FfiTensor(frame.args.args[0]);
  switch (operand.element_size()) {
    case 1:
      return TransposeAll<uint8_t>(frame);
    case 2:
      return TransposeAll<uint16_t>(frame);
    case 4:
      return TransposeAll<uint32_t>(frame);
    default:
      return TransposeAll<uint64_t>(frame);
  }
}

}  // namespace torch_xla::cpu
