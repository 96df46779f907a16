// Losses.
#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void NllLoss(G& g) {
  const bool backward = g.Has("grad_output");
  ir::Node::Operands operands = g.Values();
  const Argument &self = g.Named("self"), &target = g.Named("target");
  const BoundedLayout& in = g.In(self.operand).layout;
  if (in.size() < 2) Refuse("a loss of one row has no rule");
  if (const Result* weight = g.Tensor("weight")) RequireSame(weight->layout, {in[1]});
  BoundedLayout rows = in;
  rows.erase(rows.begin() + 1);
  const Result labels = Like(g, g.In(target.operand), rows);
  RequireSame(labels.layout, rows);
  if (const Result* weight = g.Tensor("weight"))
    operands[g.Named("weight").operand] = g.Masked(*weight, 0.0);
  // Padding is a label that is ignored. Where classes have several sizes a label becomes the place
  // of its class, which no ignored label is.
  operands[self.operand] = g.Masked(g.In(self.operand), 0.0);
  ir::Value label = g.Masked(labels, g.Int("ignore_index"));
  ir::Words words = g.node().attributes();
  if (!IsDense(in[1])) {
    constexpr int64_t kNone = -1;
    const auto number = [](int64_t value) {
      return tensor::MakeConstant(value, c10::ScalarType::Long, false);
    };
    const ir::Value ignored = g.Make(ir::ops::eq_Tensor, {label, number(g.Int("ignore_index"))});
    label = g.Make(ir::ops::where_self, {ignored, number(kNone), PlaceOf(g, label, in[1])});
    words[g.Named("ignore_index").word] = static_cast<uint64_t>(kNone);
  }
  operands[target.operand] = label;
  if (backward) {
    if (g.Int("reduction") == 0) {
      RequireSame(g.In(0).layout, rows);
      operands[0] = g.Masked(g.In(0), 0.0);
    }
    g.Emit(std::move(operands), std::move(words), {in});
    return;
  }
  const BoundedLayout each = g.Int("reduction") == 0 ? rows : BoundedLayout{};
  g.Emit(std::move(operands), std::move(words), {each, {}});
}

/// Elementwise losses that are 0 where both operands are 0.
void PairLoss(G& g) {
  const Result& self = *g.Tensor("self");
  const Result target = Like(g, *g.Tensor("target"), self.layout);
  BoundedLayout layout = Broadcast(self.layout, target.layout);
  if (const Result* weight = g.Has("weight") ? g.Tensor("weight") : nullptr)
    layout = Broadcast(layout, weight->layout);
  const int64_t reduction = g.Int("reduction");
  const size_t a = g.Named("self").operand, b = g.Named("target").operand;
  ir::Node::Operands operands = g.Values();
  operands[b] = target.value;
  if (g.Has("grad_output")) {
    if (reduction == 1) {
      ir::Words words = g.node().attributes();
      words[g.Named("reduction").word] = 2;
      const c10::ScalarType dtype = operands[0].shape()->dtype;
      operands[0] = tensor::Cast(
          g.Make(ir::ops::div_Tensor, {operands[0], g.Count(layout, Dims(layout.size(), true))}),
          dtype);
      g.Emit(std::move(operands), std::move(words), {layout});
      return;
    }
    if (reduction == 0) Broadcast(g.In(0).layout, layout);
    g.Emit(std::move(operands), g.node().attributes(), {layout});
    return;
  }
  if (reduction == 0) {
    g.Emit(std::move(operands), g.node().attributes(), {layout});
    return;
  }
  if (self.layout.size() != target.layout.size()) Refuse("its operands are broadcast");
  for (size_t d = 0; d < layout.size(); ++d) {
    if (!Same(self.layout[d], target.layout[d])) Refuse("its operands are broadcast");
  }
  operands[a] = g.Masked(self, 0.0);
  operands[b] = g.Masked(target, 0.0);
  if (const Result* weight = g.Has("weight") ? g.Tensor("weight") : nullptr)
    operands[g.Named("weight").operand] = g.Masked(*weight, 0.0);
  if (reduction == 2) {
    g.Emit(std::move(operands), g.node().attributes(), {BoundedLayout{}});
    return;
  }
  const c10::ScalarType dtype = g.node().shape()->dtype;
  if (IsHalf(dtype)) {
    operands[a] = tensor::Cast(operands[a], c10::ScalarType::Float);
    operands[b] = tensor::Cast(operands[b], c10::ScalarType::Float);
  }
  ir::Words words = g.node().attributes();
  words[g.Named("reduction").word] = 2;
  const ir::Value sum = g.Make(g.node().op(), std::move(operands), std::move(words));
  g.Set(0,
        tensor::Cast(g.Make(ir::ops::div_Tensor, {sum, g.Count(layout, Dims(layout.size(), true))}),
                     dtype),
        {});
}

/// The lengths are operands, so padding of times and labels is like that of a short sample.
void CtcLoss(G& g) {
  const BoundedLayout &in = g.Tensor("log_probs")->layout, &labels = g.Tensor("targets")->layout;
  const BoundedDim samples = in.at(1);
  RequireFixed(in.at(2), "the number of classes varies");
  if (in[0].size() > 1 || labels.at(1).size() > 1) Refuse("it goes along several sizes");
  BoundedDim states = FixedDim(2 * SizeOf(labels[1]) + 1);
  if (Varies(labels[1])) {
    const Factor& label = labels[1][0];
    states = {{2 * label.size + 1, 2 * label.bound + 1, 2 * label.first + 1, true}};
  }
  const BoundedLayout alpha{samples, in[0], states};
  for (std::string_view name : {"input_lengths", "target_lengths", "grad", "neg_log_likelihood"}) {
    if (g.Has(name)) RequireSame(g.Tensor(name)->layout, {samples});
  }
  RequireSame({labels[0]}, {samples});
  ir::Node::Operands operands = g.Values();
  operands[g.Named("targets").operand] = g.Masked(*g.Tensor("targets"), int64_t{0});
  if (g.Has("grad")) {
    RequireSame(g.Tensor("log_alpha")->layout, alpha);
    return g.EmitShaped(std::move(operands), g.node().attributes(), in);
  }
  const ir::NodePtr made = MakeShaped(g, g.node().op(), std::move(operands), g.node().attributes(),
                                      {BoundedLayout{samples}, alpha});
  g.Set(0, {made, 0}, {samples});
  g.Set(1, {made, 1}, alpha);
}

}  // namespace

Table LossRules() {
  return {
      {&NllLoss,
       {"aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward",
        "aten::nll_loss2d_backward"}},
      {&CtcLoss, {"aten::_ctc_loss", "aten::_ctc_loss_backward"}},
      {&PairLoss,
       {"aten::binary_cross_entropy", "aten::binary_cross_entropy_backward", "aten::mse_loss",
        "aten::mse_loss_backward", "aten::smooth_l1_loss", "aten::smooth_l1_loss_backward",
        "aten::huber_loss", "aten::huber_loss_backward"}},
  };
}

}  // namespace torch_xla::sizes::bounded
