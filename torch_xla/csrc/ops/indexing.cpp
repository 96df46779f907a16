#include "ops/indexing.h"

#include <algorithm>
#include <numeric>

#include "XLALowerings.h"
#include "XLAOps.h"
#include "cpu/calls.h"
#include "distributed/sharding_lowering.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"
#include "lowering/strided_view.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

/// The arguments of PyTorch's embedding_bag: bags of rows that are summed or averaged.
struct BagCall {
  Value weight, indices, offsets;
  std::optional<Value> per_sample_weights;
  bool is_mean;
  bool include_last_offset;
  int64_t padding_idx;
};

bool IsFloat(Value x) { return x.element() == ElementType::kF32; }
bool IsInteger(Value x) {
  return x.element() == ElementType::kS64 || x.element() == ElementType::kS32;
}

/// The table [num_weights, columns] of float, with the added rows and zeros; none if a call would
/// not be the fastest way.
std::optional<Value> CallAddRows(LoweringContext& cx, const AddedRows& rows, int64_t num_weights) {
  const auto& [grad, index, of, scale, padding] = rows;
  const stablehlo::Type type(ElementType::kF32, {num_weights, grad.dim(1)});
  if (!IsFloat(grad) || !IsInteger(index) || (of && !IsInteger(*of)) ||
      (scale && !IsFloat(*scale)) || type.num_elements() == 0 ||
      !ChoosesLibrary(cx, "embedding.gradient")) {
    return std::nullopt;
  }
  KeepAddedRows(cx, rows);
  std::vector<Value> operands{grad};
  const cpu::AddedRowsCall call = AddOperands(rows, 0, operands);
  return CallLibrary(cpu::kAddRowsTarget, operands, {type}, call)[0];
}

/// The output, the bag of each index, and the sizes of the bags without padding (both s64).
std::optional<std::vector<Value>> CallEmbeddingBag(const LoweringContext& cx, const BagCall& call) {
  const auto& scale = call.per_sample_weights;
  const int64_t bags = call.offsets.dim(0) - (call.include_last_offset ? 1 : 0);
  const int64_t columns = call.weight.dim(1), indices = call.indices.dim(0);
  if (!IsFloat(call.weight) || !IsInteger(call.indices) || !IsInteger(call.offsets) ||
      (scale && !IsFloat(*scale)) || bags <= 0 || indices == 0 ||
      call.weight.type().num_elements() == 0 || !ChoosesLibrary(cx, "embedding_bag")) {
    return std::nullopt;
  }
  std::vector<Value> operands{call.weight, call.indices, call.offsets};
  if (scale) operands.push_back(*scale);
  return CallLibrary(cpu::kEmbeddingBagTarget, operands,
                     {{ElementType::kF32, {bags, columns}},
                      {ElementType::kS64, {indices}},
                      {ElementType::kS64, {bags}}},
                     cpu::EmbeddingBagCall{call.is_mean, std::max<int64_t>(call.padding_idx, -1)});
}

Dims TakeDims(Value x, int64_t dim, Value index) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, index.dims().begin(), index.dims().end());
  return dims;
}

/// The dimensions of Take's result that are whole dimensions of `x`.
Dims WindowDims(Value x, int64_t dim, Value index) {
  Dims dims(x.rank() - 1);
  std::iota(dims.begin(), dims.end(), 0);
  for (int64_t i = dim; i < x.rank() - 1; ++i) dims[i] += index.rank();
  return dims;
}

/// Clamps `index` to a dimension of this size, and converts it to `element`, a type that holds all
/// indices that the result is joined to. If `in_range` is given, it becomes false where an index
/// was out of range, so that a write can skip it.
Value ClampIndex(Value index, int64_t size, ElementType element, Value* in_range) {
  // Convert to a narrower type only after the clamp: 2^32 + 1 must not become 1.
  if (runtime::ByteWidth(index.element()) < runtime::ByteWidth(element)) {
    index = Convert(index, element);
  }
  Value clamped = Clamp(ScalarLike(index, 0), index, ScalarLike(index, size - 1));
  if (in_range) *in_range = Equal(index, clamped);
  return Convert(clamped, element);
}

/// The indices in the flat `x` of the elements that `index` names along `dim`. An index out of
/// range becomes the nearest one, or for `writes` an index beyond `x`, which Put skips. XLA gathers
/// and scatters fastest with a single coordinate per element.
Value FlatIndex(Value x, int64_t dim, Value index, bool writes) {
  Value in_range;
  Value flat = ClampIndex(index, x.dims()[dim], IndexElement(x.type().num_elements()),
                          writes ? &in_range : nullptr);
  int64_t stride = 1;
  for (int64_t i = x.rank() - 1; i > dim; --i) stride *= x.dims()[i];
  flat = Multiply(flat, FullLike(flat, stride));
  stride = 1;
  for (int64_t i = x.rank() - 1; i >= 0; stride *= x.dims()[i--]) {
    if (i == dim || index.dims()[i] == 1) continue;
    flat = Add(flat, Multiply(Iota(x.builder(), flat.type(), i), FullLike(flat, stride)));
  }
  return writes ? Select(in_range, flat, x.type().num_elements()) : flat;
}

Value Flat(Value x) { return Reshape(x, {x.type().num_elements()}); }

/// `index`, with negative indices counted from the end of a dimension of this size.
Value WrapIndex(Value index, int64_t size) {
  if (runtime::ByteWidth(index.element()) < 4) index = Convert(index, ElementType::kS64);
  return Select(Compare(index, ZerosLike(index), Direction::kLt), Add(index, FullLike(index, size)),
                index);
}

/// Indexing with several tensors as a Take or Put along one dimension. The indexed dimensions are
/// brought together (at the front if they are apart, as in numpy) and joined to one.
struct JointIndex {
  Value x, index;
  int64_t dim;
  Dims permutation;  // of x before the dimensions were joined
  Dims dims;         // x after the permutation
};

/// Each index is clamped by itself. For `writes`, a joint index is out of range if one of its
/// indices is.
JointIndex JoinIndices(Value x, const std::vector<std::optional<Value>>& indices, bool writes) {
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
  Value valid;
  for (int64_t d : indexed) {
    Value in_range;
    Value index = ClampIndex(WrapIndex(*indices[d], x.dims()[d]), x.dims()[d], element,
                             writes ? &in_range : nullptr);
    index = BroadcastTo(index, shape);
    joint.index = joint.index.valid()
                      ? Add(Multiply(joint.index, FullLike(index, x.dims()[d])), index)
                      : index;
    if (!writes) continue;
    in_range = BroadcastTo(in_range, shape);
    valid = valid.valid() ? And(valid, in_range) : in_range;
  }
  if (writes) joint.index = Select(valid, joint.index, size);
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

/// `op` along `index`, computed in the type of sums, as the node's output.
Value Accumulate(LoweringContext& cx, Value x, int64_t dim, Value index, Value updates, ReduceOp op,
                 Value (*put)(Value, int64_t, Value, Value, std::optional<ReduceOp>)) {
  ElementType compute = ComputeType(cx.output_element());
  Value result = put(Convert(x, compute), dim, index, Convert(updates, compute), op);
  return ToOutputElement(cx, Reshape(result, cx.output_dims()));
}

/// Rounds integer quotients down; `b` is positive.
Value DivideByCount(Value a, Value b) {
  Value quotient = Divide(a, b);
  if (!runtime::IsSigned(a.element())) return quotient;
  Value below = Compare(Remainder(a, b), ZerosLike(a), Direction::kLt);
  return Subtract(quotient, Convert(below, a.element()));
}

/// Put or PutAlong.
using PutFunction = Value (*)(Value x, int64_t dim, Value index, Value updates,
                              std::optional<ReduceOp> op);

/// Whether devices that exchange extremes of floating-point numbers may drop a NaN.
bool DropsNan(Value x, ReduceOp op) {
  return x.builder().partitions() > 1 && (op == ReduceOp::kMax || op == ReduceOp::kMin) &&
         runtime::IsFloat(x.element());
}

/// scatter_reduce and index_reduce. `source` has the shape that `put` requires for `index`.
Value ScatterReduce(LoweringContext& cx, Value x, int64_t dim, Value index, Value source,
                    std::string_view reduce, bool include_self, PutFunction put) {
  ElementType compute = ComputeType(cx.output_element());
  x = Convert(x, compute);
  source = Convert(source, compute);
  ReduceOp op = reduce == "prod" || reduce == "multiply" ? ReduceOp::kMul
                : reduce == "amax"                       ? ReduceOp::kMax
                : reduce == "amin"                       ? ReduceOp::kMin
                                                         : ReduceOp::kAdd;
  // `to` with `value` wherever the index points, so that the elements there do not count.
  auto reset = [&](Value to, Value value) {
    return put(to, dim, index, BroadcastTo(value, source.dims()), std::nullopt);
  };
  if (!include_self) x = reset(x, ReduceIdentity(cx.builder(), op, compute));
  Value result = put(x, dim, index, source, op);
  if (DropsNan(x, op)) {
    result = NanWhere(put(IsNan(x), dim, index, IsNan(source), ReduceOp::kOr), result);
  }
  if (reduce == "mean") {
    Value count = OnesLike(x);
    if (!include_self) count = reset(count, ScalarLike(count, 0));
    // At least 1, for elements that nothing was put at and that do not count themselves.
    count = put(count, dim, index, OnesLike(source), op);
    result = DivideByCount(result, count);
  }
  return ToOutputElement(cx, Reshape(result, cx.output_dims()));
}

/// For each element of a flat mask, how many elements before it are set.
Value Rank(Value mask) {
  Value ones = Convert(mask, IndexElement(mask.type().num_elements()));
  return Scan(ones, 0, ReduceOp::kAdd) - 1;
}

/// The indices to which a flat mask moves its set elements, so that they are packed at the front.
/// Other elements get `limit`, which is out of range.
Value PackedPlaces(Value mask, int64_t limit) { return Select(mask, Rank(mask), limit); }

/// Elements of an embedding bag, in the order of `indices`.
struct Bags {
  int64_t count = 0;
  int64_t length = 0;  // elements per bag, if it is known to be the same for all bags
  Value of;            // the bag of each element
  Value valid;         // false where an element is padding
  Value sizes;         // how many valid elements each bag has

  /// Reduces the valid rows [n, ...] by bag; an empty bag gets `init`, the identity of `op`.
  Value Reduced(Value rows, Value init, ReduceOp op) const {
    Dims dims = rows.dims();
    dims[0] = count;
    if (length == 0) {  // Put skips indices out of range
      return Put(BroadcastTo(init, dims), 0, Select(valid, of, count), rows, op);
    }
    Value mask = BroadcastInDim(valid, rows.dims(), {0});
    dims.insert(dims.begin() + 1, length);
    return Reduce(Reshape(Select(mask, rows, BroadcastTo(init, rows.dims())), dims), {1}, op);
  }
};

/// The length of each bag if the program itself makes the offsets 0, length, 2 * length, ..., as
/// embedding_bag does for a matrix of indices; else 0.
int64_t LengthOfBags(const ir::Value& offsets, int64_t bags, int64_t elements) {
  if (bags == 0 || elements == 0 || elements % bags != 0) return 0;
  const ir::Node& node = *offsets.node;
  const int64_t length = elements / bags;
  return &node.op() == &ir::ops::arange && IsNumber(node.operands()[0], 0) &&
                 IsNumber(node.operands()[1], length)
             ? length
             : 0;
}

Bags FindBags(LoweringContext& cx, Value indices, Value offsets, bool include_last_offset,
              int64_t padding_idx) {
  Bags bags;
  bags.count = offsets.dim(0) - (include_last_offset ? 1 : 0);
  const stablehlo::Type places(IndexElement(indices.dim(0)), indices.dims());
  bags.length = LengthOfBags(cx.node().operands()[2], bags.count, indices.dim(0));
  if (bags.length > 0) {
    bags.of = Iota(indices.builder(), places, 0) / bags.length;
  } else {
    // The number of bags that begin at or before an element gives its bag. A bag that begins at the
    // end has no elements.
    Value starts = Slice(offsets, {0}, {bags.count});
    Value begins =
        Put(Constant(indices.builder(), 0, places), 0, starts,
            Constant(indices.builder(), 1, {places.element, starts.dims()}), ReduceOp::kAdd);
    bags.of = Scan(begins, 0, ReduceOp::kAdd) - 1;
  }
  bags.valid = padding_idx < 0 ? FullLike(Convert(indices, ElementType::kPred), true)
                               : NotEqual(indices, padding_idx);
  Value ones = Convert(bags.valid, places.element);
  bags.sizes = bags.Reduced(ones, ScalarLike(ones, 0), ReduceOp::kAdd);
  return bags;
}

enum BagMode : int64_t { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

/// x [n] broadcast to [n, columns].
Value AsColumn(Value x, int64_t columns) { return BroadcastInDim(x, {x.dim(0), columns}, {0}); }

/// x [n] cut at its end, or padded with zeros, to [size].
Value Resized(Value x, int64_t size) { return Pad(x, ScalarLike(x, 0), {0}, {size - x.dim(0)}); }

/// The part of a scatter's source that has the shape of its index.
Value SourceOf(Value source, Value index) {
  source = AtLeast1d(source);
  return Slice(source, Dims(source.rank(), 0), AtLeast1d(index).dims());
}

}  // namespace

Value AtTime(Value x, Value t) {
  Value zero = ScalarLike(t, 0);
  return Reshape(DynamicSlice(x, {t, zero, zero}, {1, x.dim(1), x.dim(2)}), {x.dim(1), x.dim(2)});
}

Value SetTime(Value x, Value update, Value t) {
  Value zero = ScalarLike(t, 0);
  return DynamicUpdateSlice(x, Reshape(update, {1, x.dim(1), x.dim(2)}), {t, zero, zero});
}

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
  // XLA's partitioner aborts if it has to pad 64-bit indices, so narrow them. Indices out of range
  // stay out of range.
  const int64_t devices = x.builder().partitions();
  const ElementType narrow = IndexElement(x.dims()[dim] + 1);
  if (devices > 1 && runtime::ByteWidth(index.element()) > runtime::ByteWidth(narrow)) {
    index = Clamp(ScalarLike(index, -1), index, ScalarLike(index, x.dims()[dim]));
    index = Convert(index, narrow);
  }
  // The partitioner pads updates to a multiple of the number of devices, and writes the padding.
  if (std::ranges::any_of(index.dims(), [&](int64_t n) { return n % devices != 0; })) {
    index = Whole(index);
    updates = Whole(updates);
  }
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
  Value flat = FlatIndex(AtLeast1d(x), dim, AtLeast1d(index), /*writes=*/false);
  return Reshape(Take(Flat(x), 0, flat), index.dims());
}

namespace {

/// Whether PutAlong writes few elements of each row along `dim`, in rows that are short enough to
/// be written whole. Then it uses selections, which fuse with the operations around them. XLA:CPU
/// compiles a kernel of its own for each scatter, even if two are equal.
bool PutsFew(Value x, int64_t dim, Value index, std::optional<ReduceOp> op) {
  constexpr int64_t kMostWrites = 4, kLongestRow = 64;
  if (x.rank() == 0 || x.rank() != index.rank() || (op && *op != ReduceOp::kAdd)) return false;
  Dims dims = index.dims();
  if (dims[dim] > kMostWrites || x.dim(dim) > kLongestRow) return false;
  dims[dim] = x.dim(dim);
  return dims == x.dims();
}

}  // namespace

Value PutAlong(Value x, int64_t dim, Value index, Value updates, std::optional<ReduceOp> op) {
  if (IsEmpty(x) || IsEmpty(index)) return x;
  if (PutsFew(x, dim, index, op)) {
    Value place = Iota(x.builder(), stablehlo::Type(index.element(), x.dims()), dim);
    Dims first(x.rank(), 0), end = index.dims();
    for (const int64_t count = end[dim]; first[dim] < count; ++first[dim]) {
      end[dim] = first[dim] + 1;
      Value here = Equal(BroadcastTo(Slice(index, first, end), x.dims()), place);
      Value update = BroadcastTo(Slice(updates, first, end), x.dims());
      x = Select(here, op ? Add(x, update) : update, x);
    }
    return x;
  }
  Value flat = FlatIndex(AtLeast1d(x), dim, AtLeast1d(index), /*writes=*/true);
  return Reshape(Put(Flat(x), 0, Flat(flat), Flat(updates), op), x.dims());
}

namespace {

/// Adds up rows by their index. On XLA:CPU a scatter-add is faster than a product with one-hot
/// rows, whatever the size of the vocabulary.
Value EmbeddingGradient(LoweringContext& cx, AddedRows added, int64_t num_weights,
                        const Number& padding_idx, bool scale_grad_by_freq) {
  Value index = added.index, rows = added.grad;
  if (!scale_grad_by_freq && index.dim(0) > 0) {
    added.padding = Reshape(padding_idx.Like(Slice(index, {0}, {1})), {});
    if (const auto sums = CallAddRows(cx, added, num_weights)) return *sums;
  }
  if (added.of) rows = Take(rows, 0, *added.of);
  if (added.scale) rows = rows * AsColumn(*added.scale, rows.dim(1));
  const stablehlo::Type type(rows.element(), {num_weights, rows.dim(1)});
  if (!padding_idx.constant() || padding_idx.constant()->toLong() >= 0) {
    // An index out of range, which Put skips.
    index = Select(Equal(index, padding_idx.Like(index)), num_weights, index);
  }
  Value grad = Put(Constant(rows.builder(), 0, type), 0, index, rows, ReduceOp::kAdd);
  if (scale_grad_by_freq) {
    Value ones = Constant(rows.builder(), 1, {type.element, index.dims()});
    Value count = Put(Constant(rows.builder(), 0, {type.element, {num_weights}}), 0, index, ones,
                      ReduceOp::kAdd);
    grad = grad / AsColumn(Maximum(count, 1), type.dims[1]);
  }
  return grad;
}

}  // namespace

namespace aten {

Value embedding(LoweringContext&, Value weight, Value indices, const Number&, bool, bool) {
  return Take(weight, 0, indices);
}

Value embedding_dense_backward(LoweringContext& cx, Value grad_output, Value indices,
                               int64_t num_weights, const Number& padding_idx,
                               bool scale_grad_by_freq) {
  Value index = Flat(indices);
  Value rows = Convert(grad_output, ComputeType(cx.output_element()));
  rows = Reshape(rows, {index.dim(0), cx.output_dims()[1]});
  return ToOutputElement(cx, EmbeddingGradient(cx, {.grad = rows, .index = index}, num_weights,
                                               padding_idx, scale_grad_by_freq));
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

/// Uses a mask along the dimension, so that all operations on whole arrays are elementwise.
Value IndexFill(LoweringContext& cx, Value self, int64_t dim, Value index, Value value) {
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
  return ScatterReduce(cx, self, WrapDim(dim, self.rank()), index, SourceOf(src, index), reduce,
                       include_self, PutAlong);
}

Value scatter_reduce(LoweringContext& cx, Value self, int64_t dim, Value index, Value src,
                     std::string_view reduce) {
  return scatter_reduce_two(cx, self, dim, index, src, reduce, /*include_self=*/true);
}

Value scatter_value_reduce(LoweringContext& cx, Value self, int64_t dim, Value index, Value value,
                           std::string_view reduce) {
  if (IsEmpty(index)) return self;
  return ScatterReduce(cx, self, WrapDim(dim, self.rank()), index,
                       To(value, self.element(), index.dims()), reduce, true, PutAlong);
}

Value index_reduce(LoweringContext& cx, Value self, int64_t dim, Value index, Value source,
                   std::string_view reduce, bool include_self) {
  if (IsEmpty(index)) return self;
  return ScatterReduce(cx, AtLeast1d(self), WrapDim(dim, self.rank()), Flat(index),
                       AtLeast1d(source), reduce, include_self, Put);
}

Value take(LoweringContext&, Value self, Value index) {
  return Take(Flat(self), 0, WrapIndex(index, self.type().num_elements()));
}

Value put(LoweringContext& cx, Value self, Value index, Value source, bool accumulate) {
  TORCH_CHECK_INDEX(!IsEmpty(self) || IsEmpty(index),
                    "put_(): Tried to put elements into an empty tensor");
  index = WrapIndex(Flat(index), self.type().num_elements());
  const ElementType compute = accumulate ? ComputeType(self.element()) : self.element();
  Value result = Put(Convert(Flat(self), compute), 0, index, Convert(Flat(source), compute),
                     accumulate ? std::optional(ReduceOp::kAdd) : std::nullopt);
  return ToOutputElement(cx, Reshape(result, self.dims()));
}

Value masked_scatter(LoweringContext& cx, Value self, Value mask, Value source) {
  TORCH_CHECK(mask.element() == ElementType::kPred,
              "masked_scatter_ only supports boolean masks, but got ", mask.type().ToString());
  if (IsEmpty(source) || cx.output_type().num_elements() == 0) return ToOutput(cx, self);
  mask = BroadcastTo(mask, cx.output_dims());
  Value taken = Reshape(Take(Flat(source), 0, Rank(Flat(mask))), mask.dims());
  return Select(mask, taken, ToOutput(cx, self));
}

Value masked_scatter_backward(LoweringContext& cx, Value grad_output, Value mask,
                              c10::IntArrayRef) {
  const stablehlo::Type type(cx.output_element(), {cx.output_type().num_elements()});
  Value grad = Constant(cx.builder(), 0, type);
  if (!IsEmpty(grad_output)) {
    mask = BroadcastTo(Convert(mask, ElementType::kPred), grad_output.dims());
    grad = Put(grad, 0, PackedPlaces(Flat(mask), type.dims[0]), Flat(grad_output));
  }
  return Reshape(grad, cx.output_dims());
}

Value nonzero_static(LoweringContext& cx, Value self, int64_t size, int64_t fill_value) {
  const stablehlo::Type type = cx.output_type();
  if (type.num_elements() == 0) return Constant(cx.builder(), 0, type);
  const Dims dims = self.dims();
  Value found = Constant(cx.builder(), -1, {type.element, {size}});
  if (!IsEmpty(self)) {
    Value mask = Flat(Convert(self, ElementType::kPred));
    found =
        Put(found, 0, PackedPlaces(mask, size), Iota(cx.builder(), {type.element, mask.dims()}, 0));
  }
  // The flat index as coordinates, last coordinate first.
  std::vector<Value> columns(dims.size());
  Value rest = found;
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t extent = std::max<int64_t>(dims[i], 1);
    Value coordinate = Remainder(rest, FullLike(rest, extent));
    rest = rest / extent;
    columns[i] = Reshape(Select(found < 0, fill_value, coordinate), {size, 1});
  }
  return Concatenate(columns, 1);
}

Value repeat_interleave_Tensor(LoweringContext& cx, Value repeats, std::optional<int64_t>) {
  // A place of the result holds the number of elements whose repetitions end at or before it.
  const stablehlo::Type type = cx.output_type();
  if (type.num_elements() == 0) return Constant(cx.builder(), 0, type);
  Value ends = Scan(Convert(repeats, ElementType::kS64), 0, ReduceOp::kAdd);
  Value counts = Put(Constant(cx.builder(), 0, type), 0, ends,
                     Constant(cx.builder(), 1, {type.element, ends.dims()}), ReduceOp::kAdd);
  return Scan(counts, 0, ReduceOp::kAdd);
}

std::vector<Value> EmbeddingBag(LoweringContext& cx, Value weight, Value indices, Value offsets,
                                bool /*scale_grad_by_freq*/, int64_t mode, bool /*sparse*/,
                                std::optional<Value> per_sample_weights, bool include_last_offset,
                                int64_t padding_idx) {
  const ElementType compute = ComputeType(cx.output_element());
  const int64_t columns = weight.dim(1);
  auto results = [&](Value output, Value bag_of, Value sizes, Value best) {
    return std::vector<Value>{
        Convert(output, cx.output_element()), Convert(bag_of, cx.output_element(1)),
        Resized(Convert(sizes, cx.output_element(2)), cx.output_dims(2)[0]), best};
  };
  Value best = Constant(cx.builder(), 0, cx.output_type(3));
  if (mode != kBagMax) {
    const BagCall call{
        weight,     indices, offsets, per_sample_weights, mode == kBagMean, include_last_offset,
        padding_idx};
    if (const auto made = CallEmbeddingBag(cx, call)) {
      return results((*made)[0], (*made)[1], (*made)[2], best);
    }
  }
  const Bags bags = FindBags(cx, indices, offsets, include_last_offset, padding_idx);
  Value rows = Convert(Take(weight, 0, indices), compute);
  if (per_sample_weights) rows = rows * AsColumn(Convert(*per_sample_weights, compute), columns);
  const ReduceOp op = mode == kBagMax ? ReduceOp::kMax : ReduceOp::kAdd;
  Value output = bags.Reduced(rows, ReduceIdentity(cx.builder(), op, compute), op);
  if (DropsNan(rows, op)) {
    const Value none = ReduceIdentity(cx.builder(), ReduceOp::kOr, ElementType::kPred);
    output = NanWhere(bags.Reduced(IsNan(rows), none, ReduceOp::kOr), output);
  }
  Value sizes = bags.sizes;
  if (mode == kBagMean) output = output / AsColumn(Convert(Maximum(sizes, 1), compute), columns);
  if (mode == kBagMax) {
    // The first row that has the maximum; -1 for an empty bag.
    Value empty = AsColumn(Equal(sizes, 0), columns);
    const int64_t end = indices.dim(0);
    Value hit = Or(Equal(rows, Take(output, 0, bags.of)), IsNan(rows));
    Value place = Iota(cx.builder(), {sizes.element(), rows.dims()}, 0);
    Value first = bags.Reduced(Select(hit, place, end), ScalarLike(place, end), ReduceOp::kMin);
    best = Select(empty, -1, Convert(Take(indices, 0, first), best.element()));
    output = Select(empty, 0, output);
  }
  return results(output, bags.of, sizes, best);
}

Value _embedding_bag_dense_backward(LoweringContext& cx, Value grad, Value indices,
                                    Value offset2bag, Value bag_size, Value maximum_indices,
                                    int64_t num_weights, bool scale_grad_by_freq, int64_t mode,
                                    std::optional<Value> per_sample_weights, int64_t padding_idx) {
  const stablehlo::Type type(ComputeType(cx.output_element()), cx.output_dims());
  const int64_t columns = type.dims[1];
  Value zeros = Constant(cx.builder(), 0, type);
  grad = Convert(grad, type.element);
  if (mode == kBagMax) {
    // The index -1 of an empty bag stays out of range.
    const int64_t none = num_weights;
    Value rows = Select(maximum_indices < 0, none, maximum_indices);
    Value column = Iota(cx.builder(), rows.type(), 1);
    Value flat = Select(Equal(rows, none), zeros.type().num_elements(), rows * columns + column);
    return ToOutputElement(
        cx, Reshape(Put(Flat(zeros), 0, Flat(flat), Flat(grad), ReduceOp::kAdd), type.dims));
  }
  if (mode == kBagMean) {
    Value sizes = Slice(bag_size, {0}, {grad.dim(0)});
    grad = grad / AsColumn(Convert(Maximum(sizes, 1), type.element), columns);
  }
  std::optional<Value> scale;
  if (per_sample_weights) scale = Convert(*per_sample_weights, type.element);
  return ToOutputElement(cx,
                         EmbeddingGradient(cx, {grad, indices, offset2bag, scale, {}}, num_weights,
                                           c10::Scalar(padding_idx), scale_grad_by_freq));
}

Value _embedding_bag_per_sample_weights_backward(LoweringContext& cx, Value grad, Value weight,
                                                 Value indices, Value, Value offset2bag, int64_t,
                                                 int64_t padding_idx) {
  const ElementType compute = ComputeType(cx.output_element());
  Value rows = Convert(Take(weight, 0, indices), compute);
  Value result = Reduce(rows * Convert(Take(grad, 0, offset2bag), compute), {1}, ReduceOp::kAdd);
  if (padding_idx >= 0) result = Select(Equal(indices, padding_idx), 0, result);
  return ToOutputElement(cx, result);
}

Value index_Tensor(LoweringContext&, Value self, const std::vector<std::optional<Value>>& indices) {
  if (NoneGiven(indices)) return self;
  JointIndex joint = JoinIndices(self, indices, /*writes=*/false);
  return Take(joint.x, joint.dim, joint.index);
}

Value index_put(LoweringContext& cx, Value self, const std::vector<std::optional<Value>>& indices,
                Value values, bool accumulate) {
  ElementType compute = accumulate ? ComputeType(self.element()) : self.element();
  if (NoneGiven(indices)) {
    Value all = To(values, compute, self.dims());
    return ToOutputElement(cx, accumulate ? Add(Convert(self, compute), all) : all);
  }
  JointIndex joint = JoinIndices(Convert(self, compute), indices, /*writes=*/true);
  values = To(values, compute, TakeDims(joint.x, joint.dim, joint.index));
  Value result = Put(joint.x, joint.dim, joint.index, values,
                     accumulate ? std::optional(ReduceOp::kAdd) : std::nullopt);
  result = Transpose(Reshape(result, joint.dims), InversePermutation(joint.permutation));
  return ToOutputElement(cx, result);
}

}  // namespace aten
}  // namespace torch_xla::lowering
