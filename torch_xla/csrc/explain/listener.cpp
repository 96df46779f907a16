// Passes the events of programs to the explainers in this folder.
#include "debug/environment.h"
#include "debug/report.h"
#include "explain/explain.h"
#include "explain/graph_dump.h"
#include "explain/memory_report.h"
#include "explain/slow_habits.h"
#include "tensor/device.h"
#include "tensor/events.h"

namespace torch_xla::explain {
namespace {

/// The memory that the program needs, the largest results of its graph, and advice.
std::string NeedText(const tensor::Failed& failed) {
  for (const Explanation& explanation : Explanations(failed.program - 1, SIZE_MAX)) {
    if (explanation.number != failed.program) continue;
    std::string text = "\n  which needs " + MemoryText(explanation.memory);
    if (const GraphSnapshotPtr record = RecordOf(failed.program)) text += LargestText(*record, 3);
    const std::string advice =
        MicrobatchText(explanation.memory, tensor::GetClient().memory(failed.device));
    return advice.empty() ? text : text + "\n" + advice;
  }
  return {};
}

/// The data that was in memory when an execution failed. Leaves out results of this execution and
/// of later ones, unless they took the place of existing arrays.
std::vector<tensor::DeviceData::Live> LiveThen(const tensor::Failed& failed) {
  std::vector<tensor::DeviceData::Live> arrays = tensor::DeviceData::AllLive();
  if (failed.execution == 0) return arrays;
  std::erase_if(arrays, [&](const tensor::DeviceData::Live& array) {
    return array.device == failed.device && array.producer >= failed.execution && !array.in_place;
  });
  return arrays;
}

class Explainers : public tensor::Listener {
 public:
  void Cut(const tensor::Graph& graph, const tensor::Origin& origin) const override {
    SaveGraph(graph, origin);
  }
  int64_t Compiling(const tensor::Graph& graph, const exec::Program& program,
                    const ir::Hash128& key, const tensor::Origin& origin) const override {
    return ExplainCompile(graph, program, key, origin);
  }
  void MissedOnDisk(int64_t compilation, const std::string& key) const noexcept override {
    NoteDiskMiss(compilation, key);
  }
  void Compiled(int64_t compilation, const runtime::Executable::MemoryUse& memory) const override {
    NoteMemory(compilation, memory);
  }
  void Queued(const tensor::Graph& graph, const tensor::Origin& origin) const override {
    if (debug::DebugLevel() >= 2) ExplainExecution(graph, origin);
  }
  void StepEnded() const override {
    if (debug::DebugLevel() > 0) NoteStepOfMany();
  }
  void Read() const override {
    if (debug::DebugLevel() > 0) NoteFrequentRead(tensor::CurrentOrigin());
  }
  tensor::MemoryShortage OutOfMemory(const tensor::Failed& failed) const override {
    std::vector<tensor::DeviceData::Live> arrays = LiveThen(failed);
    std::string text = NeedText(failed) + "\n" + MemoryReport(arrays, 10);
    const HoldersFunction function = GetHoldersFunction();
    if (!function) return {std::move(text), {}};
    return {std::move(text), [function, arrays = std::move(arrays)] { return function(arrays); }};
  }
};

[[maybe_unused]] const bool listens = [] {
  tensor::SetListener(new Explainers);
  return true;
}();

}  // namespace
}  // namespace torch_xla::explain
