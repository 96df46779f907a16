// Collectives: a custom call on the CPU, StableHLO's own elsewhere.
#include "XLALowerings.h"
#include "distributed/collective_ops.h"
#include "distributed/device_lowering.h"
#include "lowering/row_major.h"
#include "runtime/platform.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {
namespace {

using distributed::CollectiveKind;

/// Splits dimension `dim` into `count` parts, which become a new first dimension.
Value PartsFirst(Value x, int64_t dim, int64_t count) {
  Dims split = x.dims();
  split[dim] /= count;
  split.insert(split.begin() + dim, count);
  Dims order{dim};
  for (int64_t i = 0; i <= x.rank(); ++i) {
    if (i != dim) order.push_back(i);
  }
  return stablehlo::Transpose(stablehlo::Reshape(x, split), order);
}

/// The inverse: concatenates the parts along the first dimension in `dim`.
Value JoinParts(Value x, int64_t dim) {
  Dims order;
  for (int64_t i = 1; i < x.rank(); ++i) order.push_back(i);
  order.insert(order.begin() + dim, 0);
  Value moved = stablehlo::Transpose(x, order);
  Dims joined = moved.dims();
  joined[dim + 1] *= joined[dim];
  joined.erase(joined.begin() + dim);
  return stablehlo::Reshape(moved, joined);
}

/// The custom call exchanges dense parts of arrays. So an operand that it splits, and a result that
/// is joined afterwards, have their parts along the first dimension.
std::vector<Value> Call(LoweringContext& cx, const distributed::Collective& collective,
                        c10::IntArrayRef words, std::vector<Value> operands,
                        std::vector<stablehlo::Type> results) {
  std::vector<ir::ShapeRef> shapes;
  for (size_t i = 0; i + 1 < operands.size(); ++i) shapes.push_back(cx.operand_shape(i));
  stablehlo::CustomCallOptions options;
  options.has_side_effect = true;
  options.backend_config =
      "collective = " + stablehlo::I64Array({words.data(), words.size()}) +
      ", text = " + stablehlo::Quoted(distributed::Describe(collective, shapes));
  for (size_t i = 0; i < operands.size(); ++i) {
    options.operand_layouts.push_back(RowMajor(operands[i].rank()));
    options.result_layouts.push_back(RowMajor(results[i].rank()));
  }
  const auto token = static_cast<int64_t>(operands.size()) - 1;
  // The call works in place; XLA copies an operand first that is needed later.
  const bool in_place = collective.kind == CollectiveKind::kAllReduce ||
                        collective.kind == CollectiveKind::kBroadcast;
  for (int64_t i = in_place ? 0 : token; i <= token; ++i) options.aliases.push_back({i, i});
  return stablehlo::CustomCall(cx.builder(), distributed::kCollectiveTarget, operands, results,
                               options);
}

}  // namespace

namespace aten {

std::vector<Value> Collective(LoweringContext& cx, const std::vector<Value>& arrays, Value token,
                              c10::IntArrayRef words) {
  const distributed::Collective collective = distributed::Decode({words.data(), words.size()});
  if (runtime::HasInterconnect(cx.platform())) {
    // All replicas run the same program, which orders the collectives without the token.
    std::vector<Value> made =
        LowerToDevices(collective, arrays, runtime::HasLongsInPairs(cx.platform()));
    made.push_back(token);
    return made;
  }
  std::vector<Value> operands = arrays;
  operands.push_back(token);
  auto results = [&] {
    std::vector<stablehlo::Type> types;
    for (Value operand : operands) types.push_back(operand.type());
    return types;
  };
  const std::vector<int64_t>& arguments = collective.arguments;
  const int64_t count = arguments.empty() ? 1 : arguments.back();
  std::vector<Value> made;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kPermute:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kTransfer:
      made = Call(cx, collective, words, operands, results());
      break;
    case CollectiveKind::kAllGather: {
      std::vector<stablehlo::Type> types = results();
      types[0].dims.insert(types[0].dims.begin(), count);
      made = Call(cx, collective, words, operands, types);
      made[0] = JoinParts(made[0], arguments[0]);
      break;
    }
    case CollectiveKind::kReduceScatter: {
      operands[0] = PartsFirst(operands[0], arguments[0], count);
      std::vector<stablehlo::Type> types = results();
      types[0].dims.erase(types[0].dims.begin());
      made = Call(cx, collective, words, operands, types);
      break;
    }
    case CollectiveKind::kAllToAll:
      operands[0] = PartsFirst(operands[0], arguments[0], count);
      made = Call(cx, collective, words, operands, results());
      made[0] = JoinParts(made[0], arguments[1]);
      break;
  }
  return made;
}

}  // namespace aten
}  // namespace torch_xla::lowering
