#include "sizes/rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "sizes/rules_common.h"

namespace torch_xla::sizes {
namespace bounded {
namespace {

/// Operands that are products of several sizes in different orders lie like the first of them. A
/// fill has any order.
void Pointwise(G& g) {
  BoundedLayout layout;
  ir::Node::Operands operands = g.Values();
  for (bool uniform : {false, true}) {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (g.In(i).uniform == uniform) layout = Broadcast(layout, g.In(i).layout, /*fits=*/true);
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = Like(g, g.In(i), layout).value;
  g.Emit(std::move(operands), g.node().attributes(),
         std::vector<BoundedLayout>(g.node().num_outputs(), layout));
}

using Rules = std::unordered_map<std::string_view, Row>;

const Rules& AllRules() {
  static const auto& rules = *[] {
    auto* all = new Rules;
    for (const auto table :
         {&ViewRules, &JoinRules, &ReductionRules, &OrderRules, &ProductRules, &NormalizationRules,
          &IndexRules, &LossRules, &RecurrentRules, &TextRules, &ImageRules}) {
      for (const Row& row : table()) {
        for (std::string_view name : row.names) all->emplace(name, row);
      }
    }
    return all;
  }();
  return rules;
}

/// Whether an operation is elementwise: PyTorch has a tag for most, but not for the others here.
bool IsPointwise(const ir::OpSpec& op) {
  // `equal` compares whole tensors, and a polynomial loops as often as one of its elements says.
  const std::string_view name = op.name;
  if (name == "aten::equal" || name.find("_polynomial_") != name.npos) return false;
  static const auto& others = *new std::unordered_set<std::string_view>{
      "aten::elu_backward",
      "aten::floor_divide",
      "aten::masked_fill",
      "aten::rsub",
      "aten::hardshrink_backward",
      "aten::hardsigmoid_backward",
      "aten::hardswish",
      "aten::hardswish_backward",
      "aten::hardtanh_backward",
      "aten::leaky_relu_backward",
      "aten::log_sigmoid_backward",
      "aten::log_sigmoid_forward",
      "aten::mish_backward",
      "aten::softplus_backward",
      "aten::softshrink_backward",
      "aten::_prelu_kernel",
      "aten::_prelu_kernel_backward",
      "aten::complex",
      "aten::polar",
  };
  if (others.contains(name)) return true;
  const auto found = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  return found && found->hasTag(at::Tag::pointwise);
}

}  // namespace
}  // namespace bounded

BoundedRule RuleOf(const ir::OpSpec& op, bool makes) {
  const auto& rules = bounded::AllRules();
  if (const auto found = rules.find(op.name); found != rules.end())
    return !makes || found->second.makes ? found->second.rule : nullptr;
  return !makes && bounded::IsPointwise(op) ? &bounded::Pointwise : nullptr;
}

}  // namespace torch_xla::sizes
