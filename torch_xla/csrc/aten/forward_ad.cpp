// What forward-mode autograd asks about the memory of a tensor and its tangent. PyTorch's own
// kernels read the strided storage, which an xla tensor does not have.
#include <ATen/Functions.h>

#include <algorithm>

#include "XLANativeFunctions.h"
#include "aten/tensor_impl.h"

namespace torch_xla {

// PyTorch compares sizes, strides and offsets, too, and that is all that an xla tensor shows.
bool XLANativeFunctions::_has_same_storage_numel(const at::Tensor&, const at::Tensor&) {
  return true;
}

at::Tensor XLANativeFunctions::_new_zeros_with_same_feature_meta(const at::Tensor& self,
                                                                 const at::Tensor& other,
                                                                 int64_t self_num_batch_dims) {
  // The batch dimensions of `self`, each of whose elements lies in its memory as `other` does:
  // views of both are taken, and then have to begin at the same offset.
  const tensor::View* view = aten::GetImpl(other)->view();
  const int64_t offset = other.storage_offset();
  at::DimVector strides(other.strides());
  if (view && !view->last().bitcast && !tensor::OverlapsItself(*view))
    strides = view->last().strides;
  int64_t numel = offset + (other.numel() != 0);
  for (int64_t i = 0; i < other.dim(); ++i) {
    numel += strides[i] * std::max<int64_t>(other.size(i) - 1, 0);
  }
  at::DimVector sizes(self.sizes().slice(0, self_num_batch_dims));
  const at::Tensor memory = at::zeros(c10::multiply_integers(sizes) * numel, other.options());
  for (int64_t i = self_num_batch_dims; i-- > 0; numel *= self.size(i)) {
    strides.insert(strides.begin(), numel);
  }
  sizes.append(other.sizes().begin(), other.sizes().end());
  return memory.as_strided(sizes, strides, offset);
}

}  // namespace torch_xla
