#include "exec/read_policy.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "distributed/collective_node.h"
#include "exec/cut.h"
#include "exec/cut_log.h"
#include "tensor/device.h"
#include "tensor/host_edges.h"

namespace torch_xla::exec {
namespace {

using Nodes = std::vector<const ir::Node*>;

/// What is remembered of the last read of a device.
struct LastRead {
  const ir::SourceLocation* line = nullptr;
  size_t pending = kMuch;  // nodes that all pending values needed, if the read itself needed few
  size_t computed = 0;     // how many nodes of the read had been computed by earlier reads
  bool in_a_loop = false;

  static constexpr size_t kMuch = std::numeric_limits<size_t>::max();
};

/// The last read of a device, or a new entry if that was in another line than this read is.
LastRead& LastReadOf(int device, const ir::SourceLocation* line) {
  static std::unordered_map<int, LastRead> reads;
  LastRead& last = reads[device];
  if (!line || line != last.line) last = {.line = line};
  return last;
}

/// Continues a walk over all pending storages. Returns the number of nodes visited so far.
size_t CountWithPending(tensor::GraphWalk& walk, const std::vector<tensor::StoragePtr>& pending) {
  for (const tensor::StoragePtr& storage : pending) {
    const ir::Value value = storage->value();
    if (!tensor::LeafData(value)) walk.From(*value.node, [](const ir::Node&) {});
  }
  return walk.size();
}

/// Whether a read should compute all that is pending. It should in three cases:
/// - The read would compute again many nodes that earlier reads computed, as when an optimizer
///   reads the norm of each gradient: each norm would be a program with most of the backward pass
///   in it.
/// - The read is in a loop, needs few nodes ("have all sequences ended?"), and the pending graph
///   has grown since the last read. Otherwise the graphs of all rounds would end up in one program.
/// - The read is in a loop, needs many nodes, and more of them than at the last read were computed
///   in earlier rounds. Such counters are only used by the next round, and their chain grows with
///   each program.
///
/// A read is in a loop if its line is the line of the previous read.
bool ReadsAll(LastRead& last, const Nodes& nodes, tensor::GraphWalk& walk,
              const std::vector<tensor::StoragePtr>& pending) {
  constexpr size_t kSmall = 64;
  const ir::SourceLocation* line = last.line;
  if (nodes.size() > kSmall) {
    const auto computed = static_cast<size_t>(std::ranges::count_if(nodes, &ir::Node::computed));
    last.in_a_loop = line && last.computed != 0 && computed > last.computed;
    last.computed = computed;
    last.pending = LastRead::kMuch;
    return last.in_a_loop || 4 * computed > nodes.size();
  }
  const size_t all = CountWithPending(walk, pending);
  last.in_a_loop = line && all > last.pending && all - last.pending > kSmall;
  last.computed = 0;
  last.pending = all;
  return last.in_a_loop;
}

}  // namespace

ReadPlan PlanRead(std::vector<tensor::StoragePtr> storages, int device, bool may_run_all) {
  const auto lock = tensor::LockGraph();
  std::vector<tensor::StoragePtr> pending = tensor::Storage::Pending(device);
  ReadPlan plan{.storages = std::move(storages)};
  if (!may_run_all && plan.storages.size() == 1 && pending.size() <= 1) return plan;
  LastRead* last = nullptr;
  if (may_run_all) {
    const ir::Value value = plan.storages[0]->value();
    if (tensor::LeafData(value)) return plan;
    last = &LastReadOf(device, value.node->location());
    // What such a loop runs is known without a walk.
    plan.all = last->in_a_loop;
    if (plan.all) return plan;
  }
  tensor::GraphWalk walk;
  Nodes nodes;
  for (const tensor::StoragePtr& storage : plan.storages) {
    const ir::Value value = storage->value();
    walk.From(*value.node, [&](const ir::Node& node) { nodes.push_back(&node); });
  }
  if (last) {
    plan.all = ReadsAll(*last, nodes, walk, pending);
    if (plan.all) return plan;
  }
  // A collective, or a call of the host, runs only once, so other values that need its results must
  // be computed in the same program.
  if (distributed::CollectivePending(device) && HasEffect(nodes)) {
    plan.storages = std::move(pending);
    return plan;
  }
  // Also computes the pending values on the way to the values that are read. In a loop the next
  // program would otherwise compute them again and grow by them.
  const std::unordered_set<tensor::StoragePtr> asked(plan.storages.begin(), plan.storages.end());
  for (tensor::StoragePtr& storage : pending) {
    const ir::Value value = storage->value();
    if (tensor::LeafData(value) || asked.contains(storage)) continue;
    const uint32_t position = value.node->mark().position;
    if (position < nodes.size() && nodes[position] == value.node.get()) {
      plan.storages.push_back(std::move(storage));
    }
  }
  return plan;
}

bool EvaluateOnHost(tensor::Storage& storage) {
  const ir::Value value = storage.value();
  const tensor::DeviceSet* devices = tensor::DevicesOf(storage.device());
  // A recording consists of programs only.
  if (tensor::LeafData(value) || value.shape()->numel != 1 || devices->size() > 1 ||
      CurrentCutLog()) {
    return false;
  }
  std::optional<tensor::HostCalls> calls = tensor::HostAlone(value);
  if (!calls) return false;
  const tensor::DeviceDataPtr data =
      tensor::MakePromise(value.shape(), storage.device(), devices, value.node->location());
  calls->Promise(value, data);
  calls->Run(/*producer=*/0);
  storage.Replace(value, tensor::MakeLeaf(data));
  return true;
}

}  // namespace torch_xla::exec
