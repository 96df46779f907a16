// Batch normalization: the node is pure, the running statistics are written here.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sub.h>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"

namespace torch_xla {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNorm(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
    double momentum, double eps) {
  TORCH_CHECK(!training || input.numel() > 0,
              "input tensor must have at least one element, but got input_sizes = ", input.sizes());
  aten::NodeBuilder builder(ir::ops::native_batch_norm);
  builder.Tensor(input);
  builder.OptionalTensor(weight);
  builder.OptionalTensor(bias);
  builder.OptionalTensor(running_mean);
  builder.OptionalTensor(running_var);
  builder.Bool(training);
  builder.Double(momentum);
  builder.Double(eps);
  auto [output, save_mean, save_invstd] = builder.Tuple<3>();
  if (training && running_mean && running_mean->defined()) {
    running_mean->lerp_(save_mean.to(running_mean->scalar_type()), momentum);
  }
  if (training && running_var && running_var->defined()) {
    // Normalization divides by the biased variance; the running one is unbiased.
    const double n = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
    at::Tensor variance = save_invstd.pow(-2).sub_(eps).mul_(n / (n - 1));
    running_var->lerp_(variance.to(running_var->scalar_type()), momentum);
  }
  // As ATen on the CPU: in the input's dtype if the weights have it, and what only training saves
  // is empty.
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
