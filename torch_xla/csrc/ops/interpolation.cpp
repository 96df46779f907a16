#include "ops/interpolation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "lowering/elementwise.h"
#include "ops/indexing.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

/// How often each input is copied, if `rows` repeats each of `inputs` elements equally; else 0.
int64_t Repetitions(const MapRows& rows, int64_t inputs) {
  const auto outputs = static_cast<int64_t>(rows.size());
  if (inputs == 0 || outputs % inputs != 0) return 0;
  const int64_t count = outputs / inputs;
  for (int64_t o = 0; o < outputs; ++o) {
    if (rows[o].size() != 1 || rows[o][0].index != o / count || rows[o][0].weight != 1) return 0;
  }
  return count;
}

/// The weights as an array of rank 2, one row per output.
Value Weights(Value like, const std::vector<double>& weights, const Dims& dims) {
  const bool wide = like.element() == ElementType::kF64 || like.element() == ElementType::kC128;
  auto constant = [&](const auto& numbers, ElementType element) {
    return Convert(
        ConstantFromBytes(like.builder(), {element, dims}, std::as_bytes(std::span(numbers))),
        like.element());
  };
  if (wide) return constant(weights, ElementType::kF64);
  return constant(std::vector<float>(weights.begin(), weights.end()), ElementType::kF32);
}

}  // namespace

void CheckRows(int64_t outputs) {
  constexpr int64_t kMost = int64_t{1} << 24;
  TORCH_CHECK(outputs <= kMost, "a dimension of size ", outputs,
              " is too large: a map of it is part of "
              "the program, which takes at most ",
              kMost, " rows");
}

int64_t CheckedStep(int64_t step, int64_t count, int64_t size, const char* name) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // what PyTorch's kernels take
  TORCH_CHECK(step > 0, name, " should be greater than zero, but got ", step);
  const int64_t most = std::min(size + 1, kMost);
  TORCH_CHECK(step <= most || count <= 1, name, " ", step, " is too large");
  return std::min(step, most);
}

MapRows Transposed(const MapRows& rows, int64_t inputs) {
  MapRows result(inputs);
  for (size_t o = 0; o < rows.size(); ++o) {
    for (const MapTerm& term : rows[o]) {
      result[term.index].push_back({static_cast<int64_t>(o), term.weight});
    }
  }
  return result;
}

Dims WithSize(Dims dims, int64_t dim, int64_t size) {
  dims[dim] = size;
  return dims;
}

Value SplitDimension(Value x, int64_t dim, int64_t size) {
  Dims split = WithSize(x.dims(), dim, x.dim(dim) / size);
  split.insert(split.begin() + dim + 1, size);
  return Reshape(x, split);
}

Value RepeatEach(Value x, int64_t dim, int64_t count) {
  if (count == 1) return x;
  Dims split = x.dims(), axes;
  split.insert(split.begin() + dim + 1, count);
  for (int64_t i = 0; i <= x.rank(); ++i) {
    if (i != dim + 1) axes.push_back(i);
  }
  return Reshape(BroadcastInDim(x, split, axes), WithSize(x.dims(), dim, x.dim(dim) * count));
}

Value MapDimension(Value x, int64_t dim, const MapRows& rows) {
  const auto outputs = static_cast<int64_t>(rows.size());
  const Dims dims = WithSize(x.dims(), dim, outputs);
  size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  if (longest == 0 || x.type().num_elements() == 0) {
    return Constant(x.builder(), 0, {x.element(), dims});
  }
  if (int64_t count = Repetitions(rows, x.dim(dim))) return RepeatEach(x, dim, count);
  if (int64_t count = Repetitions(Transposed(rows, x.dim(dim)), outputs)) {
    return Reduce(SplitDimension(x, dim, count), {dim + 1}, ReduceOp::kAdd);
  }
  Dims indices;
  std::vector<double> weights;
  std::vector<std::byte> present;
  bool weighted = false, padded = false;
  for (const auto& row : rows) {
    for (size_t i = 0; i < longest; ++i) {
      const bool is = i < row.size();
      indices.push_back(is ? row[i].index : 0);
      weights.push_back(is ? row[i].weight : 0);
      present.push_back(std::byte{is});
      padded |= !is;
      weighted |= is && row[i].weight != 1;
    }
  }
  const Dims table = {outputs, static_cast<int64_t>(longest)};
  Value terms = Take(x, dim, Reshape(ConstantS64(x.builder(), indices), table));
  auto along = [&](Value v) { return BroadcastInDim(v, terms.dims(), {dim, dim + 1}); };
  if (weighted) terms = terms * along(Weights(x, weights, table));
  if (padded) {
    Value mask = ConstantFromBytes(x.builder(), {ElementType::kPred, table}, present);
    terms = Select(along(mask), terms, 0);
  }
  return longest == 1 ? Reshape(terms, dims) : Reduce(terms, {dim + 1}, ReduceOp::kAdd);
}

}  // namespace torch_xla::lowering
