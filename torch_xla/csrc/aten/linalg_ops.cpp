// Kernels of linear algebra that look at their arguments first.
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/linalg_lstsq_ops.h>
#include <ATen/ops/linalg_pinv_compositeexplicitautogradnonfunctional_dispatch.h>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/cpu_kernel.h"
#include "aten/fallback.h"
#include "aten/node_builder.h"
#include "lazy/executor.h"
#include "lazy/storage.h"

namespace torch_xla {

void XLANativeFunctions::_linalg_check_errors(const at::Tensor& info, c10::string_view api_name,
                                              bool is_matrix) {
  // As on other accelerators the error comes with the call, which waits for it. All that is
  // pending is computed with it, or the factorization would be done again when it is used.
  const int device = aten::GetImpl(info)->root()->device();
  lazy::SyncStorages(lazy::Storage::Pending(device), /*wait=*/false);
  at::_linalg_check_errors(aten::ToCpu(info), api_name, is_matrix);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> XLANativeFunctions::linalg_lstsq(
    const at::Tensor& self, const at::Tensor& b, std::optional<double> rcond,
    std::optional<c10::string_view> driver) {
  // These two give residuals where the rank turns out to be full.
  const bool shape_follows_data = driver == "gelss" || driver == "gelsd";
  if (shape_follows_data || !aten::UseCpuKernels()) {
    return at::native::call_fallback_fn<&aten::Fallback, at::_ops::linalg_lstsq>::call(
        self, b, rcond, driver);
  }
  aten::NodeBuilder builder(ir::ops::linalg_lstsq);
  builder.Tensor(self);
  builder.Tensor(b);
  builder.OptionalFixedDouble(rcond);
  builder.OptionalString(driver);
  return builder.Tuple<4>();
}

at::Tensor XLANativeFunctions::linalg_pinv_atol_rtol_tensor(const at::Tensor& self,
                                                            const std::optional<at::Tensor>& atol,
                                                            const std::optional<at::Tensor>& rtol,
                                                            bool hermitian) {
  return at::compositeexplicitautogradnonfunctional::linalg_pinv(self, atol, rtol, hermitian);
}

}  // namespace torch_xla
