#include "lazy/executor.h"

#include <unordered_map>

#include "debug/metrics.h"
#include "lazy/device.h"
#include "lazy/graph.h"
#include "lazy/worker.h"
#include "lowering/internal_ops.h"

namespace torch_xla::lazy {
namespace {

/// One cut at a time in the process: the walk marks nodes.
std::mutex graph_mutex;

std::unique_lock<std::mutex> LockGraph() {
  static auto& wait = *new debug::Metric("DeviceLockWait", debug::Unit::kTimeNs);
  debug::ScopedTimer timer(wait);
  return std::unique_lock<std::mutex>(graph_mutex);
}

ProgramCache& Cache() {
  static auto& cache = *new ProgramCache;
  return cache;
}

struct ValueHash {
  size_t operator()(const ir::Value& value) const {
    return std::hash<const void*>()(value.node.get()) * 31 + value.index;
  }
};

/// A tensor that is nothing but a fill needs no program: its data is made on demand.
bool AssignFill(Storage& storage) {
  const ir::Node& node = *storage.value().node;
  if (&node.op() != &ir::ops::fill) return false;
  const ir::Node& number = *node.operands()[0].node;
  if (&number.op() != &ir::ops::scalar && &number.op() != &ir::ops::constant) return false;
  storage.Assign(MakeLeaf(c10::make_intrusive<DeviceData>(
      storage.shape(), storage.device(), ir::AttributeReader(number.attributes()).Scalar())));
  return true;
}

/// Pairs each parameter whose buffer nothing can read after the step with an output of its
/// type: the new value of the tensor that held it, where that can be told by order.
std::vector<int> ChooseAliases(const Graph& graph) {
  std::vector<int> aliases(graph.data.size(), -1);
  std::unordered_map<ir::ShapeRef, std::vector<int>> outputs;
  for (size_t i = graph.roots.size(); i-- > 0;) {
    outputs[graph.roots[i].shape()].push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < graph.data.size(); ++i) {
    const DeviceData& data = *graph.data[i];
    if (data.holders.load(std::memory_order_relaxed) != 0) continue;
    auto it = outputs.find(data.shape());
    if (it == outputs.end() || it->second.empty()) continue;
    aliases[i] = it->second.back();
    it->second.pop_back();
  }
  return aliases;
}

ProgramPtr FindOrMakeProgram(const Graph& graph, std::vector<int> aliases, int device) {
  static auto& cached = *new debug::Counter("CachedCompile");
  static auto& uncached = *new debug::Counter("UncachedCompile");
  static auto& handles = *new debug::Counter("CreateCompileHandles");
  static auto& lower_time = *new debug::Metric("LowerTime", debug::Unit::kTimeNs);
  ir::Hasher hasher;
  hasher.Add(graph.hash);
  hasher.Add(static_cast<uint64_t>(device));
  for (int alias : aliases) hasher.Add(static_cast<uint64_t>(alias));
  ir::Hash128 key = hasher.Finish();
  if (ProgramPtr program = Cache().Find(key)) {
    cached.Add();
    return program;
  }
  uncached.Add();
  handles.Add();
  auto program = std::make_shared<Program>();
  {
    debug::ScopedTimer timer(lower_time);
    program->stablehlo = LowerGraph(graph, aliases, Platform());
  }
  program->aliases = std::move(aliases);
  Cache().Insert(key, program);
  return program;
}

/// Runs the graph of `roots`; returns the promises of their data.
std::vector<DeviceDataPtr> Launch(std::vector<ir::Value> roots, int device, bool donate) {
  Graph graph = CollectGraph(std::move(roots));
  std::vector<int> aliases = donate ? ChooseAliases(graph) : std::vector<int>();
  Execution execution;
  execution.program = FindOrMakeProgram(graph, std::move(aliases), device);
  for (const ir::Value& root : graph.roots) {
    execution.outputs.push_back(c10::make_intrusive<DeviceData>(root.shape(), device));
  }
  std::vector<DeviceDataPtr> outputs = execution.outputs;
  execution.inputs = std::move(graph.data);
  execution.floats = std::move(graph.floats);
  execution.integers = std::move(graph.integers);
  execution.graph = std::move(graph.roots);
  GetWorker(device).Push(std::move(execution));
  return outputs;
}

/// After a lowering failed: the tensors that cannot be computed become failed data, which
/// tells so when it is read. All others stay pending, and the next sync computes them.
void FailUnlowerable(const std::vector<std::pair<Storage*, size_t>>& targets, int device) {
  for (auto [storage, index] : targets) {
    try {
      LowerGraph(CollectGraph({storage->value()}), {}, Platform());
    } catch (...) {
      auto failed = c10::make_intrusive<DeviceData>(storage->shape(), device);
      failed->Fail(std::current_exception());
      storage->Assign(MakeLeaf(failed));
    }
  }
}

/// Gives the storages that are pending their values; fills need no program.
void SyncLocked(const std::vector<StoragePtr>& storages, int device, bool whole_device) {
  std::vector<ir::Value> roots;
  std::unordered_map<ir::Value, size_t, ValueHash> position;
  std::vector<std::pair<Storage*, size_t>> targets;
  roots.reserve(storages.size());
  for (const StoragePtr& storage : storages) {
    if (LeafData(storage->value()) || AssignFill(*storage)) continue;
    auto [it, is_new] = position.emplace(storage->value(), roots.size());
    if (is_new) roots.push_back(storage->value());
    targets.emplace_back(storage.get(), it->second);
  }
  if (roots.empty()) return;
  std::vector<DeviceDataPtr> outputs;
  try {
    outputs = Launch(roots, device, whole_device);
  } catch (...) {
    FailUnlowerable(targets, device);
    throw;
  }
  std::vector<ir::Value> leaves;
  for (const DeviceDataPtr& output : outputs) leaves.push_back(MakeLeaf(output));
  for (auto [storage, index] : targets) storage->Assign(leaves[index]);
}

}  // namespace

void SyncDevice(int device, bool wait) {
  static auto& mark_step = *new debug::Counter("MarkStep");
  mark_step.Add();
  Worker& worker = GetWorker(device);
  worker.ThrowFailure();
  {
    auto lock = LockGraph();
    SyncLocked(Storage::Pending(device), device, /*whole_device=*/true);
  }
  if (wait) WaitDevice(device);
}

void SyncStorages(const std::vector<StoragePtr>& storages, bool wait) {
  std::unordered_map<int, std::vector<StoragePtr>> by_device;
  for (const StoragePtr& storage : storages) by_device[storage->device()].push_back(storage);
  for (auto& [device, group] : by_device) {
    auto lock = LockGraph();
    SyncLocked(group, device, /*whole_device=*/false);
  }
  if (wait) {
    for (auto& [device, group] : by_device) WaitDevice(device);
  }
}

DeviceDataPtr Evaluate(const StoragePtr& storage) {
  if (!LeafData(storage->value())) SyncStorages({storage}, /*wait=*/false);
  return DeviceDataPtr::reclaim_copy(LeafData(storage->value()));
}

DeviceDataPtr Evaluate(const ir::Value& value, int device) {
  return Evaluate(c10::make_intrusive<Storage>(value, device));
}

void WaitDevice(int device) {
  Worker& worker = GetWorker(device);
  worker.Drain();
  worker.ThrowFailure();
}

std::string StableHloOf(const std::vector<ir::Value>& values) {
  auto lock = LockGraph();
  return LowerGraph(CollectGraph(values), {}, Platform());
}

void Shutdown() { StopWorkers(); }

}  // namespace torch_xla::lazy
