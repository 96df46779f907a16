#include "distributed/device_lowering.h"

#include <c10/util/Exception.h>

#include <utility>

#include "runtime/element_type.h"
#include "stablehlo/arithmetic.h"
#include "stablehlo/constants.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {
namespace {

using distributed::Collective;
using distributed::CollectiveKind;
using distributed::Groups;
using distributed::Reduction;
using runtime::ElementType;
using stablehlo::Dims;
using stablehlo::ReduceOp;
using stablehlo::Value;

ElementType UnsignedOfWidth(size_t bytes) {
  switch (bytes) {
    case 1:
      return ElementType::kU8;
    case 2:
      return ElementType::kU16;
    case 4:
      return ElementType::kU32;
    default:
      return ElementType::kU64;
  }
}

Value AsUnsigned(Value x) {
  if (x.element() == ElementType::kPred) return Convert(x, ElementType::kU8);
  return BitcastConvert(x, UnsignedOfWidth(runtime::ByteWidth(x.element())));
}

Value FromUnsigned(Value bits, ElementType element) {
  if (element == ElementType::kPred) return Convert(bits, element);
  return BitcastConvert(bits, element);
}

Value AllReduceOne(Value x, const Groups& groups, ReduceOp op) {
  return stablehlo::AllReduce({x}, groups, op)[0];
}

/// A reduction of truth values. For an exclusive or, which the interconnect lacks, it counts them.
Value ReduceTruths(Value x, const Groups& groups, Reduction reduction) {
  if (reduction == Reduction::kXor) {
    const Value count = AllReduceOne(Convert(x, ElementType::kS32), groups, ReduceOp::kAdd);
    const Value one = stablehlo::Constant(x.builder(), 1, count.type());
    return Convert(And(count, one), ElementType::kPred);
  }
  const bool all =
      reduction == Reduction::kAnd || reduction == Reduction::kMin || reduction == Reduction::kMul;
  return AllReduceOne(x, groups, all ? ReduceOp::kAnd : ReduceOp::kOr);
}

/// A bitwise reduction of integers. The interconnect only has it for truth values, so spread bits.
Value ReduceBits(Value x, const Groups& groups, Reduction reduction) {
  const Value bits = AsUnsigned(x);
  const auto width = static_cast<int64_t>(8 * runtime::ByteWidth(x.element()));
  Dims dims = x.dims();
  dims.push_back(width);
  Dims to_all;
  for (int64_t i = 0; i < x.rank(); ++i) to_all.push_back(i);
  const Value places =
      stablehlo::Iota(x.builder(), stablehlo::Type(bits.element(), dims), x.rank());
  const Value spread = stablehlo::BroadcastInDim(bits, dims, to_all);
  const Value one = stablehlo::Constant(x.builder(), 1, spread.type());
  const Value truths = Convert(And(ShiftRightLogical(spread, places), one), ElementType::kPred);
  const Value reduced =
      ShiftLeft(Convert(ReduceTruths(truths, groups, reduction), bits.element()), places);
  return FromUnsigned(stablehlo::Reduce(reduced, {x.rank()}, ReduceOp::kOr), x.element());
}

bool IsWide(Value x) {
  return x.element() == ElementType::kS64 || x.element() == ElementType::kU64;
}

/// The minimum or maximum of 64-bit integers by two reductions: of the upper halves, and then of
/// the lower halves of those values that have the upper half found.
Value OutermostByHalves(Value x, const Groups& groups, ReduceOp op) {
  stablehlo::Builder& builder = x.builder();
  const Value width = stablehlo::Constant(builder, 32, x.type());
  const bool is_signed = x.element() == ElementType::kS64;
  const Value upper = is_signed ? Convert(ShiftRightArithmetic(x, width), ElementType::kS32)
                                : Convert(ShiftRightLogical(x, width), ElementType::kU32);
  const Value lower = Convert(x, ElementType::kU32);
  const Value found = AllReduceOne(upper, groups, op);
  const Value last = stablehlo::Constant(
      builder, op == ReduceOp::kMax ? int64_t{0} : int64_t{UINT32_MAX}, lower.type());
  const Value candidates = Select(Compare(upper, found, stablehlo::Direction::kEq), lower, last);
  const Value rest = AllReduceOne(candidates, groups, op);
  return Or(ShiftLeft(Convert(found, x.element()), width), Convert(rest, x.element()));
}

Value AllReduceArray(Value x, const Groups& groups, Reduction reduction, bool by_halves) {
  if (x.element() == ElementType::kPred) return ReduceTruths(x, groups, reduction);
  switch (reduction) {
    case Reduction::kSum:
      return AllReduceOne(x, groups, ReduceOp::kAdd);
    case Reduction::kMul:
      return AllReduceOne(x, groups, ReduceOp::kMul);
    case Reduction::kMin:
    case Reduction::kMax: {
      const ReduceOp op = reduction == Reduction::kMin ? ReduceOp::kMin : ReduceOp::kMax;
      return by_halves && IsWide(x) ? OutermostByHalves(x, groups, op)
                                    : AllReduceOne(x, groups, op);
    }
    case Reduction::kAnd:
    case Reduction::kOr:
    case Reduction::kXor:
      return ReduceBits(x, groups, reduction);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction");
}

/// Broadcasts the root's bits by a sum, to which all other replicas add zeros.
Value Broadcast(Value x, const Groups& groups, int64_t root) {
  if (runtime::IsComplex(x.element())) {
    return Complex(Broadcast(Real(x), groups, root), Broadcast(Imag(x), groups, root));
  }
  const Value bits = AsUnsigned(x);
  const Value rank = stablehlo::ReplicaId(x.builder());
  const Value is_root =
      Compare(rank, stablehlo::Constant(x.builder(), root, rank.type()), stablehlo::Direction::kEq);
  const Value zeros = stablehlo::Constant(x.builder(), 0, bits.type());
  const Value given = Select(stablehlo::BroadcastTo(is_root, x.dims()), bits, zeros);
  return FromUnsigned(AllReduceOne(given, groups, ReduceOp::kAdd), x.element());
}

/// This replica's part of `x` along a dimension, after a reduction that has no scattering form.
Value OwnPart(Value x, const Groups& groups, int64_t dim, int64_t count) {
  // By rank: the index of the replica in its group.
  std::vector<int64_t> places;
  if (groups.empty()) {
    for (int64_t i = 0; i < count; ++i) places.push_back(i);
  } else {
    for (const auto& group : groups) {
      for (size_t i = 0; i < group.size(); ++i) {
        if (group[i] >= static_cast<int64_t>(places.size())) places.resize(group[i] + 1);
        places[group[i]] = static_cast<int64_t>(i);
      }
    }
  }
  stablehlo::Builder& builder = x.builder();
  const Value rank = Convert(stablehlo::ReplicaId(builder), ElementType::kS64);
  const Value zero = stablehlo::Constant(builder, 0, rank.type());
  const Value place = stablehlo::Reshape(
      stablehlo::DynamicSlice(stablehlo::ConstantS64(builder, places), {rank}, {1}), {});
  Dims sizes = x.dims();
  sizes[dim] /= count;
  std::vector<Value> starts(x.rank(), zero);
  starts[dim] = Multiply(place, stablehlo::Constant(builder, sizes[dim], rank.type()));
  return stablehlo::DynamicSlice(x, starts, sizes);
}

Value ReduceScatterArray(Value x, const Collective& collective, bool by_halves) {
  const int64_t dim = collective.arguments[0], count = collective.arguments[1];
  const Reduction reduction = collective.reduction;
  const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (IsBitwise(reduction) || x.element() == ElementType::kPred ||
      (by_halves && compares && IsWide(x))) {
    return OwnPart(AllReduceArray(x, collective.groups, reduction, by_halves), collective.groups,
                   dim, count);
  }
  if (by_halves && reduction == Reduction::kSum && runtime::IsComplex(x.element())) {
    return Complex(ReduceScatterArray(Real(x), collective, by_halves),
                   ReduceScatterArray(Imag(x), collective, by_halves));
  }
  const ReduceOp op = reduction == Reduction::kSum   ? ReduceOp::kAdd
                      : reduction == Reduction::kMul ? ReduceOp::kMul
                      : reduction == Reduction::kMin ? ReduceOp::kMin
                                                     : ReduceOp::kMax;
  return stablehlo::ReduceScatter(x, dim, count, collective.groups, op);
}

}  // namespace

std::vector<Value> LowerToDevices(const Collective& collective, const std::vector<Value>& arrays,
                                  bool by_halves) {
  const std::vector<int64_t>& arguments = collective.arguments;
  const Groups& groups = collective.groups;
  std::vector<Value> results;
  for (Value x : arrays) {
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
        results.push_back(AllReduceArray(x, groups, collective.reduction, by_halves));
        break;
      case CollectiveKind::kAllGather:
        results.push_back(stablehlo::AllGather(x, arguments[0], arguments[1], groups));
        break;
      case CollectiveKind::kAllToAll:
        results.push_back(stablehlo::AllToAll(x, arguments[0], arguments[1], arguments[2], groups));
        break;
      case CollectiveKind::kReduceScatter:
        results.push_back(ReduceScatterArray(x, collective, by_halves));
        break;
      case CollectiveKind::kPermute: {
        std::vector<std::pair<int64_t, int64_t>> pairs;
        for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
          pairs.emplace_back(arguments[i], arguments[i + 1]);
        }
        results.push_back(stablehlo::CollectivePermute(x, pairs));
        break;
      }
      case CollectiveKind::kTransfer:
        results.push_back(stablehlo::CollectivePermute(x, {{arguments[0], arguments[1]}}));
        break;
      case CollectiveKind::kBroadcast:
        results.push_back(Broadcast(x, groups, arguments[0]));
        break;
    }
  }
  return results;
}

}  // namespace torch_xla::lowering
