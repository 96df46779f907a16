#include "explain/memory_report.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "explain/explain.h"
#include "explain/line_costs.h"

namespace torch_xla::explain {
namespace {

std::atomic<HoldersFunction> holders{nullptr};

struct Group {
  size_t arrays = 0;
  int64_t bytes = 0;
};

}  // namespace

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 1024 && unit + 1 < std::size(kUnits); ++unit) number /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", number, kUnits[unit]);
  return text;
}

int64_t PeakOf(const runtime::Executable::MemoryUse& memory) {
  // The peak that the CPU's compiler reports may lack the temporaries.
  return std::max(memory.peak, memory.temporaries + std::max<int64_t>(memory.arguments, 0) +
                                   std::max<int64_t>(memory.outputs, 0) -
                                   std::max<int64_t>(memory.aliased, 0));
}

std::string MemoryReport(const std::vector<tensor::DeviceData::Live>& arrays, size_t count) {
  using Key = std::pair<std::string, std::string>;  // shape, line
  std::map<Key, Group> groups;
  Group all;
  for (const tensor::DeviceData::Live& live : arrays) {
    Group& group = groups[{live.shape->ToString(), ir::LineOf(live.location)}];
    for (Group* sum : {&group, &all}) {
      ++sum->arrays;
      sum->bytes += live.bytes;
    }
  }
  std::vector<std::pair<Key, Group>> largest(groups.begin(), groups.end());
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text =
      "device memory: " + std::to_string(all.arrays) + " arrays, " + BytesText(all.bytes) + "\n";
  for (size_t i = 0; i < std::min(count, largest.size()); ++i) {
    const auto& [key, group] = largest[i];
    text += "  " + BytesText(group.bytes) + ": " + std::to_string(group.arrays) + " x " +
            key.first + " made at " + key.second + "\n";
  }
  if (largest.size() > count) {
    text += "  and " + std::to_string(largest.size() - count) + " more kinds\n";
  }
  std::vector<Explanation> programs;
  for (Explanation& program : Explanations(0, SIZE_MAX)) {
    if (program.memory.temporaries >= 0) programs.push_back(std::move(program));
  }
  auto peak = [](const Explanation& program) { return PeakOf(program.memory); };
  std::stable_sort(programs.begin(), programs.end(),
                   [&](const auto& a, const auto& b) { return peak(a) > peak(b); });
  if (programs.size() > count) programs.resize(count);
  if (!programs.empty()) text += "programs, by the compiler's own statistics:\n";
  for (const Explanation& program : programs) {
    text += "  " + BytesText(peak(program)) + " (" + BytesText(program.memory.temporaries) +
            " of it temporaries): compilation " + std::to_string(program.number) + ", " +
            program.cause + ", " + std::to_string(program.nodes) + " nodes\n";
  }
  return text;
}

std::string LargestText(const GraphSnapshot& record, size_t count) {
  std::string text;
  for (const ResultCost& result : LargestResults(record, count)) {
    text += "\n    computes " + BytesText(result.bytes) + ": " + result.shape->ToString() + " " +
            result.operation + " at " + ir::LineOf(result.location);
  }
  return text;
}

std::string MemoryText(const runtime::Executable::MemoryUse& memory) {
  if (memory.temporaries < 0) return "an amount of memory that the plugin does not report";
  std::string text = BytesText(PeakOf(memory)) + ": " + BytesText(memory.temporaries) +
                     " temporaries, " + BytesText(memory.arguments) + " arguments, " +
                     BytesText(memory.outputs) + " outputs";
  if (memory.aliased > 0)
    text += " (" + BytesText(memory.aliased) + " of them in place of arguments)";
  return text;
}

std::string MicrobatchText(const runtime::Executable::MemoryUse& memory,
                           const runtime::MemoryInfo& device) {
  constexpr int64_t kMost = 64;
  if (memory.temporaries < 0 || device.limit <= 0) return {};
  const int64_t free = device.limit - device.in_use;  // the arguments are already in use
  const int64_t results =
      std::max<int64_t>(memory.outputs, 0) - std::max<int64_t>(memory.aliased, 0);
  for (int64_t parts = 2; parts <= kMost; parts *= 2) {
    const int64_t need = results + memory.temporaries / parts;
    if (need > free) continue;
    return "With the batch in " + std::to_string(parts) + " microbatches it would need about " +
           BytesText(need) + " more, and " + BytesText(free) +
           " are free: torch_xla.experimental.gradient_accumulation";
  }
  return {};
}

void SetHoldersFunction(HoldersFunction function) { holders.store(function); }

HoldersFunction GetHoldersFunction() { return holders.load(); }

}  // namespace torch_xla::explain
