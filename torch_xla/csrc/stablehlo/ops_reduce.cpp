#include <algorithm>

#include "stablehlo/ops.h"
#include "stablehlo/padded_operand.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

/// Checks for operands of equal shape, and a rank-0 initial value of the same element type for
/// each.
Builder& CheckReduction(std::string_view op, const std::vector<Value>& operands,
                        const std::vector<Value>& inits, std::vector<Value>& all) {
  all = operands;
  all.insert(all.end(), inits.begin(), inits.end());
  Builder& builder = CheckTensors(op, all);
  bool valid = !operands.empty() && operands.size() == inits.size();
  for (size_t i = 0; valid && i < operands.size(); ++i) {
    valid = operands[i].dims() == operands[0].dims() &&
            inits[i].type() == ScalarType(operands[i].element());
  }
  if (!valid) {
    Fail(op,
         "operands of the same shape and for each an initial value of rank 0 and its element type",
         all);
  }
  return builder;
}

/// The region of a reduction: it takes accumulators and then elements, and returns accumulators.
Region ReductionBody(std::string_view op, Builder& builder, const std::vector<Value>& operands,
                     const Body& body) {
  std::vector<Type> elements;
  for (Value v : operands) elements.push_back(ScalarType(v.element()));
  std::vector<Type> arguments = elements;
  arguments.insert(arguments.end(), elements.begin(), elements.end());
  Region region = builder.MakeRegion(arguments, body);
  if (!SameTypes(region.results, elements)) {
    Fail(op, Cat("a body that returns ", TypeNames(elements), ", not ", TypeNames(region.results)),
         operands);
  }
  return region;
}

Body ApplyBody(ReduceOp op) {
  return [op](std::span<const Value> v) -> std::vector<Value> { return {Apply(op, v[0], v[1])}; };
}

Window WithDefaults(std::string_view op, const Window& window, size_t rank,
                    std::span<const Value> operands) {
  Window full = window;
  if (full.strides.empty()) full.strides.assign(rank, 1);
  if (full.base_dilations.empty()) full.base_dilations.assign(rank, 1);
  if (full.dilations.empty()) full.dilations.assign(rank, 1);
  if (full.padding.empty()) full.padding.assign(rank, {0, 0});
  bool valid = full.dimensions.size() == rank && full.strides.size() == rank &&
               full.base_dilations.size() == rank && full.dilations.size() == rank &&
               full.padding.size() == rank;
  for (size_t i = 0; valid && i < rank; ++i) {
    valid = full.dimensions[i] >= 1 && full.strides[i] >= 1 && full.base_dilations[i] >= 1 &&
            full.dilations[i] >= 1;
  }
  if (!valid) {
    Fail(op,
         Cat("a window with sizes, strides and dilations >= 1 for ", rank,
             " dimensions, not sizes ", List(window.dimensions), " strides ", List(window.strides)),
         operands);
  }
  return full;
}

Dims WindowedSizes(std::string_view op, const Dims& dims, const Window& window,
                   std::span<const Value> operands) {
  Dims result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t size = dims[i] == 0 ? 0 : (dims[i] - 1) * window.base_dilations[i] + 1;
    size += window.padding[i].first + window.padding[i].second;
    if (size < 0) Fail(op, "a padded operand of sizes >= 0", operands);
    int64_t extent = (window.dimensions[i] - 1) * window.dilations[i] + 1;
    result[i] = size < extent ? 0 : (size - extent) / window.strides[i] + 1;
  }
  return result;
}

std::string PaddingText(const Padding& padding) {
  std::vector<std::vector<int64_t>> rows;
  for (auto [low, high] : padding) rows.push_back({low, high});
  return I64Matrix(rows, 2, 0);
}

}  // namespace

Value ReduceIdentity(Builder& builder, ReduceOp op, ElementType element) {
  switch (op) {
    case ReduceOp::kAdd:
    case ReduceOp::kOr:
      return Scalar(builder, 0, element);
    case ReduceOp::kMul:
      return Scalar(builder, 1, element);
    case ReduceOp::kAnd:
      return Scalar(builder, -1, element);
    case ReduceOp::kMax:
      return LowestOrNegInf(builder, element);
    case ReduceOp::kMin:
      return HighestOrInf(builder, element);
  }
  throw Error("stablehlo.reduce: expected a known ReduceOp");
}

Value Apply(ReduceOp op, Value a, Value b) {
  switch (op) {
    case ReduceOp::kAdd:
      return Add(a, b);
    case ReduceOp::kMul:
      return Multiply(a, b);
    case ReduceOp::kMax:
      return Maximum(a, b);
    case ReduceOp::kMin:
      return Minimum(a, b);
    case ReduceOp::kAnd:
      return And(a, b);
    case ReduceOp::kOr:
      return Or(a, b);
  }
  throw Error("stablehlo.reduce: expected a known ReduceOp");
}

std::vector<Value> Reduce(const std::vector<Value>& operands, const std::vector<Value>& inits,
                          const Dims& dimensions, const Body& body) {
  constexpr std::string_view kOp = "stablehlo.reduce";
  std::vector<Value> all;
  Builder& builder = CheckReduction(kOp, operands, inits, all);
  CheckDistinct(kOp, "dimensions", dimensions, operands[0].rank(), all);
  std::vector<Type> results;
  for (Value v : operands) {
    Type type = ScalarType(v.element());
    for (int64_t d = 0; d < v.rank(); ++d) {
      if (std::find(dimensions.begin(), dimensions.end(), d) == dimensions.end()) {
        type.dims.push_back(v.dims()[d]);
      }
    }
    results.push_back(std::move(type));
  }
  Region region = ReductionBody(kOp, builder, operands, body);
  return builder.Op(kOp, all, results, Cat("dimensions = ", I64Array(dimensions)), {&region, 1});
}

Value Reduce(Value x, Value init, const Dims& dimensions, ReduceOp op) {
  constexpr std::string_view kOp = "stablehlo.reduce";
  std::vector<Value> all;
  Builder& builder = CheckReduction(kOp, {x}, {init}, all);
  CheckDistinct(kOp, "dimensions", dimensions, x.rank(), all);
  bool bits = x.element() == ElementType::kPred || runtime::IsInteger(x.element());
  if ((op == ReduceOp::kAnd || op == ReduceOp::kOr) && !bits) {
    Fail(kOp, "bool or integer elements for and / or", all);
  }
  Type result = ScalarType(x.element());
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::find(dimensions.begin(), dimensions.end(), d) == dimensions.end()) {
      result.dims.push_back(x.dims()[d]);
    }
  }
  std::string text =
      Cat("stablehlo.reduce($0 init: $1) applies ", CombinerName(static_cast<int>(op)),
          " across dimensions = ", List(dimensions), " : (", TypeNames(all), ") -> ",
          result.ToString());
  return builder.PrettyOp(text, all, {&result, 1})[0];
}

Value Reduce(Value x, const Dims& dimensions, ReduceOp op) {
  CheckTensors("stablehlo.reduce", {x});
  if (dimensions.empty()) return x;
  return Reduce(x, ReduceIdentity(x.builder(), op, x.element()), dimensions, op);
}

std::vector<Value> ReduceWindow(const std::vector<Value>& operands, const std::vector<Value>& inits,
                                const Window& window, const Body& body) {
  constexpr std::string_view kOp = "stablehlo.reduce_window";
  std::vector<Value> all;
  Builder& builder = CheckReduction(kOp, operands, inits, all);
  const Dims& dims = operands[0].dims();
  Window full = WithDefaults(kOp, window, dims.size(), all);
  std::vector<Type> results;
  for (Value v : operands) {
    results.push_back(Type(v.element(), WindowedSizes(kOp, dims, full, all)));
  }
  Region region = ReductionBody(kOp, builder, operands, body);
  for (size_t i = 0; i < inits.size(); ++i) all[i] = PaddedOperand(operands[i], inits[i]);
  return builder.Op(kOp, all, results,
                    Cat("window_dimensions = ", I64Array(full.dimensions),
                        ", window_strides = ", I64Array(full.strides),
                        ", base_dilations = ", I64Array(full.base_dilations),
                        ", window_dilations = ", I64Array(full.dilations),
                        ", padding = ", PaddingText(full.padding)),
                    {&region, 1});
}

Value ReduceWindow(Value x, Value init, const Window& window, ReduceOp op) {
  return ReduceWindow(std::vector<Value>{x}, std::vector<Value>{init}, window, ApplyBody(op))[0];
}

Value ReduceWindow(Value x, const Window& window, ReduceOp op) {
  CheckTensors("stablehlo.reduce_window", {x});
  return ReduceWindow(x, ReduceIdentity(x.builder(), op, x.element()), window, op);
}

std::vector<Value> Sort(const std::vector<Value>& operands, int64_t dimension, bool stable,
                        const Body& comparator) {
  constexpr std::string_view kOp = "stablehlo.sort";
  Builder& builder = CheckTensors(kOp, operands);
  std::vector<Type> arguments;
  for (Value v : operands) {
    if (v.dims() != operands[0].dims()) Fail(kOp, "operands of the same shape", operands);
    arguments.insert(arguments.end(), 2, ScalarType(v.element()));
  }
  if (dimension < 0 || dimension >= operands[0].rank()) {
    Fail(kOp, Cat("a dimension in [0, ", operands[0].rank(), "), not ", dimension), operands);
  }
  Region region = builder.MakeRegion(arguments, comparator);
  const Type pred = ScalarType(ElementType::kPred);
  if (!SameTypes(region.results, {&pred, 1})) {
    Fail(kOp, Cat("a comparator that returns tensor<i1>, not ", TypeNames(region.results)),
         operands);
  }
  return builder.Op(kOp, operands, TypesOf(operands),
                    Cat("dimension = ", dimension, " : i64, is_stable = ", stable), {&region, 1});
}

TopKResult TopK(Value x, int64_t k) {
  constexpr std::string_view kOp = "chlo.top_k";
  Builder& builder = CheckTensors(kOp, {x});
  if (x.rank() < 1 || k < 0 || k > x.dim(-1) ||
      !(runtime::IsInteger(x.element()) || runtime::IsFloat(x.element()))) {
    Fail(kOp,
         Cat("an integer or float operand with at least ", k, " elements in its last dimension"),
         {x});
  }
  Dims dims = x.dims();
  dims.back() = k;
  const Type results[] = {Type(x.element(), dims), Type(ElementType::kS32, dims)};
  std::vector<Value> values =
      builder.Op(kOp, std::span<const Value>(&x, 1), results, Cat("k = ", k, " : i64"));
  return {values[0], values[1]};
}

}  // namespace torch_xla::stablehlo
