#include "lowering/foreach.h"

#include <c10/util/Exception.h>

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

std::vector<ListArgument> ListArguments(const ir::Node& node) {
  std::vector<ListArgument> arguments;
  std::span<const ir::Value> rest(node.operands().data(), node.operands().size());
  for (const ir::ArgSpec& arg : node.op().args) {
    const bool is_list =
        arg.kind == ir::ArgKind::kTensorList || arg.kind == ir::ArgKind::kScalarList;
    const size_t count = is_list ? node.num_outputs() : 1;
    TORCH_INTERNAL_ASSERT(rest.size() >= count, "operands of ", node.op().name);
    arguments.push_back({rest.first(count), is_list});
    rest = rest.subspan(count);
  }
  return arguments;
}

void LowerForeach(LoweringContext& cx, const ir::Node& node, const ir::OpSpec& element) {
  const ir::Value one = One();
  cx.Lower(*one.node);
  const std::vector<ListArgument> arguments = ListArguments(node);
  std::vector<Value> results;
  std::vector<ir::NodePtr>
      elements;  // The context knows nodes by address, so keep them until the end.
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    ir::Node::Operands operands;
    for (const ListArgument& argument : arguments) operands.push_back(argument.Of(i));
    while (operands.size() < element.args.size()) operands.push_back(one);
    elements.emplace_back(
        new ir::Node(&element, std::move(operands), {}, ir::InternOutputs(node.shape(i)), {}));
    cx.Lower(*elements.back());
    results.push_back(cx.Lowered({elements.back(), 0}));
  }
  cx.SetOutputs(node, results);
}

}  // namespace torch_xla::lowering
