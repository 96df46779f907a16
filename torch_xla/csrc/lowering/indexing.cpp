#include "lowering/indexing.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "lowering/strided_view.h"

namespace torch_xla::lowering {
namespace {

bool IsEmpty(Value x) { return x.type().num_elements() == 0; }

Dims TakeDims(Value x, int64_t dim, Value index) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, index.dims().begin(), index.dims().end());
  return dims;
}

/// The result's dimensions that are whole dimensions of `x` in Take.
Dims WindowDims(Value x, int64_t dim, Value index) {
  Dims dims(x.rank() - 1);
  std::iota(dims.begin(), dims.end(), 0);
  for (int64_t i = dim; i < x.rank() - 1; ++i) dims[i] += index.rank();
  return dims;
}

/// The smallest type that numbers `count` elements.
ElementType IndexElement(int64_t count) {
  return count <= std::numeric_limits<int32_t>::max() ? ElementType::kS32 : ElementType::kS64;
}

Value ClampIndex(Value index, int64_t size) {
  return Clamp(ScalarLike(index, 0), index, ScalarLike(index, size - 1));
}

/// The places in the flat `x` of the elements that `index` names along `dim`. One coordinate
/// per element is what XLA gathers and scatters fastest.
Value FlatIndex(Value x, int64_t dim, Value index) {
  Value flat = Convert(index, IndexElement(x.type().num_elements()));
  flat = ClampIndex(flat, x.dims()[dim]);
  int64_t stride = 1;
  for (int64_t i = x.rank() - 1; i > dim; --i) stride *= x.dims()[i];
  flat = Multiply(flat, FullLike(flat, stride));
  stride = 1;
  for (int64_t i = x.rank() - 1; i >= 0; stride *= x.dims()[i--]) {
    if (i == dim || index.dims()[i] == 1) continue;
    flat = Add(flat, Multiply(Iota(x.builder(), flat.type(), i), FullLike(flat, stride)));
  }
  return flat;
}

Value Flat(Value x) { return Reshape(x, {x.type().num_elements()}); }

/// `index` with negative indices counted from the end of a dimension of this size.
Value WrapIndex(Value index, int64_t size) {
  return Select(Compare(index, ZerosLike(index), Direction::kLt), Add(index, FullLike(index, size)),
                index);
}

/// Indexing with several tensors as a Take or Put along one dimension: the indexed dimensions
/// brought together (to the front where they are apart, as numpy does) and joined to one.
struct JointIndex {
  Value x, index;
  int64_t dim;
  Dims permutation;  // of x before the dimensions were joined
  Dims dims;         // x after the permutation
};

JointIndex JoinIndices(Value x, const std::vector<std::optional<Value>>& indices) {
  JointIndex joint;
  Dims indexed, shape;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]) continue;
    indexed.push_back(static_cast<int64_t>(i));
    shape = stablehlo::BroadcastShape(shape, indices[i]->dims());
  }
  joint.permutation.resize(x.rank());
  std::iota(joint.permutation.begin(), joint.permutation.end(), 0);
  joint.dim = indexed[0];
  if (indexed.back() - indexed[0] + 1 != static_cast<int64_t>(indexed.size())) {
    joint.dim = 0;
    std::stable_partition(joint.permutation.begin(), joint.permutation.end(), [&](int64_t d) {
      return std::find(indexed.begin(), indexed.end(), d) != indexed.end();
    });
  }
  joint.x = Transpose(x, joint.permutation);
  joint.dims = joint.x.dims();

  int64_t size = 1;
  for (int64_t d : indexed) size *= x.dims()[d];
  ElementType element = IndexElement(x.type().num_elements());
  for (int64_t d : indexed) {
    Value index = WrapIndex(Convert(*indices[d], element), x.dims()[d]);
    if (indexed.size() > 1) index = ClampIndex(index, x.dims()[d]);
    index = BroadcastTo(index, shape);
    joint.index = joint.index.valid()
                      ? Add(Multiply(joint.index, FullLike(index, x.dims()[d])), index)
                      : index;
  }
  Dims dims = joint.dims;
  dims.erase(dims.begin() + joint.dim + 1,
             dims.begin() + joint.dim + static_cast<int64_t>(indexed.size()));
  dims[joint.dim] = size;
  joint.x = Reshape(joint.x, dims);
  return joint;
}

bool NoneGiven(const std::vector<std::optional<Value>>& indices) {
  return std::none_of(indices.begin(), indices.end(), [](const auto& i) { return i.has_value(); });
}

/// `op` along `index` in the type that sums are computed in; result as the node's output.
Value Accumulate(LoweringContext& cx, Value x, int64_t dim, Value index, Value updates, ReduceOp op,
                 Value (*put)(Value, int64_t, Value, Value, std::optional<ReduceOp>)) {
  ElementType compute = ComputeType(cx.output_element());
  Value result = put(Convert(x, compute), dim, index, Convert(updates, compute), op);
  return ToOutputElement(cx, Reshape(result, cx.output_dims()));
}

/// The part of a scatter's source that its index has a place for.
Value SourceOf(Value source, Value index) {
  source = AtLeast1d(source);
  return Slice(source, Dims(source.rank(), 0), AtLeast1d(index).dims());
}

/// Rounds integer quotients down; `b` is positive.
Value DivideByCount(Value a, Value b) {
  Value quotient = Divide(a, b);
  if (!runtime::IsSigned(a.element())) return quotient;
  Value below = Compare(Remainder(a, b), ZerosLike(a), Direction::kLt);
  return Subtract(quotient, Convert(below, a.element()));
}

}  // namespace

Value AtLeast1d(Value x) { return x.rank() == 0 ? Reshape(x, {1}) : x; }

Value Take(Value x, int64_t dim, Value index) {
  stablehlo::Type result(x.element(), TakeDims(x, dim, index));
  if (result.num_elements() == 0 || IsEmpty(x)) return Constant(x.builder(), 0, result);
  stablehlo::GatherDimensionNumbers numbers;
  numbers.offset_dims = WindowDims(x, dim, index);
  numbers.collapsed_slice_dims = numbers.start_index_map = {dim};
  numbers.index_vector_dim = index.rank();
  Dims sizes = x.dims();
  sizes[dim] = 1;
  return Gather(x, index, numbers, sizes);
}

Value Put(Value x, int64_t dim, Value index, Value updates, std::optional<ReduceOp> op) {
  if (IsEmpty(x) || IsEmpty(updates)) return x;
  stablehlo::ScatterDimensionNumbers numbers;
  numbers.update_window_dims = WindowDims(x, dim, index);
  numbers.inserted_window_dims = numbers.scatter_dims_to_operand_dims = {dim};
  numbers.index_vector_dim = index.rank();
  return Scatter(x, index, updates, numbers, op);
}

Value TakeAlong(Value x, int64_t dim, Value index) {
  if (IsEmpty(x) || IsEmpty(index)) {
    return Constant(x.builder(), 0, stablehlo::Type(x.element(), index.dims()));
  }
  Value flat = FlatIndex(AtLeast1d(x), dim, AtLeast1d(index));
  return Reshape(Take(Flat(x), 0, flat), index.dims());
}

Value PutAlong(Value x, int64_t dim, Value index, Value updates, std::optional<ReduceOp> op) {
  if (IsEmpty(x) || IsEmpty(index)) return x;
  Value flat = FlatIndex(AtLeast1d(x), dim, AtLeast1d(index));
  return Reshape(Put(Flat(x), 0, Flat(flat), Flat(updates), op), x.dims());
}

namespace aten {

Value embedding(LoweringContext&, Value weight, Value indices, int64_t, bool, bool) {
  return Take(weight, 0, indices);
}

// Scatter-add beats a one-hot product on XLA:CPU for every vocabulary (of 2, of 65: 1 and 3 ms
// against 2 and 20 for 4k and 16k tokens).
Value embedding_dense_backward(LoweringContext& cx, Value grad_output, Value indices,
                               int64_t num_weights, int64_t padding_idx, bool scale_grad_by_freq) {
  stablehlo::Type type(ComputeType(cx.output_element()), cx.output_dims());
  Value index = Flat(indices);
  Value rows = Reshape(Convert(grad_output, type.element), {index.dim(0), type.dims[1]});
  if (padding_idx >= 0) {
    // Out of range, so that Put skips it.
    index = Select(Compare(index, FullLike(index, padding_idx), Direction::kEq),
                   FullLike(index, num_weights), index);
  }
  Value grad = Put(Constant(cx.builder(), 0, type), 0, index, rows, ReduceOp::kAdd);
  if (scale_grad_by_freq) {
    stablehlo::Type ones(type.element, index.dims()), counts(type.element, {num_weights});
    Value count = Put(Constant(cx.builder(), 0, counts), 0, index, Constant(cx.builder(), 1, ones),
                      ReduceOp::kAdd);
    count = Maximum(count, OnesLike(count));
    grad = Divide(grad, BroadcastInDim(count, type.dims, {0}));
  }
  return ToOutputElement(cx, grad);
}

Value gather(LoweringContext&, Value self, int64_t dim, Value index, bool) {
  return TakeAlong(self, WrapDim(dim, self.rank()), index);
}

Value index_select(LoweringContext& cx, Value self, int64_t dim, Value index) {
  return Reshape(Take(AtLeast1d(self), WrapDim(dim, self.rank()), Flat(index)), cx.output_dims());
}

Value index_add(LoweringContext& cx, Value self, int64_t dim, Value index, Value source,
                Value alpha) {
  ElementType compute = ComputeType(cx.output_element());
  source = AtLeast1d(Convert(source, compute));
  Value scaled = Multiply(source, To(alpha, compute, source.dims()));
  return Accumulate(cx, AtLeast1d(self), WrapDim(dim, self.rank()), Flat(index), scaled,
                    ReduceOp::kAdd, Put);
}

Value index_copy(LoweringContext& cx, Value self, int64_t dim, Value index, Value source) {
  Value result = Put(AtLeast1d(self), WrapDim(dim, self.rank()), Flat(index), AtLeast1d(source));
  return Reshape(result, cx.output_dims());
}

Value index_fill_int_Scalar(LoweringContext& cx, Value self, int64_t dim, Value index,
                            Value value) {
  // A mask along the dimension, so that what is as large as `self` stays elementwise.
  Value x = AtLeast1d(self);
  dim = WrapDim(dim, self.rank());
  index = WrapIndex(Flat(index), x.dims()[dim]);
  stablehlo::Type mask(ElementType::kPred, {x.dims()[dim]}), hits(mask.element, index.dims());
  Value filled =
      Put(Constant(cx.builder(), false, mask), 0, index, Constant(cx.builder(), true, hits));
  filled = BroadcastInDim(filled, x.dims(), {dim});
  return Reshape(Select(filled, To(value, x.element(), x.dims()), x), cx.output_dims());
}

Value scatter_src(LoweringContext&, Value self, int64_t dim, Value index, Value src) {
  if (IsEmpty(index)) return self;
  return PutAlong(self, WrapDim(dim, self.rank()), index, SourceOf(src, index));
}

Value scatter_value(LoweringContext&, Value self, int64_t dim, Value index, Value value) {
  return PutAlong(self, WrapDim(dim, self.rank()), index, To(value, self.element(), index.dims()));
}

Value scatter_add(LoweringContext& cx, Value self, int64_t dim, Value index, Value src) {
  if (IsEmpty(index)) return self;
  return Accumulate(cx, self, WrapDim(dim, self.rank()), index, SourceOf(src, index),
                    ReduceOp::kAdd, PutAlong);
}

Value scatter_reduce_two(LoweringContext& cx, Value self, int64_t dim, Value index, Value src,
                         std::string_view reduce, bool include_self) {
  if (IsEmpty(index)) return self;
  ElementType compute = ComputeType(cx.output_element());
  dim = WrapDim(dim, self.rank());
  Value x = Convert(self, compute), source = Convert(SourceOf(src, index), compute);
  ReduceOp op = reduce == "prod"   ? ReduceOp::kMul
                : reduce == "amax" ? ReduceOp::kMax
                : reduce == "amin" ? ReduceOp::kMin
                                   : ReduceOp::kAdd;
  // `value` where the index points, for what is to be left out there.
  auto reset = [&](Value to, Value value) {
    return PutAlong(to, dim, index, BroadcastTo(value, source.dims()));
  };
  if (!include_self) x = reset(x, ReduceIdentity(cx.builder(), op, compute));
  Value result = PutAlong(x, dim, index, source, op);
  if (reduce == "mean") {
    Value count = OnesLike(x);
    if (!include_self) count = reset(count, ScalarLike(count, 0));
    result = DivideByCount(result, PutAlong(count, dim, index, OnesLike(source), op));
  }
  return ToOutputElement(cx, result);
}

Value index_Tensor(LoweringContext&, Value self, const std::vector<std::optional<Value>>& indices) {
  if (NoneGiven(indices)) return self;
  JointIndex joint = JoinIndices(self, indices);
  return Take(joint.x, joint.dim, joint.index);
}

Value index_put(LoweringContext& cx, Value self, const std::vector<std::optional<Value>>& indices,
                Value values, bool accumulate) {
  ElementType compute = accumulate ? ComputeType(self.element()) : self.element();
  if (NoneGiven(indices)) {
    Value all = To(values, compute, self.dims());
    return ToOutputElement(cx, accumulate ? Add(Convert(self, compute), all) : all);
  }
  JointIndex joint = JoinIndices(Convert(self, compute), indices);
  values = To(values, compute, TakeDims(joint.x, joint.dim, joint.index));
  Value result = Put(joint.x, joint.dim, joint.index, values,
                     accumulate ? std::optional(ReduceOp::kAdd) : std::nullopt);
  result = Transpose(Reshape(result, joint.dims), InversePermutation(joint.permutation));
  return ToOutputElement(cx, result);
}

}  // namespace aten
}  // namespace torch_xla::lowering
