// Random numbers, FFT, linear algebra.
#include <algorithm>

#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

bool IsLinear(ElementType element) {  // element types of linear algebra operations
  return runtime::IsFloat(element) || runtime::IsComplex(element);
}

}  // namespace

RngResult RngBitGenerator(Value state, RngAlgorithm algorithm, const Type& type) {
  constexpr std::string_view kOp = "stablehlo.rng_bit_generator";
  constexpr std::string_view kNames[] = {"DEFAULT", "THREE_FRY", "PHILOX"};
  Builder& builder = CheckTensors(kOp, {state});
  int64_t words = state.rank() == 1 ? state.dims()[0] : 0;
  bool valid = state.element() == ElementType::kU64 && words >= 2 && words <= 3 &&
               !(algorithm == RngAlgorithm::kThreeFry && words != 2);
  if (!valid) Fail(kOp, "a state of 2 (Philox: 2 or 3) ui64", {state});
  if (!runtime::IsInteger(type.element) && !runtime::IsFloat(type.element)) {
    Fail(kOp, Cat("an integer or float result, not ", type.ToString()), {state});
  }
  const Type results[] = {state.type(), type};
  std::vector<Value> values = builder.Op(
      kOp, std::span<const Value>(&state, 1), results,
      Cat("rng_algorithm = #stablehlo<rng_algorithm ", kNames[static_cast<int>(algorithm)], ">"));
  return {values[0], values[1]};
}

Value Fft(Value x, FftType fft_type, const Dims& length) {
  constexpr std::string_view kOp = "stablehlo.fft";
  constexpr std::string_view kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  Builder& builder = CheckTensors(kOp, {x});
  size_t rank = length.size();
  if (rank < 1 || rank > 3 || rank > x.dims().size()) {
    Fail(kOp, Cat("1 to 3 lengths, at most one per dimension, not ", List(length)), {x});
  }
  bool real = x.element() == ElementType::kF32 || x.element() == ElementType::kF64;
  if (fft_type == FftType::kRfft ? !real : !runtime::IsComplex(x.element())) {
    Fail(kOp, fft_type == FftType::kRfft ? "f32 or f64 elements" : "complex elements", {x});
  }
  Dims dims = x.dims();
  ElementType element = x.element();
  for (size_t i = 0; i < rank; ++i) {
    bool last = i + 1 == rank;
    int64_t& size = dims[dims.size() - rank + i];
    int64_t expected =
        last && fft_type == FftType::kIrfft ? (length[i] == 0 ? 0 : length[i] / 2 + 1) : length[i];
    if (size != expected) {
      Fail(kOp,
           Cat("last dimensions that match lengths ", List(length), " of ",
               kNames[static_cast<int>(fft_type)]),
           {x});
    }
    if (last && fft_type == FftType::kRfft) size = size == 0 ? 0 : size / 2 + 1;
    if (last && fft_type == FftType::kIrfft) size = length[i];
  }
  if (fft_type == FftType::kRfft) {
    element = element == ElementType::kF32 ? ElementType::kC64 : ElementType::kC128;
  } else if (fft_type == FftType::kIrfft) {
    element = RealOf(element);
  }
  return builder.Op(kOp, {x}, Type(element, dims),
                    Cat("fft_type = #stablehlo<fft_type ", kNames[static_cast<int>(fft_type)],
                        ">, fft_length = ", I64Array(length)));
}

Value Cholesky(Value a, bool lower) {
  constexpr std::string_view kOp = "stablehlo.cholesky";
  Builder& builder = CheckTensors(kOp, {a});
  if (a.rank() < 2 || a.dim(-1) != a.dim(-2) || !IsLinear(a.element())) {
    Fail(kOp, "float or complex square matrices", {a});
  }
  return builder.Op(kOp, {a}, a.type(), Cat("lower = ", lower));
}

Value TriangularSolve(Value a, Value b, Side side, bool lower, bool unit_diagonal,
                      TransposeA transpose_a) {
  constexpr std::string_view kOp = "stablehlo.triangular_solve";
  constexpr std::string_view kNames[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  Builder& builder = CheckTensors(kOp, {a, b});
  bool left = side == Side::kLeft;
  bool valid = a.element() == b.element() && IsLinear(a.element()) && a.rank() >= 2 &&
               a.rank() == b.rank() && a.dim(-1) == a.dim(-2) &&
               std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin()) &&
               b.dim(left ? -2 : -1) == a.dim(-1);
  if (!valid) {
    Fail(kOp,
         Cat("square matrices a and matrices b of equal batch dimensions to solve from the ",
             left ? "left" : "right"),
         {a, b});
  }
  return builder.Op(
      kOp, {a, b}, b.type(),
      Cat("left_side = ", left, ", lower = ", lower, ", unit_diagonal = ", unit_diagonal,
          ", transpose_a = #stablehlo<transpose ", kNames[static_cast<int>(transpose_a)], ">"));
}

}  // namespace torch_xla::stablehlo
