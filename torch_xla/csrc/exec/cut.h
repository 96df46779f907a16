// A cut of the graph of a device: what the pending tensors need is taken out of it, and promises
// stand in its place.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "exec/graph.h"
#include "exec/worker.h"
#include "tensor/sharding.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

/// Held while a graph is walked, which marks its nodes: one walk at a time in the process. Nothing
/// waits for a device, a compiler or a lowering under it.
std::unique_lock<std::mutex> LockGraph();

/// An operand of a node.
struct Edge {
  const ir::Node* node;
  size_t operand;
};

/// A storage whose value is computed.
struct Target {
  Storage* storage;
  size_t root;
  uint64_t overwrites;  // the id of the storage's data before
  const distributed::Sharding* sharding;
};

/// What was taken from the graph under the lock; nothing else is needed to run it.
struct Cut {
  int device;
  const DeviceSet* devices;
  Graph graph;
  std::vector<Target> targets;
  std::vector<bool> survives;     // whether the node can be read later
  std::vector<Edge> dying;        // edges to what survives, and to data
  std::vector<ir::Value> leaves;  // that stand in the targets for the roots
  Execution execution;
  Worker::Place place;
  bool is_bulk = false;  // see SplitCut
};

/// With the lock held: puts promises in the place of what `storages` are pending for, which an
/// execution must keep; fills need no program. Nothing where nothing is pending.
std::optional<Cut> CutGraph(const std::vector<StoragePtr>& storages, int device);

/// With the lock held: parts of what is pending that have nothing in common but data and numbers,
/// so that a program of each computes nothing twice. One part where that is few or one thing.
std::vector<std::vector<StoragePtr>> PartsOf(std::vector<StoragePtr> pending);

bool HasCollective(const Graph& graph);

}  // namespace torch_xla::lazy
