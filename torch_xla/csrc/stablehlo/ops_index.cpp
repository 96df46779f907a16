#include <algorithm>

#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

/// Appends "name = [1, 2], "; nothing for an empty list.
void AppendField(std::string& out, std::string_view name, const Dims& dims) {
  if (!dims.empty()) out += Cat(name, " = ", List(dims), ", ");
}

bool Contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

/// The dimensions of `indices` without the index vector dimension. Checks that an index vector has
/// `coordinates` elements.
Dims BatchSizes(std::string_view op, Value indices, int64_t index_vector_dim, size_t coordinates,
                std::span<const Value> operands) {
  if (!runtime::IsInteger(indices.element())) Fail(op, "integer indices", operands);
  if (index_vector_dim < 0 || index_vector_dim > indices.rank()) {
    Fail(op, Cat("index_vector_dim in [0, ", indices.rank(), "], not ", index_vector_dim),
         operands);
  }
  Dims sizes = indices.dims();
  int64_t length = 1;
  if (index_vector_dim < indices.rank()) {
    length = sizes[index_vector_dim];
    sizes.erase(sizes.begin() + index_vector_dim);
  }
  if (length != static_cast<int64_t>(coordinates)) {
    Fail(op, Cat("index vectors of ", coordinates, " coordinates, not ", length), operands);
  }
  return sizes;
}

void CheckSorted(std::string_view op, std::string_view what, const Dims& dims,
                 std::span<const Value> operands) {
  if (!std::is_sorted(dims.begin(), dims.end())) {
    Fail(op, Cat(what, " in ascending order, not ", List(dims)), operands);
  }
}

/// Checks that gather and scatter share: the operand dimensions without a window dimension are
/// either `dropped` (collapsed or inserted) or batching dimensions.
void CheckBatching(std::string_view op, Value operand, Value indices, int64_t index_vector_dim,
                   const Dims& dropped, const Dims& operand_batching, const Dims& index_batching,
                   const Dims& index_map, std::span<const Value> operands) {
  CheckSorted(op, "collapsed or inserted dimensions", dropped, operands);
  CheckSorted(op, "batching dimensions", operand_batching, operands);
  Dims both = dropped;
  both.insert(both.end(), operand_batching.begin(), operand_batching.end());
  CheckDistinct(op, "collapsed or inserted and batching dimensions", both, operand.rank(),
                operands);
  Dims mapped = index_map;
  mapped.insert(mapped.end(), operand_batching.begin(), operand_batching.end());
  CheckDistinct(op, "indexed and batching dimensions", mapped, operand.rank(), operands);
  CheckDistinct(op, "index batching dimensions", index_batching, indices.rank(), operands);
  bool valid = operand_batching.size() == index_batching.size() &&
               !Contains(index_batching, index_vector_dim);
  for (size_t i = 0; valid && i < operand_batching.size(); ++i) {
    valid = operand.dims()[operand_batching[i]] == indices.dims()[index_batching[i]];
  }
  if (!valid) {
    Fail(op,
         Cat("equal sizes of the batching dimensions ", List(operand_batching),
             " of the operand and ", List(index_batching), " of the indices"),
         operands);
  }
}

}  // namespace

Value Gather(Value operand, Value start_indices, const GatherDimensionNumbers& numbers,
             const Dims& slice_sizes, bool indices_are_sorted) {
  constexpr std::string_view kOp = "stablehlo.gather";
  Builder& builder = CheckTensors(kOp, {operand, start_indices});
  const Value operands[] = {operand, start_indices};
  Dims batch = BatchSizes(kOp, start_indices, numbers.index_vector_dim,
                          numbers.start_index_map.size(), operands);
  CheckBatching(kOp, operand, start_indices, numbers.index_vector_dim, numbers.collapsed_slice_dims,
                numbers.operand_batching_dims, numbers.start_indices_batching_dims,
                numbers.start_index_map, operands);
  bool valid = static_cast<int64_t>(slice_sizes.size()) == operand.rank();
  Dims window;
  for (int64_t i = 0; valid && i < operand.rank(); ++i) {
    bool dropped =
        Contains(numbers.collapsed_slice_dims, i) || Contains(numbers.operand_batching_dims, i);
    int64_t limit = dropped ? std::min<int64_t>(operand.dims()[i], 1) : operand.dims()[i];
    valid = 0 <= slice_sizes[i] && slice_sizes[i] <= limit;
    if (!dropped) window.push_back(slice_sizes[i]);
  }
  if (!valid) {
    Fail(kOp,
         Cat("slice sizes within the operand, at most 1 where collapsed or batching, not ",
             List(slice_sizes)),
         operands);
  }
  if (window.size() != numbers.offset_dims.size()) {
    Fail(kOp, Cat(window.size(), " offset dimensions, not ", List(numbers.offset_dims)), operands);
  }
  auto rank = static_cast<int64_t>(batch.size() + window.size());
  CheckSorted(kOp, "offset dimensions", numbers.offset_dims, operands);
  CheckDistinct(kOp, "offset dimensions", numbers.offset_dims, rank, operands);
  Dims dims(rank);
  size_t next_window = 0, next_batch = 0;
  for (int64_t i = 0; i < rank; ++i) {
    dims[i] = Contains(numbers.offset_dims, i) ? window[next_window++] : batch[next_batch++];
  }
  std::string attributes = "dimension_numbers = #stablehlo.gather<";
  AppendField(attributes, "offset_dims", numbers.offset_dims);
  AppendField(attributes, "collapsed_slice_dims", numbers.collapsed_slice_dims);
  AppendField(attributes, "operand_batching_dims", numbers.operand_batching_dims);
  AppendField(attributes, "start_indices_batching_dims", numbers.start_indices_batching_dims);
  AppendField(attributes, "start_index_map", numbers.start_index_map);
  attributes += Cat("index_vector_dim = ", numbers.index_vector_dim,
                    ">, slice_sizes = ", I64Array(slice_sizes),
                    ", indices_are_sorted = ", indices_are_sorted);
  return builder.Rearranged(
      builder.Op(kOp, {operand, start_indices}, Type(operand.element(), dims), attributes));
}

std::vector<Value> Scatter(const std::vector<Value>& inputs, Value scatter_indices,
                           const std::vector<Value>& updates,
                           const ScatterDimensionNumbers& numbers, const Body& update,
                           bool indices_are_sorted, bool unique_indices) {
  constexpr std::string_view kOp = "stablehlo.scatter";
  std::vector<Value> operands = inputs;
  operands.push_back(scatter_indices);
  operands.insert(operands.end(), updates.begin(), updates.end());
  Builder& builder = CheckTensors(kOp, operands);
  if (inputs.empty() || inputs.size() != updates.size()) {
    Fail(kOp, "as many updates as inputs, at least one", operands);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dims() != inputs[0].dims() || updates[i].dims() != updates[0].dims() ||
        inputs[i].element() != updates[i].element()) {
      Fail(kOp,
           "inputs of the same shape, updates of the same shape and pairs of the same element type",
           operands);
    }
  }
  Dims batch = BatchSizes(kOp, scatter_indices, numbers.index_vector_dim,
                          numbers.scatter_dims_to_operand_dims.size(), operands);
  Value input = inputs[0];
  CheckBatching(kOp, input, scatter_indices, numbers.index_vector_dim, numbers.inserted_window_dims,
                numbers.input_batching_dims, numbers.scatter_indices_batching_dims,
                numbers.scatter_dims_to_operand_dims, operands);
  const Dims& update_dims = updates[0].dims();
  size_t window_rank = input.dims().size() - numbers.inserted_window_dims.size() -
                       numbers.input_batching_dims.size();
  if (window_rank != numbers.update_window_dims.size() ||
      update_dims.size() != window_rank + batch.size()) {
    Fail(kOp,
         Cat("updates of ", window_rank, " window and ", batch.size(),
             " scatter dimensions; the window dimensions are ", List(numbers.update_window_dims)),
         operands);
  }
  CheckSorted(kOp, "update window dimensions", numbers.update_window_dims, operands);
  CheckDistinct(kOp, "update window dimensions", numbers.update_window_dims, updates[0].rank(),
                operands);
  int64_t input_dim = 0;
  size_t next_batch = 0;
  bool valid = true;
  for (int64_t i = 0; valid && i < updates[0].rank(); ++i) {
    if (!Contains(numbers.update_window_dims, i)) {
      valid = update_dims[i] == batch[next_batch++];
      continue;
    }
    while (Contains(numbers.inserted_window_dims, input_dim) ||
           Contains(numbers.input_batching_dims, input_dim)) {
      ++input_dim;
    }
    valid = update_dims[i] <= input.dims()[input_dim++];
  }
  if (!valid) {
    Fail(kOp,
         Cat("updates with scatter dimensions ", List(batch), " and window dimensions ",
             List(numbers.update_window_dims), " that fit in the input"),
         operands);
  }
  std::vector<Type> elements, results;
  for (Value v : inputs) {
    elements.push_back(ScalarType(v.element()));
    results.push_back(v.type());
  }
  std::vector<Type> arguments = elements;
  arguments.insert(arguments.end(), elements.begin(), elements.end());
  Region region = builder.MakeRegion(arguments, update);
  if (!SameTypes(region.results, elements)) {
    Fail(kOp, Cat("a body that returns ", TypeNames(elements), ", not ", TypeNames(region.results)),
         operands);
  }
  std::string attributes = "scatter_dimension_numbers = #stablehlo.scatter<";
  AppendField(attributes, "update_window_dims", numbers.update_window_dims);
  AppendField(attributes, "inserted_window_dims", numbers.inserted_window_dims);
  AppendField(attributes, "input_batching_dims", numbers.input_batching_dims);
  AppendField(attributes, "scatter_indices_batching_dims", numbers.scatter_indices_batching_dims);
  AppendField(attributes, "scatter_dims_to_operand_dims", numbers.scatter_dims_to_operand_dims);
  attributes +=
      Cat("index_vector_dim = ", numbers.index_vector_dim,
          ">, indices_are_sorted = ", indices_are_sorted, ", unique_indices = ", unique_indices);
  return builder.Op(kOp, operands, results, attributes, {&region, 1});
}

Value Scatter(Value input, Value scatter_indices, Value updates,
              const ScatterDimensionNumbers& numbers, std::optional<ReduceOp> op,
              bool indices_are_sorted, bool unique_indices) {
  Body body = [op](std::span<const Value> v) -> std::vector<Value> {
    return {op ? Apply(*op, v[0], v[1]) : v[1]};
  };
  return Scatter(std::vector<Value>{input}, scatter_indices, std::vector<Value>{updates}, numbers,
                 body, indices_are_sorted, unique_indices)[0];
}

}  // namespace torch_xla::stablehlo
