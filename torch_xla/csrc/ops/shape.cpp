// Operations that move, repeat and pad elements.
#include <algorithm>
#include <functional>
#include <numeric>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "ops/indexing.h"
#include "ops/interpolation.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Type;

Value Zero(Value like) { return ScalarLike(like, 0); }

/// `x` within zeros of `dims`: from index `start` of dimension `dim`, and `step` apart.
Value Place(Value x, const Dims& dims, int64_t dim, int64_t start, int64_t step) {
  TORCH_CHECK(x.rank() == static_cast<int64_t>(dims.size()), "expected a gradient with ",
              dims.size(), " dimensions, but got one with ", x.rank());
  const int64_t size = x.dims()[dim];
  if (size <= 1) step = 1;  // a single element fits with any step
  TORCH_CHECK(step > 0 && step <= std::max<int64_t>(dims[dim], 1), "step ", step,
              " does not fit in dimension ", dim, " of size ", dims[dim]);
  const int64_t extent = size == 0 ? 0 : (size - 1) * step + 1;
  Dims low(dims.size(), 0), high(dims.size(), 0), interior(dims.size(), 0);
  low[dim] = size == 0 ? 0 : start;
  high[dim] = dims[dim] - low[dim] - extent;
  interior[dim] = step - 1;
  return Pad(x, Zero(x), low, high, interior);
}

/// As Place, where `start` is a parameter of the program.
Value PlaceAt(Value x, const Dims& dims, int64_t dim, Value start, int64_t step) {
  Value zeros = Constant(x.builder(), 0, Type(x.element(), dims));
  if (IsEmpty(x)) return zeros;
  Dims none(dims.size(), 0), interior = none;
  if (x.dims()[dim] > 1) interior[dim] = step - 1;
  std::vector<Value> starts(dims.size(), ScalarLike(start, 0));
  starts[dim] = start;
  return DynamicUpdateSlice(zeros, Pad(x, Zero(x), none, none, interior), starts);
}

/// An index into a dimension of `size` as a value; negative indices count from the end.
Value FromFront(const Number& index, Value like, int64_t size) {
  Value i = index.Like(stablehlo::Scalar(like, 0, ElementType::kS64));
  i = Select(i < 0, i + size, i);
  return stablehlo::Clamp(ScalarLike(i, 0), i, ScalarLike(i, size));
}

/// A bound of a Python slice as an offset in [0, size].
int64_t SliceBound(int64_t bound, int64_t size) {
  return std::clamp<int64_t>(bound < 0 ? bound + size : bound, 0, size);
}

/// select's index, counted from the front. It may be negative.
int64_t SelectIndex(int64_t index, const Dims& dims, int64_t dim) {
  const int64_t size = dims[dim];
  TORCH_CHECK_INDEX(index >= -size && index < size, "select(): index ", index,
                    " out of range for tensor of size ", c10::IntArrayRef(dims), " at dimension ",
                    dim);
  return index < 0 ? index + size : index;
}

/// The lower (kLe) or upper (kGe) triangle of the last two dimensions.
Value Triangle(Value x, const Number& number, Direction keep) {
  int64_t rows = x.dim(-2), columns = x.dim(-1);
  Type type(IndexElement(std::max(rows, columns)), {rows, columns});
  Value row = Iota(x.builder(), type, 0), column = Iota(x.builder(), type, 1);
  // A diagonal outside of the matrix may as well be the nearest one, which the type can hold.
  Value diagonal = number.Like(stablehlo::Scalar(x, 0, ElementType::kS64));
  diagonal = stablehlo::Clamp(ScalarLike(diagonal, -rows), diagonal, ScalarLike(diagonal, columns));
  Value kept = Compare(Subtract(column, row), To(diagonal, type.element, type.dims), keep);
  return Select(stablehlo::BroadcastTo(kept, x.dims()), x, ZerosLike(x));
}

/// The dimensions of the diagonal of an array; the diagonal itself comes last.
Dims DiagonalDims(const Dims& dims, int64_t offset, int64_t dim1, int64_t dim2) {
  const auto rank = static_cast<int64_t>(dims.size());
  dim1 = WrapDim(dim1, rank);
  dim2 = WrapDim(dim2, rank);
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1, ", ", dim2);
  Dims result;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != dim1 && i != dim2) result.push_back(dims[i]);
  }
  const int64_t rows = dims[dim1] + std::min<int64_t>(offset, 0);
  const int64_t columns = dims[dim2] - std::max<int64_t>(offset, 0);
  result.push_back(std::max<int64_t>(0, std::min(rows, columns)));
  return result;
}

/// `background` with the diagonal of the dimensions dim1 and dim2 replaced by `values`, whose last
/// dimension is the diagonal.
Value SetDiagonal(Value background, Value values, int64_t offset, int64_t dim1, int64_t dim2) {
  if (IsEmpty(values)) return background;
  const Dims& dims = background.dims();
  dim1 = WrapDim(dim1, background.rank());
  dim2 = WrapDim(dim2, background.rank());
  // Broadcast each value along its row, and let a mask select the place on the diagonal.
  Dims placed = values.dims(), mapping = DimsBetween(0, background.rank(), {dim1, dim2});
  placed.back() = dims[dim1];
  values = Place(values, placed, values.rank() - 1, std::max<int64_t>(-offset, 0), 1);
  mapping.push_back(dim1);
  Type type(IndexElement(std::max(dims[dim1], dims[dim2])), dims);
  Value row = Iota(background.builder(), type, dim1), column = Iota(row.builder(), type, dim2);
  Value hit = Compare(Subtract(column, row), FullLike(row, offset), Direction::kEq);
  return Select(hit, BroadcastInDim(values, dims, mapping), background);
}

}  // namespace

namespace aten {

Value cat(LoweringContext& cx, const std::vector<Value>& tensors, int64_t dim) {
  std::vector<Value> parts;
  for (Value x : tensors) {
    // PyTorch lets an empty vector be concatenated with any tensor.
    if (x.dims() != Dims{0}) parts.push_back(ToOutputElement(cx, x));
  }
  if (parts.empty()) return Constant(cx.builder(), 0, cx.output_type());
  return Concatenate(parts, WrapDim(dim, parts[0].rank()));
}

Value channel_shuffle(LoweringContext&, Value self, int64_t groups) {
  Dims order(self.rank() + 1);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[1], order[2]);
  return Reshape(Transpose(SplitDimension(self, 1, self.dim(1) / groups), order), self.dims());
}

Value constant_pad_nd(LoweringContext& cx, Value self, const std::vector<Number>& pad,
                      Value value) {
  Dims low(self.rank(), 0), high(self.rank(), 0);
  std::vector<Value> starts(self.rank(), stablehlo::Scalar(self, 0, ElementType::kS64));
  bool window = false;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = low.size() - 1 - i;
    const Number &before = pad[2 * i], &after = pad[2 * i + 1];
    if (before.constant() && after.constant()) {
      low[dim] = before.constant()->toLong();
      high[dim] = after.constant()->toLong();
    } else {
      // Pad both sides by the size of the result, which is then a window of the padded array. The
      // window stays within: a result that lies wholly in the padding is the same anywhere in it.
      const int64_t size = cx.output_dims()[dim];
      window = true;
      low[dim] = high[dim] = size;
      starts[dim] = size - before.Like(starts[dim]);
    }
  }
  Value padded = Pad(self, ToOutputElement(cx, value), low, high);
  return window ? DynamicSlice(padded, starts, cx.output_dims()) : padded;
}

Value flip(LoweringContext&, Value self, c10::IntArrayRef dims) {
  Dims reversed;
  for (int64_t dim : dims) {
    if (self.rank() > 0) reversed.push_back(WrapDim(dim, self.rank()));
  }
  return Reverse(self, reversed);
}

Value repeat(LoweringContext& cx, Value self, c10::IntArrayRef repeats) {
  // An empty tensor may be repeated a negative number of times, too.
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  // Each dimension becomes (repeat, size), which the reshape joins.
  Dims dims, mapping;
  int64_t added = static_cast<int64_t>(repeats.size()) - self.rank();
  for (int64_t i = 0; i < static_cast<int64_t>(repeats.size()); ++i) {
    dims.push_back(repeats[i]);
    if (i < added) continue;
    mapping.push_back(static_cast<int64_t>(dims.size()));
    dims.push_back(self.dims()[i - added]);
  }
  return Reshape(BroadcastInDim(self, dims, mapping), cx.output_dims());
}

Value roll(LoweringContext& cx, Value self, const std::vector<Number>& shifts,
           c10::IntArrayRef dims) {
  if (IsEmpty(self)) return self;
  Value x = dims.empty() ? Reshape(self, {self.type().num_elements()}) : self;
  for (size_t i = 0; i < shifts.size(); ++i) {
    int64_t dim = dims.empty() ? 0 : WrapDim(dims[i], x.rank());
    if (x.rank() == 0) continue;
    int64_t size = x.dims()[dim];
    Dims zeros(x.rank(), 0), starts = zeros, limits = x.dims();
    if (!shifts[i].constant()) {
      Value shift = shifts[i].Like(stablehlo::Scalar(x, 0, ElementType::kS64));
      Value cut = Remainder(shift, ScalarLike(shift, size));  // has the sign of the shift
      cut = Select(cut > 0, size - cut, -cut);
      std::vector<Value> from(x.rank(), ScalarLike(cut, 0));
      from[dim] = cut;
      x = DynamicSlice(stablehlo::Concatenate({x, x}, dim), from, x.dims());
      continue;
    }
    int64_t cut = (size - shifts[i].constant()->toLong() % size) % size;
    if (cut == 0) continue;
    starts[dim] = limits[dim] = cut;
    x = stablehlo::Concatenate({Slice(x, starts, x.dims()), Slice(x, zeros, limits)}, dim);
  }
  return Reshape(x, cx.output_dims());
}

Value tril(LoweringContext&, Value self, const Number& diagonal) {
  return Triangle(self, diagonal, Direction::kLe);
}

Value triu(LoweringContext&, Value self, const Number& diagonal) {
  return Triangle(self, diagonal, Direction::kGe);
}

Value unfold_backward(LoweringContext& cx, Value grad_in, c10::IntArrayRef input_sizes, int64_t dim,
                      int64_t size, int64_t step) {
  if (IsEmpty(grad_in)) return Constant(cx.builder(), 0, cx.output_type());
  if (input_sizes.empty()) return Reshape(grad_in, cx.output_dims());
  // Windows in blocks of `step` elements: block p of window n is added to block n + p of the input.
  dim = WrapDim(dim, static_cast<int64_t>(input_sizes.size()));
  auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
  };
  int64_t before = product(input_sizes.begin(), input_sizes.begin() + dim);
  int64_t after = product(input_sizes.begin() + dim + 1, input_sizes.end());
  const int64_t windows = grad_in.dim(dim);
  if (windows == 1) step = size;  // a single window fits with any step
  const int64_t blocks = (size + step - 1) / step;
  Value x = Convert(grad_in, ComputeType(grad_in.element()));
  x = Reshape(x, {before, windows, after, size});
  x = Pad(x, Zero(x), {0, 0, 0, 0}, {0, 0, 0, blocks * step - size});
  x = Transpose(Reshape(x, {before, windows, after, blocks, step}), {0, 1, 3, 4, 2});
  // The smaller of the two numbers becomes rows. Each row gets one element of padding more than the
  // sum is long, and is then read without it, which shifts each row by its own index.
  int64_t rows = windows, columns = blocks;
  if (rows > columns) {
    x = Transpose(x, {0, 2, 1, 3, 4});
    std::swap(rows, columns);
  }
  int64_t total = rows + columns - 1;
  x = Pad(x, Zero(x), {0, 0, 0, 0, 0}, {0, 0, total + 1 - columns, 0, 0});
  x = Reshape(x, {before, rows * (total + 1), step * after});
  x = Slice(x, {0, 0, 0}, {before, rows * total, step * after});
  x = Reduce(Reshape(x, {before, rows, total, step * after}), {1}, ReduceOp::kAdd);
  x = Pad(Reshape(x, {before, total * step, after}), Zero(x), {0, 0, 0},
          {0, input_sizes[dim] - total * step, 0});
  return ToOutputElement(cx, Reshape(x, cx.output_dims()));
}

Value slice_backward(LoweringContext&, Value grad_output, c10::IntArrayRef input_sizes, int64_t dim,
                     const Number& start, const Number&, int64_t step) {
  dim = WrapDim(dim, static_cast<int64_t>(input_sizes.size()));
  const int64_t size = input_sizes[dim];
  if (!start.constant()) {
    return PlaceAt(grad_output, input_sizes.vec(), dim, FromFront(start, grad_output, size), step);
  }
  const int64_t bound = SliceBound(start.constant()->toLong(), size);
  return Place(grad_output, input_sizes.vec(), dim, bound, step);
}

Value select_backward(LoweringContext&, Value grad_output, c10::IntArrayRef input_sizes,
                      int64_t dim, const Number& index) {
  Dims dims = input_sizes.vec(), one = dims;
  dim = WrapDim(dim, static_cast<int64_t>(dims.size()));
  one[dim] = 1;
  grad_output = Reshape(grad_output, one);
  if (!index.constant()) {
    return PlaceAt(grad_output, dims, dim, FromFront(index, grad_output, dims[dim]), 1);
  }
  return Place(grad_output, dims, dim, SelectIndex(index.constant()->toLong(), dims, dim), 1);
}

Value diagonal_backward(LoweringContext& cx, Value grad_output, c10::IntArrayRef, int64_t offset,
                        int64_t dim1, int64_t dim2) {
  DiagonalDims(cx.output_dims(), offset, dim1, dim2);  // checks them
  return SetDiagonal(Constant(cx.builder(), 0, cx.output_type()), grad_output, offset, dim1, dim2);
}

}  // namespace aten
}  // namespace torch_xla::lowering
