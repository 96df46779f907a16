// Meta kernels of common operators whose Meta kernel PyTorch has only in Python. There a call is
// slow, and the first call imports torch._dynamo and sympy. (The kernels of structured operators
// are generated: codegen/templates.py.) They check little: rules/cpu_trial.h refuses what the CPU
// refuses.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/fmod_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/remainder_meta_dispatch.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <c10/core/WrapDimMinimal.h>

#include "rules/meta_kernels.h"

namespace torch_xla {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

// Results with the dtype and sizes of a tensor.

template <typename... Rest>
at::Tensor Like(const at::Tensor& self, Rest...) {
  return at::empty(self.sizes(), self.options());
}

at::Tensor LikeOf(const at::Tensor& self, c10::ScalarType dtype) {
  return at::empty(self.sizes(), self.options().dtype(dtype));
}

at::Tensor Bools(const at::Tensor& self) { return LikeOf(self, at::kBool); }

at::Tensor RealLike(const at::Tensor& self) {
  return LikeOf(self, c10::toRealValueType(self.scalar_type()));
}

TwoTensors log_sigmoid_forward(const at::Tensor& self) { return {Like(self), Like(self)}; }

at::Tensor angle(const at::Tensor& self) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return integral ? LikeOf(self, c10::get_default_dtype_as_scalartype()) : RealLike(self);
}

at::Tensor repeat(const at::Tensor& self, c10::IntArrayRef repeats) {
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= self.dim(),
              "expected at least as many repeats as dimensions, got ", repeats, " for sizes ",
              self.sizes());
  at::DimVector sizes(repeats);
  for (int64_t d = 1; d <= self.dim(); ++d) sizes.end()[-d] *= self.size(-d);
  return at::empty(sizes, self.options());
}

at::Tensor reflection_pad2d(const at::Tensor& self, c10::IntArrayRef padding) {
  TORCH_CHECK(padding.size() == 4 && (self.dim() == 3 || self.dim() == 4),
              "expected 4 paddings of a 3-D or 4-D tensor, got ", padding, " of ", self.sizes());
  at::DimVector sizes(self.sizes());
  sizes.end()[-1] += padding[0] + padding[1];
  sizes.end()[-2] += padding[2] + padding[3];
  return at::empty(sizes, self.options());
}

at::Tensor fft_r2c(const at::Tensor& self, c10::IntArrayRef dim, int64_t, bool onesided) {
  at::DimVector sizes(self.sizes());
  if (onesided) sizes[dim.back()] = sizes[dim.back()] / 2 + 1;
  return at::empty(sizes, self.options().dtype(c10::toComplexType(self.scalar_type())));
}

at::Tensor fft_c2r(const at::Tensor& self, c10::IntArrayRef dim, int64_t, int64_t last_dim_size) {
  at::DimVector sizes(self.sizes());
  sizes[dim.back()] = last_dim_size;
  return at::empty(sizes, self.options().dtype(c10::toRealValueType(self.scalar_type())));
}

// Results of two tensors, or of a tensor and a number, whose shapes broadcast.

at::Tensor logical(const at::Tensor& self, const at::Tensor& other) {
  return at::meta::eq(self, other);
}

at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  return at::meta::mul(self, other);
}

at::Tensor fmod_Scalar(const at::Tensor& self, const at::Scalar& other) {
  return at::meta::fmod(self, at::native::wrapped_scalar_tensor(other));
}

at::Tensor remainder_Scalar(const at::Tensor& self, const at::Scalar& other) {
  return at::meta::remainder(self, at::native::wrapped_scalar_tensor(other));
}

at::Tensor remainder_Scalar_Tensor(const at::Scalar& self, const at::Tensor& other) {
  return at::meta::remainder(at::native::wrapped_scalar_tensor(self), other);
}

at::Tensor rsub_Tensor(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return at::meta::sub(other, self, alpha);
}

at::Tensor rsub_Scalar(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha) {
  return at::meta::sub(at::native::wrapped_scalar_tensor(other), self, alpha);
}

at::Tensor masked_fill_Tensor(const at::Tensor& self, const at::Tensor& mask, const at::Tensor&) {
  return at::empty(at::infer_size(self.sizes(), mask.sizes()), self.options());
}

at::Tensor masked_fill_Scalar(const at::Tensor& self, const at::Tensor& mask, const at::Scalar&) {
  return masked_fill_Tensor(self, mask, {});
}

at::Tensor where_self(const at::Tensor& condition, const at::Tensor& self,
                      const at::Tensor& other) {
  auto sizes = at::infer_size_dimvector(condition.sizes(),
                                        at::infer_size_dimvector(self.sizes(), other.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(self, other)));
}

at::Tensor complex(const at::Tensor& real, const at::Tensor& imaginary) {
  return at::empty(at::infer_size(real.sizes(), imaginary.sizes()),
                   real.options().dtype(c10::toComplexType(real.scalar_type())));
}

at::Tensor masked_scatter(const at::Tensor& self, const at::Tensor& mask, const at::Tensor&) {
  return masked_fill_Tensor(self, mask, {});
}

at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1 && self.numel() == other.numel(),
              "1D tensors of the same size expected, got ", self.sizes(), " and ", other.sizes());
  return at::empty({}, self.options());
}

at::Tensor mv(const at::Tensor& self, const at::Tensor& vector) {
  TORCH_CHECK(self.dim() == 2 && vector.dim() == 1 && self.size(1) == vector.size(0),
              "size mismatch, got ", self.sizes(), " and ", vector.sizes());
  return at::empty({self.size(0)}, self.options());
}

/// The gradient of an operation, from that of its result and its operand.
template <typename... Rest>
at::Tensor Backward(const at::Tensor& grad, const at::Tensor& self, Rest...) {
  return at::empty(at::infer_size(grad.sizes(), self.sizes()), self.options());
}

at::Tensor glu_backward(const at::Tensor&, const at::Tensor& self, int64_t) { return Like(self); }

at::Tensor select_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes, int64_t dim,
                           int64_t index) {
  const auto rank = static_cast<int64_t>(input_sizes.size());
  TORCH_CHECK(rank > 0, "select_backward of a tensor without dimensions");
  const int64_t size = input_sizes[c10::maybe_wrap_dim(dim, rank)];
  TORCH_CHECK_INDEX(index >= -size && index < size, "the index ", index,
                    " is out of bounds for a dimension of ", size);
  return at::empty(input_sizes, grad.options());
}

at::Tensor slice_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes, int64_t dim,
                          int64_t, int64_t, int64_t step) {
  c10::maybe_wrap_dim(dim, static_cast<int64_t>(input_sizes.size()), /*wrap_scalar=*/false);
  TORCH_CHECK(step > 0, "slice step must be positive");
  return at::empty(input_sizes, grad.options());
}

TwoTensors prelu_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&) {
  return {Backward(grad, self), Backward(grad, self)};
}

// Reductions.

at::Tensor Reduced(const at::Tensor& self, int64_t reduction) {
  return reduction == at::Reduction::None ? Like(self) : at::empty({}, self.options());
}

at::Tensor binary_cross_entropy(const at::Tensor& self, const at::Tensor&,
                                const std::optional<at::Tensor>&, int64_t reduction) {
  return Reduced(self, reduction);
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return at::meta::mean(self, std::nullopt, false, dtype);
}

at::Tensor logsumexp(const at::Tensor& self, c10::IntArrayRef dim, bool keepdim) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return at::meta::sum(self, dim, keepdim,
                       integral ? c10::get_default_dtype_as_scalartype() : self.scalar_type());
}

at::Tensor Variance(const at::Tensor& self, at::OptionalIntArrayRef dim,
                    const std::optional<at::Scalar>&, bool keepdim) {
  return RealLike(at::meta::mean(self, dim, keepdim, std::nullopt));
}

TwoTensors VarianceAndMean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                           const std::optional<at::Scalar>&, bool keepdim) {
  at::Tensor mean = at::meta::mean(self, dim, keepdim, std::nullopt);
  return {RealLike(mean), mean};
}

// Normalization.

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::TensorOptions StatisticsOf(const at::Tensor& input) {
  return input.options().dtype(at::toOpMathType(input.scalar_type()));
}

ThreeTensors native_layer_norm(const at::Tensor& input, c10::IntArrayRef normalized_shape,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                               double) {
  const auto normalized = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(normalized > 0 && input.dim() >= normalized &&
                  input.sizes().slice(input.dim() - normalized) == normalized_shape,
              "normalized_shape=", normalized_shape,
              " does not match the end of the input's shape ", input.sizes());
  at::DimVector sizes(input.sizes());
  std::fill(sizes.end() - normalized, sizes.end(), 1);
  return {Like(input), at::empty(sizes, StatisticsOf(input)),
          at::empty(sizes, StatisticsOf(input))};
}

ThreeTensors native_group_norm(const at::Tensor& input, const std::optional<at::Tensor>&,
                               const std::optional<at::Tensor>&, int64_t batch, int64_t, int64_t,
                               int64_t groups, double) {
  return {Like(input), at::empty({batch, groups}, input.options()),
          at::empty({batch, groups}, input.options())};
}

ThreeTensors native_batch_norm(const at::Tensor& input, const std::optional<at::Tensor>&,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                               const std::optional<at::Tensor>&, bool, double, double) {
  const int64_t channels = input.size(1);
  return {Like(input), at::empty({channels}, StatisticsOf(input)),
          at::empty({channels}, StatisticsOf(input))};
}

ThreeTensors native_layer_norm_backward(const at::Tensor&, const at::Tensor& input,
                                        c10::IntArrayRef normalized_shape, const at::Tensor&,
                                        const at::Tensor&, const std::optional<at::Tensor>& weight,
                                        const std::optional<at::Tensor>& bias,
                                        std::array<bool, 3> output_mask) {
  const auto normalized = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(input.dim() >= normalized, "normalized_shape=", normalized_shape,
              " has more dimensions than the input's shape ", input.sizes());
  const auto inner = input.sizes().slice(input.dim() - normalized);
  const auto of = [&](const std::optional<at::Tensor>& given, bool is_asked) {
    return is_asked && given && given->defined() ? at::empty(inner, given->options())
                                                 : at::Tensor();
  };
  return {output_mask[0] ? Like(input) : at::Tensor(), of(weight, output_mask[1]),
          of(bias, output_mask[2])};
}

ThreeTensors ChannelGradients(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                              int64_t channels, std::array<bool, 3> output_mask) {
  const at::Tensor each =
      at::empty({channels}, (weight && weight->defined() ? *weight : input).options());
  return {output_mask[0] ? Like(input) : at::Tensor(), output_mask[1] ? each : at::Tensor(),
          output_mask[2] ? Like(each) : at::Tensor()};
}

ThreeTensors native_group_norm_backward(const at::Tensor&, const at::Tensor& input,
                                        const at::Tensor&, const at::Tensor&,
                                        const std::optional<at::Tensor>& weight, int64_t,
                                        int64_t channels, int64_t, int64_t,
                                        std::array<bool, 3> output_mask) {
  return ChannelGradients(input, weight, channels, output_mask);
}

ThreeTensors native_batch_norm_backward(const at::Tensor&, const at::Tensor& input,
                                        const std::optional<at::Tensor>& weight,
                                        const std::optional<at::Tensor>&,
                                        const std::optional<at::Tensor>&,
                                        const std::optional<at::Tensor>&,
                                        const std::optional<at::Tensor>&, bool, double,
                                        std::array<bool, 3> output_mask) {
  // The input's gradient is computed in each case.
  output_mask[0] = true;
  return ChannelGradients(input, weight, input.size(1), output_mask);
}

at::Tensor grid_sampler_2d(const at::Tensor& input, const at::Tensor& grid, int64_t, int64_t,
                           bool) {
  TORCH_CHECK(input.dim() == 4 && grid.dim() == 4 && input.size(0) == grid.size(0),
              "expected a 4-D input and a 4-D grid of the same batch size, got ", input.sizes(),
              " and ", grid.sizes());
  return at::empty({input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.options());
}

// Lookups in a table, and indices.

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, int64_t, bool, bool) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor&, int64_t num_weights,
                                    int64_t, bool) {
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

at::Tensor searchsorted(const at::Tensor&, const at::Tensor& self, bool out_int32, bool,
                        std::optional<c10::string_view>, const std::optional<at::Tensor>&) {
  return LikeOf(self, out_int32 ? at::kInt : at::kLong);
}

at::Tensor bucketize(const at::Tensor& self, const at::Tensor&, bool out_int32, bool) {
  return LikeOf(self, out_int32 ? at::kInt : at::kLong);
}

// Layers.

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>&, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(input.dim() >= 3 && input.dim() == weight.dim(),
              "expected an input and a weight with the same number of dimensions, got ",
              input.sizes(), " and ", weight.sizes());
  at::DimVector sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    auto of = [&](c10::IntArrayRef list) { return list.size() == 1 ? list[0] : list.at(d - 2); };
    TORCH_CHECK(of(stride) > 0, "non-positive stride is not supported");
    const int64_t reach = of(dilation) * (weight.size(d) - 1);
    const int64_t size =
        transposed
            ? (input.size(d) - 1) * of(stride) - 2 * of(padding) + reach + of(output_padding) + 1
            : (input.size(d) + 2 * of(padding) - reach - 1) / of(stride) + 1;
    TORCH_CHECK(size >= 0, "the result would have the size ", size, " in dimension ", d);
    sizes.push_back(size);
  }
  return at::empty(sizes, input.options());
}

ThreeTensors convolution_backward(const at::Tensor& grad, const at::Tensor& input,
                                  const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                  c10::IntArrayRef, c10::IntArrayRef, c10::IntArrayRef, bool,
                                  c10::IntArrayRef, int64_t groups,
                                  std::array<bool, 3> output_mask) {
  TORCH_CHECK(groups > 0, "expected groups to be greater than 0, but got groups=", groups);
  const auto channels = bias_sizes ? *bias_sizes : grad.sizes().slice(1, 1);
  return {output_mask[0] ? Like(input) : at::Tensor(), output_mask[1] ? Like(weight) : at::Tensor(),
          output_mask[2] ? at::empty(channels, grad.options()) : at::Tensor()};
}

at::Tensor safe_softmax(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  c10::maybe_wrap_dim(dim, self.dim());
  return LikeOf(self, dtype.value_or(self.scalar_type()));
}

TwoTensors flash_attention(const at::Tensor& query, const at::Tensor&, const at::Tensor&, double,
                           bool, const std::optional<at::Tensor>&, std::optional<double>) {
  return {Like(query), at::empty(query.sizes().slice(0, 3), StatisticsOf(query))};
}

const rules::MetaKernels kernels{
    {"relu", &Like<>},
    {"hardswish", &Like<>},
    {"isnan", &Bools},
    {"isinf", &Bools},
    {"logical_not", &Bools},
    {"logical_and", &logical},
    {"logical_or", &logical},
    {"logical_xor", &logical},
    {"abs", &RealLike},
    {"hardtanh", &Like<const at::Scalar&, const at::Scalar&>},
    {"log_sigmoid_forward", &log_sigmoid_forward},
    {"roll", &Like<c10::IntArrayRef, c10::IntArrayRef>},
    {"_prelu_kernel", &Like<const at::Tensor&>},
    {"floor_divide", &floor_divide},
    {"fmod.Scalar", &fmod_Scalar},
    {"remainder.Scalar", &remainder_Scalar},
    {"remainder.Scalar_Tensor", &remainder_Scalar_Tensor},
    {"rsub.Tensor", &rsub_Tensor},
    {"rsub.Scalar", &rsub_Scalar},
    {"masked_fill.Tensor", &masked_fill_Tensor},
    {"masked_fill.Scalar", &masked_fill_Scalar},
    {"where.self", &where_self},
    {"log_sigmoid_backward", &Backward<const at::Tensor&>},
    {"hardtanh_backward", &Backward<const at::Scalar&, const at::Scalar&>},
    {"hardswish_backward", &Backward<>},
    {"glu_backward", &glu_backward},
    {"select_backward", &select_backward},
    {"slice_backward", &slice_backward},
    {"_prelu_kernel_backward", &prelu_backward},
    {"binary_cross_entropy", &binary_cross_entropy},
    {"binary_cross_entropy_backward",
     &Backward<const at::Tensor&, const std::optional<at::Tensor>&, int64_t>},
    {"dot", &dot},
    {"mv", &mv},
    {"mean", &mean},
    {"logsumexp", &logsumexp},
    {"var.correction", &Variance},
    {"std.correction", &Variance},
    {"var_mean.correction", &VarianceAndMean},
    {"std_mean.correction", &VarianceAndMean},
    {"native_layer_norm", &native_layer_norm},
    {"native_group_norm", &native_group_norm},
    {"native_batch_norm", &native_batch_norm},
    {"native_layer_norm_backward", &native_layer_norm_backward},
    {"native_group_norm_backward", &native_group_norm_backward},
    {"native_batch_norm_backward", &native_batch_norm_backward},
    {"grid_sampler_2d", &grid_sampler_2d},
    {"complex", &complex},
    {"polar", &complex},
    {"nan_to_num", &Like<std::optional<double>, std::optional<double>, std::optional<double>>},
    {"flip", &Like<c10::IntArrayRef>},
    {"angle", &angle},
    {"repeat", &repeat},
    {"reflection_pad2d", &reflection_pad2d},
    {"_fft_c2c", &Like<c10::IntArrayRef, int64_t, bool>},
    {"_fft_r2c", &fft_r2c},
    {"_fft_c2r", &fft_c2r},
    {"masked_scatter", &masked_scatter},
    {"embedding", &embedding},
    {"embedding_dense_backward", &embedding_dense_backward},
    {"index_put", &Like<const c10::List<std::optional<at::Tensor>>&, const at::Tensor&, bool>},
    {"searchsorted.Tensor", &searchsorted},
    {"bucketize.Tensor", &bucketize},
    {"convolution", &convolution},
    {"convolution_backward", &convolution_backward},
    {"_safe_softmax", &safe_softmax},
    {"_scaled_dot_product_flash_attention_for_cpu", &flash_attention},
};

}  // namespace
}  // namespace torch_xla
