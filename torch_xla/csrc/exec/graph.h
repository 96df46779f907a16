// A cut of the graph: what some values need, in a canonical order, with its hash.
#pragma once

#include <string>
#include <unordered_map>
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

/// Walks from `roots`. The hash covers every node, the wiring between them and the shapes of the
/// results, so equal hashes mean equal programs (128 bits). One walk at a time: the caller
/// serialises. The results of the nodes in `inputs` are taken from that data: they are parameters
/// like leaves.
using GraphInputs = std::unordered_map<const ir::Node*, DeviceDataPtr>;
Graph CollectGraph(std::vector<ir::Value> roots, const GraphInputs& inputs = {});

}  // namespace torch_xla::lazy
