#include "exec/lower_graph.h"

#include <algorithm>

#include "XLAOps.h"
#include "exec/foreach_chain.h"
#include "exec/nan_search.h"
#include "exec/packed_numbers.h"
#include "stablehlo/joined_dims.h"
#include "stablehlo/text.h"
#include "tensor/node_factory.h"

namespace torch_xla::lazy {
namespace {

using runtime::ElementType;

std::string ShardingAttribute(const distributed::Sharding& sharding) {
  return "mhlo.sharding = " + stablehlo::Quoted(sharding.text());
}

void AddShardings(const Graph& graph, std::span<const distributed::Sharding* const> outputs,
                  stablehlo::Builder& builder) {
  for (int i = 0; i < builder.num_parameters(); ++i) {
    // Parameters after the data are packed numbers.
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
    if (kind == c10::ScalarType::UInt64) {  // 2**63 or more, see tensor/scalar_bits.h
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
      continue;  // lowered together with a node that reads it
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
  if (num_devices == 1) AddNanSearch(cx, graph.order);
  if (num_devices > 1) AddShardings(graph, outputs, builder);
  return builder.Finish(results, name.empty() ? "main" : name);
}

}  // namespace torch_xla::lazy
