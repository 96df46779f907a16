#include "explain/explain.h"

#include <c10/util/Exception.h>

#include <deque>
#include <set>

#include "debug/environment.h"
#include "debug/metrics.h"
#include "debug/report.h"
#include "exec/disk_cache.h"
#include "explain/slow_habits.h"
#include "ir/dump.h"
#include "sizes/families.h"
#include "tensor/device.h"

namespace torch_xla::explain {
namespace {

constexpr size_t kMaxRecords = 128;
constexpr size_t kMaxRecordBytes = 64 << 20;
constexpr size_t kMaxExplanations = 256;
// The number of consecutive compilations of nearly the same graph that cause a warning.
constexpr int kWarnAfter = 3;
// Compilations with more steps than this between them do not count as consecutive.
constexpr int64_t kMaxCachedBetween = 20;

std::atomic<bool>& IsError() {
  static auto& error = *new std::atomic<bool>([] {
    const char* text = std::getenv("XLA_ON_RECOMPILE");
    return text && std::string_view(text) == "error";
  }());
  return error;
}

/// The record of a graph, and everything else that its program was made from.
struct Past {
  GraphSnapshotPtr record;
  ir::Hash128 key;
  std::vector<int> aliases;
  std::vector<const distributed::Sharding*> shardings;
  ir::Hash128 settings;
  const tensor::DeviceSet* devices;
  int64_t number = 0;  // of the compilation
};

struct History {
  std::mutex mutex;
  std::deque<Past> past;
  size_t bytes = 0;
  std::deque<Explanation> explanations;
  int64_t compilations = 0;
  int streak = 0;
  std::string streak_of;       // the change and the line that asked for it
  int64_t cached_then = 0;     // the counter CachedCompile at the last compilation
  std::set<std::string> told;  // changes that a warning has named
};

History& TheHistory() {
  static auto& history = *new History;
  return history;
}

Explanation::Reason ReasonOf(Change change, std::string text,
                             const ir::SourceLocation* location = nullptr) {
  return {NameOf(change), std::move(text), location ? location->ToString() : "", RemedyOf(change)};
}

/// Why an equal graph needs another program.
std::vector<Explanation::Reason> CompareKeys(const Past& now, const Past& before) {
  std::vector<Explanation::Reason> reasons;
  if (now.key == before.key) {
    reasons.push_back(ReasonOf(
        Change::kEvicted,
        "the program was compiled before, and dropped since: it was one of the least recently "
        "used, or clear_computation_cache() was called"));
    return reasons;
  }
  const Comparison comparison = Compare(*now.record, *before.record);
  if (comparison.changed > 0) {
    for (const Difference& difference : comparison.differences) {
      reasons.push_back(ReasonOf(difference.change, difference.text, difference.location));
    }
  }
  if (now.settings != before.settings) {
    reasons.push_back(
        ReasonOf(Change::kSettings, "the compiler's options or the name of the program changed"));
  }
  if (now.devices != before.devices) {
    reasons.push_back(ReasonOf(Change::kSettings, "the devices that it runs on changed"));
  }
  if (now.aliases != before.aliases) {
    size_t input = 0;
    while (input < now.aliases.size() && input < before.aliases.size() &&
           now.aliases[input] == before.aliases[input])
      ++input;
    const bool now_kept = input >= now.aliases.size() || now.aliases[input] < 0;
    reasons.push_back(ReasonOf(
        Change::kDonation, "input " + std::to_string(input) +
                               (now_kept ? " is kept now, but was overwritten in place before"
                                         : " is overwritten in place now, but was kept before")));
  }
  const bool is_sharded = now.devices->size() > 1;
  if (now.shardings != before.shardings || (is_sharded && reasons.empty())) {
    reasons.push_back(ReasonOf(Change::kSharding, "the sharding of its inputs or outputs changed"));
  } else if (reasons.empty()) {  // What is left of a program's key.
    reasons.push_back(ReasonOf(Change::kNumber, "a number became a parameter of the program"));
  }
  return reasons;
}

/// Fills in the differences between `now` and the most similar graph of the past.
void FindReasons(const Past& now, const std::vector<Past>& past, Explanation& explanation) {
  for (size_t i = past.size(); i-- > 0;) {
    if (past[i].record->hash() != now.record->hash()) continue;
    explanation.nearest = explanation.hash;
    explanation.near = true;
    explanation.reasons = CompareKeys(now, past[i]);
    return;
  }
  std::vector<GraphSnapshotPtr> records;
  for (const Past& one : past) records.push_back(one.record);
  const GraphSnapshotPtr nearest = FindNearest(*now.record, records);
  if (!nearest) {
    explanation.reasons.push_back(
        ReasonOf(Change::kNew, "it is the first program of this process"));
    explanation.changed = explanation.nodes;
    return;
  }
  Comparison comparison = Compare(*now.record, *nearest);
  explanation.nearest = ir::ToHex(nearest->hash());
  explanation.changed = comparison.changed;
  explanation.near = comparison.IsNear(std::max(now.record->size(), nearest->size()));
  if (!explanation.near) {
    explanation.reasons.push_back(ReasonOf(Change::kNew, "no similar graph was compiled before"));
  }
  for (Difference& difference : comparison.differences) {
    explanation.reasons.push_back(
        ReasonOf(difference.change, std::move(difference.text), difference.location));
    // The remedy is left out, since two different programs need not be made equal.
    if (!explanation.near) explanation.reasons.back().remedy.clear();
  }
}

void Remember(Past past, History& history) {
  history.bytes += past.record->bytes();
  history.past.push_back(std::move(past));
  while (history.past.size() > kMaxRecords ||
         (history.bytes > kMaxRecordBytes && history.past.size() > 1)) {
    history.bytes -= history.past.front().record->bytes();
    history.past.pop_front();
  }
}

/// The warning for a program that keeps being compiled after the same change, for the same line, as
/// in a loop. Returns the text once for each change; else an empty text.
std::string WarningOf(const Explanation& explanation, History& history) {
  static auto& cached = debug::GetCounter("CachedCompile");
  static const bool enabled = debug::EnvFlag("XLA_RECOMPILE_WARNING", /*otherwise=*/true);
  const int64_t steps = cached.value();
  const bool in_a_row = steps - std::exchange(history.cached_then, steps) <= kMaxCachedBetween;
  const Explanation::Reason& reason = explanation.reasons[0];
  const bool near = explanation.near;
  const std::string change = near ? reason.kind + reason.line : std::string();
  const std::string before = std::exchange(history.streak_of, change + explanation.line);
  const bool same = before == history.streak_of;
  history.streak = !near ? 0 : in_a_row && same ? history.streak + 1 : 1;
  if (!enabled || history.streak < kWarnAfter) return {};
  if (reason.remedy == RemedyOf(Change::kNumber)) return {};  // there is nothing for the user to do
  if (!history.told.insert(change).second) return {};
  return "torch_xla: " + std::to_string(history.streak) +
         " programs in a row were compiled for nearly the same graph: " + reason.text +
         (reason.line.empty() ? "" : " (" + reason.line + ")") + "; " + reason.remedy +
         " (see docs/debugging.md; XLA_RECOMPILE_WARNING=0 turns this warning off)";
}

}  // namespace

std::string Explanation::Reason::ToString() const {
  return kind + ": " + text + (line.empty() ? "" : " (" + line + ")") +
         (remedy.empty() ? "" : "; " + remedy);
}

std::string Explanation::ToString() const {
  std::string text = "compilation " + std::to_string(number) + ", cause: " + cause + "\n  graph " +
                     hash + ": " + std::to_string(nodes) + " nodes, " + std::to_string(inputs) +
                     " inputs, " + std::to_string(outputs) + " outputs\n";
  if (!nearest.empty()) {
    text += "  nearest graph " + nearest + ": " + std::to_string(changed) + " nodes differ\n";
  }
  for (const Reason& reason : reasons) text += "  " + reason.ToString() + "\n";
  return text;
}

int64_t ExplainCompile(const tensor::Graph& graph, const exec::Program& program,
                       const ir::Hash128& key, const tensor::Origin& origin) {
  Past now{std::make_shared<GraphSnapshot>(graph),
           key,
           program.aliases,
           program.shardings,
           program.settings->Hash(),
           program.devices,
           /*number=*/0};
  Explanation explanation;
  explanation.cause = origin.ToString();
  explanation.line = origin.location ? origin.location->ToString() : "";
  explanation.hash = ir::ToHex(graph.hash);
  explanation.nodes = graph.order.size();
  explanation.inputs = graph.num_parameters();
  explanation.outputs = graph.roots.size();
  History& history = TheHistory();
  std::vector<Past> past;
  {
    std::lock_guard lock(history.mutex);
    past.assign(history.past.begin(), history.past.end());
  }
  FindReasons(now, past, explanation);
  if (const sizes::SizesNote* sizes = sizes::CurrentSizes()) {
    const ir::SourceLocation* location = sizes->location;
    explanation.reasons.push_back(
        {"sizes", sizes->text, location ? location->ToString() : "", /*remedy=*/""});
  }
  std::string warning;
  bool refused = false;
  {
    std::lock_guard lock(history.mutex);
    refused = IsError().load(std::memory_order_relaxed) && explanation.near;
    explanation.number = ++history.compilations;
    now.number = explanation.number;
    if (!refused) {
      warning = WarningOf(explanation, history);
      Remember(std::move(now), history);
    }
    history.explanations.push_back(explanation);
    if (history.explanations.size() > kMaxExplanations) history.explanations.pop_front();
  }
  TORCH_CHECK(!refused, "XLA_ON_RECOMPILE=error: ", explanation.ToString());
  if (debug::DebugLevel() > 0) {
    debug::Report("Compilation Analysis: " + explanation.ToString());
    NoteFrequentCompile(explanation.cause, explanation.reasons[0].ToString());
  } else if (!warning.empty()) {
    debug::Report(warning + "\n");
  }
  return explanation.number;
}

void NoteMemory(int64_t number, const runtime::Executable::MemoryUse& memory) {
  History& history = TheHistory();
  std::lock_guard lock(history.mutex);
  for (Explanation& explanation : history.explanations) {
    if (explanation.number == number) explanation.memory = memory;
  }
}

GraphSnapshotPtr RecordOf(int64_t number) {
  History& history = TheHistory();
  std::lock_guard lock(history.mutex);
  for (const Past& past : history.past) {
    if (past.number == number) return past.record;
  }
  return nullptr;
}

void NoteDiskMiss(int64_t number, std::string key) noexcept try {
  {
    History& history = TheHistory();
    std::lock_guard lock(history.mutex);
    for (Explanation& explanation : history.explanations) {
      if (explanation.number == number) explanation.disk_key = key;
    }
  }
  if (debug::DebugLevel() == 0) return;
  const std::shared_ptr<exec::DiskCache> cache = exec::GetDiskCache();
  if (cache) debug::Report("  on disk: " + cache->WhyMissing(key) + "\n");
} catch (const std::exception& error) {
  // The compilation goes on without an explanation.
  debug::Report(std::string("  on disk: ") + error.what() + "\n");
}

void ExplainExecution(const tensor::Graph& graph, const tensor::Origin& origin) {
  debug::Report("Execution Analysis: cause: " + origin.ToString() + "\n  graph " +
                ir::ToHex(graph.hash) + ": " + std::to_string(graph.order.size()) + " nodes, " +
                std::to_string(graph.num_parameters()) + " inputs, " +
                std::to_string(graph.roots.size()) + " outputs\n");
}

std::vector<Explanation> Explanations(int64_t after, size_t count) {
  History& history = TheHistory();
  std::lock_guard lock(history.mutex);
  std::vector<Explanation> found;
  for (const Explanation& explanation : history.explanations) {
    if (explanation.number > after) found.push_back(explanation);
  }
  if (found.size() > count)
    found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(count));
  return found;
}

bool SetRecompileIsError(bool error) { return IsError().exchange(error); }

std::pair<size_t, size_t> RecordSize() {
  History& history = TheHistory();
  std::lock_guard lock(history.mutex);
  size_t nodes = 0;
  for (const Past& past : history.past) nodes += past.record->size();
  return {history.bytes, nodes};
}

}  // namespace torch_xla::explain
