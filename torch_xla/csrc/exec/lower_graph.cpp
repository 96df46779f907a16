#include "exec/lower_graph.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "XLAOps.h"
#include "distributed/manual_ops.h"
#include "exec/foreach_chain.h"
#include "exec/manual_regions.h"
#include "exec/nan_search.h"
#include "exec/packed_numbers.h"
#include "stablehlo/joined_dims.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::exec {
namespace {

using runtime::ElementType;

void AddShardings(const tensor::Graph& graph, std::span<const distributed::Sharding* const> outputs,
                  const distributed::ShardingWriter& writer, stablehlo::Builder& builder) {
  auto rank = [](ir::ShapeRef shape) { return static_cast<int64_t>(shape->dims.size()); };
  for (int i = 0; i < builder.num_parameters(); ++i) {
    // Parameters after the data are packed numbers.
    const auto k = static_cast<size_t>(i);
    builder.AddParameterAttributes(
        i, k < graph.data.size()
               ? writer.Attribute(*graph.data[k]->sharding(), rank(graph.data[k]->shape()))
               : writer.Attribute(*distributed::Sharding::Replicated(), 1));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) continue;
    builder.AddOutputAttributes(static_cast<int>(i),
                                writer.Attribute(*outputs[i], rank(graph.roots[i].shape())));
  }
}

void NoteShardings(const tensor::Graph& graph,
                   std::span<const distributed::Sharding* const> outputs,
                   distributed::ShardingWriter& writer) {
  std::vector<const distributed::Sharding*> shardings;
  for (const tensor::DeviceDataPtr& leaf : graph.data) shardings.push_back(leaf->sharding());
  std::ranges::copy_if(outputs, std::back_inserter(shardings),
                       [](const distributed::Sharding* output) { return output != nullptr; });
  for (const ir::Node* node : graph.order) {
    if (&node->op() == &ir::ops::mark_sharding) {
      shardings.push_back(distributed::ShardingNamed(*node));
    }
  }
  writer.Note(shardings);
}

}  // namespace

stablehlo::Value LowerScalar(lowering::LoweringContext& cx, const c10::Scalar& number,
                             const stablehlo::Type& type) {
  return stablehlo::Constant(cx.builder(), lowering::LiteralOf(number), type);
}

stablehlo::Value LowerFill(lowering::LoweringContext& cx, const tensor::DeviceData& data) {
  return LowerScalar(cx, *data.fill(), cx.Physical(data.shape()));
}

std::string LowerGraph(const tensor::Graph& graph, std::span<const int> aliases,
                       const std::string& platform, size_t num_devices,
                       std::span<const distributed::Sharding* const> outputs, std::string_view name,
                       std::vector<int>* partition_devices) {
  lowering::LoweringContext cx(platform);
  stablehlo::Builder& builder = cx.builder();
  builder.SetPartitions(static_cast<int64_t>(num_devices));
  distributed::ShardingWriter writer = WriterFor(static_cast<int64_t>(num_devices));
  if (num_devices > 1) NoteShardings(graph, outputs, writer);
  const distributed::ShardingWriter::Use use(writer);
  std::vector<stablehlo::Value> data;
  for (const tensor::DeviceDataPtr& parameter : graph.data) {
    const stablehlo::Type type = cx.Physical(parameter->shape());
    const distributed::Sharding& sharding = *parameter->sharding();
    data.push_back(builder.Parameter(num_devices > 1 ? writer.EdgeType(type, sharding) : type));
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
    if (kind == c10::ScalarType::UInt64) {  // 2**63 or more, see ir::IntegerBits
      number = stablehlo::BitcastConvert(number, ElementType::kU64);
    }
    return stablehlo::Convert(number, element);
  };
  for (size_t i = 0; i < data.size(); ++i) {
    const stablehlo::Type type = cx.Physical(graph.data[i]->shape());
    cx.SetLeaf(
        *graph.order[graph.data_positions[i]],
        num_devices > 1 ? writer.FromEdge(data[i], type, *graph.data[i]->sharding()) : data[i]);
  }
  cx.SetGraph(graph.order, graph.roots);
  auto numbers_of = [&](uint32_t position) {
    std::vector<std::pair<size_t, stablehlo::Value>> found;
    auto number = std::lower_bound(
        graph.numbers.begin(), graph.numbers.end(), position,
        [](const tensor::GraphNumber& one, uint32_t wanted) { return one.position < wanted; });
    for (; number != graph.numbers.end() && number->position == position; ++number) {
      if (number->packed < 0) continue;
      found.emplace_back(number->word, number->is_float ? numbers.Float(number->packed)
                                                        : numbers.Integer(number->packed));
    }
    return found;
  };
  LoweringPlan plan = PlanLowering(graph, cx);
  std::vector<uint32_t> positions;
  for (const LoweringStep& step : plan.steps) positions.push_back(step.position);
  ManualRegions(graph).Lower(cx, positions, numbers_of, [&](size_t step) {
    const auto [position, chain] = plan.steps[step];
    const ir::Node* node = graph.order[position];
    if (chain >= 0) {
      LowerChain(cx, graph, plan.chains[chain], aliases, data);
    } else if (cx.IsLowered(*node)) {
      return;  // lowered together with a node that reads it
    } else if (&node->op() == &ir::ops::device_data) {
      auto* leaf = static_cast<tensor::DeviceData*>(node->payload());
      stablehlo::Type type = cx.Physical(leaf->shape());
      c10::Scalar fill = *leaf->fill();
      if (!tensor::IsSpecial(fill)) {
        cx.SetLeaf(*node, stablehlo::BroadcastInDim(next_number(fill.type(), leaf->shape()->dtype),
                                                    type.dims, {}));
      } else {
        cx.SetLeaf(*node, LowerFill(cx, *leaf));
      }
    } else if (&node->op() == &ir::ops::scalar) {
      auto kind = static_cast<c10::ScalarType>(ir::AttributeReader(node->attributes()).Int());
      cx.SetLeaf(*node, next_number(kind, node->shape()->dtype));
    } else {
      for (const auto& [word, value] : numbers_of(position)) cx.SetNumberParameter(word, value);
      cx.Lower(*node);
    }
  });
  std::vector<bool> is_aliased(graph.roots.size());
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] < 0) continue;
    builder.SetAlias(static_cast<int>(i), aliases[i]);
    is_aliased[aliases[i]] = true;
  }
  std::vector<stablehlo::Value> results;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    stablehlo::Value root = cx.Lowered(graph.roots[i]);
    if (i < outputs.size() && outputs[i]) root = writer.ToEdge(root, *outputs[i]);
    results.push_back(is_aliased[i] ? root : stablehlo::ComputedForm(root));
  }
  if (num_devices == 1) AddNanSearch(cx, graph.order);
  if (num_devices > 1) AddShardings(graph, outputs, writer, builder);
  return writer.Declare(builder.Finish(results, name.empty() ? "main" : name), partition_devices);
}

std::string LowerGraphToRead(const tensor::Graph& graph) {
  return LowerGraph(graph, {}, tensor::Platform(), std::max(tensor::SpmdDevices(), 1));
}

}  // namespace torch_xla::exec
