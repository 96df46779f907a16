// A cut of a device's graph: the subgraph that the pending tensors need is taken out, and promises
// take its place.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exec/worker.h"
#include "tensor/graph.h"
#include "tensor/sharding.h"
#include "tensor/storage.h"

namespace torch_xla::sizes {
class Binding;
}  // namespace torch_xla::sizes

namespace torch_xla::exec {

/// An operand of a node.
struct Edge {
  const ir::Node* node;
  size_t operand;
};

/// A storage whose value the cut computes.
struct Target {
  tensor::Storage* storage;
  size_t root;          // index of its value in Graph::roots
  uint64_t overwrites;  // the id of the data that the storage had before
  const distributed::Sharding* sharding;
};

/// All that was taken from the graph under the lock. Running it needs nothing else.
struct Cut {
  int device;
  const tensor::DeviceSet* devices;
  tensor::Graph graph;
  std::vector<Target> targets;
  std::vector<bool> survives;     // per node: whether it can be read later
  std::vector<Edge> dying;        // edges from dying nodes to surviving nodes and to data
  std::vector<ir::Value> leaves;  // per root: the leaf that replaces it in the targets
  Execution execution;
  Worker::Place place;
  bool is_bulk = false;                           // see SplitCut
  std::shared_ptr<const sizes::Binding> binding;  // null: the program has the cut's own sizes
};

/// Replaces the pending values of `storages` by promises, which the caller must have an execution
/// fulfil. Fills get data and need no program. Returns nothing if nothing is pending. The caller
/// holds the lock.
std::optional<Cut> CutGraph(const std::vector<tensor::StoragePtr>& storages, int device);

/// Splits pending storages into parts that share only data and numbers, so that one program per
/// part computes nothing twice. Returns a single part if there are few storages or they all depend
/// on each other. The caller holds the lock.
std::vector<std::vector<tensor::StoragePtr>> PartsOf(std::vector<tensor::StoragePtr> pending);

/// Whether one of the nodes is a collective.
bool HasCollective(const std::vector<const ir::Node*>& nodes);
/// Whether one of the nodes must not run twice: a collective, or a function that calls the host.
bool HasEffect(const std::vector<const ir::Node*>& nodes);

}  // namespace torch_xla::exec
