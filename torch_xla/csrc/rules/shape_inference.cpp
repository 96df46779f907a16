#include "rules/shape_inference.h"

#include "rules/trial_call.h"

namespace torch_xla::rules {

ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.name, op.overload);
  torch::jit::Stack stack = MetaArguments(op, operands, attributes);
  CallMeta(handle, stack);
  return ShapesOf(stack);
}

}  // namespace torch_xla::rules
