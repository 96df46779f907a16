// Norms of many arrays, as those of all gradients are asked for together: one node, and on the CPU
// one call.
#include <ATen/CompositeExplicitAutogradFunctions.h>

#include <algorithm>
#include <vector>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "cpu/calls.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla {
namespace lowering {

namespace {

Value Norm(Value x) {
  x = stablehlo::Convert(x, ComputeType(x.element()));
  return Sqrt(Reduce(x * x, ReductionDims(std::nullopt, x.rank()), ReduceOp::kAdd));
}

bool Calls(const LoweringContext& cx, Value x) {
  return (x.element() == ElementType::kF32 || x.element() == ElementType::kBF16) &&
         ChooseKernel(cx, "norms", {}, {Kernel::kStableHlo, Kernel::kLibrary}) == Kernel::kLibrary;
}

}  // namespace

namespace aten {

std::vector<Value> Norms(LoweringContext& cx, const std::vector<Value>& arrays) {
  std::vector<Value> results;
  if (Calls(cx, arrays[0])) {
    const std::vector<stablehlo::Type> types(arrays.size(), {ElementType::kF32, {}});
    results = CallLibrary(cpu::kNormsTarget, arrays, types);
  } else {
    for (Value array : arrays) results.push_back(Norm(array));
  }
  return ToOutputElements(cx, results);
}

}  // namespace aten
}  // namespace lowering

std::vector<at::Tensor> XLANativeFunctions::_foreach_norm_Scalar(
    at::TensorList self, const at::Scalar& ord, std::optional<at::ScalarType> dtype) {
  auto is_like_first = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == self[0].scalar_type() && tensor.device() == self[0].device() &&
           tensor.numel() > 0;
  };
  const bool fits = !self.empty() && at::isFloatingType(self[0].scalar_type()) && !dtype &&
                    !ord.isComplex() && ord.toDouble() == 2 &&
                    std::all_of(self.begin(), self.end(), is_like_first);
  if (!fits) return at::compositeexplicitautograd::_foreach_norm(self, ord, dtype);
  ir::OutputShapes shapes;
  shapes.shapes.assign(self.size(), ir::GetShape(self[0].scalar_type(), {}));
  aten::NodeBuilder builder(ir::ops::norms);
  builder.TensorList(self);
  return builder.List(shapes);
}

}  // namespace torch_xla
