#include "lowering/library_call.h"

#include <utility>

#include "lowering/row_major.h"

namespace torch_xla::lowering {

std::vector<Value> CallLibrary(const char* target, const std::vector<Value>& operands,
                               const std::vector<stablehlo::Type>& results,
                               std::string attributes) {
  stablehlo::CustomCallOptions options;
  options.backend_config = std::move(attributes);
  for (Value operand : operands) options.operand_layouts.push_back(RowMajor(operand.rank()));
  for (const auto& type : results) options.result_layouts.push_back(RowMajor(type.rank()));
  return stablehlo::CustomCall(operands[0].builder(), target, operands, results, options);
}

}  // namespace torch_xla::lowering
