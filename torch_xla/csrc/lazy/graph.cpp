#include "lazy/graph.h"

#include <algorithm>
#include <bit>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "lazy/foreach_chain.h"
#include "lazy/node_factory.h"
#include "lazy/number.h"
#include "lazy/number_reader.h"
#include "lowering/context.h"
#include "stablehlo/joined_dims.h"
#include "stablehlo/text.h"

namespace torch_xla::lazy {
namespace {

using runtime::ElementType;

/// A fill that no tensor holds: no array is made of it, it is in the program.
bool IsProgramFill(const DeviceData& data) {
  return data.fill() && data.owners.load(std::memory_order_relaxed) == 0;
}

/// Packs a number that is a parameter; returns of what kind it is, which is part of the program.
uint64_t AddNumber(const c10::Scalar& value, Graph& graph) {
  if (value.isComplex()) {
    graph.floats.push_back(value.toComplexDouble().real());
    graph.floats.push_back(value.toComplexDouble().imag());
  } else if (value.isFloatingPoint()) {
    graph.floats.push_back(value.toDouble());
  } else {
    graph.integers.push_back(IntegerBits(value));
  }
  return 2 + 2 * static_cast<uint64_t>(value.type());
}

/// Appends a leaf to the parameters; returns what tells it apart from leaves alike.
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

/// Notes the numbers among a node's attributes.
void AddNumbers(const ir::Node& node, Graph& graph) {
  const ir::Words& words = node.attributes();
  for (uint32_t rest = words.numbers; rest; rest &= rest - 1) {
    const auto word = static_cast<uint32_t>(std::countr_zero(rest));
    graph.numbers.push_back(
        {node.mark().position, word, words[word], (words.floats >> word & 1) != 0});
  }
}

std::string ShardingAttribute(const distributed::Sharding& sharding) {
  return "mhlo.sharding = " + stablehlo::Quoted(sharding.text());
}

void AddShardings(const Graph& graph, std::span<const distributed::Sharding* const> outputs,
                  stablehlo::Builder& builder) {
  for (int i = 0; i < builder.num_parameters(); ++i) {
    // Those after the data are numbers.
    const auto k = static_cast<size_t>(i);
    builder.AddParameterAttributes(
        i, ShardingAttribute(k < graph.data.size() ? *graph.data[k]->sharding()
                                                   : *distributed::Sharding::Replicated()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i])
      builder.AddOutputAttributes(static_cast<int>(i), ShardingAttribute(*outputs[i]));
  }
}

}  // namespace

stablehlo::Value Unpack(stablehlo::Value packed, int64_t index) {
  return stablehlo::Reshape(stablehlo::Slice(packed, {index}, {index + 1}), {});
}

stablehlo::Value LowerScalar(lowering::LoweringContext& cx, const c10::Scalar& number,
                             const stablehlo::Type& type) {
  stablehlo::Builder& builder = cx.builder();
  if (number.isComplex()) {
    return stablehlo::Constant(builder, std::complex<double>(number.toComplexDouble()), type);
  }
  return number.isFloatingPoint() ? stablehlo::Constant(builder, number.toDouble(), type)
                                  : stablehlo::Constant(builder, number.toLong(), type);
}

stablehlo::Value LowerFill(lowering::LoweringContext& cx, const DeviceData& data) {
  return LowerScalar(cx, *data.fill(), cx.Physical(data.shape()));
}

Graph CollectGraph(std::vector<ir::Value> roots, const GraphInputs& inputs) {
  static uint64_t walks = 0;
  const uint64_t walk = ++walks;
  Graph graph;
  ir::Hasher hasher;
  std::vector<std::pair<const ir::Node*, uint32_t>> stack;
  auto open = [&](const ir::Node* node) {
    if (node->mark().walk != walk) stack.emplace_back(node, 0);
  };
  for (const ir::Value& root : roots) {
    open(root.node.get());
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (node->mark().walk == walk) {
        stack.pop_back();
      } else if (auto input = inputs.empty() ? inputs.end() : inputs.find(node);
                 input != inputs.end()) {
        node->mark() = {walk, static_cast<uint32_t>(graph.order.size()), 0};
        graph.data.push_back(input->second);
        graph.data_positions.push_back(node->mark().position);
        graph.order.push_back(node);
        hasher.Add(MakeLeaf(input->second).node->hash());
        hasher.Add(uint64_t{0});
        stack.pop_back();
      } else if (next < node->operands().size()) {
        open(node->operands()[next++].node.get());
      } else {
        node->mark() = {walk, static_cast<uint32_t>(graph.order.size()), 0};
        graph.order.push_back(node);
        hasher.Add(node->hash());
        for (const ir::Value& operand : node->operands()) {
          ir::Node::Mark& mark = operand.node->mark();
          ++mark.uses;
          hasher.Add((static_cast<uint64_t>(mark.position) << 16) | operand.index);
        }
        if (node->operands().empty()) hasher.Add(VisitLeaf(*node, graph));
        if (node->attributes().numbers) AddNumbers(*node, graph);
        stack.pop_back();
      }
    }
    ir::Node::Mark& mark = root.node->mark();
    ++mark.uses;
    hasher.Add((static_cast<uint64_t>(mark.position) << 16) | root.index);
    // What follows from a number that is no part of a node's hash: how much is padded.
    hasher.Add(root.shape()->hash);
  }
  graph.hash = hasher.Finish();
  graph.roots = std::move(roots);
  return graph;
}

std::string LowerGraph(const Graph& graph, std::span<const int> aliases,
                       const std::string& platform, size_t num_devices,
                       std::span<const distributed::Sharding* const> outputs,
                       std::string_view name) {
  lowering::LoweringContext cx(platform);
  stablehlo::Builder& builder = cx.builder();
  builder.SetPartitions(static_cast<int64_t>(num_devices));
  std::vector<stablehlo::Value> data;
  for (const DeviceDataPtr& parameter : graph.data) {
    data.push_back(builder.Parameter(cx.Physical(parameter->shape())));
  }
  stablehlo::Value floats, integers;
  auto packed = [](size_t n) { return stablehlo::Dims{static_cast<int64_t>(n)}; };
  if (!graph.floats.empty()) {
    floats = builder.Parameter({cx.Physical(c10::ScalarType::Double), packed(graph.floats.size())});
  }
  if (!graph.integers.empty()) {
    integers = builder.Parameter({ElementType::kS64, packed(graph.integers.size())});
  }
  const NumberReader numbers(platform, floats, integers);
  int64_t next_float = 0, next_integer = 0;
  auto next_number = [&](c10::ScalarType kind, c10::ScalarType dtype) {
    ElementType element = cx.Physical(dtype);
    if (c10::isComplexType(kind)) {
      auto real = numbers.Float(next_float++), imag = numbers.Float(next_float++);
      return stablehlo::Convert(stablehlo::Complex(real, imag), element);
    }
    stablehlo::Value number =
        c10::isFloatingType(kind) ? numbers.Float(next_float++) : numbers.Integer(next_integer++);
    if (kind == c10::ScalarType::UInt64) {  // 2**63 or more, see lazy/number.h
      number = stablehlo::BitcastConvert(number, ElementType::kU64);
    }
    return stablehlo::Convert(number, element);
  };
  for (size_t i = 0; i < data.size(); ++i) {
    cx.SetLeaf(*graph.order[graph.data_positions[i]], data[i]);
  }
  cx.SetGraph(graph.order, graph.roots);
  const LoweringPlan plan = PlanLowering(graph, cx);
  for (const auto [position, chain] : plan.steps) {
    const ir::Node* node = graph.order[position];
    if (chain >= 0) {
      LowerChain(cx, graph, plan.chains[chain], aliases, data);
    } else if (cx.IsLowered(*node)) {
      continue;  // part of what it reads
    } else if (&node->op() == &ir::ops::device_data) {
      auto* leaf = static_cast<DeviceData*>(node->payload());
      stablehlo::Type type = cx.Physical(leaf->shape());
      c10::Scalar fill = *leaf->fill();
      if (!IsSpecial(fill)) {
        cx.SetLeaf(*node, stablehlo::BroadcastInDim(next_number(fill.type(), leaf->shape()->dtype),
                                                    type.dims, {}));
      } else {
        cx.SetLeaf(*node, LowerFill(cx, *leaf));
      }
    } else if (&node->op() == &ir::ops::scalar) {
      auto kind = static_cast<c10::ScalarType>(ir::AttributeReader(node->attributes()).Int());
      cx.SetLeaf(*node, next_number(kind, node->shape()->dtype));
    } else {
      auto number = std::lower_bound(
          graph.numbers.begin(), graph.numbers.end(), position,
          [](const GraphNumber& one, uint32_t wanted) { return one.position < wanted; });
      for (; number != graph.numbers.end() && number->position == position; ++number) {
        if (number->packed < 0) continue;
        cx.SetNumberParameter(number->word, number->is_float ? numbers.Float(number->packed)
                                                             : numbers.Integer(number->packed));
      }
      cx.Lower(*node);
    }
  }
  std::vector<bool> is_aliased(graph.roots.size());
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] < 0) continue;
    builder.SetAlias(static_cast<int>(i), aliases[i]);
    is_aliased[aliases[i]] = true;
  }
  std::vector<stablehlo::Value> results;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const stablehlo::Value root = cx.Lowered(graph.roots[i]);
    results.push_back(is_aliased[i] ? root : stablehlo::ComputedForm(root));
  }
  if (num_devices > 1) AddShardings(graph, outputs, builder);
  return builder.Finish(results, name.empty() ? "main" : name);
}

}  // namespace torch_xla::lazy
