// Factorizations and solves that StableHLO has ops for. On the CPU LAPACK does better
// (`kernel` in the yaml); what StableHLO lacks has no lowering here.
#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

/// x with its last two dimensions exchanged.
Value MatrixTranspose(Value x) {
  Dims permutation;
  for (int64_t i = 0; i < x.rank(); ++i) permutation.push_back(i);
  std::swap(permutation[x.rank() - 1], permutation[x.rank() - 2]);
  return Transpose(x, permutation);
}

/// One triangle of the matrices, zeros in the other.
Value Triangle(Value x, bool upper) {
  const stablehlo::Type type{ElementType::kS64, x.dims()};
  Value row = Iota(x.builder(), type, x.rank() - 2);
  Value column = Iota(x.builder(), type, x.rank() - 1);
  return Select(upper ? column >= row : row >= column, x, 0);
}

struct CholeskyResult {
  Value factor, info;
};

/// The factor, and per matrix the order of the first leading minor that is not positive
/// definite (0: all are).
CholeskyResult CholeskyFactor(Value self, bool upper) {
  const int64_t rank = self.rank(), n = self.dim(-1);
  Value source = upper ? MatrixTranspose(self) : self;
  if (upper && runtime::IsComplex(self.element())) source = Conj(source);
  Value lower = Triangle(stablehlo::Cholesky(source, /*lower=*/true), /*upper=*/false);
  // XLA answers with NaN.
  const stablehlo::Type type{ElementType::kS32, self.dims()};
  Value order =
      Select(IsNan(lower), Iota(self.builder(), type, rank - 1) + 1, static_cast<int64_t>(n) + 1);
  Value first = Reduce(order, {rank - 2, rank - 1}, ReduceOp::kMin);
  Value info = Select(first > n, 0, first);
  if (!upper) return {lower, info};
  Value factor = MatrixTranspose(lower);
  return {runtime::IsComplex(self.element()) ? Conj(factor) : factor, info};
}

/// The leading dimensions of both broadcast together.
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
