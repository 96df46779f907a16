// What forward-mode autograd asks about the memory of a tensor and its tangent. PyTorch's own
// kernels read the strided storage, which an xla tensor does not have.
#include <ATen/Functions.h>

#include "XLANativeFunctions.h"
#include "aten/bridge.h"

namespace torch_xla {

bool XLANativeFunctions::_has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) {
  return aten::GetImpl(self)->root()->shape()->numel ==
         aten::GetImpl(other)->root()->shape()->numel;
}

at::Tensor XLANativeFunctions::_new_zeros_with_same_feature_meta(const at::Tensor& self,
                                                                 const at::Tensor& other,
                                                                 int64_t self_num_batch_dims) {
  // Sizes: the batch dimensions of `self`, and then the sizes of `other`.
  at::DimVector sizes(self.sizes().slice(0, self_num_batch_dims));
  sizes.append(other.sizes().begin(), other.sizes().end());
  return at::zeros(sizes, other.options());
}

}  // namespace torch_xla
