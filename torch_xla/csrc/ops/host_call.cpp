// Calls from a program on the CPU: of functions of the user's program (torch_xla.debug.print), and
// of PyTorch's kernels.
#include "XLALowerings.h"
#include "cpu/calls.h"
#include "lowering/cpu_kernel.h"
#include "lowering/may_call.h"
#include "lowering/row_major.h"

namespace torch_xla::lowering::aten {

Value HostCall(LoweringContext& cx, const std::vector<Value>& arrays, Value id, Value token) {
  // An exported program has no host program to call.
  if (!LibraryCalls::Allowed()) return token;
  std::vector<Value> operands;
  // The function gets the user's dtypes, even where the device holds arrays as another type.
  for (size_t i = 0; i < arrays.size(); ++i) {
    operands.push_back(Convert(arrays[i], NaturalType(cx.operand_shape(i)->dtype)));
  }
  operands.push_back(Convert(id, ElementType::kS64));
  operands.push_back(token);
  stablehlo::CustomCallOptions options;
  options.has_side_effect = true;
  for (Value operand : operands) options.operand_layouts.push_back(RowMajor(operand.rank()));
  options.result_layouts = {RowMajor(token.rank())};
  options.aliases = {{0, static_cast<int64_t>(operands.size()) - 1}};
  return stablehlo::CustomCall(cx.builder(), cpu::kHostCallTarget, operands, {token.type()},
                               options)[0];
}

std::vector<Value> KernelOfParts(LoweringContext& cx, std::string_view op,
                                 std::string_view overload, c10::IntArrayRef kinds,
                                 c10::IntArrayRef words, c10::IntArrayRef parts,
                                 const std::vector<Value>&) {
  return CpuKernel(cx,
                   {std::string(op), std::string(overload), kinds.vec(), words.vec(), parts.vec()});
}

}  // namespace torch_xla::lowering::aten
