#include "explain/graph_dump.h"

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>

#include "debug/environment.h"
#include "exec/lower_graph.h"
#include "ir/dump.h"
#include "tensor/device.h"

namespace torch_xla::explain {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string InForm(const tensor::Graph& graph, const std::string& form) {
  if (form == "hlo") return exec::LowerGraphToRead(graph);
  return form == "dot" ? ir::ToDot(graph.roots) : ir::ToText(graph.roots);
}

}  // namespace

void SaveGraph(const tensor::Graph& graph, const tensor::Origin& origin) {
  if (!std::getenv("XLA_SAVE_TENSORS_FILE")) [[likely]]
    return;
  std::string path = debug::EnvPath("XLA_SAVE_TENSORS_FILE");
  if (path.empty()) return;
  const std::string rank = Env("RANK");
  if (tensor::DeviceCount() > 1 || !rank.empty()) path += "." + (rank.empty() ? "0" : rank);
  const std::string text = InForm(graph, Env("XLA_SAVE_TENSORS_FMT"));
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::ofstream file(path, std::ios::app);
  file << "[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n  " << origin.ToString()
       << "\n\n## BEGIN_GRAPH\n"
       << text << "\n## END_GRAPH\n\n";
  if (!file.flush()) {
    TORCH_WARN_ONCE("XLA_SAVE_TENSORS_FILE: ", path, " cannot be written");
  }
}

}  // namespace torch_xla::explain
