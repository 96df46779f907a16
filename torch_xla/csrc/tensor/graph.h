// The part of the graph that some values need, in a canonical order, with its hash.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/device_data.h"

namespace torch_xla::tensor {

/// A number among the attributes of a node: a constant of the program, or a packed parameter.
struct GraphNumber {
  uint32_t position;  // of the node in Graph::order
  uint32_t word;      // index among the node's attributes
  uint64_t bits;
  bool is_float;
  int32_t packed = -1;  // index in Graph::floats or integers; -1: not a parameter
};

struct Graph {
  std::vector<ir::Value> roots;
  std::vector<const ir::Node*> order;  // operands before users
  // The parameters of the program, in this order: the data of the leaves in the order of `order`,
  // then all floating-point numbers in one array, then all integers in another.
  std::vector<DeviceDataPtr> data;
  std::vector<uint32_t> data_positions;  // positions of their leaves in `order`
  std::vector<double> floats;
  std::vector<int64_t> integers;
  // The numbers among attributes, which are not part of the hash.
  std::vector<GraphNumber> numbers;
  ir::Hash128 hash;

  /// Whether the node belongs to this graph. Valid until the next walk.
  bool Contains(const ir::Node& node) const {
    const uint32_t position = node.mark().position;
    return position < order.size() && order[position] == &node;
  }
  /// Whether the node at `position` is data parameter `next`, if all earlier data parameters belong
  /// to earlier nodes.
  bool IsParameter(size_t position, size_t next) const {
    return next < data.size() && data_positions[next] == position;
  }
  size_t num_parameters() const {
    return data.size() + (floats.empty() ? 0 : 1) + (integers.empty() ? 0 : 1);
  }
};

/// Locks the walks over graphs. A walk marks nodes, so only one walk at a time is allowed in the
/// process. Do not wait for a device, a compilation or a lowering while holding this lock.
std::unique_lock<std::mutex> LockGraph();

/// Visits the nodes that values are computed from, operands before users and each node once, and
/// marks each node with its position in this order. Only one walk at a time is allowed in the
/// process (LockGraph): a new walk invalidates the marks of earlier walks.
class GraphWalk {
 public:
  /// Calls `visit` for `root` and all nodes it is computed from, except nodes that were visited
  /// before. Does not descend into the operands of a node for which `is_input` is true.
  template <typename Visit, typename IsInput>
  void From(const ir::Node& root, const Visit& visit, const IsInput& is_input) {
    Open(root);
    while (!stack_.empty()) {
      auto& [node, next] = stack_.back();
      if (node->mark().walk == id_) {
        stack_.pop_back();
      } else if (next < node->operands().size() && !is_input(*node)) {
        Open(*node->operands()[next++].node);
      } else {
        const ir::Node& met = *node;
        stack_.pop_back();
        met.mark() = {id_, size_++, 0};
        visit(met);
      }
    }
  }
  template <typename Visit>
  void From(const ir::Node& root, const Visit& visit) {
    From(root, visit, [](const ir::Node&) { return false; });
  }
  /// The number of nodes visited so far.
  size_t size() const { return size_; }

 private:
  static uint64_t NextId();
  void Open(const ir::Node& node) {
    if (node.mark().walk != id_) stack_.emplace_back(&node, 0);
  }

  const uint64_t id_ = NextId();
  uint32_t size_ = 0;
  // each with the index of its next operand
  std::vector<std::pair<const ir::Node*, uint32_t>> stack_;
};

/// Collects the graph of `roots`. The hash covers every node, the edges between them and the shapes
/// of the results, so equal hashes (128 bits) mean equal programs. The nodes in `inputs` are
/// parameters like leaves: their results are taken from the given data. The caller must hold the
/// lock of LockGraph.
using GraphInputs = std::unordered_map<const ir::Node*, DeviceDataPtr>;
Graph CollectGraph(std::vector<ir::Value> roots, const GraphInputs& inputs = {});

/// Whether data is a fill that no tensor holds: it is part of the program instead of an array.
bool IsProgramFill(const DeviceData& data);
/// Data that an execution will fulfil, replicated on `devices`.
DeviceDataPtr MakePromise(ir::ShapeRef shape, int device, const DeviceSet* devices,
                          const ir::SourceLocation* location = nullptr);

}  // namespace torch_xla::tensor
