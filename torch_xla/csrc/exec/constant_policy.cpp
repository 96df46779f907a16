#include "exec/constant_policy.h"

#include <bit>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "lowering/strided_view.h"

namespace torch_xla::exec {
namespace {

struct Plan {
  std::vector<uint64_t> first, second;  // two sets of values that each have a program
  std::vector<bool> parameter;
};

/// Above this number of graphs all plans are forgotten; their numbers are then learnt again.
constexpr size_t kMaxPlans = 1 << 14;

std::mutex plans_mutex;
std::unordered_map<ir::Hash128, Plan, ir::Hash128Hasher>& Plans() {
  static auto& plans = *new std::unordered_map<ir::Hash128, Plan, ir::Hash128Hasher>;
  return plans;
}

bool IsViewOffset(const ir::Node& node) {
  return &node.op() == &ir::ops::as_strided || &node.op() == &ir::ops::as_strided_view_update;
}

/// The part of a view's numbers that stays part of the program when they are parameters.
uint64_t Structure(const ir::Node& node) {
  if (!IsViewOffset(node)) return 0;
  ir::AttributeReader attributes(node.attributes());
  auto sizes = attributes.IntList(), strides = attributes.IntList();
  const auto& dims = node.operands()[0].shape()->dims;
  return lowering::ViewStructure({dims.begin(), dims.end()}, sizes, strides, attributes.Int(),
                                 &node.op() == &ir::ops::as_strided_view_update);
}

/// Turns numbers into parameters if the graph has no program for their values yet.
void Update(Plan& plan, const tensor::Graph& graph) {
  const std::vector<tensor::GraphNumber>& numbers = graph.numbers;
  if (plan.first.empty()) {
    for (const tensor::GraphNumber& number : numbers) plan.first.push_back(number.bits);
    plan.parameter.resize(numbers.size());
    return;
  }
  bool differs = false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (plan.parameter[i] || numbers[i].bits == plan.first[i]) continue;
    if (IsViewOffset(*graph.order[numbers[i].position])) {
      plan.parameter[i] = true;
    } else {
      differs = true;
    }
  }
  if (!differs) return;
  if (plan.second.empty()) {
    for (const tensor::GraphNumber& number : numbers) plan.second.push_back(number.bits);
    return;
  }
  bool is_second = true;
  for (size_t i = 0; i < numbers.size(); ++i) {
    is_second &= plan.parameter[i] || numbers[i].bits == plan.second[i];
  }
  if (is_second) return;
  // Every number that ever changed becomes a parameter, since n numbers with two values each have 2
  // ** n combinations.
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i].bits != plan.first[i] || plan.second[i] != plan.first[i]) {
      plan.parameter[i] = true;
    }
  }
}

}  // namespace

void PackNumbers(tensor::Graph& graph, ir::Hasher& key) {
  if (graph.numbers.empty()) return;
  std::lock_guard<std::mutex> lock(plans_mutex);
  auto& plans = Plans();
  if (plans.size() >= kMaxPlans) plans.clear();
  Plan& plan = plans[graph.hash];
  Update(plan, graph);
  for (size_t i = 0; i < graph.numbers.size(); ++i) {
    tensor::GraphNumber& number = graph.numbers[i];
    key.Add(static_cast<uint64_t>(plan.parameter[i]));
    if (!plan.parameter[i]) {
      key.Add(number.bits);
      continue;
    }
    key.Add(Structure(*graph.order[number.position]));
    if (number.is_float) {
      number.packed = static_cast<int32_t>(graph.floats.size());
      graph.floats.push_back(std::bit_cast<double>(number.bits));
    } else {
      number.packed = static_cast<int32_t>(graph.integers.size());
      graph.integers.push_back(static_cast<int64_t>(number.bits));
    }
  }
}

}  // namespace torch_xla::exec
