#include "stablehlo/joined_dims.h"

#include <algorithm>
#include <iterator>

#include "stablehlo/ops.h"
#include "stablehlo/transposition.h"

namespace torch_xla::stablehlo {
namespace {

constexpr int64_t kShort = 128;         // loops shorter than this are worth joining
constexpr int64_t kElements = 1 << 12;  // with fewer elements joining does not pay

bool Varies(const Builder& builder, Value x, size_t dim) {
  return (builder.Varies(x) >> std::min<size_t>(dim, 31) & 1) != 0;
}

/// Whether the operation is slow in a loop that is not vectorized. Other operations hardly are, and
/// joined dimensions make XLA's reductions slower.
bool IsCostly(std::string_view op) {
  constexpr std::string_view kCostly[] = {
      "stablehlo.atan2",  "stablehlo.cbrt",         "stablehlo.cosine",
      "stablehlo.divide", "stablehlo.exponential",  "stablehlo.exponential_minus_one",
      "stablehlo.log",    "stablehlo.log_plus_one", "stablehlo.logistic",
      "stablehlo.power",  "stablehlo.remainder",    "stablehlo.rsqrt",
      "stablehlo.sine",   "stablehlo.sqrt",         "stablehlo.tan",
      "stablehlo.tanh",
  };
  return op.starts_with("chlo.") ||
         std::find(std::begin(kCostly), std::end(kCostly), op) != std::end(kCostly);
}

/// Whether the dimensions from `first` on can be joined: each operand varies along all of them, or
/// along none.
bool CanJoin(const Builder& builder, std::span<const Value> operands, const Dims& dims,
             size_t first) {
  return std::all_of(operands.begin(), operands.end(), [&](Value x) {
    if (x.rank() == 0) return true;
    bool some = false, all = true;
    for (size_t i = first; i < dims.size(); ++i) {
      if (dims[i] == 1) continue;
      some |= Varies(builder, x, i);
      all &= Varies(builder, x, i);
    }
    return !some || all;
  });
}

Dims JoinFrom(const Dims& dims, size_t first) {
  Dims joined(dims.begin(), dims.begin() + static_cast<int64_t>(first));
  int64_t size = 1;
  for (size_t i = first; i < dims.size(); ++i) size *= dims[i];
  joined.push_back(size);
  return joined;
}

bool IsWorthJoining(const Builder& builder, const Type& type) {
  return builder.joins_dimensions() && type.dims.size() > 1 && type.dims.back() < kShort &&
         type.num_elements() >= kElements;
}

/// Joins as many of the last dimensions as are needed to make the last loop long enough.
Dims Joined(const Builder& builder, std::span<const Value> operands, const Dims& dims) {
  size_t first = dims.size() - 1;
  int64_t size = dims[first];
  while (first > 0 && size < kShort && CanJoin(builder, operands, dims, first - 1)) {
    size *= dims[--first];
  }
  return JoinFrom(dims, first);
}

/// The dimensions to compute in. The dimensions in which an operand was computed are preferred,
/// since operations that are fused into one kernel need the same loops.
Dims DimsToComputeIn(const Builder& builder, std::string_view op, std::span<const Value> operands,
                     const Dims& dims) {
  for (Value x : operands) {
    const Value form = builder.JoinedForm(x);
    if (form.valid() && CanJoin(builder, operands, dims, form.dims().size() - 1)) {
      return form.dims();
    }
  }
  return IsCostly(op) ? Joined(builder, operands, dims) : dims;
}

Value InForm(const Builder& builder, Value x, const Dims& dims) {
  if (x.rank() == 0) return x;
  const Value form = builder.JoinedForm(x);
  return form.valid() && form.dims() == dims ? form : Reshape(x, dims);
}

}  // namespace

Value Elementwise(std::string_view op, std::initializer_list<Value> operands, const Type& result,
                  std::string_view attributes) {
  Builder& builder = operands.begin()->builder();
  std::vector<Value> all(operands);
  std::transform(all.begin(), all.end(), all.begin(), MadeInMemory);
  const Dims& dims = result.dims;
  bool is_rearranged = false;
  uint32_t varies = 0;
  for (Value x : all) {
    if (x.rank() == 0) continue;
    is_rearranged |= builder.IsRearranged(x);
    varies |= builder.Varies(x);
  }
  auto noted = [&](Value value) {
    builder.SetVaries(value, varies);
    builder.SetFused(value, true);
    return is_rearranged ? builder.Rearranged(value) : value;
  };
  // In joined dimensions the position in each dimension would have to be computed from the position
  // in all.
  if (is_rearranged || !IsWorthJoining(builder, result)) {
    return noted(builder.Op(op, all, result, attributes));
  }
  const Dims joined = DimsToComputeIn(builder, op, all, dims);
  if (joined == dims) return noted(builder.Op(op, all, result, attributes));
  std::vector<Value> forms;
  for (Value x : all) forms.push_back(InForm(builder, x, joined));
  const Value form = builder.Op(op, forms, Type(result.element, joined), attributes);
  const Value value = Reshape(form, dims);
  builder.SetJoinedForm(value, form);
  return noted(value);
}

Value ComputedForm(Value x) {
  const Value form = x.builder().JoinedForm(x);
  return form.valid() ? form : MadeInMemory(x);
}

}  // namespace torch_xla::stablehlo
