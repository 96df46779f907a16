// Factorizations and solves that StableHLO has operations for. On the CPU LAPACK is faster
// (`kernel` in the yaml). Others have no lowering here.
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/linalg_lstsq_ops.h>
#include <ATen/ops/linalg_pinv_compositeexplicitautogradnonfunctional_dispatch.h>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/cpu_kernel.h"
#include "aten/fallback.h"
#include "aten/node_builder.h"
#include "exec/executor.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"
#include "tensor/storage.h"

namespace torch_xla::lowering::aten {
namespace {

/// x with its last two dimensions swapped.
Value MatrixTranspose(Value x) {
  Dims permutation = DimsBetween(0, x.rank());
  std::swap(permutation[x.rank() - 1], permutation[x.rank() - 2]);
  return Transpose(x, permutation);
}

/// One triangle of each matrix, with zeros in the other triangle.
Value Triangle(Value x, bool upper) {
  const stablehlo::Type type{ElementType::kS64, x.dims()};
  Value row = Iota(x.builder(), type, x.rank() - 2);
  Value column = Iota(x.builder(), type, x.rank() - 1);
  return Select(upper ? column >= row : row >= column, x, 0);
}

struct CholeskyResult {
  Value factor, info;
};

/// The factor, and per matrix the order of the first leading minor that is not positive definite,
/// or 0 if all are.
CholeskyResult CholeskyFactor(Value self, bool upper) {
  const int64_t rank = self.rank(), n = self.dim(-1);
  Value source = upper ? MatrixTranspose(self) : self;
  if (upper && runtime::IsComplex(self.element())) source = Conj(source);
  Value lower = Triangle(stablehlo::Cholesky(source, /*lower=*/true), /*upper=*/false);
  // XLA returns NaN from the column on that fails.
  const stablehlo::Type type{ElementType::kS32, self.dims()};
  Value order =
      Select(IsNan(lower), Iota(self.builder(), type, rank - 1) + 1, static_cast<int64_t>(n) + 1);
  Value first = Reduce(order, {rank - 2, rank - 1}, ReduceOp::kMin);
  Value info = Select(first > n, 0, first);
  if (!upper) return {lower, info};
  Value factor = MatrixTranspose(lower);
  return {runtime::IsComplex(self.element()) ? Conj(factor) : factor, info};
}

/// Both with their leading dimensions broadcast to each other.
std::pair<Value, Value> BroadcastBatches(Value a, Value b) {
  auto batch = [](Value x) { return Dims(x.dims().begin(), x.dims().end() - 2); };
  const Dims dims = stablehlo::BroadcastShape(batch(a), batch(b));
  auto expand = [&](Value x) {
    Dims full = dims;
    full.insert(full.end(), x.dims().end() - 2, x.dims().end());
    return BroadcastTo(x, full);
  };
  return {expand(a), expand(b)};
}

}  // namespace

std::vector<Value> linalg_cholesky_ex(LoweringContext&, Value self, bool upper, bool) {
  auto [factor, info] = CholeskyFactor(self, upper);
  return {factor, info};
}

Value linalg_solve_triangular(LoweringContext&, Value self, Value B, bool upper, bool left,
                              bool unitriangular) {
  auto [a, b] = BroadcastBatches(self, B);
  return TriangularSolve(a, b, left ? stablehlo::Side::kLeft : stablehlo::Side::kRight, !upper,
                         unitriangular, stablehlo::TransposeA::kNoTranspose);
}

std::vector<Value> triangular_solve(LoweringContext&, Value self, Value A, bool upper,
                                    bool transpose, bool unitriangular) {
  auto [a, b] = BroadcastBatches(A, self);
  return {TriangularSolve(
              a, b, stablehlo::Side::kLeft, !upper, unitriangular,
              transpose ? stablehlo::TransposeA::kTranspose : stablehlo::TransposeA::kNoTranspose),
          a};
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla {

void XLANativeFunctions::_linalg_check_errors(const at::Tensor& info, c10::string_view api_name,
                                              bool is_matrix) {
  // As on other accelerators the error is raised by this call, so it waits. Everything pending is
  // computed with it, else the factorization would be computed again when it is used.
  const int device = aten::GetImpl(info)->root()->device();
  exec::SyncStorages(tensor::Storage::Pending(device), /*wait=*/false);
  at::_linalg_check_errors(aten::ToCpu(info), api_name, is_matrix);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> XLANativeFunctions::linalg_lstsq(
    const at::Tensor& self, const at::Tensor& b, std::optional<double> rcond,
    std::optional<c10::string_view> driver) {
  // These drivers return residuals only if the rank turns out to be full.
  const bool shape_follows_data = driver == "gelss" || driver == "gelsd";
  if (shape_follows_data || !aten::UseCpuKernels()) {
    return at::native::call_fallback_fn<&aten::Fallback, at::_ops::linalg_lstsq>::call(
        self, b, rcond, driver);
  }
  aten::NodeBuilder builder(ir::ops::linalg_lstsq);
  builder.Add(self, b);
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
