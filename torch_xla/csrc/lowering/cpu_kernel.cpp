#include "lowering/cpu_kernel.h"

#include <c10/util/Exception.h>

#include "lowering/may_call.h"
#include "lowering/row_major.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {
namespace {

/// `name = array<i64: 1, 2>`; nothing for an empty list.
std::string ListAttribute(std::string_view name, const std::vector<int64_t>& values) {
  if (values.empty()) return {};
  return ", " + std::string(name) + " = " + stablehlo::I64Array(values);
}

/// Everything that the handler needs for the call, so that a program from another process's disk
/// cache can run, too.
std::string CallAttributes(const ir::Node& node, const KernelCall& call) {
  std::vector<int64_t> wrapped;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    if (node.operands()[i].shape()->wrapped) wrapped.push_back(static_cast<int64_t>(i));
  }
  return "op = " + stablehlo::Quoted(call.op) + ", overload = " + stablehlo::Quoted(call.overload) +
         ListAttribute("kinds", call.kinds) + ListAttribute("words", call.words) +
         ListAttribute("wrapped", wrapped) + ListAttribute("parts", call.parts);
}

}  // namespace

KernelCall KernelOf(const ir::Node& node) {
  KernelCall call{node.op().name, node.op().overload, {}, {}, {}};
  for (const ir::ArgSpec& arg : node.op().args)
    call.kinds.push_back(static_cast<int64_t>(arg.kind));
  for (uint64_t word : node.attributes()) call.words.push_back(static_cast<int64_t>(word));
  return call;
}

std::vector<Value> CpuKernel(LoweringContext& cx) { return CpuKernel(cx, KernelOf(cx.node())); }

std::vector<Value> CpuKernel(LoweringContext& cx, const KernelCall& call) {
  const ir::Node& node = cx.node();
  TORCH_CHECK_NOT_IMPLEMENTED(HasCpuKernels(cx.platform()), call.op,
                              " has no lowering on platform ", cx.platform());
  stablehlo::CustomCallOptions options;
  options.backend_config = CallAttributes(node, call);
  std::vector<Value> operands;
  // The kernel gets the user's dtypes, even where the device holds arrays as another type.
  for (const ir::Value& operand : node.operands()) {
    operands.push_back(Convert(cx.Lowered(operand), NaturalType(operand.shape()->dtype)));
    options.operand_layouts.push_back(RowMajor(static_cast<int64_t>(operand.shape()->rank())));
  }
  std::vector<stablehlo::Type> types;
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    ir::ShapeRef shape = node.shape(i);
    if (!shape) continue;
    types.push_back({NaturalType(shape->dtype), Dims(shape->dims.begin(), shape->dims.end())});
    options.result_layouts.push_back(RowMajor(static_cast<int64_t>(shape->rank())));
  }
  std::vector<Value> made =
      stablehlo::CustomCall(cx.builder(), kCpuKernelTarget, operands, types, options);
  std::vector<Value> results(node.num_outputs());
  size_t next = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.shape(i)) results[i] = Convert(made[next++], cx.output_element(i));
  }
  return results;
}

}  // namespace torch_xla::lowering
