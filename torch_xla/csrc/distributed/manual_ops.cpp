#include "distributed/manual_ops.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "ir/attributes.h"
#include "lowering/context.h"
#include "stablehlo/arithmetic.h"
#include "stablehlo/constants.h"
#include "tensor/node_factory.h"

namespace torch_xla::distributed {
namespace {

using lowering::LoweringContext;
using stablehlo::Value;

std::atomic<bool> has_manual_ops{false};

constexpr std::array kSharded{ir::ArgSpec{"self", ir::ArgKind::kTensor},
                              ir::ArgSpec{"tiles", ir::ArgKind::kIntList},
                              ir::ArgSpec{"devices", ir::ArgKind::kIntList}};
constexpr std::array kExchanged{
    ir::ArgSpec{"self", ir::ArgKind::kTensor}, ir::ArgSpec{"kind", ir::ArgKind::kString},
    ir::ArgSpec{"arguments", ir::ArgKind::kIntList}, ir::ArgSpec{"groups", ir::ArgKind::kIntList}};

/// For programs for one device; programs for several have the operation as the edge of a region.
void LowerAlone(LoweringContext& cx, const ir::Node& node) {
  cx.SetOutputs(node, cx.Lowered(node.operands()[0]));
}

std::vector<int64_t> ListOf(ir::AttributeReader& reader) {
  const auto list = reader.IntList();
  return {list.begin(), list.end()};
}

void LowerCollective(LoweringContext& cx, const ir::Node& node) {
  ir::AttributeReader reader(node.attributes());
  const std::string kind(reader.String());
  const std::vector<int64_t> arguments = ListOf(reader), members = ListOf(reader);
  const int64_t size = arguments[0];
  stablehlo::ReplicaGroups groups;
  for (size_t i = 0; i < members.size(); i += static_cast<size_t>(size)) {
    const auto begin = members.begin() + static_cast<std::ptrdiff_t>(i);
    groups.emplace_back(begin, begin + size);
  }
  const Value x = cx.Lowered(node.operands()[0]);
  if (kind == "axis_index") {
    std::vector<int64_t> places(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      places[members[i]] = static_cast<int64_t>(i) % size;
    }
    const Value all = stablehlo::ConstantS64(cx.builder(), places);
    const Value device =
        cx.builder().UniqueOp("stablehlo.partition_id", {lowering::ElementType::kU32, {}}, {});
    const Value place = stablehlo::Reshape(stablehlo::DynamicSlice(all, {device}, {1}), {});
    return cx.SetOutputs(node, stablehlo::Convert(place, x.element()));
  }
  const stablehlo::CollectiveOptions channel{.channel_id = 1, .use_global_device_ids = true};
  const stablehlo::CollectiveOptions plain{.channel_id = 1};
  auto make = [&]() -> Value {
    if (kind == "all_gather") return AllGather(x, arguments[1], size, groups, channel);
    if (kind == "all_to_all") return AllToAll(x, arguments[1], arguments[2], size, groups, plain);
    if (kind == "reduce_scatter") {
      return ReduceScatter(x, arguments[1], size, groups, stablehlo::ReduceOp::kAdd, channel);
    }
    if (kind == "ppermute") {
      std::vector<std::pair<int64_t, int64_t>> pairs;
      for (const std::vector<int64_t>& group : groups) {
        for (size_t i = 1; i + 1 < arguments.size(); i += 2) {
          pairs.emplace_back(group[arguments[i]], group[arguments[i + 1]]);
        }
      }
      return CollectivePermute(x, pairs, plain);
    }
    const bool truths = x.element() == lowering::ElementType::kPred;
    const auto op = kind == "max"   ? truths ? stablehlo::ReduceOp::kOr : stablehlo::ReduceOp::kMax
                    : kind == "min" ? truths ? stablehlo::ReduceOp::kAnd : stablehlo::ReduceOp::kMin
                                    : stablehlo::ReduceOp::kAdd;
    const Value reduced = AllReduce({x}, groups, op, channel)[0];
    if (op == stablehlo::ReduceOp::kAdd || !runtime::IsFloat(x.element())) return reduced;
    // The plugins' collectives may drop a NaN.
    const Value is_nan =
        AllReduce({stablehlo::IsNan(x)}, groups, stablehlo::ReduceOp::kOr, channel)[0];
    return stablehlo::NanWhere(is_nan, reduced);
  };
  cx.SetOutputs(node, make());
}

ir::OpSpec& MakeOp(const char* name, std::span<const ir::ArgSpec> args, ir::LowerFunction lower) {
  return *new ir::OpSpec(name, "", args, lower, &debug::GetCounter(name));
}

ir::Value MakeSharded(const ir::OpSpec& op, const ir::Value& value, const Sharding& sharding,
                      ir::ShapeRef shape) {
  has_manual_ops.store(true, std::memory_order_relaxed);
  op.counter->Add();
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(sharding.tiles());
  writer.IntList(sharding.devices());
  return tensor::MakeNode(&op, {value}, std::move(words), shape);
}

}  // namespace

const ir::OpSpec& kToLocal = MakeOp("xla::to_local", kSharded, &LowerAlone);
const ir::OpSpec& kToWhole = MakeOp("xla::to_whole", kSharded, &LowerAlone);
const ir::OpSpec& kManualCollective =
    MakeOp("xla::manual_collective", kExchanged, &LowerCollective);

ir::Value ToLocal(const ir::Value& whole, const Sharding& sharding) {
  const ir::ShapeRef shape = whole.shape();
  return MakeSharded(kToLocal, whole, sharding,
                     ir::GetShape(shape->dtype, sharding.TileDims(shape->dims)));
}

ir::Value ToWhole(const ir::Value& local, const Sharding& sharding) {
  const ir::ShapeRef shape = local.shape();
  std::vector<int64_t> dims(shape->dims.begin(), shape->dims.end());
  for (size_t i = 0; i < sharding.tiles().size(); ++i) dims[i] *= sharding.tiles()[i];
  return MakeSharded(kToWhole, local, sharding, ir::GetShape(shape->dtype, dims));
}

std::vector<int64_t> CollectiveDims(std::string_view kind, c10::IntArrayRef arguments,
                                    c10::IntArrayRef dims) {
  std::vector<int64_t> result(dims.begin(), dims.end());
  const auto rank = static_cast<int64_t>(dims.size());
  auto at = [&](size_t i) -> int64_t& {
    TORCH_CHECK_VALUE(i < arguments.size() && arguments[i] >= 0 && arguments[i] < rank, kind,
                      ": expected a dimension from 0 to ", rank - 1);
    return result[arguments[i]];
  };
  TORCH_CHECK_VALUE(!arguments.empty() && arguments[0] > 0, kind, ": expected the size of a group");
  auto divide = [&](size_t i) {
    TORCH_CHECK_VALUE(at(i) % arguments[0] == 0, kind, ": dimension ", arguments[i], " of size ",
                      at(i), " cannot be split over ", arguments[0], " devices");
    at(i) /= arguments[0];
  };
  if (kind == "all_gather") at(1) *= arguments[0];
  if (kind == "reduce_scatter") divide(1);
  if (kind == "all_to_all") {
    divide(1);
    at(2) *= arguments[0];
  }
  return result;
}

ir::Value ManualCollective(const ir::Value& local, std::string_view kind,
                           c10::IntArrayRef arguments, c10::IntArrayRef groups) {
  has_manual_ops.store(true, std::memory_order_relaxed);
  kManualCollective.counter->Add();
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.String(kind);
  writer.IntList(arguments);
  writer.IntList(groups);
  const ir::ShapeRef shape = local.shape();
  return tensor::MakeNode(&kManualCollective, {local}, std::move(words),
                          ir::GetShape(shape->dtype, CollectiveDims(kind, arguments, shape->dims)));
}

const Sharding* ShardingNamed(const ir::Node& node) {
  ir::AttributeReader reader(node.attributes());
  std::vector<int64_t> tiles = ListOf(reader), devices = ListOf(reader);
  return tiles.empty() ? Sharding::Replicated()
                       : Sharding::Tiled(std::move(tiles), std::move(devices));
}

bool HasManualOps() { return has_manual_ops.load(std::memory_order_relaxed); }

}  // namespace torch_xla::distributed
