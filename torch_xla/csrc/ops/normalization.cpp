// Batch, layer and group normalization. All three compute moments over some dimensions (struct
// Axes), then scale and shift. Statistics of half types are computed in float. They are plain
// reductions, which XLA fuses with the operations around them; StableHLO's own operations are
// expanded to the same. If the table of kernels says so, they are calls (cpu/normalization.cpp).
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "cpu/calls.h"
#include "distributed/manual_ops.h"
#include "exec/manual_regions.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"
#include "tensor/device.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Convert;

using cpu::NormalizedForm;
using cpu::NormalizedGroups;

/// The running statistics of a batch norm, if given; `momentum` is a double.
struct RunningValues {
  std::optional<Value> mean, variance, momentum;
};

stablehlo::Type InFloat(const stablehlo::Type& type) { return {ElementType::kF32, type.dims}; }

/// Whether to normalize `input` by a call. `others` are the other operands, if given.
bool CallsNormalization(const LoweringContext& cx, Value input, const NormalizedForm& form,
                        const std::vector<std::optional<Value>>& others) {
  auto fits = [&](const Value& value) {
    return value.element() == ElementType::kF32 || value.element() == input.element();
  };
  if (input.element() != ElementType::kF32 && input.element() != ElementType::kBF16) return false;
  if (input.type().num_elements() == 0) return false;
  for (const auto& other : others) {
    if (other && !fits(*other)) return false;
    // Otherwise the composition raises the error.
    if (other && other->rank() == 1 && form.is_batch() && other->dim(0) != form.channels) {
      return false;
    }
  }
  static constexpr std::string_view kNames[] = {"layer_norm", "group_norm", "batch_norm"};
  return ChoosesLibrary(cx, kNames[static_cast<int64_t>(form.kind)]);
}

/// Output, mean and inverse standard deviation in the shapes of the node's results, then the new
/// running statistics, if given; `eps` is a double. With a rectifier the output is its output.
std::vector<Value> CallNormalization(LoweringContext& cx, Value input, const NormalizedForm& form,
                                     const std::optional<Value>& weight,
                                     const std::optional<Value>& bias, Value eps,
                                     const RunningValues& running = {},
                                     const Rectifier& rectifier = {}) {
  std::vector<Value> operands{input, eps};
  std::vector<stablehlo::Type> types{cx.output_type(0), InFloat(cx.output_type(1)),
                                     InFloat(cx.output_type(2))};
  std::vector<stablehlo::OutputOperandAlias> aliases;
  for (const auto& parameter : {weight, bias}) {
    if (parameter) operands.push_back(Convert(*parameter, ElementType::kF32));
  }
  for (const auto& statistic : {running.mean, running.variance}) {
    if (!statistic) continue;
    aliases.push_back({static_cast<int64_t>(types.size()), static_cast<int64_t>(operands.size())});
    operands.push_back(Convert(*statistic, ElementType::kF32));
    types.push_back(operands.back().type());
  }
  if (!aliases.empty()) operands.push_back(*running.momentum);
  if (rectifier.addend) operands.push_back(*rectifier.addend);
  std::vector<Value> results =
      CallLibrary(cpu::kNormalizationTarget, operands, types,
                  cpu::NormalizationCall{form, weight.has_value(), bias.has_value(),
                                         running.mean.has_value(), running.variance.has_value(),
                                         rectifier.relu != nullptr, rectifier.addend.has_value()},
                  aliases);
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = Convert(results[i], cx.output_element(i));
  return results;
}

/// The gradients of input, weight and bias that the node has a shape for.
std::vector<Value> CallNormalizationBackward(LoweringContext& cx, const RectifiedGrad& grad_output,
                                             Value input, Value mean, Value inverse_std,
                                             const NormalizedForm& form,
                                             const std::optional<Value>& weight) {
  const std::optional<Value>& rectified = grad_output.rectified;
  std::vector<Value> operands{Convert(grad_output.grad, input.element()), input};
  for (Value moment : {mean, inverse_std}) {
    operands.push_back(Convert(moment, ElementType::kF32));
  }
  if (weight) operands.push_back(Convert(*weight, ElementType::kF32));
  if (rectified) operands.push_back(Convert(*rectified, input.element()));
  bool gives[3];
  std::vector<stablehlo::Type> types;
  for (size_t i = 0; i < 3; ++i) {
    gives[i] = static_cast<bool>(cx.node().shape(i));
    if (gives[i]) types.push_back(i == 0 ? cx.output_type(i) : InFloat(cx.output_type(i)));
  }
  const std::vector<Value> results =
      CallLibrary(cpu::kNormalizationBackwardTarget, operands, types,
                  cpu::NormalizationBackwardCall{form, gives[0], gives[1], gives[2],
                                                 weight.has_value(), rectified.has_value()});
  std::vector<Value> gradients(3);
  for (size_t i = 0, next = 0; i < 3; ++i) {
    if (gives[i]) gradients[i] = Convert(results[next++], cx.output_element(i));
  }
  return gradients;
}

}  // namespace
}  // namespace torch_xla::lowering

namespace torch_xla::lowering::aten {
namespace {

using stablehlo::Add;
using stablehlo::BroadcastInDim;
using stablehlo::Convert;
using stablehlo::Multiply;
using stablehlo::ReduceOp;
using stablehlo::Reshape;
using stablehlo::Subtract;

/// The shape in which the input is normalized, and the purpose of each dimension.
struct Axes {
  Dims dims;     // the input is reshaped to this
  Dims moments;  // dimensions that mean and variance are taken over
  Dims affine;   // dimensions that weight and bias have

  Dims Without(const Dims& excluded) const { return DimsBetween(0, std::ssize(dims), excluded); }
  /// A value with the dimensions `axes` in the element type `element`, broadcast to `dims`.
  Value Spread(Value x, ElementType element, const Dims& axes) const {
    Dims sizes;
    for (int64_t i : axes) sizes.push_back(dims[i]);
    return BroadcastInDim(Reshape(Convert(x, element), sizes), dims, axes);
  }
  Value SpreadMoment(Value x, ElementType element) const {
    return Spread(x, element, Without(moments));
  }
  Value SpreadAffine(Value x, ElementType element) const { return Spread(x, element, affine); }
  /// The mean over the dimensions of the moments.
  Value Mean(Value x) const {
    int64_t count = 1;
    for (int64_t i : moments) count *= dims[i];
    Value sum = Reduce(x, moments, ReduceOp::kAdd);
    return Divide(sum, stablehlo::FullLike(sum, count));
  }
};

Axes BatchAxes(const Dims& dims) {
  Axes axes{dims, {}, {1}};
  axes.moments = axes.Without({1});
  return axes;
}

Axes LayerAxes(const Dims& dims, c10::IntArrayRef normalized_shape) {
  const auto rank = static_cast<int64_t>(dims.size());
  const Dims inner = DimsBetween(rank - static_cast<int64_t>(normalized_shape.size()), rank);
  return {dims, inner, inner};
}

Axes GroupAxes(int64_t N, int64_t C, int64_t HxW, int64_t group) {
  return {{N, group, C / group, HxW}, {2, 3}, {1, 2}};
}

Value InverseStd(Value variance, const Number& eps) {
  return stablehlo::Rsqrt(Add(variance, eps.Like(variance)));
}

/// As an operand of a call.
Value AsOperand(LoweringContext& cx, const Number& number) {
  return number.Like(Constant(cx.builder(), 0, stablehlo::Type(ElementType::kF64, {})));
}

/// The value as result `i` of the node.
Value ToResult(LoweringContext& cx, Value x, size_t i) {
  return Reshape(Convert(x, cx.output_element(i)), cx.output_dims(i));
}

struct Moments {
  Value mean, inverse_std;
  Value variance = {};  // only for the input's own moments
};

/// Not mean(x^2) - mean(x)^2, which suffers from cancellation.
Moments ComputeMoments(Value input, const Axes& axes, const Number& eps) {
  const ElementType element = ComputeType(input.element());
  Value x = Reshape(Convert(input, element), axes.dims);
  Value mean = axes.Mean(x);
  Value centred = Subtract(x, axes.SpreadMoment(mean, element));
  Value variance = axes.Mean(Multiply(centred, centred));
  return {mean, InverseStd(variance, eps), variance};
}

/// (input - mean) * inverse_std * weight + bias.
Value Normalize(LoweringContext& cx, Value input, const Axes& axes, const Moments& moments,
                const std::optional<Value>& weight, const std::optional<Value>& bias) {
  const ElementType element = ComputeType(input.element());
  Value y = Subtract(Reshape(Convert(input, element), axes.dims),
                     axes.SpreadMoment(moments.mean, element));
  y = Multiply(y, axes.SpreadMoment(moments.inverse_std, element));
  if (weight) y = Multiply(y, axes.SpreadAffine(*weight, element));
  if (bias) y = Add(y, axes.SpreadAffine(*bias, element));
  return ToResult(cx, y, 0);
}

/// The output, and the moments it was normalized with.
std::vector<Value> NormalizeBy(LoweringContext& cx, Value input, const Axes& axes,
                               const Moments& moments, const std::optional<Value>& weight,
                               const std::optional<Value>& bias) {
  return {Normalize(cx, input, axes, moments, weight, bias), ToResult(cx, moments.mean, 1),
          ToResult(cx, moments.inverse_std, 2)};
}

/// The gradients of input, weight and bias; those that the caller masked out have no shape. With
/// `constant_moments` the moments do not depend on the input.
std::vector<Value> Backward(LoweringContext& cx, Value grad_output, Value input, const Axes& axes,
                            const Moments& moments, const std::optional<Value>& weight,
                            bool constant_moments) {
  const ElementType element = ComputeType(input.element());
  Value grad = Reshape(Convert(grad_output, element), axes.dims);
  Value inverse_std = axes.SpreadMoment(moments.inverse_std, element);
  Value normalized = Multiply(Subtract(Reshape(Convert(input, element), axes.dims),
                                       axes.SpreadMoment(moments.mean, element)),
                              inverse_std);
  std::vector<Value> gradients(3);
  if (cx.node().shape(0)) {
    auto project = [&](Value g) {  // removes the part that the moments' dependence cancels
      if (constant_moments) return g;
      Value shift = axes.SpreadMoment(axes.Mean(g), element);
      Value slope = axes.SpreadMoment(axes.Mean(Multiply(g, normalized)), element);
      return Subtract(Subtract(g, shift), Multiply(normalized, slope));
    };
    // A weight that is constant over the dimensions of the moments commutes with the means. These
    // are then the same sums that the gradients of weight and bias need.
    const bool commutes = axes.affine == axes.Without(axes.moments);
    Value scale = weight ? axes.SpreadAffine(*weight, element) : stablehlo::OnesLike(grad);
    Value g = commutes ? Multiply(project(grad), scale) : project(Multiply(grad, scale));
    gradients[0] = ToResult(cx, Multiply(g, inverse_std), 0);
  }
  const Dims outer = axes.Without(axes.affine);
  if (cx.node().shape(1)) {
    gradients[1] = ToResult(cx, Reduce(Multiply(grad, normalized), outer, ReduceOp::kAdd), 1);
  }
  if (cx.node().shape(2)) gradients[2] = ToResult(cx, Reduce(grad, outer, ReduceOp::kAdd), 2);
  return gradients;
}

NormalizedForm FormOf(const Axes& axes) {
  const Dims& dims = axes.dims;
  auto product = [&](const Dims& of) {
    int64_t size = 1;
    for (int64_t i : of) size *= dims[i];
    return size;
  };
  const Dims outer = axes.Without(axes.moments);
  if (axes.affine == axes.moments) {
    return {NormalizedGroups::kLayers, product(outer), 1, 1, product(axes.moments)};
  }
  if (axes.affine == outer) {
    return {NormalizedGroups::kBatch, dims[0], 1, dims[1],
            product(DimsBetween(2, std::ssize(dims)))};
  }
  return {NormalizedGroups::kGroups, dims[0], dims[1], dims[2], dims[3]};
}

/// Uses a call if that is faster.
std::vector<Value> NormalizeByOwnMoments(LoweringContext& cx, Value input, const Axes& axes,
                                         const std::optional<Value>& weight,
                                         const std::optional<Value>& bias, const Number& eps) {
  const NormalizedForm form = FormOf(axes);
  if (CallsNormalization(cx, input, form, {weight, bias})) {
    return CallNormalization(cx, input, form, weight, bias, AsOperand(cx, eps));
  }
  return NormalizeBy(cx, input, axes, ComputeMoments(input, axes, eps), weight, bias);
}

std::vector<Value> BackwardOfOwnMoments(LoweringContext& cx, Value grad_output, Value input,
                                        const Axes& axes, const Moments& moments,
                                        const std::optional<Value>& weight) {
  const NormalizedForm form = FormOf(axes);
  if (CallsNormalization(cx, input, form,
                         {grad_output, moments.mean, moments.inverse_std, weight})) {
    const RectifiedGrad given =
        form.is_batch() ? FindRectifiedGrad(cx, grad_output) : RectifiedGrad{grad_output};
    return CallNormalizationBackward(cx, given, input, moments.mean, moments.inverse_std, form,
                                     weight);
  }
  return Backward(cx, grad_output, input, axes, moments, weight, false);
}

/// The moments that batch normalization uses in evaluation.
Moments RunningMoments(Value input, Value mean, Value variance, const Number& eps) {
  const ElementType element = ComputeType(input.element());
  return {mean, InverseStd(Convert(variance, element), eps)};
}

}  // namespace

std::vector<Value> BatchNorm(LoweringContext& cx, Value input, std::optional<Value> weight,
                             std::optional<Value> bias, std::optional<Value> running_mean,
                             std::optional<Value> running_var, const Number& momentum,
                             const Number& eps) {
  const Axes axes = BatchAxes(input.dims());
  const NormalizedForm form = FormOf(axes);
  if (CallsNormalization(cx, input, form, {weight, bias, running_mean, running_var})) {
    const Rectifier rectifier = FindRectifier(cx);
    std::vector<Value> results =
        CallNormalization(cx, input, form, weight, bias, AsOperand(cx, eps),
                          {running_mean, running_var, AsOperand(cx, momentum)}, rectifier);
    if (rectifier.relu) cx.SetOutputs(*rectifier.relu, results[0]);
    return results;
  }
  const Moments moments = ComputeMoments(input, axes, eps);
  std::vector<Value> results = NormalizeBy(cx, input, axes, moments, weight, bias);
  auto move = [&](Value running, Value to) {
    const ElementType element = ComputeType(running.element());
    to = Convert(to, element);
    const Value by = momentum.Like(to);
    const Value rest = Subtract(stablehlo::OnesLike(to), by);
    const Value moved = Add(Multiply(by, to), Multiply(rest, Convert(running, element)));
    results.push_back(ToResult(cx, moved, results.size()));
  };
  if (running_mean) move(*running_mean, moments.mean);
  if (running_var) {
    // Normalization uses the biased variance, but the running variance is unbiased.
    const auto n = static_cast<double>(form.group_size());
    const Value factor = stablehlo::FullLike(moments.variance, n / (n - 1));
    move(*running_var, Multiply(moments.variance, factor));
  }
  return results;
}

std::vector<Value> native_batch_norm(LoweringContext& cx, Value input, std::optional<Value> weight,
                                     std::optional<Value> bias, std::optional<Value> running_mean,
                                     std::optional<Value> running_var, bool training,
                                     const Number& momentum, const Number& eps) {
  if (training) {
    return BatchNorm(cx, input, weight, bias, std::nullopt, std::nullopt, momentum, eps);
  }
  const Axes axes = BatchAxes(input.dims());
  Moments moments = RunningMoments(input, running_mean.value(), running_var.value(), eps);
  return {Normalize(cx, input, axes, moments, weight, bias),
          Constant(cx.builder(), 0, cx.output_type(1)),
          Constant(cx.builder(), 0, cx.output_type(2))};
}

std::vector<Value> native_batch_norm_backward(
    LoweringContext& cx, Value grad_out, Value input, std::optional<Value> weight,
    std::optional<Value> running_mean, std::optional<Value> running_var,
    std::optional<Value> save_mean, std::optional<Value> save_invstd, bool train, const Number& eps,
    const std::vector<bool>& /*output_mask*/) {
  const Axes axes = BatchAxes(input.dims());
  if (train) {
    const Moments moments{save_mean.value(), save_invstd.value()};
    return BackwardOfOwnMoments(cx, grad_out, input, axes, moments, weight);
  }
  const Moments moments = RunningMoments(input, running_mean.value(), running_var.value(), eps);
  return Backward(cx, grad_out, input, axes, moments, weight, true);
}

std::vector<Value> native_layer_norm(LoweringContext& cx, Value input,
                                     c10::IntArrayRef normalized_shape, std::optional<Value> weight,
                                     std::optional<Value> bias, const Number& eps) {
  return NormalizeByOwnMoments(cx, input, LayerAxes(input.dims(), normalized_shape), weight, bias,
                               eps);
}

std::vector<Value> native_layer_norm_backward(LoweringContext& cx, Value grad_out, Value input,
                                              c10::IntArrayRef normalized_shape, Value mean,
                                              Value rstd, std::optional<Value> weight,
                                              std::optional<Value> /*bias*/,
                                              const std::vector<bool>& /*output_mask*/) {
  return BackwardOfOwnMoments(cx, grad_out, input, LayerAxes(input.dims(), normalized_shape),
                              {mean, rstd}, weight);
}

std::vector<Value> native_group_norm(LoweringContext& cx, Value input, std::optional<Value> weight,
                                     std::optional<Value> bias, int64_t N, int64_t C, int64_t HxW,
                                     int64_t group, const Number& eps) {
  return NormalizeByOwnMoments(cx, input, GroupAxes(N, C, HxW, group), weight, bias, eps);
}

std::vector<Value> native_group_norm_backward(LoweringContext& cx, Value grad_out, Value input,
                                              Value mean, Value rstd, std::optional<Value> weight,
                                              int64_t N, int64_t C, int64_t HxW, int64_t group,
                                              const std::vector<bool>& /*output_mask*/) {
  std::vector<Value> gradients =
      BackwardOfOwnMoments(cx, grad_out, input, GroupAxes(N, C, HxW, group), {mean, rstd}, weight);
  if (HxW == 0 && N > 0 && cx.node().shape(1)) {
    // As in ATen, which multiplies empty sums with empty moments.
    gradients[1] =
        Constant(cx.builder(), std::numeric_limits<double>::quiet_NaN(), cx.output_type(1));
  }
  return gradients;
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// The mean over the devices of a statistic that each has of its own part, in a manual region; it
/// is a whole then. Otherwise the statistic.
at::Tensor MeanOfDevices(const at::Tensor& statistic) {
  if (!distributed::HasManualOps()) return statistic;
  const ir::Value value = aten::GetIrValue(statistic);
  const size_t count = exec::HoldersOf(value).size();
  if (count == 0) return statistic;
  std::vector<int64_t> devices(count);
  std::iota(devices.begin(), devices.end(), 0);
  const auto size = static_cast<int64_t>(count);
  const ir::Value sum = distributed::ManualCollective(value, "sum", {size}, devices);
  return aten::MakeTensor(distributed::ToWhole(sum, *distributed::Sharding::Replicated()),
                          tensor::DeviceOrdinal(statistic.device()))
      .div(size);
}

/// Makes a node that also returns the new running statistics; its other results have the shapes
/// `of` the operator's results.
std::vector<at::Tensor> WithRunningStatistics(const std::vector<at::Tensor>& of,
                                              const at::Tensor& input, const OptionalTensor& weight,
                                              const OptionalTensor& bias,
                                              const std::array<OptionalTensor, 2>& running,
                                              double momentum, double eps) {
  aten::NodeBuilder builder(ir::ops::batch_norm);
  builder.Add(input, weight, bias);
  ir::OutputShapes shapes;
  auto add = [&](const at::Tensor& like) {
    shapes.shapes.push_back(ir::GetShape(like.scalar_type(), like.sizes()));
  };
  for (const at::Tensor& result : of) add(result);
  for (const OptionalTensor& statistic : running) {
    builder.OptionalTensor(statistic);
    if (statistic && statistic->defined()) add(*statistic);
  }
  builder.Add(momentum, eps);
  const std::vector<at::Tensor> results = builder.List(shapes);
  size_t next = of.size();
  for (const OptionalTensor& statistic : running) {
    if (statistic && statistic->defined()) statistic->copy_(MeanOfDevices(results[next++]));
  }
  return results;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNorm(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
    double momentum, double eps) {
  TORCH_CHECK(!training || input.numel() > 0,
              "input tensor must have at least one element, but got input_sizes = ", input.sizes());
  aten::NodeBuilder builder(ir::ops::native_batch_norm);
  builder.Add(input, weight, bias, running_mean, running_var, training, momentum, eps);
  auto [output, save_mean, save_invstd] = builder.Tuple<3>();
  if (training &&
      ((running_mean && running_mean->defined()) || (running_var && running_var->defined()))) {
    // The operator's node has raised its errors; this node also returns the running statistics.
    const std::vector<at::Tensor> results =
        WithRunningStatistics({output, save_mean, save_invstd}, input, weight, bias,
                              {running_mean, running_var}, momentum, eps);
    output = results[0], save_mean = results[1], save_invstd = results[2];
  }
  // As ATen on the CPU: in the input's dtype if the weights have that dtype. Results that only
  // training saves are empty otherwise.
  if (!weight || !weight->defined() || weight->scalar_type() == input.scalar_type()) {
    save_mean = save_mean.to(input.scalar_type());
    save_invstd = save_invstd.to(input.scalar_type());
  }
  if (!training) save_mean = save_invstd = at::empty({0}, save_mean.options());
  return {output, save_mean, save_invstd};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> XLANativeFunctions::native_batch_norm(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
    double momentum, double eps) {
  return BatchNorm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> XLANativeFunctions::_native_batch_norm_legit(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    at::Tensor& running_mean, at::Tensor& running_var, bool training, double momentum, double eps) {
  return BatchNorm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::_native_batch_norm_legit_no_stats(const at::Tensor& input,
                                                      const OptionalTensor& weight,
                                                      const OptionalTensor& bias, bool training,
                                                      double momentum, double eps) {
  return BatchNorm(input, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::_batch_norm_with_update(const at::Tensor& input, const OptionalTensor& weight,
                                            const OptionalTensor& bias, at::Tensor& running_mean,
                                            at::Tensor& running_var, double momentum, double eps) {
  auto [output, save_mean, save_invstd] =
      BatchNorm(input, weight, bias, running_mean, running_var, /*training=*/true, momentum, eps);
  return {output, save_mean, save_invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

}  // namespace torch_xla
