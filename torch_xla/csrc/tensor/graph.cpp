#include "tensor/graph.h"

#include <bit>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "ir/attributes.h"
#include "tensor/node_factory.h"

namespace torch_xla::tensor {
namespace {

/// Packs a number that is a parameter. Returns its kind, which is part of the program's hash.
uint64_t AddNumber(const c10::Scalar& value, Graph& graph) {
  if (value.isComplex()) {
    graph.floats.push_back(value.toComplexDouble().real());
    graph.floats.push_back(value.toComplexDouble().imag());
  } else if (value.isFloatingPoint()) {
    graph.floats.push_back(value.toDouble());
  } else {
    graph.integers.push_back(ir::IntegerBits(value));
  }
  return 2 + 2 * static_cast<uint64_t>(value.type());
}

/// Appends a leaf to the parameters. Returns a word that distinguishes it from otherwise equal
/// leaves.
uint64_t VisitLeaf(const ir::Node& node, Graph& graph) {
  if (&node.op() == &ir::ops::device_data) {
    auto* data = static_cast<DeviceData*>(node.payload());
    if (IsProgramFill(*data)) {
      if (!IsSpecial(*data->fill())) return AddNumber(*data->fill(), graph);
      ir::Words words;
      ir::AttributeWriter(words).Scalar(*data->fill());
      ir::Hasher hasher;
      for (uint64_t word : words) hasher.Add(word);
      return hasher.Finish().low | 1;
    }
    graph.data.push_back(DeviceDataPtr::reclaim_copy(data));
    graph.data_positions.push_back(node.mark().position);
  } else if (&node.op() == &ir::ops::scalar) {
    return AddNumber(ir::AttributeReader(node.attributes()).Scalar(), graph);
  }
  return 0;
}

/// Collects the numbers among a node's attributes.
void AddNumbers(const ir::Node& node, Graph& graph) {
  const ir::Words& words = node.attributes();
  for (uint32_t rest = words.numbers; rest; rest &= rest - 1) {
    const auto word = static_cast<uint32_t>(std::countr_zero(rest));
    graph.numbers.push_back(
        {node.mark().position, word, words[word], (words.floats >> word & 1) != 0});
  }
}

}  // namespace

std::unique_lock<std::mutex> LockGraph() {
  static auto& mutex = *new std::mutex;
  static auto& wait = *new debug::Metric("DeviceLockWait", debug::Unit::kTimeNs);
  debug::ScopedTimer timer(wait);
  return std::unique_lock<std::mutex>(mutex);
}

bool IsProgramFill(const DeviceData& data) {
  return data.fill() && data.owners.load(std::memory_order_relaxed) == 0;
}

DeviceDataPtr MakePromise(ir::ShapeRef shape, int device, const DeviceSet* devices,
                          const ir::SourceLocation* location) {
  auto data =
      c10::make_intrusive<DeviceData>(shape, device, devices, distributed::Sharding::Replicated());
  data->set_location(location);
  return data;
}

uint64_t GraphWalk::NextId() {
  static uint64_t walks = 0;
  return ++walks;
}

Graph CollectGraph(std::vector<ir::Value> roots, const GraphInputs& inputs) {
  Graph graph;
  ir::Hasher hasher;
  GraphWalk walk;
  const auto input_of = [&](const ir::Node& node) {
    return inputs.empty() ? inputs.end() : inputs.find(&node);
  };
  const auto is_input = [&](const ir::Node& node) { return input_of(node) != inputs.end(); };
  const auto visit = [&](const ir::Node& node) {
    graph.order.push_back(&node);
    if (const auto input = input_of(node); input != inputs.end()) {
      graph.data.push_back(input->second);
      graph.data_positions.push_back(node.mark().position);
      hasher.Add(MakeLeaf(input->second).node->hash());
      hasher.Add(uint64_t{0});
      return;
    }
    hasher.Add(node.hash());
    for (const ir::Value& operand : node.operands()) {
      ir::Node::Mark& mark = operand.node->mark();
      ++mark.uses;
      hasher.Add((static_cast<uint64_t>(mark.position) << 16) | operand.index);
    }
    if (node.operands().empty()) hasher.Add(VisitLeaf(node, graph));
    if (node.attributes().numbers) AddNumbers(node, graph);
  };
  for (const ir::Value& root : roots) {
    walk.From(*root.node, visit, is_input);
    ir::Node::Mark& mark = root.node->mark();
    ++mark.uses;
    hasher.Add((static_cast<uint64_t>(mark.position) << 16) | root.index);
    // The root's shape may depend on a number that the node's hash leaves out, such as the amount
    // of padding.
    hasher.Add(root.shape()->hash);
  }
  graph.hash = hasher.Finish();
  graph.roots = std::move(roots);
  return graph;
}

}  // namespace torch_xla::tensor
