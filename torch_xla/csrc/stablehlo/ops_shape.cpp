#include <algorithm>

#include "stablehlo/constants.h"
#include "stablehlo/in_place_update.h"
#include "stablehlo/ops.h"
#include "stablehlo/padded_operand.h"
#include "stablehlo/text.h"
#include "stablehlo/transposition.h"

namespace torch_xla::stablehlo {
namespace {

void CheckSizes(std::string_view op, const Dims& dims, std::initializer_list<Value> operands) {
  for (int64_t d : dims) {
    if (d < 0) Fail(op, Cat("sizes >= 0, not ", List(dims)), operands);
  }
}

/// Checks the start indices of a dynamic slice: integers of rank 0 and one type, one per dimension.
void CheckStarts(std::string_view op, int64_t rank, const std::vector<Value>& starts,
                 std::span<const Value> operands) {
  if (static_cast<int64_t>(starts.size()) != rank) {
    Fail(op, Cat(rank, " start indices, not ", starts.size()), operands);
  }
  for (Value start : starts) {
    if (start.rank() != 0 || !runtime::IsInteger(start.element()) ||
        start.element() != starts[0].element()) {
      Fail(op, "start indices of rank 0 and the same integer type", operands);
    }
  }
}

std::vector<Value> Prepend(std::initializer_list<Value> first, const std::vector<Value>& rest) {
  std::vector<Value> all(first);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace

Value Reshape(Value x, const Dims& dims) {
  constexpr std::string_view kOp = "stablehlo.reshape";
  Builder& builder = CheckTensors(kOp, {x});
  if (x.dims() == dims) return x;
  CheckSizes(kOp, dims, {x});
  Type type(x.element(), dims);
  if (type.num_elements() != x.type().num_elements()) {
    Fail(kOp, Cat(type.num_elements(), " elements for ", type.ToString()), {x});
  }
  Value result = builder.Op(kOp, {x}, type);
  builder.ShareTransposition(result, x);
  builder.SetFused(result, builder.IsFused(x));
  return builder.IsRearranged(x) ? builder.Rearranged(result) : result;
}

Value BroadcastInDim(Value x, const Dims& dims, const Dims& broadcast_dimensions) {
  constexpr std::string_view kOp = "stablehlo.broadcast_in_dim";
  Builder& builder = CheckTensors(kOp, {x});
  CheckSizes(kOp, dims, {x});
  auto rank = static_cast<int64_t>(dims.size());
  if (static_cast<int64_t>(broadcast_dimensions.size()) != x.rank()) {
    Fail(kOp,
         Cat("one broadcast dimension per dimension of the operand, not ",
             List(broadcast_dimensions)),
         {x});
  }
  CheckDistinct(kOp, "broadcast dimensions", broadcast_dimensions, rank, {{x}});
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (x.dims()[i] != 1 && x.dims()[i] != dims[broadcast_dimensions[i]]) {
      Fail(kOp,
           Cat("dimension ", i, " of size 1 or ", dims[broadcast_dimensions[i]],
               " to broadcast to ", List(dims), " by ", List(broadcast_dimensions)),
           {x});
    }
  }
  Value result = builder.Op(kOp, {x}, Type(x.element(), dims),
                            Cat("broadcast_dimensions = ", I64Array(broadcast_dimensions)));
  uint32_t varies = 0;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (x.dims()[i] > 1) varies |= uint32_t{1} << std::min<int64_t>(broadcast_dimensions[i], 31);
  }
  builder.SetVaries(result, varies);
  return result;
}

Value BroadcastTo(Value x, const Dims& dims) {
  CheckTensors("stablehlo.broadcast_in_dim", {x});
  if (x.dims() == dims) return x;
  auto rank = static_cast<int64_t>(dims.size());
  if (rank < x.rank()) {
    Fail("stablehlo.broadcast_in_dim", Cat("rank <= ", rank, " to broadcast to ", List(dims)), {x});
  }
  Dims mapping(x.rank());
  for (int64_t i = 0; i < x.rank(); ++i) mapping[i] = rank - x.rank() + i;
  return BroadcastInDim(x, dims, mapping);
}

Dims BroadcastShape(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims result = longer;
  size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& d = result[offset + i];
    if (d == 1) {
      d = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != d) {
      throw Error(Cat("stablehlo.broadcast_in_dim: expected shapes that broadcast together, got ",
                      List(a), " and ", List(b)));
    }
  }
  return result;
}

Value Transpose(Value x, const Dims& permutation) {
  constexpr std::string_view kOp = "stablehlo.transpose";
  Builder& builder = CheckTensors(kOp, {x});
  if (static_cast<int64_t>(permutation.size()) != x.rank()) {
    Fail(kOp, Cat("a permutation of ", x.rank(), " dimensions, not ", List(permutation)), {x});
  }
  CheckDistinct(kOp, "a permutation", permutation, x.rank(), {{x}});
  Dims dims(permutation.size());
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = x.dims()[permutation[i]];
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  if (const Value again = TransposedAgain(x, permutation); again.valid()) return again;
  Value result =
      builder.Op(kOp, {x}, Type(x.element(), dims), Cat("permutation = ", I64Array(permutation)));
  NoteTransposition(result, x, permutation);
  return builder.Rearranged(result);
}

Value Slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides) {
  constexpr std::string_view kOp = "stablehlo.slice";
  Builder& builder = CheckTensors(kOp, {x});
  size_t rank = x.dims().size();
  Dims steps = strides.empty() ? Dims(rank, 1) : strides;
  Dims dims(rank);
  bool valid = starts.size() == rank && limits.size() == rank && steps.size() == rank;
  for (size_t i = 0; valid && i < rank; ++i) {
    valid = 0 <= starts[i] && starts[i] <= limits[i] && limits[i] <= x.dims()[i] && steps[i] >= 1;
    if (valid) dims[i] = (limits[i] - starts[i] + steps[i] - 1) / steps[i];
  }
  if (!valid) {
    Fail(kOp,
         Cat("0 <= start <= limit <= size and stride >= 1 per dimension, not starts ", List(starts),
             " limits ", List(limits), " strides ", List(steps)),
         {x});
  }
  if (dims == x.dims()) return x;
  Value result =
      builder.Op(kOp, {x}, Type(x.element(), dims),
                 Cat("start_indices = ", I64Array(starts), ", limit_indices = ", I64Array(limits),
                     ", strides = ", I64Array(steps)));
  if (steps == Dims(rank, 1)) builder.SetStarts(result, starts);
  return builder.Rearranged(result);
}

Value DynamicSlice(Value x, const std::vector<Value>& starts, const Dims& sizes) {
  constexpr std::string_view kOp = "stablehlo.dynamic_slice";
  std::vector<Value> operands = Prepend({x}, starts);
  Builder& builder = CheckTensors(kOp, operands);
  CheckStarts(kOp, x.rank(), starts, operands);
  bool valid = sizes.size() == x.dims().size();
  for (size_t i = 0; valid && i < sizes.size(); ++i) {
    valid = 0 <= sizes[i] && sizes[i] <= x.dims()[i];
  }
  if (!valid) Fail(kOp, Cat("sizes within the operand, not ", List(sizes)), operands);
  return builder.Rearranged(
      builder.Op(kOp, operands, Type(x.element(), sizes), Cat("slice_sizes = ", I64Array(sizes))));
}

Value DynamicUpdateSlice(Value x, Value update, const std::vector<Value>& starts,
                         const std::optional<Dims>& known_starts) {
  constexpr std::string_view kOp = "stablehlo.dynamic_update_slice";
  std::vector<Value> operands = Prepend({x, update}, starts);
  Builder& builder = CheckTensors(kOp, operands);
  CheckStarts(kOp, x.rank(), starts, operands);
  bool valid = update.element() == x.element() && update.rank() == x.rank();
  for (size_t i = 0; valid && i < x.dims().size(); ++i) {
    valid = update.dims()[i] <= x.dims()[i];
  }
  if (!valid) Fail(kOp, "an update of the operand's element type that fits in it", operands);
  if (!ReadsOverwritten(x, update, known_starts)) return builder.Op(kOp, operands, x.type());
  auto placed = [&](Value around, Value part) {
    return builder.Op(kOp, Prepend({around, part}, starts), around.type());
  };
  const Type mask(ElementType::kPred, x.dims()), inside(ElementType::kPred, update.dims());
  return Select(placed(Constant(builder, false, mask), Constant(builder, true, inside)),
                placed(FullLike(x, 0), update), x);
}

Value Pad(Value x, Value value, const Dims& low, const Dims& high, const Dims& interior) {
  constexpr std::string_view kOp = "stablehlo.pad";
  Builder& builder = CheckTensors(kOp, {x, value});
  if (value.type() != ScalarType(x.element())) {
    Fail(kOp, "a padding value of rank 0 and the operand's element type", {x, value});
  }
  size_t rank = x.dims().size();
  Dims between = interior.empty() ? Dims(rank, 0) : interior;
  Dims dims(rank);
  bool valid = low.size() == rank && high.size() == rank && between.size() == rank;
  for (size_t i = 0; valid && i < rank; ++i) {
    int64_t size = x.dims()[i];
    dims[i] = size + low[i] + high[i] + std::max<int64_t>(size - 1, 0) * between[i];
    valid = between[i] >= 0 && dims[i] >= 0;
  }
  if (!valid) {
    Fail(kOp,
         Cat("padding per dimension, interior >= 0 and sizes >= 0, not low ", List(low), " high ",
             List(high), " interior ", List(between)),
         {x, value});
  }
  // XLA's partitioner ends the process where elements with padding between them are cropped at the
  // beginning, so these are left out before.
  Dims starts(rank, 0), before = low;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t step = between[i] + 1;
    if (step == 1 || low[i] >= 0 || x.dims()[i] == 0) continue;
    starts[i] = std::min(x.dims()[i] - 1, (step - 1 - low[i]) / step);
    before[i] += starts[i] * step;
    if (starts[i] == x.dims()[i] - 1) between[i] = 0;
  }
  x = Slice(x, starts, x.dims());
  return builder.Rearranged(builder.Op(
      kOp, {PaddedOperand(x, value), value}, Type(x.element(), dims),
      Cat("edge_padding_low = ", I64Array(before), ", edge_padding_high = ", I64Array(high),
          ", interior_padding = ", I64Array(between))));
}

Value Concatenate(const std::vector<Value>& operands, int64_t dimension) {
  constexpr std::string_view kOp = "stablehlo.concatenate";
  Builder& builder = CheckTensors(kOp, operands);
  Type result = operands[0].type();
  if (dimension < 0 || dimension >= result.rank()) {
    Fail(kOp, Cat("a dimension in [0, ", result.rank(), "), not ", dimension), operands);
  }
  for (size_t i = 1; i < operands.size(); ++i) {
    const Type& type = operands[i].type();
    bool valid = type.element == result.element && type.rank() == result.rank();
    for (int64_t d = 0; valid && d < result.rank(); ++d) {
      valid = d == dimension || type.dims[d] == result.dims[d];
    }
    if (!valid) {
      Fail(kOp, Cat("operands that are equal except in dimension ", dimension), operands);
    }
    result.dims[dimension] += type.dims[dimension];
  }
  if (operands.size() == 1) return operands[0];
  return builder.Rearranged(
      builder.Op(kOp, operands, result, Cat("dimension = ", dimension, " : i64")));
}

Value Reverse(Value x, const Dims& dimensions) {
  constexpr std::string_view kOp = "stablehlo.reverse";
  Builder& builder = CheckTensors(kOp, {x});
  CheckDistinct(kOp, "dimensions", dimensions, x.rank(), {{x}});
  if (dimensions.empty()) return x;
  return builder.Rearranged(
      builder.Op(kOp, {x}, x.type(), Cat("dimensions = ", I64Array(dimensions))));
}

Value Iota(Builder& builder, const Type& type, int64_t dimension) {
  constexpr std::string_view kOp = "stablehlo.iota";
  if (dimension < 0 || dimension >= type.rank() || type.element == ElementType::kPred ||
      type.element == ElementType::kInvalid) {
    throw Error(Cat(kOp, ": expected a numeric type and one of its dimensions, got ",
                    type.ToString(), " and ", dimension));
  }
  Value result = builder.UniqueOp(kOp, type, Cat("iota_dimension = ", dimension, " : i64"));
  builder.SetVaries(result, uint32_t{1} << std::min<int64_t>(dimension, 31));
  return result;
}

}  // namespace torch_xla::stablehlo
