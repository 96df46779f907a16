#include "exec/read_policy.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "distributed/collective_node.h"
#include "distributed/collective_ops.h"
#include "exec/cut.h"
#include "exec/cut_log.h"
#include "exec/host_edges.h"
#include "tensor/device.h"

namespace torch_xla::lazy {
namespace {

using Nodes = std::vector<const ir::Node*>;

/// The last read of a device.
struct LastRead {
  const ir::SourceLocation* line = nullptr;
  size_t pending = kMuch;  // how many nodes all that waited needed, where it needed little
  size_t computed = 0;     // how many of its nodes earlier reads had computed
  bool in_a_loop = false;

  static constexpr size_t kMuch = std::numeric_limits<size_t>::max();
};

/// Continues a walk over all that is pending; returns how many nodes it has met by then.
size_t CountWithPending(GraphWalk& walk, const std::vector<StoragePtr>& pending) {
  for (const StoragePtr& storage : pending) {
    const ir::Value value = storage->value();
    if (!LeafData(value)) walk.From(*value.node, [](const ir::Node&) {});
  }
  return walk.size();
}

/// Whether a read had better compute all that is pending. There are three such reads:
///   - it would compute again much that earlier reads did on their way, as an optimizer does that
///     reads a norm of each gradient: a program for each, with most of the backward pass in it;
///   - it is in a loop, needs little ("have all sequences ended?"), and what waits has grown by a
///     round: whoever reads only that would have all rounds in one program at the end;
///   - it is in a loop, needs the bulk, and again more of what earlier rounds computed: counters
///     that only the next round takes, whose chain is longer in each program.
/// A read is in a loop where the line is that of the read before.
bool ReadsAll(const ir::Value& value, int device, const Nodes& nodes, GraphWalk& walk,
              const std::vector<StoragePtr>& pending) {
  constexpr size_t kSmall = 64;
  static std::unordered_map<int, LastRead> reads;
  const ir::SourceLocation* line = value.node->location();
  LastRead& last = reads[device];
  if (!line || line != last.line) last = {.line = line};
  if (last.in_a_loop) return true;
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

ReadPlan PlanRead(std::vector<StoragePtr> storages, int device, bool may_run_all) {
  const auto lock = LockGraph();
  std::vector<StoragePtr> pending = Storage::Pending(device);
  ReadPlan plan{.storages = std::move(storages)};
  if (!may_run_all && plan.storages.size() == 1 && pending.size() <= 1) return plan;
  GraphWalk walk;
  Nodes nodes;
  for (const StoragePtr& storage : plan.storages) {
    const ir::Value value = storage->value();
    walk.From(*value.node, [&](const ir::Node& node) { nodes.push_back(&node); });
  }
  if (may_run_all) {
    const ir::Value value = plan.storages[0]->value();
    if (LeafData(value)) return plan;
    plan.all = ReadsAll(value, device, nodes, walk, pending);
    if (plan.all) return plan;
  }
  // A collective runs once, and what else is made of its results must not be left for later.
  const auto is_collective = [](const ir::Node* node) {
    return distributed::IsCollective(node->op());
  };
  if (CollectivePending(device) && std::ranges::any_of(nodes, is_collective)) {
    plan.storages = std::move(pending);
    return plan;
  }
  // Whoever reads values in a loop would have those that are computed on the way to these computed
  // again by the next program, which would grow by it.
  const std::unordered_set<StoragePtr> asked(plan.storages.begin(), plan.storages.end());
  for (StoragePtr& storage : pending) {
    const ir::Value value = storage->value();
    if (LeafData(value) || asked.contains(storage)) continue;
    const uint32_t position = value.node->mark().position;
    if (position < nodes.size() && nodes[position] == value.node.get()) {
      plan.storages.push_back(std::move(storage));
    }
  }
  return plan;
}

bool EvaluateOnHost(Storage& storage) {
  const ir::Value value = storage.value();
  const DeviceSet* devices = DevicesOf(storage.device());
  // A recording is one of programs.
  if (LeafData(value) || value.shape()->numel != 1 || devices->size() > 1 || CurrentCutLog()) {
    return false;
  }
  std::optional<HostCalls> calls = HostAlone(value);
  if (!calls) return false;
  auto data = c10::make_intrusive<DeviceData>(value.shape(), storage.device(), devices,
                                              distributed::Sharding::Replicated());
  data->set_location(value.node->location());
  calls->Promise(value, data);
  calls->Run(/*producer=*/0);
  storage.Replace(value, MakeLeaf(data));
  return true;
}

}  // namespace torch_xla::lazy
