#include "ops/barrier.h"

#include "XLALowerings.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {

/// Some compilers (XLA's for the CPU) remove barriers before they merge equal computations. So what
/// waits for `late` depends on a number that a compiler does not know.
std::vector<Value> OptimizationBarrier(LoweringContext&, const std::vector<Value>& tensors,
                                       std::optional<Value> number,
                                       const std::vector<Value>& late) {
  if (!number) return stablehlo::OptimizationBarrier(tensors);
  Value stays = Compare(*number, FullLike(*number, 1), Direction::kGt);
  for (const Value& value : late) {
    if (value.type().num_elements() == 0) continue;
    const Dims start(value.rank(), 0), limit(value.rank(), 1);
    const Value first = Reshape(Slice(value, start, limit), {});
    stays = Or(stays, Compare(first, first, Direction::kNe));
  }
  std::vector<Value> held;
  for (const Value& value : tensors) {
    held.push_back(Select(stays, value, FullLike(value, 1)));  // hides a 0 from XLA, too
  }
  return stablehlo::OptimizationBarrier(held);
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla::aten {

std::vector<at::Tensor> OptimizationBarrier(const std::vector<at::Tensor>& tensors,
                                            const std::vector<at::Tensor>& late) {
  if (tensors.empty()) return {};
  ir::ops::optimization_barrier.counter->Add();
  NodeBuilder builder(ir::ops::optimization_barrier);
  builder.TensorList(tensors);
  builder.OptionalScalar(late.empty() ? std::nullopt : std::optional<at::Scalar>(2));
  builder.TensorList(late);
  ir::OutputShapes shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.shapes.push_back(ir::GetShape(tensor.scalar_type(), tensor.sizes()));
  }
  return builder.List(shapes);
}

void OptimizationBarrierInPlace(const std::vector<at::Tensor>& tensors) {
  const std::vector<at::Tensor> values = OptimizationBarrier(tensors, {});
  for (size_t i = 0; i < values.size(); ++i) GetImpl(tensors[i])->Write(GetIrValue(values[i]));
}

}  // namespace torch_xla::aten
