#include <algorithm>

#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

std::string PrecisionConfig(Precision precision) {
  constexpr std::string_view kNames[] = {"DEFAULT", "HIGH", "HIGHEST"};
  std::string_view name = kNames[static_cast<int>(precision)];
  return Cat("precision_config = [#stablehlo<precision ", name, ">, #stablehlo<precision ", name,
             ">]");
}

Dims Joined(const Dims& a, const Dims& b) {
  Dims all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

/// The label of each dimension: "[b, f, 0, 1]".
std::string DimensionLabels(std::string_view op, int64_t rank, int64_t first, char first_label,
                            int64_t second, char second_label, const Dims& spatial,
                            std::span<const Value> operands) {
  Dims all = Joined({first, second}, spatial);
  CheckDistinct(op, "dimension numbers", all, rank, operands);
  if (static_cast<int64_t>(all.size()) != rank) {
    Fail(op, Cat("dimension numbers for ", rank, " dimensions, not ", List(all)), operands);
  }
  std::vector<std::string> labels(rank);
  labels[first] = first_label;
  labels[second] = second_label;
  for (size_t i = 0; i < spatial.size(); ++i) labels[spatial[i]] = std::to_string(i);
  std::string out = "[";
  for (int64_t i = 0; i < rank; ++i) out += Cat(i > 0 ? ", " : "", labels[i]);
  return out + "]";
}

}  // namespace

Value DotGeneral(Value lhs, Value rhs, const DotDimensionNumbers& numbers, Precision precision,
                 ElementType result) {
  constexpr std::string_view kOp = "stablehlo.dot_general";
  Builder& builder = CheckTensors(kOp, {lhs, rhs});
  const Value operands[] = {lhs, rhs};
  if (lhs.element() != rhs.element()) Fail(kOp, "operands of the same element type", operands);
  Dims lhs_used = Joined(numbers.lhs_batch, numbers.lhs_contracting);
  Dims rhs_used = Joined(numbers.rhs_batch, numbers.rhs_contracting);
  CheckDistinct(kOp, "lhs dimension numbers", lhs_used, lhs.rank(), operands);
  CheckDistinct(kOp, "rhs dimension numbers", rhs_used, rhs.rank(), operands);
  bool valid =
      numbers.lhs_batch.size() == numbers.rhs_batch.size() && lhs_used.size() == rhs_used.size();
  for (size_t i = 0; valid && i < lhs_used.size(); ++i) {
    valid = lhs.dims()[lhs_used[i]] == rhs.dims()[rhs_used[i]];
  }
  if (!valid) {
    Fail(kOp,
         Cat("equal sizes of batch dimensions ", List(numbers.lhs_batch), " and ",
             List(numbers.rhs_batch), " and of contracting dimensions ",
             List(numbers.lhs_contracting), " and ", List(numbers.rhs_contracting)),
         operands);
  }
  Dims dims;
  for (int64_t d : numbers.lhs_batch) dims.push_back(lhs.dims()[d]);
  auto append_free = [&dims](Value v, const Dims& used) {
    for (int64_t d = 0; d < v.rank(); ++d) {
      if (std::find(used.begin(), used.end(), d) == used.end()) dims.push_back(v.dims()[d]);
    }
  };
  append_free(lhs, lhs_used);
  append_free(rhs, rhs_used);
  ElementType element = result == ElementType::kInvalid ? lhs.element() : result;
  return builder.Op(
      kOp, {lhs, rhs}, Type(element, dims),
      Cat("dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = ",
          List(numbers.lhs_batch), ", rhs_batching_dimensions = ", List(numbers.rhs_batch),
          ", lhs_contracting_dimensions = ", List(numbers.lhs_contracting),
          ", rhs_contracting_dimensions = ", List(numbers.rhs_contracting), ">, ",
          PrecisionConfig(precision)));
}

ConvolutionDimensionNumbers ConvolutionDimensionNumbers::Nchw(int64_t spatial_rank) {
  ConvolutionDimensionNumbers numbers;
  for (int64_t i = 0; i < spatial_rank; ++i) numbers.input_spatial.push_back(i + 2);
  numbers.kernel_spatial = numbers.output_spatial = numbers.input_spatial;
  return numbers;
}

Value Convolution(Value input, Value kernel, const ConvolutionDimensionNumbers& numbers,
                  const ConvolutionOptions& options) {
  constexpr std::string_view kOp = "stablehlo.convolution";
  Builder& builder = CheckTensors(kOp, {input, kernel});
  const Value operands[] = {input, kernel};
  if (input.element() != kernel.element()) Fail(kOp, "operands of the same element type", operands);
  size_t spatial = numbers.input_spatial.size();
  auto rank = static_cast<int64_t>(spatial + 2);
  if (input.rank() != rank || kernel.rank() != rank || numbers.kernel_spatial.size() != spatial ||
      numbers.output_spatial.size() != spatial) {
    Fail(kOp, Cat("operands of rank ", rank, " for ", spatial, " spatial dimensions"), operands);
  }
  Dims strides = options.strides.empty() ? Dims(spatial, 1) : options.strides;
  Dims lhs_dilation = options.lhs_dilation.empty() ? Dims(spatial, 1) : options.lhs_dilation;
  Dims rhs_dilation = options.rhs_dilation.empty() ? Dims(spatial, 1) : options.rhs_dilation;
  Padding padding = options.padding.empty() ? Padding(spatial, {0, 0}) : options.padding;
  std::vector<bool> reversal =
      options.window_reversal.empty() ? std::vector<bool>(spatial, false) : options.window_reversal;
  bool valid = strides.size() == spatial && lhs_dilation.size() == spatial &&
               rhs_dilation.size() == spatial && padding.size() == spatial &&
               reversal.size() == spatial;
  for (size_t i = 0; valid && i < spatial; ++i) {
    valid = strides[i] >= 1 && lhs_dilation[i] >= 1 && rhs_dilation[i] >= 1;
  }
  if (!valid) {
    Fail(kOp,
         Cat("strides and dilations >= 1, padding and reversal for ", spatial,
             " spatial dimensions"),
         operands);
  }
  std::string labels = DimensionLabels(kOp, rank, numbers.input_batch, 'b', numbers.input_feature,
                                       'f', numbers.input_spatial, operands);
  labels += 'x';
  labels += DimensionLabels(kOp, rank, numbers.kernel_output_feature, 'o',
                            numbers.kernel_input_feature, 'i', numbers.kernel_spatial, operands);
  labels += "->";
  labels += DimensionLabels(kOp, rank, numbers.output_batch, 'b', numbers.output_feature, 'f',
                            numbers.output_spatial, operands);
  int64_t groups = options.feature_group_count, batch_groups = options.batch_group_count;
  int64_t batch = input.dims()[numbers.input_batch];
  int64_t output_features = kernel.dims()[numbers.kernel_output_feature];
  if (groups < 1 || batch_groups < 1 || (groups > 1 && batch_groups > 1) ||
      input.dims()[numbers.input_feature] != kernel.dims()[numbers.kernel_input_feature] * groups ||
      output_features % groups != 0 || output_features % batch_groups != 0 ||
      batch % batch_groups != 0) {
    Fail(kOp,
         Cat("input features = kernel input features * ", groups,
             " feature groups, output features and batch divisible by their groups (", batch_groups,
             " batch groups)"),
         operands);
  }
  Dims dims(rank);
  dims[numbers.output_batch] = batch / batch_groups;
  dims[numbers.output_feature] = output_features;
  std::vector<std::vector<int64_t>> padding_rows;
  for (size_t i = 0; i < spatial; ++i) {
    auto dilated = [](int64_t size, int64_t by) { return size == 0 ? 0 : (size - 1) * by + 1; };
    int64_t size = dilated(input.dims()[numbers.input_spatial[i]], lhs_dilation[i]) +
                   padding[i].first + padding[i].second;
    int64_t window = dilated(kernel.dims()[numbers.kernel_spatial[i]], rhs_dilation[i]);
    if (size < 0) Fail(kOp, "a padded input of size >= 0", operands);
    dims[numbers.output_spatial[i]] = size < window ? 0 : (size - window) / strides[i] + 1;
    padding_rows.push_back({padding[i].first, padding[i].second});
  }
  ElementType element = options.result == ElementType::kInvalid ? input.element() : options.result;
  return builder.Op(
      kOp, {input, kernel}, Type(element, dims),
      Cat("dimension_numbers = #stablehlo.conv<", labels, ">, window_strides = ", I64Array(strides),
          ", padding = ", I64Matrix(padding_rows, 2, 0),
          ", lhs_dilation = ", I64Array(lhs_dilation), ", rhs_dilation = ", I64Array(rhs_dilation),
          ", window_reversal = ", BoolArray(reversal), ", feature_group_count = ", groups,
          " : i64, batch_group_count = ", batch_groups, " : i64, ",
          PrecisionConfig(options.precision)));
}

}  // namespace torch_xla::stablehlo
