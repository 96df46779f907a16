#include "ops/embedding_library.h"

#include <algorithm>

#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kAddTarget = "torch_xla.cpu_add_rows";
constexpr const char* kBagTarget = "torch_xla.cpu_embedding_bag";

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

void HandleAddRows(const XLA_FFI_CallFrame& frame) {
  const Matrix result(frame.rets.rets[0]);
  const RowSums sums(frame, FfiAttributes(frame.attrs).List("rows"), result.rows);
  InParts(frame, result.rows, result.columns, 1 << 15,
          [&](int64_t, int64_t begin, int64_t end) { sums.Make(begin, end, result.Row(begin)); });
}

void HandleBag(const XLA_FFI_CallFrame& frame) {
  const auto form = FfiAttributes(frame.attrs).List("form");
  const bool is_mean = form[0] != 0;
  const int64_t padding = form[1];
  void** const args = frame.args.args;
  const Matrix weight(args[0]);
  const FfiIntegers indices(args[1]), offsets(args[2]);
  const float* scale = frame.args.size > 3 ? FfiData<const float>(args[3]) : nullptr;
  const Matrix output(frame.rets.rets[0]);
  auto* const bags = FfiData<int64_t>(frame.rets.rets[1]);
  auto* const sizes = FfiData<int64_t>(frame.rets.rets[2]);
  const int64_t count = indices.size();
  // What a bag begins with, whatever the offsets are.
  auto begin_of = [&](int64_t bag) {
    return bag < offsets.size() ? std::clamp<int64_t>(offsets[bag], 0, count) : count;
  };
  const AddRow add = FindAddRow();
  std::fill_n(bags, begin_of(0), -1);
  // The last bag goes on to the end, though an offset may follow.
  const int64_t cost = (1 + count / std::max<int64_t>(output.rows, 1)) * output.columns;
  InParts(frame, output.rows, cost, 1 << 14, [&](int64_t, int64_t first, int64_t last) {
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

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kAddTarget, cpu::Handler<HandleAddRows>>() &&
    lazy::RegisterWithClient<kBagTarget, cpu::Handler<HandleBag>>();

bool IsFloat(Value x) { return x.element() == ElementType::kF32; }
bool IsInteger(Value x) {
  return x.element() == ElementType::kS64 || x.element() == ElementType::kS32;
}

bool IsChosen(const LoweringContext& cx, const char* operation) {
  return ChooseKernel(cx, operation, {}, {Kernel::kStableHlo, Kernel::kLibrary}) ==
         Kernel::kLibrary;
}

}  // namespace

std::optional<Value> CallAddRows(LoweringContext& cx, const AddedRows& rows, int64_t num_weights) {
  const auto& [grad, index, of, scale, padding] = rows;
  const stablehlo::Type type(ElementType::kF32, {num_weights, grad.dim(1)});
  if (!IsFloat(grad) || !IsInteger(index) || (of && !IsInteger(*of)) ||
      (scale && !IsFloat(*scale)) || type.num_elements() == 0 ||
      !IsChosen(cx, "embedding.gradient")) {
    return std::nullopt;
  }
  KeepAddedRows(cx, rows);
  std::vector<Value> operands{grad};
  Dims words;
  AddOperands(rows, 0, operands, words);
  return CallLibrary(kAddTarget, operands, {type}, "rows = " + stablehlo::I64Array(words))[0];
}

std::optional<std::vector<Value>> CallEmbeddingBag(const LoweringContext& cx, const BagCall& call) {
  const auto& scale = call.per_sample_weights;
  const int64_t bags = call.offsets.dim(0) - (call.include_last_offset ? 1 : 0);
  const int64_t columns = call.weight.dim(1), indices = call.indices.dim(0);
  if (!IsFloat(call.weight) || !IsInteger(call.indices) || !IsInteger(call.offsets) ||
      (scale && !IsFloat(*scale)) || bags <= 0 || indices == 0 ||
      call.weight.type().num_elements() == 0 || !IsChosen(cx, "embedding_bag")) {
    return std::nullopt;
  }
  std::vector<Value> operands{call.weight, call.indices, call.offsets};
  if (scale) operands.push_back(*scale);
  const Dims form{call.is_mean, call.padding_idx < 0 ? -1 : call.padding_idx};
  return CallLibrary(kBagTarget, operands,
                     {{ElementType::kF32, {bags, columns}},
                      {ElementType::kS64, {indices}},
                      {ElementType::kS64, {bags}}},
                     "form = " + stablehlo::I64Array(form));
}

}  // namespace torch_xla::lowering
