#include "ops/stack.h"

#include "cpu/calls.h"
#include "lowering/library_call.h"
#include "stablehlo/constants.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {
namespace {

cpu::StackCall BytesOf(const stablehlo::Type& part) {
  return {static_cast<int64_t>(part.num_elements() * runtime::ByteWidth(part.element))};
}

}  // namespace

Value Stack(const std::vector<Value>& parts) {
  const stablehlo::Type& part = parts[0].type();
  const auto count = static_cast<int64_t>(parts.size());
  Dims whole = part.dims;
  whole.insert(whole.begin(), count);
  const std::string text = BothForms(
      std::vector<stablehlo::Type>(parts.size(), part),
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        Dims one = whole;
        one[0] = 1;
        std::vector<Value> rows;
        for (Value argument : arguments) rows.push_back(stablehlo::Reshape(argument, one));
        return std::vector<Value>{stablehlo::Concatenate(rows, 0)};
      },
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        return CallLibrary(cpu::kStackTarget, arguments, {{part.element, whole}}, BytesOf(part));
      });
  stablehlo::Builder& builder = parts[0].builder();
  return builder.Call(builder.AddFunctions(text), parts)[0];
}

std::vector<Value> Unbind(Value x) {
  const int64_t count = x.dim(0);
  Dims dims = x.dims();
  dims.erase(dims.begin());
  const stablehlo::Type part(x.element(), dims);
  const std::string text = BothForms(
      {x.type()},
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        std::vector<Value> parts;
        Dims starts(x.rank(), 0), limits = x.dims();
        for (int64_t i = 0; i < count; ++i) {
          starts[0] = i;
          limits[0] = i + 1;
          parts.push_back(stablehlo::Reshape(stablehlo::Slice(arguments[0], starts, limits), dims));
        }
        return parts;
      },
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        return CallLibrary(cpu::kUnbindTarget, arguments, std::vector<stablehlo::Type>(count, part),
                           BytesOf(part));
      });
  stablehlo::Builder& builder = x.builder();
  return builder.Call(builder.AddFunctions(text), std::vector<Value>{x});
}

Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type) {
  const cpu::EmptyCall call{static_cast<int64_t>(builder.num_ops())};
  const std::string text = BothForms(
      {},
      [&](stablehlo::Builder& form, const std::vector<Value>&) {
        return std::vector<Value>{stablehlo::Constant(form, 0, type)};
      },
      [&](stablehlo::Builder& form, const std::vector<Value>&) {
        stablehlo::CustomCallOptions options;
        options.backend_config = WordsText(cpu::ToWords(call));
        return stablehlo::CustomCall(form, cpu::kEmptyTarget, {}, {type}, options);
      });
  return builder.Call(builder.AddFunctions(text), std::span<const Value>())[0];
}

}  // namespace torch_xla::lowering
