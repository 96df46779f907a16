#include "exec/cut.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "XLAOps.h"
#include "cpu/calls.h"
#include "debug/metrics.h"
#include "distributed/collective_ops.h"
#include "exec/cut_log.h"
#include "tensor/device.h"

namespace torch_xla::exec {

using distributed::Sharding;

namespace {

/// Gives a tensor that is only a fill its data without a program: the data is made on demand.
bool AssignFill(tensor::Storage& storage, const ir::Value& value) {
  const ir::Node& node = *value.node;
  if (&node.op() != &ir::ops::fill) return false;
  const ir::Node& number = *node.operands()[0].node;
  if (&number.op() != &ir::ops::scalar && &number.op() != &ir::ops::Constant) return false;
  auto data = c10::make_intrusive<tensor::DeviceData>(
      value.shape(), storage.device(), ir::AttributeReader(number.attributes()).Scalar(),
      storage.sharding() ? storage.sharding() : Sharding::Replicated());
  data->set_location(node.location());
  storage.Replace(value, tensor::MakeLeaf(data));
  return true;
}

/// Which nodes of the graph, by position, can be read after the cut: the nodes with an owner
/// outside of the graph (a tensor, or an op that another thread is tracing) and all nodes below
/// them. The evaluated tensors must hold their results already, so that no thread can still get
/// hold of a node without such an owner.
std::vector<bool> FindSurvivors(const tensor::Graph& graph) {
  std::vector<bool> survives(graph.order.size());
  for (size_t i = graph.order.size(); i-- > 0;) {
    const ir::Node& node = *graph.order[i];
    if (!survives[i]) survives[i] = node.references() != node.mark().uses;
    if (!survives[i]) continue;
    for (const ir::Value& operand : node.operands()) survives[operand.node->mark().position] = true;
  }
  return survives;
}

/// The edges from dying nodes to surviving nodes and to device data. Dying nodes are freed on
/// another thread at an unknown time, but ownership of the other nodes must not depend on that
/// time. So these edges are dropped before.
std::vector<Edge> EdgesOfDying(const tensor::Graph& graph, const std::vector<bool>& survives) {
  std::vector<Edge> edges;
  for (size_t i = 0; i < graph.order.size(); ++i) {
    if (survives[i]) continue;
    const ir::Node& node = *graph.order[i];
    for (size_t k = 0; k < node.operands().size(); ++k) {
      const ir::Node& operand = *node.operands()[k].node;
      if (operand.payload() || survives[operand.mark().position]) edges.push_back({&node, k});
    }
  }
  return edges;
}

/// With more results than this, some compiler passes take time quadratic in the number of results.
constexpr size_t kManyResults = 2048;
constexpr size_t kResultsOfPart = 1024;

}  // namespace

bool HasCollective(const std::vector<const ir::Node*>& nodes) {
  return std::ranges::any_of(
      nodes, [](const ir::Node* node) { return distributed::IsCollective(node->op()); });
}

bool HasEffect(const std::vector<const ir::Node*>& nodes) {
  return HasCollective(nodes) || std::ranges::any_of(nodes, [](const ir::Node* node) {
           return &node->op() == &ir::ops::stablehlo &&
                  ir::AttributeReader(node->attributes()).String().find(cpu::kHostCallTarget) !=
                      std::string_view::npos;
         });
}

std::optional<Cut> CutGraph(const std::vector<tensor::StoragePtr>& storages, int device) {
  Worker& worker = GetWorker(device);
  std::vector<ir::Value> roots;
  std::map<std::pair<const ir::Node*, uint32_t>, size_t> position;
  std::vector<Target> targets;
  roots.reserve(storages.size());
  for (const tensor::StoragePtr& storage : storages) {
    ir::Value value = storage->value();
    if (tensor::LeafData(value) || AssignFill(*storage, value)) continue;
    auto [it, is_new] = position.try_emplace({value.node.get(), value.index}, roots.size());
    targets.push_back({storage.get(), it->second, storage->last_data(), storage->sharding()});
    if (is_new) roots.push_back(std::move(value));
  }
  if (roots.empty()) return std::nullopt;

  Cut cut{.device = device,
          .devices = tensor::DevicesOf(device),
          .graph = tensor::CollectGraph(std::move(roots)),
          .targets = std::move(targets)};
  // On several devices the compiler may choose the sharding.
  const Sharding* sharding = cut.devices->size() > 1 ? nullptr : Sharding::Replicated();
  for (const ir::Value& root : cut.graph.roots) {
    cut.execution.outputs.push_back(
        c10::make_intrusive<tensor::DeviceData>(root.shape(), device, cut.devices, sharding));
    cut.execution.outputs.back()->set_location(root.node->location());
    cut.leaves.push_back(tensor::MakeLeaf(cut.execution.outputs.back()));
  }
  for (const Target& t : cut.targets)
    t.storage->Replace(cut.graph.roots[t.root], cut.leaves[t.root]);
  cut.survives = FindSurvivors(cut.graph);
  cut.dying = EdgesOfDying(cut.graph, cut.survives);
  cut.place = worker.Reserve();
  return cut;
}

std::vector<std::vector<tensor::StoragePtr>> PartsOf(std::vector<tensor::StoragePtr> pending) {
  std::vector<std::vector<tensor::StoragePtr>> parts;
  const auto whole = [&] {
    parts.assign(1, std::move(pending));
    return std::move(parts);
  };
  // A recording must be a single program, and so must a program with a name. Replicas must all have
  // the same programs.
  if (pending.size() <= kManyResults || CurrentCutLog() || tensor::RunsAcrossProcesses() ||
      !CurrentSettings()->name.empty()) {
    return whole();
  }
  std::vector<ir::Value> roots;
  for (const tensor::StoragePtr& storage : pending) roots.push_back(storage->value());
  const tensor::Graph graph = tensor::CollectGraph(std::move(roots));
  if (HasCollective(graph.order)) return whole();
  // A union-find forest: each node's parent in the tree of nodes that belong together; a root is
  // its own parent.
  std::vector<size_t> above(graph.order.size());
  std::iota(above.begin(), above.end(), size_t{0});
  const auto top = [&](size_t i) {
    while (above[i] != i) i = above[i] = above[above[i]];
    return i;
  };
  for (size_t i = 0; i < graph.order.size(); ++i) {
    for (const ir::Value& operand : graph.order[i]->operands()) {
      if (!operand.node->operands().empty()) above[top(operand.node->mark().position)] = top(i);
    }
  }
  std::vector<std::vector<tensor::StoragePtr>> groups;
  std::unordered_map<size_t, size_t> group_of;
  for (size_t i = 0; i < pending.size(); ++i) {
    const size_t group =
        group_of.emplace(top(graph.roots[i].node->mark().position), groups.size()).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(std::move(pending[i]));
  }
  for (std::vector<tensor::StoragePtr>& group : groups) {
    if (parts.empty() || parts.back().size() + group.size() > kResultsOfPart) parts.emplace_back();
    std::ranges::move(group, std::back_inserter(parts.back()));
  }
  return parts;
}

}  // namespace torch_xla::exec
