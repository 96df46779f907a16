// Operators that return a Python value.
#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>

#include "XLANativeFunctions.h"
#include "aten/bridge.h"

namespace torch_xla {

bool XLANativeFunctions::equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  return self.eq(other).all().item<bool>();
}

bool XLANativeFunctions::is_set_to(const at::Tensor& self, const at::Tensor& tensor) {
  const auto *a = aten::GetImpl(self), *b = aten::GetImpl(tensor);
  if (a->root() != b->root() || self.sizes() != tensor.sizes()) return false;
  const tensor::View *x = a->view(), *y = b->view();
  if (x && y) return x->steps == y->steps;
  const tensor::View* view = x ? x : y;  // the other is the whole storage
  if (!view) return true;
  const tensor::ViewStep& step = view->last();
  return view->steps.size() == 1 && !step.bitcast && step.offset == 0 &&
         step.strides == tensor::ContiguousStrides(step.sizes);
}

bool XLANativeFunctions::_nested_tensor_from_mask_left_aligned(const at::Tensor& t,
                                                               const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Expected mask to be of ScalarType Bool, but got ",
              mask.scalar_type(), " instead.");
  TORCH_CHECK(mask.dim() == 2, "Padding mask should be 2D");
  TORCH_CHECK(t.dim() == 3, "Input should be a 3D tensor, N * L * D");
  TORCH_CHECK(t.sizes().slice(0, 2) == mask.sizes(), "Mask size should match input size");
  // Read one bool instead of both tensors.
  const at::Tensor lengths = mask.sum(1, /*keepdim=*/true);
  return mask.eq(at::arange(mask.size(1), lengths.options()) < lengths).all().item<bool>();
}

}  // namespace torch_xla
