// The manual regions of a graph (distributed/manual_ops.h), and their lowering.
//
// A value is local, which means that each device has one of its own, if it is taken apart by
// kToLocal, is exchanged, or is computed from a local value; kToWhole ends that. What is local and
// needs the results of no other region is one region, what needs those of that region the next one,
// and so on. A local value that a later region or a later program reads is handed on in parts.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "distributed/sharding_writer.h"
#include "exec/graph.h"
#include "lowering/context.h"

namespace torch_xla::lazy {

class ManualRegions {
 public:
  /// `graph` must live as long.
  explicit ManualRegions(const Graph& graph);

  bool empty() const { return stages_.empty(); }
  /// Whether each device has a value of its own.
  bool IsLocal(const ir::Node* node) const;
  /// Nodes are lowered in the order of their stages, of which odd ones are regions.
  int StageOf(uint32_t position) const { return empty() ? 0 : stages_[position]; }

  /// Appends the program's parameters for numbers among the attributes of the node at a position,
  /// as pairs of word and value.
  using Numbers = std::function<std::vector<std::pair<size_t, stablehlo::Value>>(uint32_t)>;
  /// Lowers a region, the nodes at `positions`.
  void Lower(lowering::LoweringContext& cx, std::span<const uint32_t> positions,
             const Numbers& numbers) const;

 private:
  const Graph& graph_;
  std::vector<int> stages_;  // by position
  std::unordered_map<const ir::Node*, uint32_t> position_of_;
  std::vector<bool> local_;  // by position
};

/// Whether Shardy partitions the programs over several devices: as XLA_SHARDY says, else if the
/// plugin compiles a small program for it. That is asked once, and kept in the cache on disk.
bool PartitionsByShardy();

/// The writer of a program's shardings; `outputs` as in LowerGraph.
distributed::ShardingWriter WriterFor(const Graph& graph,
                                      std::span<const distributed::Sharding* const> outputs,
                                      int64_t devices);

}  // namespace torch_xla::lazy
