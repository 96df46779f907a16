// AutogradXLA kernels of products, whose gradients in PyTorch read from the device whether there is
// a zero, and so would cut each step.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cumprod_backward_native.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include "aten/autograd_node.h"
#include "aten/bridge.h"

namespace torch_xla::autograd {
namespace {

using MaybeDtype = std::optional<at::ScalarType>;

/// The sums of the elements from each one on.
at::Tensor SumFrom(const at::Tensor& x, int64_t dim) { return x.flip(dim).cumsum(dim).flip(dim); }

/// Up to the first zero of a row, a product is divided by its factor. The gradient of the zero has
/// the products without it. What comes after it has none, since all those products are 0.
at::Tensor cumprod_backward(const at::Tensor& grad, const at::Tensor& input, int64_t dim,
                            const at::Tensor& output) {
  // What is differentiated again has to hold for the derivatives at a zero, too.
  if (!aten::IsXla(input) || at::GradMode::is_enabled() || input.numel() <= 1)
    return at::native::cumprod_backward(grad, input, dim, output);
  const at::Tensor zero = input == 0, zeros = zero.cumsum(dim);
  const at::Tensor first = zero.logical_and(zeros == 1);
  const at::Tensor without = input.masked_fill(first, 1).cumprod(dim);
  const at::Tensor before = SumFrom(output.conj() * grad, dim) / input.masked_fill(zero, 1).conj();
  const at::Tensor at_first = SumFrom(without.conj() * grad, dim);
  return at::where(zeros == 0, before, at_first.masked_fill(first.logical_not(), 0));
}

/// Whether PyTorch's own kernel answers for products of `count` factors: nothing is read if there
/// is no gradient, and for no or one factor a running product is of no use.
bool IsOfPyTorch(const at::Tensor& self, int64_t count) {
  return !aten::IsXla(self) || self.numel() == 0 || count == 1 ||
         !torch::autograd::compute_requires_grad(self);
}

at::Tensor prod(c10::DispatchKeySet keys, const at::Tensor& self, MaybeDtype dtype) {
  if (IsOfPyTorch(self, self.numel())) return OfPyTorch<at::_ops::prod>(keys, self, dtype);
  return self.flatten().cumprod(0, dtype).select(0, -1);
}

at::Tensor prod_dim_int(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim, bool keepdim,
                        MaybeDtype dtype) {
  if (IsOfPyTorch(self, self.dim() == 0 ? 1 : self.size(dim)))
    return OfPyTorch<at::_ops::prod_dim_int>(keys, self, dim, keepdim, dtype);
  const at::Tensor last = self.cumprod(dim, dtype).narrow(dim, -1, 1);
  return keepdim ? last : last.squeeze(dim);
}

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("cumprod_backward", TORCH_FN(cumprod_backward));
  m.impl("prod", TORCH_FN(prod));
  m.impl("prod.dim_int", TORCH_FN(prod_dim_int));
}

}  // namespace
}  // namespace torch_xla::autograd
