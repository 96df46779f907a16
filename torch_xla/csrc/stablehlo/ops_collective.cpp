#include <algorithm>
#include <numeric>

#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

/// The attributes of the channel, and `use_global_device_ids` for operations that have it.
std::string ChannelText(std::string_view op, const CollectiveOptions& options,
                        std::span<const Value> operands) {
  if (options.channel_id < 0 || (options.use_global_device_ids && options.channel_id == 0)) {
    Fail(op, "a channel id > 0 for global device ids", operands);
  }
  std::string out;
  if (options.channel_id > 0) {
    out += Cat(", channel_handle = #stablehlo.channel_handle<handle = ", options.channel_id,
               ", type = 1>");
  }
  if (options.use_global_device_ids) out += ", use_global_device_ids";
  return out;
}

/// The attribute of the groups. If `group_size` > 0, all groups must have this size.
std::string GroupsText(std::string_view op, const ReplicaGroups& groups, int64_t group_size,
                       std::span<const Value> operands) {
  size_t columns = 0;
  for (const std::vector<int64_t>& group : groups) columns = std::max(columns, group.size());
  bool valid = true;
  for (const std::vector<int64_t>& group : groups) {
    valid = valid && !group.empty() &&
            (group_size == 0 || static_cast<int64_t>(group.size()) == group_size);
  }
  if (!valid) {
    Fail(op,
         group_size == 0 ? "replica groups with members"
                         : Cat("replica groups of ", group_size, " members"),
         operands);
  }
  // Shorter groups are filled up with -1.
  return Cat("replica_groups = ", I64Matrix(groups, static_cast<int64_t>(columns), -1));
}

Region ElementBody(std::string_view op, Builder& builder, Value x, const Body& body) {
  const Type element = ScalarType(x.element());
  const Type pair[] = {element, element};
  Region region = builder.MakeRegion(pair, body);
  if (!SameTypes(region.results, {&element, 1})) {
    Fail(op, Cat("a body that returns ", element.ToString(), ", not ", TypeNames(region.results)),
         {x});
  }
  return region;
}

Body ApplyBody(ReduceOp op) {
  return [op](std::span<const Value> v) -> std::vector<Value> { return {Apply(op, v[0], v[1])}; };
}

void CheckDimension(std::string_view op, int64_t dimension, Value x) {
  if (dimension < 0 || dimension >= x.rank()) {
    Fail(op, Cat("a dimension in [0, ", x.rank(), "), not ", dimension), {x});
  }
}

}  // namespace

std::vector<Value> AllReduce(const std::vector<Value>& operands, const ReplicaGroups& groups,
                             const Body& body, const CollectiveOptions& options) {
  constexpr std::string_view kOp = "stablehlo.all_reduce";
  Builder& builder = CheckTensors(kOp, operands);
  for (Value v : operands) {
    if (v.element() != operands[0].element())
      Fail(kOp, "operands of the same element type", operands);
  }
  Region region = ElementBody(kOp, builder, operands[0], body);
  std::string attributes =
      GroupsText(kOp, groups, 0, operands) + ChannelText(kOp, options, operands);
  return builder.Op(kOp, operands, TypesOf(operands), attributes, {&region, 1});
}

std::vector<Value> AllReduce(const std::vector<Value>& operands, const ReplicaGroups& groups,
                             ReduceOp op, const CollectiveOptions& options) {
  return AllReduce(operands, groups, ApplyBody(op), options);
}

Value AllGather(Value x, int64_t dimension, int64_t group_size, const ReplicaGroups& groups,
                const CollectiveOptions& options) {
  constexpr std::string_view kOp = "stablehlo.all_gather";
  Builder& builder = CheckTensors(kOp, {x});
  CheckDimension(kOp, dimension, x);
  if (group_size < 1) Fail(kOp, Cat("a group size >= 1, not ", group_size), {x});
  Type result = x.type();
  result.dims[dimension] *= group_size;
  return builder.Op(
      kOp, {x}, result,
      Cat("all_gather_dim = ", dimension, " : i64, ", GroupsText(kOp, groups, group_size, {{x}}),
          ChannelText(kOp, options, {{x}})));
}

Value ReduceScatter(Value x, int64_t dimension, int64_t group_size, const ReplicaGroups& groups,
                    ReduceOp op, const CollectiveOptions& options) {
  constexpr std::string_view kOp = "stablehlo.reduce_scatter";
  Builder& builder = CheckTensors(kOp, {x});
  CheckDimension(kOp, dimension, x);
  if (group_size < 1 || x.dims()[dimension] % group_size != 0) {
    Fail(kOp, Cat("dimension ", dimension, " divisible by a group size of ", group_size), {x});
  }
  Type result = x.type();
  result.dims[dimension] /= group_size;
  Region region = ElementBody(kOp, builder, x, ApplyBody(op));
  return builder.Op(
      kOp, {x}, result,
      Cat("scatter_dimension = ", dimension, " : i64, ", GroupsText(kOp, groups, group_size, {{x}}),
          ChannelText(kOp, options, {{x}})),
      {&region, 1});
}

Value AllToAll(Value x, int64_t split_dimension, int64_t concat_dimension, int64_t split_count,
               const ReplicaGroups& groups, const CollectiveOptions& options) {
  constexpr std::string_view kOp = "stablehlo.all_to_all";
  Builder& builder = CheckTensors(kOp, {x});
  CheckDimension(kOp, split_dimension, x);
  CheckDimension(kOp, concat_dimension, x);
  if (split_count < 1 || x.dims()[split_dimension] % split_count != 0) {
    Fail(kOp, Cat("dimension ", split_dimension, " divisible by a split count of ", split_count),
         {x});
  }
  if (options.use_global_device_ids) Fail(kOp, "no global device ids", {x});
  Type result = x.type();
  result.dims[split_dimension] /= split_count;
  result.dims[concat_dimension] *= split_count;
  // A single group of all is written out, since the verifier divides by the number of groups.
  ReplicaGroups spelled = groups;
  if (spelled.empty()) {
    spelled.emplace_back(split_count);
    std::iota(spelled[0].begin(), spelled[0].end(), 0);
  }
  return builder.Op(
      kOp, {x}, result,
      Cat("split_dimension = ", split_dimension, " : i64, concat_dimension = ", concat_dimension,
          " : i64, split_count = ", split_count, " : i64, ",
          GroupsText(kOp, spelled, split_count, {{x}}), ChannelText(kOp, options, {{x}})));
}

Value CollectivePermute(Value x, const std::vector<std::pair<int64_t, int64_t>>& source_targets,
                        const CollectiveOptions& options) {
  constexpr std::string_view kOp = "stablehlo.collective_permute";
  Builder& builder = CheckTensors(kOp, {x});
  if (options.use_global_device_ids) Fail(kOp, "no global device ids", {x});
  std::vector<std::vector<int64_t>> rows;
  Dims sources, targets;
  for (auto [source, target] : source_targets) {
    rows.push_back({source, target});
    sources.push_back(source);
    targets.push_back(target);
  }
  for (Dims* ids : {&sources, &targets}) {
    std::sort(ids->begin(), ids->end());
    bool repeated = std::adjacent_find(ids->begin(), ids->end()) != ids->end();
    if (repeated || (!ids->empty() && ids->front() < 0)) {
      Fail(kOp, "sources and targets that are distinct and >= 0", {x});
    }
  }
  return builder.Op(
      kOp, {x}, x.type(),
      Cat("source_target_pairs = ", I64Matrix(rows, 2, 0), ChannelText(kOp, options, {{x}})));
}

Value ReplicaId(Builder& builder) {
  return builder.UniqueOp("stablehlo.replica_id", ScalarType(ElementType::kU32), {});
}

}  // namespace torch_xla::stablehlo
