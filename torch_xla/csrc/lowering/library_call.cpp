#include "lowering/library_call.h"

#include <utility>

#include "cpu/ffi_tensor.h"
#include "lowering/row_major.h"
#include "stablehlo/joined_dims.h"
#include "stablehlo/text.h"
#include "stablehlo/transposition.h"

namespace torch_xla::lowering {

using stablehlo::Cat;

// stablehlo/ writes this call itself, since it must not include cpu/.
static_assert(std::string_view(cpu::kTranspositionTarget) == stablehlo::kTransposition);

std::vector<Value> CallLibrary(const char* target, const std::vector<Value>& operands,
                               const std::vector<stablehlo::Type>& results, const cpu::Words& words,
                               std::vector<stablehlo::OutputOperandAlias> aliases) {
  stablehlo::Builder& builder = operands[0].builder();
  std::vector<Value> forms;
  Dims dims;
  bool has_form = false;
  for (Value operand : operands) {
    const Value form = stablehlo::ComputedForm(operand);
    has_form |= form != operand;
    forms.push_back(form);
    dims.push_back(operand.rank());
    dims.insert(dims.end(), operand.dims().begin(), operand.dims().end());
  }
  stablehlo::CustomCallOptions options;
  if (!words.empty()) options.backend_config = WordsText(words);
  options.aliases = std::move(aliases);
  if (has_form) {
    if (!options.backend_config.empty()) options.backend_config += ", ";
    options.backend_config += Cat(cpu::kOperandDims, " = ", stablehlo::I64Array(dims));
  }
  for (Value form : forms) options.operand_layouts.push_back(RowMajor(form.rank()));
  for (const auto& type : results) options.result_layouts.push_back(RowMajor(type.rank()));
  return stablehlo::CustomCall(builder, target, forms, results, options);
}

std::string WordsText(const cpu::Words& words) {
  return Cat(cpu::kWords, " = ", stablehlo::I64Array(words));
}

std::string BothForms(const std::vector<stablehlo::Type>& arguments, const FormBody& plain,
                      const FormBody& calling) {
  auto write = [&](const FormBody& body) {
    stablehlo::Builder builder;
    std::vector<Value> parameters;
    for (const stablehlo::Type& type : arguments) parameters.push_back(builder.Parameter(type));
    return builder.Finish(body(builder, parameters));
  };
  return stablehlo::JoinForms(write(plain), write(calling));
}

}  // namespace torch_xla::lowering
