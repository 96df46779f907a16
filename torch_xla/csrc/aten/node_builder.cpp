#include "aten/node_builder.h"

#include "aten/overlap.h"
#include "rules/cpu_trial.h"
#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

const char* ArgumentName(const ir::OpSpec& op, int position) {
  for (const ir::ArgSpec& arg : op.args) {
    if (arg.kind != ir::ArgKind::kIgnored && position-- == 0) return arg.name;
  }
  return "?";
}

}  // namespace

void NodeBuilder::Foreign(const at::Tensor& tensor) {
  // A CPU scalar may come before the first xla tensor; it needs no device.
  const int device = device_ < 0 ? tensor::CurrentDevice() : device_;
  operands_.push_back(OperandValue(tensor, device, op_.name, ArgumentName(op_, arg_)));
  ++arg_;
}

void NodeBuilder::CheckOverlap(const at::Tensor& written, const char* out_overload) {
  for (const auto& [operand, impl] : shared_) {
    const Overlap overlap = OverlapOf(*GetImpl(written), *impl);
    if (overlap == Overlap::kNone) continue;
    const rules::OverlapTrial trial{out_overload,
                                    ir::GetShape(written.scalar_type(), written.sizes()), operand,
                                    overlap == Overlap::kPartial};
    if (rules::RefusesOverlap(op_, operands_, attributes_, trial)) ThrowOverlap();
  }
}

ir::NodePtr NodeBuilder::Node() {
  if (device_ < 0) device_ = tensor::CurrentDevice();
  if (!like_) return tensor::MakeOpNode(&op_, std::move(operands_), std::move(attributes_));
  return tensor::MakeOpNode(&op_, std::move(operands_), std::move(attributes_),
                            [&] { return ir::OutputShapes{{like_}}; });
}

std::vector<at::Tensor> NodeBuilder::Results(const ir::NodePtr& node) const {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < node->num_outputs(); ++i) results.push_back(Result(node, i));
  return results;
}

std::vector<at::Tensor> NodeBuilder::List() { return Results(Node()); }

std::vector<at::Tensor> NodeBuilder::List(const ir::OutputShapes& shapes) {
  if (device_ < 0) device_ = tensor::CurrentDevice();
  return Results(tensor::MakeOpNode(&op_, std::move(operands_), std::move(attributes_),
                                    [&] { return shapes; }));
}

void NodeBuilder::Out(std::initializer_list<const at::Tensor*> outs, const char* out_overload) {
  c10::SmallVector<c10::ScalarType, 4> dtypes;
  for (const at::Tensor* out : outs) {
    if (device_ < 0 && IsXla(*out)) device_ = GetImpl(*out)->root()->device();
    dtypes.push_back(out->scalar_type());
  }
  if (!shared_.empty()) CheckOverlap(**outs.begin(), out_overload);
  ir::NodePtr node = Node();
  rules::CheckOutDtypes(*node, out_overload, dtypes);
  uint32_t index = 0;
  for (const at::Tensor* out : outs) AssignOut(*out, {node, index++}, op_.name);
}

}  // namespace torch_xla::aten
