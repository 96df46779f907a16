// StableHLO that is given as text.
#include <algorithm>
#include <regex>
#include <unordered_map>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

/// Whether a line of StableHLO fits any size: it is elementwise, or reads only the first element.
bool IsOfAnySize(std::string_view line) {
  static const auto& allowed = *new std::regex(
      "\\s*(module |func\\.func public |return |\\}|$|%[\\d:]+ = \"stablehlo\\."
      "(optimization_barrier\"|compare\"|or\"|select\"|"
      "constant\"\\(\\) \\{value = dense<[-+.\\w]+>|"
      "broadcast_in_dim\"\\(%\\d+\\) \\{broadcast_dimensions = array<i64>\\}|"
      "slice\"\\(%\\w+\\) \\{start_indices = array<i64: 0(, 0)*>, limit_indices = array<i64: 1(, "
      "1)*>|"
      "reshape\"\\(%\\d+\\) : \\(tensor<(1x)+[a-z]\\w*>\\)))");
  line = line.substr(0, 240);  // std::regex recurses by the line's length
  return std::regex_search(line.begin(), line.end(), allowed,
                           std::regex_constants::match_continuous);
}

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

/// StableHLO text such as barriers: the sizes of the operands in it are replaced by their bounds.
void Text(G& g) {
  if (const ResultShapes::LoopAt* loop = g.loop()) return RewriteLoop(g, *loop);
  const size_t begin = g.Named("text").word;
  const ir::Words& words = g.node().attributes();
  const std::string_view text(reinterpret_cast<const char*>(words.data() + begin),
                              words[begin - 1]);
  if (text.find("stablehlo.while") != text.npos) Refuse("a loop on the device is for its sizes");
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (!IsOfAnySize(rest.substr(0, end))) Refuse("its text is for one size");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto join = [](c10::IntArrayRef sizes) {
    std::string joined;
    for (int64_t size : sizes) joined += std::to_string(size) + "x";
    return joined;
  };
  std::unordered_map<std::string, const BoundedLayout*> layouts;
  for (size_t i = 0; i < g.node().operands().size(); ++i) {
    const BoundedLayout& layout = g.In(i).layout;
    const auto [it, is_new] = layouts.emplace(join(g.node().operands()[i].shape()->dims), &layout);
    if (!is_new) RequireSame(*it->second, layout);
  }
  std::string bounded;
  constexpr std::string_view kTensor = "tensor<";
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(kTensor, at), text.size());
    const size_t dims = std::min(found + kTensor.size(), text.size());
    bounded += text.substr(at, dims - at);
    at = std::min(text.find_first_not_of("0123456789x", dims), text.size());
    const std::string exact(text.substr(dims, at - dims));
    const auto layout = layouts.find(exact);
    bounded += layout == layouts.end() ? exact : join(BoundsOf(*layout->second));
  }
  ir::Words changed;
  ir::AttributeWriter writer(changed);
  writer.String(bounded);
  writer.Int(static_cast<int64_t>(g.node().operands().size()));
  std::vector<BoundedLayout> results;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const auto layout = layouts.find(join(g.node().shape(i)->dims));
    results.push_back(layout == layouts.end() ? FixedLayout(g.node().shape(i)->dims)
                                              : *layout->second);
  }
  g.Emit(g.Values(), std::move(changed), results);
}

}  // namespace

Table TextRules() {
  return {
      {&Text, {"torch_xla::stablehlo"}},
  };
}

}  // namespace torch_xla::sizes::bounded
