// A cut of the graph: what some values need, in a canonical order, with its hash.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/device_data.h"

namespace torch_xla::lazy {

/// A number among the attributes of a node: part of the program, or packed with the others.
struct GraphNumber {
  uint32_t position;  // of the node in Graph::order
  uint32_t word;      // of its attributes
  uint64_t bits;
  bool is_float;
  int32_t packed = -1;  // its place in Graph::floats or integers, where it is a parameter
};

struct Graph {
  std::vector<ir::Value> roots;
  std::vector<const ir::Node*> order;  // operands before users
  // The parameters of the program, in this order: the data of the leaves as `order` meets
  // them, then all floating and all integer numbers, each packed into one array.
  std::vector<DeviceDataPtr> data;
  std::vector<uint32_t> data_positions;  // of their leaves in `order`
  std::vector<double> floats;
  std::vector<int64_t> integers;
  // Not in the hash.
  std::vector<GraphNumber> numbers;
  ir::Hash128 hash;

  /// Until the next walk.
  bool Contains(const ir::Node& node) const {
    const uint32_t position = node.mark().position;
    return position < order.size() && order[position] == &node;
  }
  /// Whether the node there is data parameter `next`, where those before it are of nodes before.
  bool IsParameter(size_t position, size_t next) const {
    return next < data.size() && data_positions[next] == position;
  }
  size_t num_parameters() const {
    return data.size() + (floats.empty() ? 0 : 1) + (integers.empty() ? 0 : 1);
  }
};

/// Meets the nodes that values are made of, operands before users and each once, and marks each
/// with its place in this order. One walk at a time in the process (LockGraph): a new walk makes
/// the marks of those before it void.
class GraphWalk {
 public:
  /// Calls `visit` for `root` and what it is made of, but for what was met before. Operands of a
  /// node for which `is_input` is true are not looked at.
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
  /// How many nodes it has met.
  size_t size() const { return size_; }

 private:
  static uint64_t NextId();
  void Open(const ir::Node& node) {
    if (node.mark().walk != id_) stack_.emplace_back(&node, 0);
  }

  const uint64_t id_ = NextId();
  uint32_t size_ = 0;
  std::vector<std::pair<const ir::Node*, uint32_t>> stack_;  // with the next operand of each
};

/// Walks from `roots`. The hash covers every node, the wiring between them and the shapes of the
/// results, so equal hashes mean equal programs (128 bits). One walk at a time: the caller
/// serialises. The results of the nodes in `inputs` are taken from that data: they are parameters
/// like leaves.
using GraphInputs = std::unordered_map<const ir::Node*, DeviceDataPtr>;
Graph CollectGraph(std::vector<ir::Value> roots, const GraphInputs& inputs = {});

}  // namespace torch_xla::lazy
