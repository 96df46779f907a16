#include "exec/executor.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>

#include "debug/metrics.h"
#include "debug/report.h"
#include "debug/timeline.h"
#include "exec/constant_policy.h"
#include "exec/cut.h"
#include "exec/cut_log.h"
#include "exec/donation.h"
#include "exec/lower_graph.h"
#include "exec/may_cut.h"
#include "exec/nan_search.h"
#include "exec/read_policy.h"
#include "exec/split.h"
#include "exec/worker.h"
#include "ir/dump.h"
#include "lowering/may_call.h"
#include "runtime/platform.h"
#include "sizes/families.h"
#include "tensor/device.h"
#include "tensor/events.h"
#include "tensor/graph.h"
#include "tensor/growths.h"
#include "tensor/host_edges.h"

namespace torch_xla::exec {

using distributed::Sharding;

namespace {

ProgramCache& Cache() {
  static auto& cache = *new ProgramCache;
  return cache;
}

Signature SignatureOf(const tensor::Graph& graph) {
  Signature signature{.floats = graph.floats.size(), .integers = graph.integers.size()};
  for (const tensor::DeviceDataPtr& data : graph.data)
    signature.parameters.push_back(data->shape());
  for (const ir::Value& root : graph.roots) signature.results.push_back(root.shape());
  return signature;
}

std::vector<int> Aliases(const Cut& cut, bool donate) {
  return donate ? ChooseAliases(cut) : std::vector<int>();
}

/// Whether a program that was made for other sizes may run the cut: it is not the bulk of a cut
/// whose host operations no binding fits, and no replay of it can change numbers among its
/// attributes, which a binding fixes.
bool MayBind(const Cut& cut) {
  return !cut.is_bulk && !CurrentSettings()->keeps_sizes &&
         !(CurrentCutLog() &&
           std::ranges::any_of(cut.graph.numbers, [](const tensor::GraphNumber& number) {
             return number.packed >= 0;
           }));
}

/// Whether sizes of the cut may become arguments. It has no name and no collective, runs on one
/// device, and find_nan does not look at all its elements, which padding is none of.
bool MayVary(const Cut& cut) {
  return MayBind(cut) && cut.devices->size() == 1 && CurrentSettings()->name.empty() &&
         c10::get_default_dtype_as_scalartype() == c10::ScalarType::Float &&
         !HasCollective(cut.graph.order) && !FindsNan();
}

/// `found` gets the key of the program, unless the cut is split or bounded.
ProgramPtr FindOrMakeProgram(Cut& cut, std::vector<int> aliases, bool donate,
                             ir::Hash128* found = nullptr) {
  static auto& cached = *new debug::Counter("CachedCompile");
  static auto& uncached = *new debug::Counter("UncachedCompile");
  static auto& handles = *new debug::Counter("CreateCompileHandles");
  static auto& lower_time = *new debug::Metric("LowerTime", debug::Unit::kTimeNs);
  const tensor::Graph& graph = cut.graph;
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
    for (const tensor::DeviceDataPtr& data : graph.data) hasher.Add(data->sharding()->hash());
  }
  for (int alias : aliases) hasher.Add(static_cast<uint64_t>(alias));
  const ir::Hash128 key = hasher.Finish();
  if (found) *found = key;
  sizes::SizesNote sizes;
  ProgramPtr program = Cache().Find(key);
  if (!program) {
    std::optional<sizes::Bound> bound;
    if (MayBind(cut)) bound = sizes::FindBound(key, graph, sizes);
    if (bound) {
      if ((program = Cache().Find(bound->program))) {
        cut.binding = sizes::Use(*bound);
        cached.Add();
        return program;
      }
    }
    if (std::optional<Bulk> bulk = SplitCut(cut)) {
      program = FindOrMakeProgram(bulk->cut, Aliases(bulk->cut, donate), donate);
      cut.execution.outputs = std::move(bulk->cut.execution.outputs);
      cut.execution.host = std::move(bulk->host);
      // The split graph keeps the hash and the roots of the whole graph: the hash identifies it in
      // reports, and the roots keep its nodes alive.
      bulk->cut.graph.hash = graph.hash;
      bulk->cut.graph.roots = std::move(cut.graph.roots);
      cut.graph = std::move(bulk->cut.graph);
      return program;
    }
    std::optional<sizes::BoundedProgram> bounded;
    if (MayVary(cut)) bounded = sizes::BoundGraph(graph, cut.device, cut.devices, aliases, sizes);
    if (bounded) {
      try {
        const sizes::SizesScope scope(sizes);
        ir::Hash128 bucket;
        Cut bulk{.device = cut.device,
                 .devices = cut.devices,
                 .graph = std::move(bounded->graph),
                 .is_bulk = true};
        bulk.execution.origin = cut.execution.origin;
        program = FindOrMakeProgram(bulk, std::move(bounded->aliases), donate, &bucket);
        // A program that cannot be compiled must not take the place of one that can.
        CompileProgram(*program);
        if (program->failure) std::rethrow_exception(program->failure);
        cut.binding = sizes::Bind(key, bucket, graph, cut.device, cut.devices, *bounded->rewritten,
                                  bulk.graph);
        return program;
      } catch (const sizes::SizesRefused& refusal) {
        sizes = sizes::RefuseBounds(graph, {refusal.reason});
        program = nullptr;
      } catch (const std::exception& error) {
        sizes = sizes::RefuseBounds(graph, {error.what()});
        program = nullptr;
      }
    }
  }
  if (!program) program = Cache().Insert(key, std::make_shared<Program>());
  if (!program->made.load(std::memory_order_acquire)) {
    // Another thread that needs the same program waits here until it is made.
    std::lock_guard<std::mutex> lock(program->making);
    if (!program->made.load(std::memory_order_relaxed)) {
      program->devices = cut.devices;
      program->signature = SignatureOf(graph);
      program->aliases = std::move(aliases);
      program->across_processes =
          runtime::HasInterconnect(tensor::Platform()) && HasCollective(graph.order);
      program->shardings = std::move(shardings);
      program->origin = cut.execution.origin;
      program->nodes = graph.order.size();
      {
        const sizes::SizesScope scope(sizes);
        program->explanation =
            tensor::Events().Compiling(graph, *program, key, cut.execution.origin);
      }
      uncached.Add();
      handles.Add();
      const bool alone = cut.devices->size() == 1 && !program->across_processes;
      // A search for NaN has to know the operations, so it needs the lowering.
      if (!alone || FindsNan() || !RestoreProgram(*program, key)) {
        debug::ScopedTimer timer(lower_time);
        const lowering::LibraryCalls calls(alone);
        program->stablehlo =
            LowerGraph(graph, program->aliases, tensor::Platform(), cut.devices->size(),
                       program->shardings, settings->name, &program->partition_devices);
      }
      if (!settings->name.empty()) {
        debug::GetCounter("CompiledGraph::" + settings->name).Add();
        program->runs = &debug::GetCounter("ExecutedGraph::" + settings->name);
      }
      // The shardings of the outputs are part of the next program's key, so they must be known now.
      if (cut.devices->size() > 1) CompileProgram(*program);
      program->made.store(true, std::memory_order_release);
      return program;
    }
  }
  cached.Add();
  return program;
}

/// Called after a lowering failed. Tensors that cannot be computed become failed data, which throws
/// when it is read. All other tensors stay pending for the next sync.
void FailUnlowerable(const Cut& cut) {
  for (const Target& target : cut.targets) {
    const ir::Value& root = cut.graph.roots[target.root];
    try {
      const tensor::Graph graph = [&] {
        auto lock = tensor::LockGraph();
        return tensor::CollectGraph({root});
      }();
      LowerGraph(graph, {}, tensor::Platform(), cut.devices->size());
    } catch (...) {
      const tensor::DeviceDataPtr failed =
          tensor::MakePromise(root.shape(), cut.device, cut.devices);
      failed->Fail(std::current_exception());
      target.storage->Replace(root, tensor::MakeLeaf(failed));
    }
  }
}

void Record(const Cut& cut, CutLog& recorder) {
  RecordedCut recorded;
  recorded.device = cut.device;
  recorded.hash = cut.graph.hash;
  recorded.program = cut.execution.program;
  recorded.binding = cut.binding;
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

/// Lowers the cut if there is no program yet, and queues it. Holds no lock, so that other threads
/// can cut and queue their graphs meanwhile.
void Run(Cut cut, bool donate) {
  static auto& graph_size = *new debug::Metric("TensorsGraphSize", debug::Unit::kNumber);
  graph_size.AddSample(static_cast<double>(cut.graph.order.size()));
  Execution& execution = cut.execution;
  execution.origin = tensor::CurrentOrigin();
  try {
    tensor::Events().Cut(cut.graph, execution.origin);
    execution.program = FindOrMakeProgram(cut, Aliases(cut, donate), donate);
    const std::vector<const Sharding*>& shardings = execution.program->shardings;
    for (size_t i = 0; i < shardings.size(); ++i) execution.outputs[i]->SetSharding(shardings[i]);
    tensor::Events().Queued(cut.graph, execution.origin);
    if (CutLog* recorder = CurrentCutLog()) [[unlikely]]
      Record(cut, *recorder);
    execution.inputs = std::move(cut.graph.data);
    execution.floats = std::move(cut.graph.floats);
    execution.integers = std::move(cut.graph.integers);
    if (cut.binding) cut.binding->Apply(execution, cut.device, cut.devices);
  } catch (...) {
    for (const Target& t : cut.targets) {
      t.storage->Replace(cut.leaves[t.root], cut.graph.roots[t.root]);
    }
    // Another thread may already hold the promises of this cut.
    const std::exception_ptr error = std::current_exception();
    for (const tensor::DeviceDataPtr& output : execution.outputs) output->Fail(error);
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
  execution.graph = std::move(cut.graph.roots);
  GetWorker(cut.device).Fill(std::move(cut.place), std::move(execution));
}

/// Cuts and runs all that is pending on the device.
void CutAndRun(int device) {
  std::vector<std::vector<tensor::StoragePtr>> parts;  // they outlive the cuts
  auto cut = [&] {
    auto lock = tensor::LockGraph();
    parts = PartsOf(tensor::Storage::Pending(device));
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
    auto lock = tensor::LockGraph();
    cut = CutGraph(parts[i], device);
  }
  if (failure) std::rethrow_exception(failure);
}

/// Does the same as CutAndRun where the user did not ask for a sync, so it throws nothing. A
/// failure belongs to another tensor, and is thrown when that tensor is read, or at the next sync.
void CutUnasked(int device) {
  try {
    CutAndRun(device);
  } catch (const std::exception&) {
    // FailUnlowerable has kept the failure in the data of the tensor.
  }
}

/// Does the same as SyncDevice where the user did not ask for it. Does nothing for programs that
/// run across processes: they must be equal in all processes, so only the user can say where they
/// end.
void EndStep(int device) {
  static auto& auto_step = *new debug::Counter("AutoStep");
  if (!MayCut() || runtime::Client::Forked() || tensor::RunsAcrossProcesses()) return;
  if (tensor::Storage::Pending(device).empty()) return;
  NoteRead();
  auto_step.Add();
  debug::NoteStep();
  tensor::Events().StepEnded();
  debug::HostTimer timer(debug::HostPart::kSync);
  tensor::CauseScope cause("the end of a step");
  const uint64_t news = tensor::StepFinderOf(device).TakeNews();
  if (news != 0 && debug::DebugLevel() >= 1) {
    const std::string line = ir::LineOf(ir::CurrentLocation());
    debug::Report("pt-xla-profiler: " +
                  (news == tensor::StepFinder::kOptimizer
                       ? "the graph is cut behind each step of an optimizer, here " + line
                       : std::to_string(news) +
                             " operations repeat; from now on the graph is cut before " + line) +
                  ", as by mark_step\n");
  }
  CutUnasked(device);
}

/// Runs these storages and leaves the rest of the graph pending.
void RunStorages(const std::vector<tensor::StoragePtr>& storages, int device) {
  auto cut = [&] {
    auto lock = tensor::LockGraph();
    std::optional<Cut> made = CutGraph(storages, device);
    if (made) {
      for (const ir::Node* node : made->graph.order) {
        if (!node->operands().empty()) node->set_computed();
      }
    }
    return made;
  }();
  if (cut) Run(*std::move(cut), /*donate=*/false);
}

}  // namespace

void SyncDevice(int device, bool wait) {
  static auto& mark_step = *new debug::Counter("MarkStep");
  CheckMayCut();
  NoteRead();
  mark_step.Add();
  debug::NoteStep();
  tensor::Events().StepEnded();
  debug::HostTimer timer(debug::HostPart::kSync);
  tensor::StepFinderOf(device).Synced();
  tensor::CauseScope cause("torch_xla.sync()");
  Worker& worker = GetWorker(device);
  worker.ThrowFailure();
  CutAndRun(device);
  if (wait) WaitDevice(device);
}

void CutStep(int device) {
  if (tensor::StepFinderOf(device).TakeDue()) EndStep(device);
}

void OptimizerStepped(int device) {
  if (tensor::StepFinderOf(device).OptimizerStepped()) EndStep(device);
}

void RunPending(int device, bool wait) {
  if (tensor::Storage::Pending(device).empty()) return;
  NoteRead();
  tensor::StepFinderOf(device).Ran();
  GetWorker(device).ThrowFailure();
  CutAndRun(device);
  if (wait) WaitDevice(device);
}

void SyncStorages(const std::vector<tensor::StoragePtr>& storages, bool wait) {
  CheckMayCut();
  NoteRead();
  std::unordered_map<int, std::vector<tensor::StoragePtr>> by_device;
  for (const tensor::StoragePtr& storage : storages)
    by_device[storage->device()].push_back(storage);
  for (auto& [device, group] : by_device) {
    CutStepIfDue(device);
    RunStorages(PlanRead(std::move(group), device, /*may_run_all=*/false).storages, device);
  }
  if (wait) {
    for (auto& [device, group] : by_device) WaitDevice(device);
  }
}

ir::Value Evaluate(const tensor::StoragePtr& storage) {
  NoteRead();
  while (true) {
    ir::Value value = storage->value();
    if (tensor::LeafData(value)) return value;
    tensor::GrowthsOf(storage->device()).Read();
    // A read by a single process must not change the programs that the processes share.
    const bool may_run_all = MayCut() && !tensor::RunsAcrossProcesses();
    const int device = storage->device();
    ReadPlan plan = PlanRead({storage}, device, may_run_all);
    if (plan.all) {
      tensor::StepFinderOf(device).Ran();
      CutUnasked(device);
    }
    if (MayCut() && EvaluateOnHost(*storage)) continue;
    CheckMayCut();
    CutStepIfDue(device);
    RunStorages(plan.storages, device);
  }
}

ir::Value Evaluate(const ir::Value& value, int device) {
  NoteRead();
  if (tensor::LeafData(value)) return value;
  return Evaluate(c10::make_intrusive<tensor::Storage>(value, device, tensor::Storage::kForRead));
}

void WaitDevice(int device) {
  Worker& worker = GetWorker(device);
  debug::HostTimer timer(debug::HostPart::kWait);
  worker.Drain();
  worker.ThrowFailure();
}

std::exception_ptr TakeFailure(const tensor::DeviceData& data) {
  if (data.producer() == 0) return nullptr;
  return GetWorker(data.device()).TakeFailure(data.producer());
}

std::string StableHloOf(const std::vector<ir::Value>& values) {
  const tensor::Graph graph = [&] {
    auto lock = tensor::LockGraph();
    return tensor::CollectGraph(values);
  }();
  return LowerGraphToRead(graph);
}

std::vector<ir::Value> PendingValues(int device) {
  std::vector<ir::Value> values;
  for (const tensor::StoragePtr& storage : tensor::Storage::Pending(device)) {
    ir::Value value = storage->value();
    if (!tensor::LeafData(value)) values.push_back(std::move(value));
  }
  return values;
}

ir::Hash128 PendingHash(int device) {
  auto lock = tensor::LockGraph();
  return tensor::CollectGraph(PendingValues(device)).hash;
}

std::vector<uint64_t> PendingInputs(int device) {
  auto lock = tensor::LockGraph();
  std::vector<uint64_t> ids;
  for (const tensor::DeviceDataPtr& data : tensor::CollectGraph(PendingValues(device)).data) {
    ids.push_back(data->id());
  }
  return ids;
}

std::string PendingText(int device) { return ir::ToText(PendingValues(device)); }

size_t NumPrograms() { return Cache().Size(); }

void ClearPrograms() {
  Cache().Clear();
  sizes::ForgetSizes();
}

std::vector<ProgramPtr> Programs() { return Cache().All(); }

void Shutdown() { StopWorkers(); }

}  // namespace torch_xla::exec
