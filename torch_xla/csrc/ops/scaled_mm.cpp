// Products of float8 matrices with scales.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/mm.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Metaprogramming.h>

#include <algorithm>
#include <limits>

#include "XLANativeFunctions.h"

namespace torch_xla {
namespace {

/// at::blas::ScalingType: one scale for a whole matrix, or one for each row of the first matrix and
/// each column of the second.
enum Scaling : int64_t { kTensorWise = 0, kRowWise = 1 };

bool Fits(Scaling scaling, const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
          const at::Tensor& scale_b) {
  if (!c10::isFloat8Type(a.scalar_type()) || !c10::isFloat8Type(b.scalar_type()) ||
      scale_a.scalar_type() != at::kFloat || scale_b.scalar_type() != at::kFloat) {
    return false;
  }
  if (scaling == kTensorWise) return scale_a.numel() == 1 && scale_b.numel() == 1;
  return scale_a.sizes() == at::IntArrayRef{a.size(0), 1} &&
         scale_b.sizes() == at::IntArrayRef{1, b.size(1)};
}

[[noreturn]] void RefuseScales(const char* op, const at::Tensor& a, const at::Tensor& b,
                               const at::Tensor& scale_a, const at::Tensor& scale_b) {
  TORCH_CHECK_VALUE(false, op, ": expected float8 matrices and float scales, of one element each ",
                    "(TensorWise) or of sizes [", a.size(0), ", 1] and [1, ", b.size(1),
                    "] (RowWise), but got matrices of ", a.scalar_type(), " and ", b.scalar_type(),
                    " with scales of ", scale_a.scalar_type(), scale_a.sizes(), " and ",
                    scale_b.scalar_type(), scale_b.sizes());
}

/// XLA:GPU turns this into one call of cuBLAS.
at::Tensor ScaledProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                         const at::Tensor& scale_b, const std::optional<at::Tensor>& bias,
                         std::optional<at::ScalarType> out_dtype,
                         const std::optional<at::Tensor>& scale_result = {}) {
  at::Tensor product = at::mm(a.to(at::kFloat) * scale_a, b.to(at::kFloat) * scale_b);
  if (bias && bias->defined()) product = product + bias->to(at::kFloat);
  const at::ScalarType dtype = out_dtype.value_or(a.scalar_type());
  // The CPU divides by it, in these dtypes only.
  if (scale_result && (dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2)) {
    TORCH_CHECK(scale_result->numel() == 1 && scale_result->scalar_type() == at::kFloat,
                "_scaled_mm: scale_result must be a float scalar, but got ",
                scale_result->scalar_type(), scale_result->sizes());
    product = product / scale_result->reshape({});
  }
  // This dtype has no infinity. Here, unlike in a conversion, the CPU saturates.
  if (dtype == at::kFloat8_e4m3fn) {
    const double max = std::numeric_limits<c10::Float8_e4m3fn>::max();
    product = product.clamp(-max, max);
  }
  return product.to(dtype);
}

/// TensorList; since PyTorch 2.14, which has a structured operator, ITensorListRef.
using Scales = c10::guts::typelist::element_t<
    2, c10::guts::function_traits<decltype(XLANativeFunctions::_scaled_mm_v2)>::parameter_types>;

}  // namespace

at::Tensor XLANativeFunctions::_scaled_mm(const at::Tensor& self, const at::Tensor& mat2,
                                          const at::Tensor& scale_a, const at::Tensor& scale_b,
                                          const std::optional<at::Tensor>& bias,
                                          const std::optional<at::Tensor>& scale_result,
                                          std::optional<at::ScalarType> out_dtype,
                                          bool /*use_fast_accum*/) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2, "_scaled_mm: expected two matrices, but got ",
              self.sizes(), " and ", mat2.sizes());
  TORCH_CHECK(self.size(1) == mat2.size(0), "_scaled_mm: matrices of sizes ", self.sizes(), " and ",
              mat2.sizes(), " cannot be multiplied");
  if (!Fits(kTensorWise, self, mat2, scale_a, scale_b) &&
      !Fits(kRowWise, self, mat2, scale_a, scale_b)) {
    RefuseScales("_scaled_mm", self, mat2, scale_a, scale_b);
  }
  TORCH_CHECK(!bias || bias->numel() == mat2.size(1), "_scaled_mm: expected a bias of ",
              mat2.size(1), " elements, but got ", bias->sizes());
  return ScaledProduct(self, mat2, scale_a, scale_b, bias, out_dtype, scale_result);
}

at::Tensor XLANativeFunctions::_scaled_mm_v2(
    const at::Tensor& self, const at::Tensor& mat2, Scales scale_a, at::IntArrayRef recipe_a,
    at::IntArrayRef swizzle_a, Scales scale_b, at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b,
    const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> out_dtype,
    at::IntArrayRef contraction_dim, bool /*use_fast_accum*/) {
  TORCH_CHECK_VALUE(self.dim() == 2 && mat2.dim() == 2,
                    "_scaled_mm_v2: expected two matrices, but got ", self.sizes(), " and ",
                    mat2.sizes());
  TORCH_CHECK_VALUE(contraction_dim.empty() || (contraction_dim.size() == 2 &&
                                                at::maybe_wrap_dim(contraction_dim[0], 2) == 1 &&
                                                at::maybe_wrap_dim(contraction_dim[1], 2) == 0),
                    "_scaled_mm_v2: expected no contraction_dim or [1, 0], but got ",
                    contraction_dim);
  TORCH_CHECK_VALUE(self.size(1) == mat2.size(0), "_scaled_mm_v2: matrices of sizes ", self.sizes(),
                    " and ", mat2.sizes(), " cannot be multiplied");
  for (const at::IntArrayRef swizzle : {swizzle_a, swizzle_b}) {
    TORCH_CHECK_VALUE(std::all_of(swizzle.begin(), swizzle.end(), [](int64_t s) { return s == 0; }),
                      "_scaled_mm_v2: expected scales that are not swizzled, but got swizzle ",
                      swizzle);
  }
  TORCH_CHECK_VALUE(
      scale_a.size() == 1 && scale_b.size() == 1 && recipe_a.size() == 1 && recipe_a == recipe_b &&
          (recipe_a[0] == kTensorWise || recipe_a[0] == kRowWise),
      "_scaled_mm_v2: expected one scale of each matrix, both TensorWise (0) or both ",
      "RowWise (1), but got ", scale_a.size(), " of recipes ", recipe_a, " and ", scale_b.size(),
      " of recipes ", recipe_b);
  if (!Fits(static_cast<Scaling>(recipe_a[0]), self, mat2, scale_a.front(), scale_b.front())) {
    RefuseScales("_scaled_mm_v2", self, mat2, scale_a.front(), scale_b.front());
  }
  TORCH_CHECK_VALUE(!bias || bias->numel() == mat2.size(1), "_scaled_mm_v2: expected a bias of ",
                    mat2.size(1), " elements, but got ", bias->sizes());
  return ScaledProduct(self, mat2, scale_a.front(), scale_b.front(), bias, out_dtype);
}

}  // namespace torch_xla
