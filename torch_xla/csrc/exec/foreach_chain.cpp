#include "exec/foreach_chain.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpu/choices.h"
#include "cpu/foreach.h"
#include "lowering/foreach.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"

namespace torch_xla::exec {
namespace {

using lowering::ListArgument;
using lowering::ListArguments;

constexpr std::string_view kPrefix = "aten::_foreach_";

struct Named {
  std::string_view name;
  size_t arguments;
  cpu::ForeachOp op;
};

constexpr Named kOps[] = {
    {"abs", 1, cpu::ForeachOp::kAbs},           {"add", 2, cpu::ForeachOp::kAdd},
    {"add", 3, cpu::ForeachOp::kAddScaled},     {"addcdiv", 4, cpu::ForeachOp::kAddcdiv},
    {"addcmul", 4, cpu::ForeachOp::kAddcmul},   {"clamp_max", 2, cpu::ForeachOp::kMinimum},
    {"clamp_min", 2, cpu::ForeachOp::kMaximum}, {"div", 2, cpu::ForeachOp::kDiv},
    {"lerp", 3, cpu::ForeachOp::kLerp},         {"maximum", 2, cpu::ForeachOp::kMaximum},
    {"minimum", 2, cpu::ForeachOp::kMinimum},   {"mul", 2, cpu::ForeachOp::kMul},
    {"neg", 1, cpu::ForeachOp::kNeg},           {"reciprocal", 1, cpu::ForeachOp::kReciprocal},
    {"sqrt", 1, cpu::ForeachOp::kSqrt},         {"sub", 2, cpu::ForeachOp::kSub},
    {"sub", 3, cpu::ForeachOp::kSubScaled},
};

/// The operation of the kernel that computes `name` ("aten::_foreach_add") of so many arguments.
std::optional<cpu::ForeachOp> FindForeachOp(std::string_view name, size_t arguments) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto* found = std::find_if(std::begin(kOps), std::end(kOps), [&](const Named& one) {
    return one.name == name && one.arguments == arguments;
  });
  return found == std::end(kOps) ? std::nullopt : std::optional(found->op);
}

bool IsForeachNumber(runtime::ElementType type) {
  return type == runtime::ElementType::kF32 || type == runtime::ElementType::kF64 ||
         type == runtime::ElementType::kS64;
}

/// Whether a call of this library can compute the node.
bool CanCall(const ir::Node& node, const lowering::LoweringContext& cx) {
  if (!std::string_view(node.op().name).starts_with(kPrefix)) return false;
  const std::vector<ListArgument> arguments = ListArguments(node);
  if (!FindForeachOp(node.op().name, arguments.size())) return false;
  auto is_taken = [&](const ir::Value& value, ir::ShapeRef result) {
    return value.shape() == result ||
           (value.shape()->rank() == 0 && IsForeachNumber(cx.Physical(value.shape()->dtype)));
  };
  bool are_numbers = true;  // such as step counts, which never belong to the chain that reads them
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const ir::ShapeRef result = node.shape(i);
    are_numbers &= result->rank() == 0;
    if (cx.Physical(result->dtype) != lowering::ElementType::kF32 ||
        !std::all_of(arguments.begin(), arguments.end(), [&](const ListArgument& argument) {
          return is_taken(argument.Of(i), result);
        })) {
      return false;
    }
  }
  return !are_numbers;
}

bool HasShapesOf(const ir::Node& a, const ir::Node& b) {
  if (a.num_outputs() != b.num_outputs()) return false;
  for (size_t i = 0; i < a.num_outputs(); ++i) {
    if (a.shape(i) != b.shape(i)) return false;
  }
  return true;
}

/// Walks through the graph with one open chain. Nodes that depend on the chain wait until it is
/// complete.
class Planner {
 public:
  Planner(const tensor::Graph& graph, const lowering::LoweringContext& cx)
      : graph_(graph), cx_(cx) {}

  LoweringPlan Plan() {
    const bool may_call = lowering::MayCallLibraries(cx_.platform());
    size_t next_data = 0;
    for (uint32_t position = 0; position < graph_.order.size(); ++position) {
      const ir::Node& node = *graph_.order[position];
      if (graph_.IsParameter(position, next_data)) {
        ++next_data;
      } else if (may_call && CanCall(node, cx_)) {
        if (!nodes_.empty() && !Continues(node)) Close();
        open_[&node] = kChained;
        nodes_.push_back(position);
      } else if (Waits(node)) {
        open_[&node] = kWaiting;
        waiting_.push_back(position);
      } else {
        plan_.steps.push_back({position});
      }
    }
    Close();
    NoteReads();
    return std::move(plan_);
  }

 private:
  enum State : uint8_t { kChained, kWaiting };

  bool Waits(const ir::Node& node) const {
    return !open_.empty() &&
           std::any_of(node.operands().begin(), node.operands().end(),
                       [&](const ir::Value& value) { return open_.contains(value.node.get()); });
  }

  /// Whether the node can continue the open chain: each list argument is a whole list of the chain
  /// or does not depend on it, and no argument waits for the chain.
  bool Continues(const ir::Node& node) const {
    if (!HasShapesOf(node, *graph_.order[nodes_[0]])) return false;
    for (const ListArgument& argument : ListArguments(node)) {
      const ir::Node* list = argument.values[0].node.get();
      const auto found = open_.find(list);
      const bool is_list = argument.is_list && found != open_.end() && found->second == kChained;
      for (size_t i = 0; i < argument.values.size(); ++i) {
        const ir::Value& value = argument.values[i];
        if (is_list ? value.node.get() != list || value.index != i
                    : open_.contains(value.node.get())) {
          return false;
        }
      }
    }
    return true;
  }

  void Close() {
    const size_t tensors = nodes_.empty() ? 0 : graph_.order[nodes_[0]]->num_outputs();
    const bool is_many = nodes_.size() * tensors >= cpu::choices::kManyForeach;
    if (tensors > 0 &&
        lowering::ChoosesLibrary(cx_, "foreach", {"f32", is_many ? "many" : "few"})) {
      plan_.steps.push_back({nodes_.back(), static_cast<int32_t>(plan_.chains.size())});
      ForeachChain& chain = plan_.chains.emplace_back();
      for (uint32_t position : nodes_) chain.nodes.push_back(graph_.order[position]);
    } else {
      for (uint32_t position : nodes_) plan_.steps.push_back({position});
    }
    for (uint32_t position : waiting_) plan_.steps.push_back({position});
    open_.clear();
    nodes_.clear();
    waiting_.clear();
  }

  void NoteReads() {
    if (plan_.chains.empty()) return;
    std::unordered_map<const ir::Node*, std::pair<size_t, size_t>> places;
    for (size_t i = 0; i < plan_.chains.size(); ++i) {
      ForeachChain& chain = plan_.chains[i];
      chain.is_read.resize(chain.nodes.size());
      for (size_t k = 0; k < chain.nodes.size(); ++k) places[chain.nodes[k]] = {i, k};
    }
    // By table: the only chain that reads the table, or null if other nodes read it, too.
    std::unordered_map<const ir::Node*, ForeachChain*> tables;
    auto read = [&](const ir::Value& value, ForeachChain* by) {
      if (lowering::IsRowSums(*value.node)) {
        const auto [reader, is_first] = tables.emplace(value.node.get(), by);
        if (!is_first && reader->second != by) reader->second = nullptr;
      }
      const auto found = places.find(value.node.get());
      if (found == places.end()) return;
      ForeachChain& chain = plan_.chains[found->second.first];
      if (&chain != by) chain.is_read[found->second.second] = true;
    };
    for (const ir::Node* node : graph_.order) {
      const auto found = places.find(node);
      ForeachChain* by = found == places.end() ? nullptr : &plan_.chains[found->second.first];
      for (const ir::Value& operand : node->operands()) {
        if (operand.node) read(operand, by);
      }
    }
    // A table that is a root as well may be computed by the call, which outputs it.
    for (const auto& [table, reader] : tables) {
      if (reader) reader->tables.insert(table);
    }
    for (const ir::Value& root : graph_.roots) read(root, nullptr);
  }

  const tensor::Graph& graph_;
  const lowering::LoweringContext& cx_;
  LoweringPlan plan_;
  std::unordered_map<const ir::Node*, State> open_;  // nodes of the chain, and those that need them
  std::vector<uint32_t> nodes_, waiting_;            // the same nodes in order
};

/// A table with few nonzero rows (an embedding's gradient) in one of the lists. The call adds the
/// rows up itself just before it reads them, which saves the table's way to memory and back.
struct Table {
  int64_t place;  // its index in the operands, which hold the rows to add
  lowering::AddedRows rows;
  stablehlo::Type type;
};

/// The call for some of the tensors.
struct Call {
  std::vector<stablehlo::Value> operands;
  std::vector<Table> tables;
  std::vector<stablehlo::OutputOperandAlias> aliases;
  cpu::ForeachCall told;

  /// The lists of `told.results`, one after the other, and the tables; `tensors` are the types of
  /// one list.
  std::vector<stablehlo::Value> Make(const std::vector<stablehlo::Type>& tensors) {
    std::vector<stablehlo::Type> types;
    for (size_t i = 0; i < told.results.size(); ++i) {
      types.insert(types.end(), tensors.begin(), tensors.end());
    }
    for (const auto& [place, rows, type] : tables) {
      types.push_back(type);
      told.tables.push_back(lowering::AddOperands(rows, place, operands));
    }
    return lowering::CallLibrary(cpu::kForeachTarget, operands, types, told.Encode(), aliases);
  }
};

/// The operands of a call for some of the tensors; equal lists are passed once.
class Operands {
 public:
  Operands(const lowering::LoweringContext& cx, const ForeachChain& chain, Call& call, size_t begin,
           size_t end)
      : cx_(cx), chain_(chain), call_(call), begin_(begin), end_(end) {}

  cpu::ForeachArgument Find(const ListArgument& argument) {
    const auto values =
        argument.is_list ? argument.values.subspan(begin_, end_ - begin_) : argument.values;
    const auto kind =
        argument.is_list ? cpu::ForeachArgument::kList : cpu::ForeachArgument::kSingle;
    for (const auto& [known, at] : lists_) {
      if (std::equal(known.begin(), known.end(), values.begin(), values.end())) return {kind, at};
    }
    const auto at = static_cast<int64_t>(call_.operands.size());
    for (const ir::Value& value : values) Add(value);
    lists_.emplace_back(values, at);
    return {kind, at};
  }

  /// The index of a tensor's operand `wanted`; -1 if it has none, or if a table's rows are there.
  int64_t Place(stablehlo::Value wanted, size_t tensor) const {
    for (const auto& [known, at] : lists_) {
      const int64_t place = at + static_cast<int64_t>(tensor - begin_);
      if (tensor - begin_ < known.size() && call_.operands[place] == wanted &&
          std::ranges::find(call_.tables, place, &Table::place) == call_.tables.end()) {
        return place;
      }
    }
    return -1;
  }

  /// The nodes of `Call::tables`.
  const std::vector<const ir::Node*>& tables() const { return tables_; }

 private:
  void Add(const ir::Value& value) {
    const ir::Node* node = value.node.get();
    const auto rows =
        chain_.tables.contains(node) ? lowering::FindAddedRows(cx_, *node) : std::nullopt;
    if (rows) {
      tables_.push_back(node);
      call_.tables.push_back(
          {static_cast<int64_t>(call_.operands.size()), *rows, cx_.Physical(node->shape())});
    }
    call_.operands.push_back(rows ? rows->grad : cx_.Lowered(value));
  }

  const lowering::LoweringContext& cx_;
  const ForeachChain& chain_;
  Call& call_;
  const size_t begin_, end_;
  std::vector<const ir::Node*> tables_;
  std::vector<std::pair<std::span<const ir::Value>, int64_t>> lists_;
};

/// A root of the graph, and the parameter that is donated to it.
struct Donation {
  ir::Value root;
  stablehlo::Value parameter;
};

}  // namespace

LoweringPlan PlanLowering(const tensor::Graph& graph, const lowering::LoweringContext& cx) {
  return Planner(graph, cx).Plan();
}

void LowerChain(lowering::LoweringContext& cx, const tensor::Graph& graph,
                const ForeachChain& chain, std::span<const int> aliases,
                std::span<const stablehlo::Value> parameters) {
  std::unordered_map<const ir::Node*, int64_t> places;
  std::vector<int64_t> results;
  for (const ir::Node* node : chain.nodes) {
    const auto place = static_cast<int64_t>(places.size());
    if (chain.is_read[place]) results.push_back(place);
    places.emplace(node, place);
  }
  std::vector<Donation> donations;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] >= 0 && places.contains(graph.roots[aliases[i]].node.get())) {
      donations.push_back({graph.roots[aliases[i]], parameters[i]});
    }
  }
  // XLA's passes take time quadratic in the number of a call's operands.
  constexpr size_t kTensors = 32;
  const size_t tensors = chain.nodes[0]->num_outputs();
  std::vector<std::vector<stablehlo::Value>> made(results.size());
  for (size_t begin = 0; begin < tensors; begin += kTensors) {
    const size_t end = std::min(tensors, begin + kTensors), count = end - begin;
    Call call;
    call.told.results = results;
    Operands operands(cx, chain, call, begin, end);
    for (const ir::Node* node : chain.nodes) {
      const std::vector<ListArgument> arguments = ListArguments(*node);
      cpu::ForeachStep& step = call.told.steps.emplace_back();
      step.op = *FindForeachOp(node->op().name, arguments.size());
      for (const ListArgument& argument : arguments) {
        const auto made_by = places.find(argument.values[0].node.get());
        step.arguments.push_back(
            made_by == places.end()
                ? operands.Find(argument)
                : cpu::ForeachArgument{cpu::ForeachArgument::kStep, made_by->second});
      }
    }
    for (const auto& [root, parameter] : donations) {
      if (root.index < begin || root.index >= end) continue;
      const int64_t place = operands.Place(parameter, root.index);
      if (place < 0) continue;
      const auto result =
          std::find(results.begin(), results.end(), places.at(root.node.get())) - results.begin();
      call.aliases.push_back(
          {result * static_cast<int64_t>(count) + static_cast<int64_t>(root.index - begin), place});
    }
    std::vector<stablehlo::Type> types;
    for (size_t i = begin; i < end; ++i) types.push_back(cx.Physical(chain.nodes[0]->shape(i)));
    const std::vector<stablehlo::Value> values = call.Make(types);
    for (size_t r = 0; r < results.size(); ++r) {
      const auto first = values.begin() + static_cast<int64_t>(r * count);
      made[r].insert(made[r].end(), first, first + static_cast<int64_t>(count));
    }
    auto table = values.end() - static_cast<int64_t>(operands.tables().size());
    for (const ir::Node* node : operands.tables()) cx.SetOutputs(*node, *table++);
  }
  for (size_t r = 0; r < results.size(); ++r) cx.SetOutputs(*chain.nodes[results[r]], made[r]);
}

}  // namespace torch_xla::exec
