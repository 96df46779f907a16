#include "exec/donation.h"

#include <unordered_map>

#include "exec/manual_regions.h"

namespace torch_xla::exec {

using distributed::Sharding;

std::vector<int> ChooseAliases(const Cut& cut) {
  const tensor::Graph& graph = cut.graph;
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
  // On several devices XLA may lay out such a root in another way than the parameter.
  if (cut.devices->size() > 1) return aliases;
  for (size_t root = 0; root < graph.roots.size() && !dying.empty(); ++root) {
    for (const ir::Value& operand : graph.roots[root].node->operands()) {
      if (taken[root]) break;  // Operations on lists have hundreds of operands.
      if (tensor::DeviceData* data = tensor::LeafData(operand)) pair(data->id(), root);
    }
  }
  return aliases;
}

std::vector<const Sharding*> ChooseShardings(const Cut& cut, std::vector<int>& aliases) {
  std::vector<const Sharding*> shardings(cut.graph.roots.size());
  for (const Target& target : cut.targets) {
    if (!shardings[target.root]) shardings[target.root] = target.sharding;
  }
  if (const ManualRegions regions(cut.graph); !regions.empty()) {
    for (size_t i = 0; i < shardings.size(); ++i) {
      if (regions.IsLocal(cut.graph.roots[i].node.get())) shardings[i] = distributed::Local();
    }
  }
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] < 0) continue;
    const Sharding*& root = shardings[aliases[i]];
    if (!root) root = cut.graph.data[i]->sharding();
    if (root != cut.graph.data[i]->sharding()) aliases[i] = -1;
  }
  return shardings;
}

}  // namespace torch_xla::exec
