#include "lowering/foreach.h"

#include "XLAOps.h"

namespace torch_xla::lowering {
namespace {

ir::Value One() {
  ir::Words words;
  ir::AttributeWriter(words).Scalar(1);
  return {ir::NodePtr(new ir::Node(&ir::ops::Constant, {}, std::move(words),
                                   ir::InternOutputs(ir::GetShape(c10::ScalarType::Long, {}, true)),
                                   {})),
          0};
}

}  // namespace

void LowerForeach(LoweringContext& cx, const ir::Node& node, const ir::OpSpec& element) {
  const ir::Value one = One();
  cx.Lower(*one.node);
  std::vector<Value> results;
  std::vector<ir::NodePtr>
      elements;  // The context knows nodes by address: keep them until the end.
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    ir::Node::Operands operands;
    size_t begin = 0;
    for (const ir::ArgSpec& arg : node.op().args) {
      const bool is_list =
          arg.kind == ir::ArgKind::kTensorList || arg.kind == ir::ArgKind::kScalarList;
      operands.push_back(node.operands()[begin + (is_list ? i : 0)]);
      begin += is_list ? node.num_outputs() : 1;
    }
    while (operands.size() < element.args.size()) operands.push_back(one);
    elements.emplace_back(
        new ir::Node(&element, std::move(operands), {}, ir::InternOutputs(node.shape(i)), {}));
    cx.Lower(*elements.back());
    results.push_back(cx.Lowered({elements.back(), 0}));
  }
  cx.SetOutputs(node, results);
}

}  // namespace torch_xla::lowering
