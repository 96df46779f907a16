// StableHLO that is given as text, and barriers.
#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

/// The functions are rewritten as graphs of their own, for parameters that lie like the loop's
/// operands. What is carried has to lie the same after each turn, so a turn's padding is as unknown
/// as the next one's.
void RewriteLoop(G& g, const ResultShapes::LoopAt& at) {
  LoopForm form = at.loop->form;
  const size_t first_fixed = form.carries + form.sliced;
  std::vector<Result> operands;
  BoundedDim turns;
  for (size_t k = 0; k < g.node().operands().size(); ++k) {
    const bool is_sliced = k >= form.carries && k < first_fixed;
    operands.push_back(is_sliced ? Compact(g, g.In(k), 0) : g.In(k));
    if (!is_sliced) continue;
    turns = k == form.carries ? operands[k].layout[0] : turns;
    if (!Same(operands[k].layout[0], turns)) Refuse("its operands have different numbers of turns");
  }
  ir::Node::Operands values;
  for (const Result& operand : operands) values.push_back(operand.value);
  std::vector<Result> results;
  size_t begin = at.begin;
  for (size_t f = 0; f < form.callees.size(); ++f) {
    const LoopFunction& function = *at.loop->functions[f];
    LoopForm::Callee& callee = form.callees[f];
    std::vector<Result> parameters;
    std::vector<ir::Value> given, outputs;
    for (size_t i = 0; i < callee.operands.size(); ++i) {
      const size_t k = callee.operands[i];
      BoundedLayout layout = operands[k].layout;
      if (k >= form.carries && k < first_fixed) layout.erase(layout.begin());
      const bool varies = Varies(layout);
      const ir::Value& exact = function.parameters[i];
      given.push_back(varies ? LoopParameter(ir::GetShape(exact.shape()->dtype, BoundsOf(layout)))
                             : exact);
      parameters.push_back({given.back(), std::move(layout), varies});
    }
    std::vector<Result> made = g.Inside(function, begin, parameters);
    begin += function.nodes.size();
    for (const Result& output : made) outputs.push_back(output.value);
    std::vector<ir::Value> numbers;
    callee.text = function.lower(given, outputs, numbers);
    for (ir::Value& number : numbers) {
      callee.operands.push_back(values.size());
      callee.seeds.push_back(-1);
      values.push_back(std::move(number));
    }
    if (f == 0) results = std::move(made);
  }
  if (Varies(turns)) {
    form.length = BoundOf(turns);
    form.length_operand = static_cast<int64_t>(values.size());
    values.push_back(g.SizeOfFactor(turns[0]));
  }
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < results.size(); ++i) {
    BoundedLayout& layout = layouts.emplace_back(results[i].layout);
    if (i < form.carries) {
      RequireSame(layout, operands[i].layout);
    } else if (i < results.size() - form.sums) {
      layout.insert(layout.begin(), form.sliced > 0 ? turns : FixedDim(form.length));
    }
  }
  std::vector<ir::ShapeRef> shapes;
  for (const ir::Value& value : values) shapes.push_back(value.shape());
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.String(at.loop->text(form, shapes));
  writer.Int(static_cast<int64_t>(values.size()));
  g.Emit(std::move(values), std::move(words), layouts);
}

void Text(G& g) {
  const ResultShapes::LoopAt* loop = g.loop();
  if (!loop) Refuse("its text is for one size");
  RewriteLoop(g, *loop);
}

void OptimizationBarrier(G& g) {
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) layouts.push_back(g.In(i).layout);
  const ir::NodePtr made = MakeShaped(g, g.node().op(), g.Values(), g.node().attributes(), layouts);
  for (uint32_t i = 0; i < layouts.size(); ++i) g.Set(i, {made, i}, layouts[i]);
}

}  // namespace

Table TextRules() {
  return {
      {&Text, {"torch_xla::stablehlo"}},
      {&OptimizationBarrier, {"xla::optimization_barrier"}},
  };
}

}  // namespace torch_xla::sizes::bounded
