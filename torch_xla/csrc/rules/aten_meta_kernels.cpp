// Meta kernels that PyTorch lacks, or that differ from the CPU's kernels, for operators whose
// result shapes follow from their arguments.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/zeros.h>

#include "rules/meta_kernels.h"

namespace torch_xla {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

TwoTensors geqrf(const at::Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  at::DimVector sizes(self.sizes().begin(), self.sizes().end() - 2);
  sizes.push_back(std::min(self.size(-1), self.size(-2)));
  return {at::empty(self.sizes(), self.options()), at::empty(sizes, self.options())};
}

/// Calls the CPU's kernel on matrices of full rank, which also checks the arguments.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linalg_lstsq(
    const at::Tensor& self, const at::Tensor& b, std::optional<double> rcond,
    std::optional<c10::string_view> driver) {
  const at::TensorOptions cpu = self.options().device(at::kCPU);
  at::Tensor matrix = at::zeros(self.sizes(), cpu);
  if (self.dim() >= 2) matrix.diagonal(0, -2, -1).fill_(1);
  at::Tensor right = at::zeros(b.sizes(), b.options().device(at::kCPU));
  auto [solution, residuals, rank, values] = at::linalg_lstsq(matrix, right, rcond, driver);
  auto meta = [](const at::Tensor& like) {
    return at::empty(like.sizes(), like.options().device(at::kMeta));
  };
  return {meta(solution), meta(residuals), meta(rank), meta(values)};
}

TwoTensors WithMask(const at::Tensor& self, int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(quant_min <= quant_max, "`quant_min` should be less than or equal to `quant_max`.");
  return {at::empty_like(self), at::empty_like(self, self.options().dtype(at::kBool))};
}

TwoTensors fake_quantize_per_tensor(const at::Tensor& self, double, int64_t zero_point,
                                    int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(zero_point >= quant_min && zero_point <= quant_max,
              "`zero_point` must be between `quant_min` and `quant_max`.");
  return WithMask(self, quant_min, quant_max);
}

TwoTensors fake_quantize_tensor_qparams(const at::Tensor& self, const at::Tensor&,
                                        const at::Tensor&, const at::Tensor&, int64_t quant_min,
                                        int64_t quant_max) {
  return WithMask(self, quant_min, quant_max);
}

TwoTensors fake_quantize_per_channel(const at::Tensor& self, const at::Tensor& scale,
                                     const at::Tensor& zero_point, int64_t axis, int64_t quant_min,
                                     int64_t quant_max) {
  TORCH_CHECK(scale.dim() == 1 && zero_point.dim() == 1,
              "scale and zero point need to be 1-D tensors");
  TORCH_CHECK(axis >= 0 && axis < self.dim(),
              "`axis` must be between 0 and number of dimensions of input");
  TORCH_CHECK(scale.numel() == self.size(axis) && zero_point.numel() == scale.numel(),
              "dimensions of scale and zero-point are not consistent with input tensor");
  return WithMask(self, quant_min, quant_max);
}

const rules::MetaKernels kernels{
    {"geqrf", &geqrf},
    {"linalg_lstsq", &linalg_lstsq},
    {"fake_quantize_per_tensor_affine_cachemask", &fake_quantize_per_tensor},
    {"_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", &fake_quantize_tensor_qparams},
    {"fake_quantize_per_channel_affine_cachemask", &fake_quantize_per_channel},
};

}  // namespace
}  // namespace torch_xla
