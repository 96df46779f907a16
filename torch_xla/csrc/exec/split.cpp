#include "exec/split.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "exec/cut_log.h"
#include "tensor/device_data.h"

namespace torch_xla::exec {
namespace {

/// A program with fewer nodes than this is not split.
constexpr size_t kBulk = 16;
/// This many graphs with the same bulk become programs as they are: a loop that accumulates has no
/// sum in its first round, and all later rounds are alike.
constexpr size_t kGraphs = 2;
/// Above this number all bulks are forgotten; at worst one more program is compiled.
constexpr size_t kMaxBulks = 1 << 12;

enum class Part : uint8_t { kLeaf, kBefore, kBulk, kAfter };

/// A graph split in three: host operations before the program, the program, and host operations
/// after it.
struct SplitGraph {
  std::vector<const ir::Node*> before, after;
  /// `inputs`: results of `before` that the program or `after` needs. `outputs`: results of the
  /// program that `after` needs.
  std::vector<ir::Value> inputs, outputs;
  /// The indices of the graph's roots that the program computes.
  std::vector<size_t> roots;
};

/// Splits a graph. Returns nothing if there is nothing to split off, or if the remaining program
/// would be too small.
std::optional<SplitGraph> Split(const tensor::Graph& graph) {
  std::unordered_map<const ir::Node*, size_t> positions;
  positions.reserve(graph.order.size());
  std::vector<Part> parts(graph.order.size(), Part::kBulk);
  auto part = [&](const ir::Value& value) -> Part& {
    return parts[positions.at(value.node.get())];
  };
  std::vector<bool> light(graph.order.size());
  for (size_t i = 0; i < graph.order.size(); ++i) {
    const ir::Node& node = *graph.order[i];
    positions.emplace(&node, i);
    if (tensor::IsLeaf(node)) {
      parts[i] = Part::kLeaf;
      continue;
    }
    if (tensor::JoinsSamples(node)) {
      parts[i] = Part::kBefore;
      for (const ir::Value& operand : node.operands()) {
        if (!tensor::IsLeaf(*operand.node)) part(operand) = Part::kBefore;
      }
      continue;
    }
    light[i] = tensor::IsBookkeeping(node);
    if (!light[i]) continue;
    bool before = true;
    for (const ir::Value& operand : node.operands()) before &= part(operand) != Part::kBulk;
    if (before) parts[i] = Part::kBefore;
  }
  // From the end: light nodes that no node of the bulk needs run after the program.
  std::vector<bool> needed(graph.order.size());
  for (size_t i = graph.order.size(); i-- > 0;) {
    if (parts[i] == Part::kBulk && light[i] && !needed[i]) parts[i] = Part::kAfter;
    if (parts[i] != Part::kBulk) continue;
    for (const ir::Value& operand : graph.order[i]->operands())
      needed[positions.at(operand.node.get())] = true;
  }
  SplitGraph split;
  std::unordered_set<const ir::Node*> inputs;
  std::vector<std::pair<const ir::Node*, uint32_t>> outputs;
  size_t bulk = 0;
  for (size_t i = 0; i < graph.order.size(); ++i) {
    const ir::Node& node = *graph.order[i];
    if (parts[i] == Part::kBefore) split.before.push_back(&node);
    if (parts[i] == Part::kAfter) split.after.push_back(&node);
    if (parts[i] == Part::kBulk) ++bulk;
    if (parts[i] != Part::kBulk && parts[i] != Part::kAfter) continue;
    for (const ir::Value& operand : node.operands()) {
      const Part from = part(operand);
      if (from == Part::kBefore && inputs.insert(operand.node.get()).second)
        split.inputs.push_back(operand);
      if (from != Part::kBulk || parts[i] == Part::kBulk) continue;
      const std::pair key(static_cast<const ir::Node*>(operand.node.get()), operand.index);
      if (std::find(outputs.begin(), outputs.end(), key) != outputs.end()) continue;
      outputs.push_back(key);
      split.outputs.push_back(operand);
    }
  }
  if (bulk < kBulk || split.before.size() + split.after.size() == 0) return std::nullopt;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const Part from = part(graph.roots[i]);
    if (from == Part::kBulk || from == Part::kLeaf) split.roots.push_back(i);
  }
  return split;
}

/// Whether two other graphs had the same bulk before: then the bulk is worth a program of its own.
/// Remembers this graph.
bool IsBulkOfOthers(const ir::Hash128& bulk, const ir::Hash128& graph) {
  using Graphs = c10::SmallVector<ir::Hash128, kGraphs>;
  static std::mutex mutex;
  static auto& bulks = *new std::unordered_map<ir::Hash128, Graphs, ir::Hash128Hasher>;
  std::lock_guard<std::mutex> lock(mutex);
  if (bulks.size() >= kMaxBulks) bulks.clear();
  Graphs& graphs = bulks[bulk];
  if (std::find(graphs.begin(), graphs.end(), graph) != graphs.end()) return false;
  if (graphs.size() == kGraphs) return true;
  graphs.push_back(graph);
  return false;
}

}  // namespace

std::optional<Bulk> SplitCut(const Cut& cut) {
  const tensor::Graph& graph = cut.graph;
  // A recording consists of programs only. Collectives must be in the same programs in all
  // processes.
  if (cut.is_bulk || cut.devices->size() > 1 || CurrentCutLog() || HasCollective(graph.order)) {
    return std::nullopt;
  }
  const std::optional<SplitGraph> split = Split(graph);
  if (!split) return std::nullopt;
  auto promise = [&](const ir::Value& value) {
    for (size_t i = 0; i < graph.roots.size(); ++i) {
      if (graph.roots[i] == value) return cut.execution.outputs[i];
    }
    return tensor::MakePromise(value.shape(), cut.device, cut.devices, value.node->location());
  };
  Cut bulk{.device = cut.device, .devices = cut.devices, .graph = {}, .is_bulk = true};
  std::vector<ir::Value> roots;
  std::unordered_map<size_t, size_t> root_of;
  for (size_t i : split->roots) {
    root_of.emplace(i, roots.size());
    roots.push_back(graph.roots[i]);
    bulk.execution.outputs.push_back(cut.execution.outputs[i]);
  }
  const Execution& execution = cut.execution;
  tensor::GraphInputs inputs;
  auto host = std::make_unique<tensor::HostEdges>();
  auto& [before, after] = *host;
  // Nodes that the host operations or the roots read, or that the holder of a tensor can read
  // later.
  std::unordered_set<const ir::Node*> read;
  for (const ir::Value& root : graph.roots) read.insert(root.node.get());
  auto add = [&](tensor::HostCalls& calls, const ir::Node& node) {
    calls.Add(node);
    for (const ir::Value& operand : node.operands()) read.insert(operand.node.get());
  };
  for (const ir::Node* node : split->before) add(before, *node);
  for (const ir::Value& value : split->inputs) {
    const tensor::DeviceDataPtr data = promise(value);
    before.Promise(value, data);
    after.Bind(value, data);
    inputs.emplace(value.node.get(), data);
  }
  for (const ir::Value& value : split->outputs) {
    const tensor::DeviceDataPtr data = promise(value);
    after.Bind(value, data);
    if (std::find(roots.begin(), roots.end(), value) != roots.end()) continue;
    roots.push_back(value);
    bulk.execution.outputs.push_back(data);
  }
  for (const ir::Node* node : split->after) add(after, *node);
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const ir::Value& root = graph.roots[i];
    const ir::Node* node = root.node.get();
    if (root_of.contains(i) || inputs.contains(node)) continue;
    const bool is_after =
        std::find(split->after.begin(), split->after.end(), node) != split->after.end();
    (is_after ? after : before).Promise(root, execution.outputs[i]);
  }
  {
    auto lock = tensor::LockGraph();
    bulk.graph = tensor::CollectGraph(std::move(roots), inputs);
  }
  if (!IsBulkOfOthers(bulk.graph.hash, graph.hash)) return std::nullopt;
  std::unordered_map<const ir::Node*, bool> dies;
  for (size_t i = 0; i < graph.order.size(); ++i) {
    dies.emplace(graph.order[i], !cut.survives[i] && !read.contains(graph.order[i]));
  }
  for (const ir::Node* node : bulk.graph.order) bulk.survives.push_back(!dies.at(node));
  for (Target target : cut.targets) {
    const auto root = root_of.find(target.root);
    if (root == root_of.end()) continue;
    target.root = root->second;
    bulk.targets.push_back(target);
  }
  bulk.execution.origin = execution.origin;
  return Bulk{std::move(bulk), std::move(host)};
}

}  // namespace torch_xla::exec
