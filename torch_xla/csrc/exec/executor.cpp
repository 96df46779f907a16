#include "exec/executor.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "debug/report.h"
#include "debug/timeline.h"
#include "distributed/collective_node.h"
#include "distributed/collective_ops.h"
#include "exec/cuts.h"
#include "exec/graph.h"
#include "exec/host_edges.h"
#include "exec/lower_graph.h"
#include "exec/number_plans.h"
#include "exec/recorder.h"
#include "exec/worker.h"
#include "ir/dump.h"
#include "lowering/kernel_choice.h"
#include "runtime/platform.h"
#include "tensor/device.h"
#include "tensor/events.h"
#include "tensor/growths.h"
#include "tensor/node_factory.h"

namespace torch_xla::lazy {

using distributed::Sharding;

namespace {

/// One cut at a time in the process: the walk marks nodes. Held for the walk alone; nothing waits
/// for a device, a compiler or a lowering under it.
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

/// A tensor that is nothing but a fill needs no program: its data is made on demand.
bool AssignFill(Storage& storage, const ir::Value& value) {
  const ir::Node& node = *value.node;
  if (&node.op() != &ir::ops::fill) return false;
  const ir::Node& number = *node.operands()[0].node;
  if (&number.op() != &ir::ops::scalar && &number.op() != &ir::ops::Constant) return false;
  auto data = c10::make_intrusive<DeviceData>(
      value.shape(), storage.device(), ir::AttributeReader(number.attributes()).Scalar(),
      storage.sharding() ? storage.sharding() : Sharding::Replicated());
  data->set_location(node.location());
  storage.Replace(value, MakeLeaf(data));
  return true;
}

/// Which nodes of the graph, by position, can be read after it is cut: those with an owner
/// outside of it (a tensor, or an op that another thread is tracing) and all below them.
/// The tensors that are evaluated must own their results by now: then nobody can get hold
/// of a node that has no such owner, whatever other threads do.
std::vector<bool> FindSurvivors(const Graph& graph) {
  std::vector<bool> survives(graph.order.size());
  for (size_t i = graph.order.size(); i-- > 0;) {
    const ir::Node& node = *graph.order[i];
    if (!survives[i]) survives[i] = node.references() != node.mark().uses;
    if (!survives[i]) continue;
    for (const ir::Value& operand : node.operands()) survives[operand.node->mark().position] = true;
  }
  return survives;
}

struct Edge {
  const ir::Node* node;
  size_t operand;
};

/// The edges from nodes that die to what survives, and to device data. The dying are freed on
/// another thread, at any time; who owns the rest must not depend on it: the edges are dropped
/// before that.
std::vector<Edge> EdgesOfDying(const Graph& graph, const std::vector<bool>& survives) {
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

struct Target {
  Storage* storage;
  size_t root;
  uint64_t overwrites;  // the id of the storage's data before
  const Sharding* sharding;
};

/// What was taken from the graph under the lock; nothing else is needed to run it.
struct Cut {
  int device;
  const DeviceSet* devices;
  Graph graph;
  std::vector<Target> targets;
  std::vector<bool> survives;     // see FindSurvivors
  std::vector<Edge> dying;        // see EdgesOfDying
  std::vector<ir::Value> leaves;  // that stand in the targets for the roots
  Execution execution;
  Worker::Place place;
  bool is_bulk = false;  // see SplitCut
};

/// Pairs parameters whose buffers nothing can read after the step with the outputs that take
/// their place: the new value of the tensor that held the data, else a root computed straight
/// from it (p = p - g). No other output of its type will do: where the two are alive at once,
/// XLA copies the parameter first, which costs more than a fresh buffer.
std::vector<int> ChooseAliases(const Cut& cut) {
  const Graph& graph = cut.graph;
  std::vector<int> aliases(graph.data.size(), -1);
  std::unordered_map<uint64_t, size_t> dying;  // parameters by the id of their data
  for (size_t i = 0; i < graph.data.size(); ++i) {
    if (!cut.survives[graph.data_positions[i]] && !graph.data[i]->foreign())
      dying.emplace(graph.data[i]->id(), i);
  }
  if (dying.empty()) return aliases;
  std::vector<bool> taken(graph.roots.size());
  auto pair = [&](uint64_t id, size_t root) {
    auto it = dying.find(id);
    if (taken[root] || it == dying.end()) return;
    if (graph.data[it->second]->shape() != graph.roots[root].shape()) return;
    aliases[it->second] = static_cast<int>(root);
    taken[root] = true;
    dying.erase(it);
  };
  for (const Target& target : cut.targets) pair(target.overwrites, target.root);
  // XLA may lay these out in another way than the parameter.
  if (cut.devices->size() > 1) return aliases;
  for (size_t root = 0; root < graph.roots.size() && !dying.empty(); ++root) {
    for (const ir::Value& operand : graph.roots[root].node->operands()) {
      if (taken[root]) break;  // Operations on lists have hundreds of operands.
      if (DeviceData* data = LeafData(operand)) pair(data->id(), root);
    }
  }
  return aliases;
}

bool HasCollective(const Graph& graph) {
  return std::any_of(graph.order.begin(), graph.order.end(),
                     [](const ir::Node* node) { return distributed::IsCollective(node->op()); });
}

/// What is said of how the roots shall lie on several devices: by their tensors, or by
/// the parameters that they take the place of. Those cannot be donated to another sharding.
std::vector<const Sharding*> ChooseShardings(const Cut& cut, std::vector<int>& aliases) {
  std::vector<const Sharding*> shardings(cut.graph.roots.size());
  for (const Target& target : cut.targets) {
    if (!shardings[target.root]) shardings[target.root] = target.sharding;
  }
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] < 0) continue;
    const Sharding*& root = shardings[aliases[i]];
    if (!root) root = cut.graph.data[i]->sharding();
    if (root != cut.graph.data[i]->sharding()) aliases[i] = -1;
  }
  return shardings;
}

ProgramPtr FindOrMakeProgram(Cut& cut, bool donate);

/// Where other graphs had the same bulk: makes the cut one of the bulk alone, with the rest to be
/// done on the host, and returns its program; see exec/host_edges.h. Else null.
ProgramPtr SplitCut(Cut& cut, bool donate) {
  const Graph& graph = cut.graph;
  // A recording is one of programs; collectives are in the same programs in all processes.
  if (cut.is_bulk || cut.devices->size() > 1 || CurrentRecorder() || HasCollective(graph)) {
    return nullptr;
  }
  const std::optional<SplitGraph> split = Split(graph);
  if (!split) return nullptr;
  auto promise = [&](const ir::Value& value) {
    for (size_t i = 0; i < graph.roots.size(); ++i) {
      if (graph.roots[i] == value) return cut.execution.outputs[i];
    }
    auto data = c10::make_intrusive<DeviceData>(value.shape(), cut.device, cut.devices,
                                                Sharding::Replicated());
    data->set_location(value.node->location());
    return data;
  };
  Cut bulk{.device = cut.device, .devices = cut.devices, .graph = {}, .is_bulk = true};
  std::vector<ir::Value> roots;
  std::unordered_map<size_t, size_t> root_of;
  for (size_t i : split->roots) {
    root_of.emplace(i, roots.size());
    roots.push_back(graph.roots[i]);
    bulk.execution.outputs.push_back(cut.execution.outputs[i]);
  }
  Execution& execution = cut.execution;
  GraphInputs inputs;
  auto host = std::make_unique<HostEdges>();
  auto& [before, after] = *host;
  // By these, or later by whoever holds a tensor.
  std::unordered_set<const ir::Node*> read;
  for (const ir::Value& root : graph.roots) read.insert(root.node.get());
  auto add = [&](HostCalls& calls, const ir::Node& node) {
    calls.Add(node);
    for (const ir::Value& operand : node.operands()) read.insert(operand.node.get());
  };
  for (const ir::Node* node : split->before) add(before, *node);
  for (const ir::Value& value : split->inputs) {
    const DeviceDataPtr data = promise(value);
    before.Promise(value, data);
    after.Bind(value, data);
    inputs.emplace(value.node.get(), data);
  }
  for (const ir::Value& value : split->outputs) {
    const DeviceDataPtr data = promise(value);
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
    auto lock = LockGraph();
    bulk.graph = CollectGraph(std::move(roots), inputs);
  }
  if (!IsBulkOfOthers(bulk.graph.hash, graph.hash)) return nullptr;
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
  ProgramPtr program = FindOrMakeProgram(bulk, donate);
  execution.outputs = std::move(bulk.execution.outputs);
  execution.host = std::move(host);
  // It is still known by its own hash and roots, which keep the nodes.
  bulk.graph.hash = cut.graph.hash;
  bulk.graph.roots = std::move(cut.graph.roots);
  cut.graph = std::move(bulk.graph);
  return program;
}

Signature SignatureOf(const Graph& graph) {
  Signature signature{.floats = graph.floats.size(), .integers = graph.integers.size()};
  for (const DeviceDataPtr& data : graph.data) signature.parameters.push_back(data->shape());
  for (const ir::Value& root : graph.roots) signature.results.push_back(root.shape());
  return signature;
}

ProgramPtr FindOrMakeProgram(Cut& cut, bool donate) {
  static auto& cached = *new debug::Counter("CachedCompile");
  static auto& uncached = *new debug::Counter("UncachedCompile");
  static auto& handles = *new debug::Counter("CreateCompileHandles");
  static auto& lower_time = *new debug::Metric("LowerTime", debug::Unit::kTimeNs);
  const Graph& graph = cut.graph;
  std::vector<int> aliases = donate ? ChooseAliases(cut) : std::vector<int>();
  ir::Hasher hasher;
  hasher.Add(graph.hash);
  PackNumbers(cut.graph, hasher);
  for (int member : *cut.devices) hasher.Add(static_cast<uint64_t>(member));
  const CompileSettingsPtr settings = CurrentSettings();
  hasher.Add(settings->Hash());
  std::vector<const Sharding*> shardings;
  if (cut.devices->size() > 1) {
    shardings = ChooseShardings(cut, aliases);
    for (const Sharding* sharding : shardings) hasher.Add(sharding ? sharding->hash() : 0);
    for (const DeviceDataPtr& data : graph.data) hasher.Add(data->sharding()->hash());
  }
  for (int alias : aliases) hasher.Add(static_cast<uint64_t>(alias));
  const ir::Hash128 key = hasher.Finish();
  ProgramPtr program = Cache().Find(key);
  if (!program) {
    if (ProgramPtr bulk = SplitCut(cut, donate)) return bulk;
  }
  if (!program) program = Cache().Insert(key, std::make_shared<Program>());
  if (!program->made.load(std::memory_order_acquire)) {
    // Whoever needs the same one meanwhile waits for it.
    std::lock_guard<std::mutex> lock(program->making);
    if (!program->made.load(std::memory_order_relaxed)) {
      program->devices = cut.devices;
      program->signature = SignatureOf(graph);
      program->aliases = std::move(aliases);
      program->across_processes = runtime::HasInterconnect(Platform()) && HasCollective(graph);
      program->shardings = std::move(shardings);
      program->origin = cut.execution.origin;
      program->nodes = graph.order.size();
      program->explanation = Events().Compiling(graph, *program, key, cut.execution.origin);
      uncached.Add();
      handles.Add();
      const bool alone = cut.devices->size() == 1 && !program->across_processes;
      if (!alone || !RestoreProgram(*program, key)) {
        debug::ScopedTimer timer(lower_time);
        const lowering::LibraryCalls calls(alone);
        program->stablehlo = LowerGraph(graph, program->aliases, Platform(), cut.devices->size(),
                                        program->shardings, settings->name);
      }
      if (!settings->name.empty()) {
        debug::GetCounter("CompiledGraph::" + settings->name).Add();
        program->runs = &debug::GetCounter("ExecutedGraph::" + settings->name);
      }
      // How the outputs lie is part of the next program.
      if (cut.devices->size() > 1) CompileProgram(*program);
      program->made.store(true, std::memory_order_release);
      return program;
    }
  }
  cached.Add();
  return program;
}

/// After a lowering failed: the tensors that cannot be computed become failed data, which
/// tells so when it is read. All others stay pending, and the next sync computes them.
void FailUnlowerable(const Cut& cut) {
  for (const Target& target : cut.targets) {
    const ir::Value& root = cut.graph.roots[target.root];
    try {
      const Graph graph = [&] {
        auto lock = LockGraph();
        return CollectGraph({root});
      }();
      LowerGraph(graph, {}, Platform());
    } catch (...) {
      auto failed = c10::make_intrusive<DeviceData>(root.shape(), cut.device, cut.devices,
                                                    Sharding::Replicated());
      failed->Fail(std::current_exception());
      target.storage->Replace(root, MakeLeaf(failed));
    }
  }
}

/// Under the lock: puts promises in the place of what `storages` are pending for, which Run keeps;
/// fills need no program. Nothing where nothing is pending.
std::optional<Cut> CutGraph(const std::vector<StoragePtr>& storages, int device) {
  Worker& worker = GetWorker(device);
  std::vector<ir::Value> roots;
  std::map<std::pair<const ir::Node*, uint32_t>, size_t> position;
  std::vector<Target> targets;
  roots.reserve(storages.size());
  for (const StoragePtr& storage : storages) {
    ir::Value value = storage->value();
    if (LeafData(value) || AssignFill(*storage, value)) continue;
    auto [it, is_new] = position.try_emplace({value.node.get(), value.index}, roots.size());
    targets.push_back({storage.get(), it->second, storage->last_data(), storage->sharding()});
    if (is_new) roots.push_back(std::move(value));
  }
  if (roots.empty()) return std::nullopt;

  Cut cut{.device = device,
          .devices = DevicesOf(device),
          .graph = CollectGraph(std::move(roots)),
          .targets = std::move(targets)};
  // On several devices the compiler has a say in it.
  const Sharding* sharding = cut.devices->size() > 1 ? nullptr : Sharding::Replicated();
  for (const ir::Value& root : cut.graph.roots) {
    cut.execution.outputs.push_back(
        c10::make_intrusive<DeviceData>(root.shape(), device, cut.devices, sharding));
    cut.execution.outputs.back()->set_location(root.node->location());
    cut.leaves.push_back(MakeLeaf(cut.execution.outputs.back()));
  }
  for (const Target& t : cut.targets)
    t.storage->Replace(cut.graph.roots[t.root], cut.leaves[t.root]);
  cut.survives = FindSurvivors(cut.graph);
  cut.dying = EdgesOfDying(cut.graph, cut.survives);
  cut.place = worker.Reserve();
  return cut;
}

void Record(const Cut& cut, Recorder& recorder) {
  RecordedCut recorded;
  recorded.device = cut.device;
  recorded.hash = cut.graph.hash;
  recorded.program = cut.execution.program;
  recorded.inputs = cut.graph.data;
  recorded.outputs = cut.execution.outputs;
  recorded.floats = cut.graph.floats;
  recorded.integers = cut.graph.integers;
  CollectNumbers(cut.graph, recorded);
  CollectContents(recorder, recorded);
  for (const Target& target : cut.targets) {
    recorded.targets.push_back({target.storage, cut.graph.roots[target.root].node->location()});
  }
  recorder.cuts.push_back(std::move(recorded));
}

/// Lowers, where need be, and queues; without the lock, so that other threads cut and queue what is
/// theirs meanwhile.
void Run(Cut cut, bool donate) {
  static auto& graph_size = *new debug::Metric("TensorsGraphSize", debug::Unit::kNumber);
  graph_size.AddSample(static_cast<double>(cut.graph.order.size()));
  Execution& execution = cut.execution;
  execution.origin = CurrentOrigin();
  try {
    Events().Cut(cut.graph, execution.origin);
    execution.program = FindOrMakeProgram(cut, donate);
    const std::vector<const Sharding*>& shardings = execution.program->shardings;
    for (size_t i = 0; i < shardings.size(); ++i) execution.outputs[i]->SetSharding(shardings[i]);
    Events().Queued(cut.graph, execution.origin);
    if (Recorder* recorder = CurrentRecorder()) [[unlikely]]
      Record(cut, *recorder);
  } catch (...) {
    for (const Target& t : cut.targets) {
      t.storage->Replace(cut.leaves[t.root], cut.graph.roots[t.root]);
    }
    // Another thread may have seen them meanwhile.
    const std::exception_ptr error = std::current_exception();
    for (const DeviceDataPtr& output : execution.outputs) output->Fail(error);
    if (execution.host) {
      execution.host->before.Fail(error, /*producer=*/0);
      execution.host->after.Fail(error, /*producer=*/0);
    }
    cut.place = {};
    FailUnlowerable(cut);
    throw;
  }
  if (execution.program->runs) execution.program->runs->Add();
  for (const Edge& edge : cut.dying) edge.node->DropOperand(edge.operand);
  cut.leaves.clear();
  execution.inputs = std::move(cut.graph.data);
  execution.floats = std::move(cut.graph.floats);
  execution.integers = std::move(cut.graph.integers);
  execution.graph = std::move(cut.graph.roots);
  GetWorker(cut.device).Fill(std::move(cut.place), std::move(execution));
}

/// `storages` and all others that are evaluated with them: those whose values are computed on the
/// way to theirs, which whoever reads values in a loop would have computed again by the next
/// program, which would grow by it; and everything, if a collective is among that, since it runs
/// once and what else is made of its results must not be left for later.
std::vector<StoragePtr> WithCompanions(std::vector<StoragePtr> storages, int device) {
  std::vector<StoragePtr> pending = Storage::Pending(device);
  if (storages.size() == 1 && pending.size() <= 1) return storages;
  std::vector<ir::Value> roots;
  for (const StoragePtr& storage : storages) roots.push_back(storage->value());
  const Graph graph = CollectGraph(std::move(roots));
  if (CollectivePending(device) && HasCollective(graph)) return pending;
  const std::unordered_set<StoragePtr> asked(storages.begin(), storages.end());
  for (const StoragePtr& storage : pending) {
    const ir::Value value = storage->value();
    if (!LeafData(value) && graph.Contains(*value.node) && !asked.contains(storage)) {
      storages.push_back(storage);
    }
  }
  return storages;
}

/// The last read, see ReadsAll.
struct LastRead {
  const ir::SourceLocation* line = nullptr;
  size_t pending = kMuch;  // how many nodes all that waited needed, where it needed little
  size_t computed = 0;     // how many of its nodes earlier reads had computed
  bool in_a_loop = false;

  static constexpr size_t kMuch = std::numeric_limits<size_t>::max();
};

/// Whether a read had better compute all that is pending. Either it would compute again much that
/// earlier ones did on their way, as an optimizer does that reads a norm of each gradient: a
/// program for each, with most of the backward pass in it. Or it is one of a loop, read in the same
/// line as before, that leaves more behind with every round. It may need little ("have all
/// sequences ended?"), and what waits has grown by a round: whoever reads only that would have all
/// rounds in one program at the end. Or it needs the bulk, and again more of what earlier rounds
/// computed: counters that only the next round takes, whose chain is longer in each program.
bool ReadsAll(const StoragePtr& storage) {
  constexpr size_t kSmall = 64;
  static std::unordered_map<int, LastRead> reads;
  auto lock = LockGraph();
  const ir::Value value = storage->value();
  if (LeafData(value)) return false;
  const ir::SourceLocation* line = value.node->location();
  LastRead& last = reads[storage->device()];
  if (!line || line != last.line) last = {.line = line};
  if (last.in_a_loop) return true;
  const Graph graph = CollectGraph({value});
  if (graph.order.size() > kSmall) {
    const auto computed =
        static_cast<size_t>(std::ranges::count_if(graph.order, &ir::Node::computed));
    last.in_a_loop = line && last.computed != 0 && computed > last.computed;
    last.computed = computed;
    last.pending = LastRead::kMuch;
    return last.in_a_loop || 4 * computed > graph.order.size();
  }
  const size_t pending = CollectGraph(PendingValues(storage->device())).order.size();
  last.in_a_loop = line && pending > last.pending && pending - last.pending > kSmall;
  last.computed = 0;
  last.pending = pending;
  return last.in_a_loop;
}

/// A read of a number that the host can tell by itself, see HostAlone ("is anything masked?").
bool EvaluateOnHost(Storage& storage) {
  const ir::Value value = storage.value();
  const DeviceSet* devices = DevicesOf(storage.device());
  // A recording is one of programs.
  if (LeafData(value) || value.shape()->numel != 1 || devices->size() > 1 || CurrentRecorder()) {
    return false;
  }
  std::optional<HostCalls> calls = HostAlone(value);
  if (!calls) return false;
  auto data = c10::make_intrusive<DeviceData>(value.shape(), storage.device(), devices,
                                              Sharding::Replicated());
  data->set_location(value.node->location());
  calls->Promise(value, data);
  calls->Run(/*producer=*/0);
  storage.Replace(value, MakeLeaf(data));
  return true;
}

/// Of more results than this a compiler's passes take time by the square of their number.
constexpr size_t kManyResults = 2048;
constexpr size_t kResultsOfPart = 1024;

/// With the lock held: parts of what is pending that have nothing in common but data and numbers,
/// so that a program of each computes nothing twice. One part where that is few or one thing.
std::vector<std::vector<StoragePtr>> PartsOf(std::vector<StoragePtr> pending) {
  std::vector<std::vector<StoragePtr>> parts;
  const auto whole = [&] {
    parts.assign(1, std::move(pending));
    return std::move(parts);
  };
  // A recording or a program with a name is one; replicas have to have the same programs.
  if (pending.size() <= kManyResults || CurrentRecorder() || RunsAcrossProcesses() ||
      !CurrentSettings()->name.empty()) {
    return whole();
  }
  std::vector<ir::Value> roots;
  for (const StoragePtr& storage : pending) roots.push_back(storage->value());
  const Graph graph = CollectGraph(std::move(roots));
  if (HasCollective(graph)) return whole();
  // Each node's place in a tree of those that belong together, which ends with itself.
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
  std::vector<std::vector<StoragePtr>> groups;
  std::unordered_map<size_t, size_t> group_of;
  for (size_t i = 0; i < pending.size(); ++i) {
    const size_t group =
        group_of.emplace(top(graph.roots[i].node->mark().position), groups.size()).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(std::move(pending[i]));
  }
  for (std::vector<StoragePtr>& group : groups) {
    if (parts.empty() || parts.back().size() + group.size() > kResultsOfPart) parts.emplace_back();
    std::ranges::move(group, std::back_inserter(parts.back()));
  }
  return parts;
}

/// All that is pending on the device.
void CutAndRun(int device) {
  std::vector<std::vector<StoragePtr>> parts;  // they outlive the cuts
  auto cut = [&] {
    auto lock = LockGraph();
    parts = PartsOf(Storage::Pending(device));
    return CutGraph(parts[0], device);
  }();
  std::exception_ptr failure;
  for (size_t i = 0;;) {
    try {
      if (cut) Run(*std::move(cut), /*donate=*/true);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    if (++i == parts.size()) break;
    auto lock = LockGraph();
    cut = CutGraph(parts[i], device);
  }
  if (failure) std::rethrow_exception(failure);
}

/// The same where nobody asked for it: raises nothing. What fails is another tensor's, which tells
/// it when it is read itself, or the next sync.
void CutUnasked(int device) {
  try {
    CutAndRun(device);
  } catch (const std::exception&) {
    // FailUnlowerable keeps it for who reads.
  }
}

/// As by SyncDevice, where the user has not asked for it. Programs that run across processes must
/// be the same in all of them: the user says where they end.
void EndStep(int device) {
  static auto& auto_step = *new debug::Counter("AutoStep");
  if (!MayCut() || runtime::Client::Forked() || RunsAcrossProcesses()) return;
  if (Storage::Pending(device).empty()) return;
  NoteRead();
  auto_step.Add();
  debug::NoteStep();
  Events().StepEnded();
  debug::HostTimer timer(debug::HostPart::kSync);
  CauseScope cause("the end of a step");
  const uint64_t news = StepFinderOf(device).TakeNews();
  if (news != 0 && debug::DebugLevel() >= 1) {
    const std::string line = ir::LineOf(ir::CurrentLocation());
    debug::Report("pt-xla-profiler: " +
                  (news == StepFinder::kOptimizer
                       ? "the graph is cut behind each step of an optimizer, here " + line
                       : std::to_string(news) +
                             " operations repeat; from now on the graph is cut before " + line) +
                  ", as by mark_step\n");
  }
  CutUnasked(device);
}

}  // namespace

void SyncDevice(int device, bool wait) {
  static auto& mark_step = *new debug::Counter("MarkStep");
  CheckMayCut();
  NoteRead();
  mark_step.Add();
  debug::NoteStep();
  Events().StepEnded();
  debug::HostTimer timer(debug::HostPart::kSync);
  StepFinderOf(device).Synced();
  CauseScope cause("torch_xla.sync()");
  Worker& worker = GetWorker(device);
  worker.ThrowFailure();
  CutAndRun(device);
  if (wait) WaitDevice(device);
}

void CutStep(int device) {
  if (StepFinderOf(device).TakeDue()) EndStep(device);
}

void OptimizerStepped(int device) {
  if (StepFinderOf(device).OptimizerStepped()) EndStep(device);
}

void RunPending(int device, bool wait) {
  if (Storage::Pending(device).empty()) return;
  NoteRead();
  StepFinderOf(device).Ran();
  GetWorker(device).ThrowFailure();
  CutAndRun(device);
  if (wait) WaitDevice(device);
}

void SyncStorages(const std::vector<StoragePtr>& storages, bool wait) {
  CheckMayCut();
  NoteRead();
  std::unordered_map<int, std::vector<StoragePtr>> by_device;
  for (const StoragePtr& storage : storages) by_device[storage->device()].push_back(storage);
  for (auto& [device, group] : by_device) {
    CutStepIfDue(device);
    auto cut = [&] {
      auto lock = LockGraph();
      group = WithCompanions(std::move(group), device);
      std::optional<Cut> made = CutGraph(group, device);
      if (made) {
        for (const ir::Node* node : made->graph.order) {
          if (!node->operands().empty()) node->set_computed();
        }
      }
      return made;
    }();
    if (cut) Run(*std::move(cut), /*donate=*/false);
  }
  if (wait) {
    for (auto& [device, group] : by_device) WaitDevice(device);
  }
}

ir::Value Evaluate(const StoragePtr& storage) {
  NoteRead();
  while (true) {
    ir::Value value = storage->value();
    if (LeafData(value)) return value;
    GrowthsOf(storage->device()).Read();
    // A read by one process alone must not change the programs that they share.
    if (MayCut() && !RunsAcrossProcesses() && ReadsAll(storage)) {
      StepFinderOf(storage->device()).Ran();
      CutUnasked(storage->device());
    }
    if (MayCut() && EvaluateOnHost(*storage)) continue;
    SyncStorages({storage}, /*wait=*/false);
  }
}

ir::Value Evaluate(const ir::Value& value, int device) {
  NoteRead();
  if (LeafData(value)) return value;
  return Evaluate(c10::make_intrusive<Storage>(value, device, Storage::kForRead));
}

void WaitDevice(int device) {
  Worker& worker = GetWorker(device);
  debug::HostTimer timer(debug::HostPart::kWait);
  worker.Drain();
  worker.ThrowFailure();
}

std::exception_ptr TakeFailure(const DeviceData& data) {
  if (data.producer() == 0) return nullptr;
  return GetWorker(data.device()).TakeFailure(data.producer());
}

std::string StableHloOf(const std::vector<ir::Value>& values) {
  const Graph graph = [&] {
    auto lock = LockGraph();
    return CollectGraph(values);
  }();
  return LowerGraph(graph, {}, Platform());
}

std::vector<ir::Value> PendingValues(int device) {
  std::vector<ir::Value> values;
  for (const StoragePtr& storage : Storage::Pending(device)) {
    ir::Value value = storage->value();
    if (!LeafData(value)) values.push_back(std::move(value));
  }
  return values;
}

ir::Hash128 PendingHash(int device) {
  auto lock = LockGraph();
  return CollectGraph(PendingValues(device)).hash;
}

std::vector<uint64_t> PendingInputs(int device) {
  auto lock = LockGraph();
  std::vector<uint64_t> ids;
  for (const DeviceDataPtr& data : CollectGraph(PendingValues(device)).data) {
    ids.push_back(data->id());
  }
  return ids;
}

std::string PendingText(int device) { return ir::ToText(PendingValues(device)); }

size_t NumPrograms() { return Cache().Size(); }

void ClearPrograms() { Cache().Clear(); }

std::vector<ProgramPtr> Programs() { return Cache().All(); }

void Shutdown() { StopWorkers(); }

}  // namespace torch_xla::lazy
