#include "sizes/loops.h"

#include <mutex>
#include <unordered_map>

#include "XLAOps.h"
#include "tensor/node_factory.h"

namespace torch_xla::sizes {
namespace {

/// Above this number all are forgotten.
constexpr size_t kMaxKept = 128;

template <typename T>
using Texts = std::unordered_map<std::string, std::shared_ptr<const T>>;
struct Kept {
  std::mutex mutex;
  Texts<LoopFunction> functions;
  Texts<Loop> loops;
};
Kept& All() {
  static auto& kept = *new Kept;
  return kept;
}

template <typename T>
void Keep(Texts<T>& kept, const std::string& text, T value) {
  if (kept.size() >= kMaxKept) kept.clear();
  kept.insert_or_assign(text, std::make_shared<const T>(std::move(value)));
}

}  // namespace

void KeepFunction(const std::string& text, LoopFunction function) {
  std::lock_guard lock(All().mutex);
  Keep(All().functions, text, std::move(function));
}

void KeepLoop(const std::string& text, Loop loop) {
  std::lock_guard lock(All().mutex);
  for (const LoopForm::Callee& callee : loop.form.callees) {
    loop.functions.push_back(All().functions[callee.text]);
    if (!loop.functions.back()) return;
  }
  Keep(All().loops, text, std::move(loop));
}

std::shared_ptr<const Loop> FindLoop(const ir::Node& node) {
  if (&node.op() != &ir::ops::stablehlo) return nullptr;
  std::lock_guard lock(All().mutex);
  const auto found = All().loops.find(std::string(ir::AttributeReader(node.attributes()).String()));
  return found == All().loops.end() ? nullptr : found->second;
}

ir::Value LoopParameter(ir::ShapeRef shape) {
  return tensor::MakeNode(&ir::ops::device_data, {}, {}, shape);
}

ir::NodePtr WithOperands(const ir::Node& node, ir::Node::Operands operands) {
  ir::OutputShapes shapes;
  for (size_t i = 0; i < node.num_outputs(); ++i) shapes.shapes.push_back(node.shape(i));
  ir::NodePtr made(new ir::Node(&node.op(), std::move(operands), node.attributes(),
                                ir::InternOutputs(shapes), node.hash()));
  made->set_location(node.location());
  return made;
}

}  // namespace torch_xla::sizes
