// The manual regions of a graph (distributed/manual_ops.h), and their lowering.
//
// A value is local, which means that each device has one of its own, if it is taken apart by
// kToLocal, is exchanged, or is computed from a local value; kToWhole ends that. What is local,
// hangs together and needs the results of no other region is one region; what needs those of that
// region is a later one, and so on. A local value that a later region or a later program reads is
// handed on in parts.
//
// In a function that is called in a region (the body of a loop) every value is local, and there are
// no regions.
#pragma once

#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "distributed/sharding_writer.h"
#include "lowering/context.h"
#include "tensor/graph.h"

namespace torch_xla::exec {

class ManualRegions {
 public:
  /// Of nodes, operands before users, and what is read of them. They must live as long. `local` has
  /// the positions of leaves that are local; `exchanges`: an exchange makes a region even if
  /// nothing is taken apart (in a function that is called in a region it does not).
  ManualRegions(std::span<const ir::Node* const> order, std::span<const ir::Value> roots,
                std::span<const uint32_t> local = {}, bool exchanges = false);
  explicit ManualRegions(const tensor::Graph& graph);

  bool empty() const { return regions_.empty(); }
  /// Whether each device has a value of its own.
  bool IsLocal(const ir::Node* node) const;

  /// Appends the program's parameters for numbers among the attributes of the node at a position,
  /// as pairs of word and value.
  using Numbers = std::function<std::vector<std::pair<size_t, stablehlo::Value>>(uint32_t)>;
  /// Lowers the nodes at `positions`: those of regions together, all others by `lower`, which gets
  /// the index in `positions`, in this order as far as the regions allow.
  void Lower(lowering::LoweringContext& cx, std::span<const uint32_t> positions,
             const Numbers& numbers, const std::function<void(size_t)>& lower) const;

 private:
  void LowerRegion(lowering::LoweringContext& cx, std::span<const uint32_t> positions,
                   const Numbers& numbers) const;

  struct Place {
    int level = 0;  // how many regions come before
    bool inside = false;
    uint32_t region = 0;  // the position of one of its nodes
    auto operator<=>(const Place&) const = default;
  };

  std::span<const ir::Node* const> order_;
  std::span<const ir::Value> roots_;
  std::vector<Place> regions_;  // by position; empty if there is no region
  std::unordered_map<const ir::Node*, uint32_t> position_of_;
  std::vector<bool> local_;  // by position
};

/// For each device a number, which is the same for devices that certainly hold the same value: by
/// the ways that it was taken apart and exchanged. Empty if all devices do, and where the graph
/// does not tell: below data that is local, and below functions that exchange (bodies of loops).
std::vector<int64_t> HoldersOf(const ir::Value& value);

/// Whether Shardy partitions the programs over several devices: as XLA_SHARDY says, else if the
/// plugin compiles a small program for it. That is asked once, and kept in the cache on disk.
bool PartitionsByShardy();

/// The writer of the shardings of programs over so many devices.
distributed::ShardingWriter WriterFor(int64_t devices);

}  // namespace torch_xla::exec
