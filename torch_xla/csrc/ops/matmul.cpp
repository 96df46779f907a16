// Matrix products. Half types are multiplied with float accumulation and rounded once.
#include "ops/matmul.h"

#include <algorithm>

#include "XLALowerings.h"
#include "XLAOps.h"
#include "aten/bridge.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "ir/attributes.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"
#include "lowering/precision.h"
#include "ops/dot.h"
#include "ops/reduction.h"
#include "runtime/platform.h"
#include "stablehlo/transposition.h"

namespace torch_xla::lowering {

bool MultipliesNatively(ElementType element) {
#if defined(__x86_64__) && defined(__linux__)
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has && element == ElementType::kBF16;
#else
  return false;
#endif
}

Value CallFewRows(Value rows, Value weights, bool by_columns) {
  Dims dims = rows.dims();
  dims.back() = weights.dim(weights.rank() - (by_columns ? 1 : 2));
  return CallLibrary(cpu::kFewRowsTarget, {rows, weights}, {{ElementType::kF32, dims}},
                     cpu::FewRowsCall{by_columns})[0];
}

namespace {

/// A matrix, or a batch of matrices, in the layout that it has in memory.
struct MatrixOperand {
  Value value;              // [*, rows, columns]
  bool transposed = false;  // [*, columns, rows]
};

/// Whether ATen multiplies matrices of the type `from` to a result of the type `to`.
bool HasMatmul(ElementType from, ElementType to) {
  switch (from) {
    case ElementType::kS8:
      if (to == ElementType::kS32) return true;
      [[fallthrough]];
    case ElementType::kU8:
    case ElementType::kS16:
    case ElementType::kS32:
    case ElementType::kS64:
    case ElementType::kBF16:
    case ElementType::kF32:
    case ElementType::kF64:
    case ElementType::kC64:
    case ElementType::kC128:
      return from == to;
    default:
      return false;
  }
}

/// lhs times rhs, a result [*, m, n] of `element` that is rounded once. `*` is one dimension or
/// none. An optional `bias` of the same type is broadcast to the result and added before rounding.
Value CallMatmul(const MatrixOperand& lhs, const MatrixOperand& rhs, ElementType element,
                 std::optional<Value> bias) {
  Dims dims = lhs.value.dims();
  const auto rank = static_cast<int64_t>(dims.size());
  dims[rank - 2] = lhs.value.dim(rank - (lhs.transposed ? 1 : 2));
  dims[rank - 1] = rhs.value.dim(rank - (rhs.transposed ? 2 : 1));
  std::vector<Value> operands = {lhs.value, rhs.value};
  if (bias) operands.push_back(*bias);
  return CallLibrary(cpu::kMatmulTarget, operands, {{element, dims}},
                     cpu::MatmulCall{lhs.transposed, rhs.transposed})[0];
}

Value SumOfProducts(Value lhs, Value rhs, const stablehlo::DotDimensionNumbers& numbers) {
  Dims dims;  // batch, free of lhs, free of rhs, contracting
  Dims lhs_to(lhs.rank(), -1), rhs_to(rhs.rank(), -1);
  auto append = [&](int64_t size) {
    dims.push_back(size);
    return static_cast<int64_t>(dims.size()) - 1;
  };
  for (size_t i = 0; i < numbers.lhs_batch.size(); ++i) {
    const int64_t from = numbers.lhs_batch[i];
    lhs_to[from] = rhs_to[numbers.rhs_batch[i]] = append(lhs.dim(from));
  }
  auto append_free = [&](Value v, Dims& to, const Dims& contracting) {
    for (int64_t d : contracting) to[d] = 0;
    for (int64_t d = 0; d < v.rank(); ++d) {
      if (to[d] < 0) to[d] = append(v.dim(d));
    }
  };
  append_free(lhs, lhs_to, numbers.lhs_contracting);
  append_free(rhs, rhs_to, numbers.rhs_contracting);
  Dims summed;
  for (size_t i = 0; i < numbers.lhs_contracting.size(); ++i) {
    const int64_t from = numbers.lhs_contracting[i];
    summed.push_back(append(lhs.dim(from)));
    lhs_to[from] = rhs_to[numbers.rhs_contracting[i]] = summed.back();
  }
  return stablehlo::Reduce(stablehlo::Multiply(stablehlo::BroadcastInDim(lhs, dims, lhs_to),
                                               stablehlo::BroadcastInDim(rhs, dims, rhs_to)),
                           summed, ReduceOp::kAdd);
}

}  // namespace

Value Dot(std::string_view platform, Value lhs, Value rhs,
          const stablehlo::DotDimensionNumbers& numbers, stablehlo::Precision precision,
          ElementType result) {
  if (runtime::HasLongsInPairs(platform) && lhs.element() == ElementType::kS64) {
    return SumOfProducts(lhs, rhs, numbers);
  }
  if (lhs.element() == ElementType::kBF16 && runtime::IsHost(platform)) {
    // XLA:CPU converts them itself, but not where it takes a product for one that its library
    // multiplies, which it may rewrite afterwards to one that nothing multiplies.
    lhs = stablehlo::ConvertedAsItLies(lhs, ElementType::kF32);
    rhs = stablehlo::ConvertedAsItLies(rhs, ElementType::kF32);
  }
  return stablehlo::DotGeneral(lhs, rhs, numbers, precision, result);
}

stablehlo::Precision PrecisionOn(std::string_view platform) {
  const FloatPrecision precision = CurrentPrecision(platform);
  switch (precision.products) {
    case MatMulPrecision::kDefault:
      return stablehlo::Precision::kDefault;
    case MatMulPrecision::kHigh:
      return stablehlo::Precision::kHigh;
    case MatMulPrecision::kHighest:
      return stablehlo::Precision::kHighest;
    case MatMulPrecision::kPlatform:
      break;
  }
  // GPUs would round float operands to TF32, which PyTorch only does if asked to.
  return precision.rounds_products ? stablehlo::Precision::kDefault
                                   : stablehlo::Precision::kHighest;
}

namespace aten {
namespace {

using stablehlo::BroadcastInDim;
using stablehlo::BroadcastTo;
using stablehlo::Convert;
using stablehlo::DotDimensionNumbers;
using stablehlo::Multiply;

/// The number of rows of `x` in each batch: the product of the dimensions that are kept.
int64_t Rows(Value x, const Dims& batch, const Dims& contracting) {
  int64_t rows = 1;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::ranges::count(batch, d) + std::ranges::count(contracting, d) == 0) rows *= x.dim(d);
  }
  return rows;
}

/// The type of the product: the type that PyTorch accumulates in. Libraries of GPUs accumulate in
/// that type by themselves, and a result in it would take twice the memory of a half type. But XLA
/// expands products with a vector, and these accumulate in the type of the result.
ElementType ProductElement(const LoweringContext& cx, Value lhs, Value rhs,
                           const DotDimensionNumbers& numbers) {
  const bool vector = Rows(lhs, numbers.lhs_batch, numbers.lhs_contracting) == 1 ||
                      Rows(rhs, numbers.rhs_batch, numbers.rhs_contracting) == 1;
  const ElementType element = cx.output_element();
  return runtime::IsGpu(cx.platform()) && !vector ? element : ComputeType(element);
}

/// lhs times rhs.
Value Product(LoweringContext& cx, Value lhs, Value rhs, const DotDimensionNumbers& numbers) {
  const ElementType element = cx.output_element();
  // mm's Meta kernel allows different dtypes, but PyTorch's other kernels do not.
  if (lhs.element() != rhs.element()) {
    throw stablehlo::Error("expected both matrices to have the same dtype, got " +
                           lhs.type().ToString() + " and " + rhs.type().ToString());
  }
  return Dot(cx.platform(), Convert(lhs, element), Convert(rhs, element), numbers,
             PrecisionOn(cx.platform()), ProductElement(cx, lhs, rhs, numbers));
}

/// beta * self + alpha * product. A beta of zero keeps NaN and Inf of self out.
Value AddScaled(LoweringContext& cx, Value self, Value product, Value beta, Value alpha) {
  const ElementType element = ComputeType(product.element());
  product = Convert(product, element);
  const Dims& dims = product.dims();
  beta = Convert(beta, element);
  Value scaled = Multiply(To(self, element, dims), BroadcastTo(beta, dims));
  Value ignored = stablehlo::Compare(beta, stablehlo::ZerosLike(beta), Direction::kEq);
  return ToOutput(cx,
                  stablehlo::Add(stablehlo::Select(ignored, stablehlo::ZerosLike(scaled), scaled),
                                 Multiply(product, To(alpha, element, dims))));
}

/// Whether a matrix, or each matrix of a batch, is the transposed view of a matrix with dense rows.
bool IsTransposed(const ir::Value& matrix) {
  const ir::Node& node = *matrix.node;
  if (&node.op() != &ir::ops::as_strided) return false;
  ir::AttributeReader words(node.attributes());
  const c10::IntArrayRef size = words.IntList(), stride = words.IntList();
  const size_t rank = size.size();
  if (rank < 2 || rank > 3) return false;
  return stride[rank - 2] == 1 && stride[rank - 1] == size[rank - 2] &&
         (rank == 2 || stride[0] == size[1] * size[2]);
}

/// Whether the operands of a product are transposed in memory.
struct Transpositions {
  bool lhs, rhs;
};

/// Chooses one of the `possible` implementations of lhs times rhs. `rows` is the number of rows
/// that are multiplied with each column of rhs.
Kernel ChooseProduct(const LoweringContext& cx, Value lhs, Value rhs, int64_t rows,
                     Transpositions transposed, const std::vector<Kernel>& possible) {
  if (lhs.element() != rhs.element()) return Kernel::kStableHlo;
  const ElementType element = lhs.element();
  const int64_t products = cx.output_type().num_elements() * lhs.dim(lhs.rank() - 1);
  // XLA:CPU's library does not take a transposed lhs, so other implementations win earlier.
  const int64_t long_ones =
      transposed.lhs ? cpu::choices::kLongTransposed : cpu::choices::kLongProduct;
  return ChooseKernel(
      cx, "matmul",
      {runtime::MlirName(element),
       rows <= cpu::choices::kFewestRows ? "few"
       : rows <= cpu::choices::kFewRows  ? "some"
                                         : "many",
       transposed.rhs ? "transposed" : "plain",
       products < cpu::choices::kLargeProduct ? "small" : "large",
       MultipliesNatively(element) ? "native" : "other", products < long_ones ? "short" : "long",
       transposed.lhs ? "transposed" : "plain"},
      possible);
}

/// lhs times rhs: [m, k] and [k, n], or batches of them. They are the operands `place` and `place +
/// 1` of the node.
class MatrixProduct {
 public:
  MatrixProduct(LoweringContext& cx, Value lhs, Value rhs, size_t place)
      : cx_(cx),
        lhs_(lhs),
        rhs_(rhs),
        transposed_{IsTransposed(cx.node().operands()[place]),
                    IsTransposed(cx.node().operands()[place + 1])} {
    std::vector<Kernel> possible = {Kernel::kStableHlo};
    const ElementType element = cx.output_element();
    if (HasFewRows(element) && lhs.element() == element && lhs.rank() == 2) {
      possible.push_back(Kernel::kFewRows);
    }
    if (HasMatmul(lhs.element(), element)) possible.push_back(Kernel::kLibrary);
    kernel_ = ChooseProduct(cx, lhs, rhs, lhs.dim(lhs.rank() - 2), transposed_, possible);
  }

  /// In the type that PyTorch accumulates in, or already rounded to the output's type.
  Value Compute() const {
    if (kernel_ == Kernel::kFewRows) {
      return transposed_.rhs ? CallFewRows(lhs_, Transposed(rhs_)) : CallFewRows(lhs_, rhs_, true);
    }
    if (kernel_ == Kernel::kLibrary) return Call(std::nullopt);
    const int64_t batch = lhs_.rank() - 2;
    DotDimensionNumbers numbers{.lhs_contracting = {batch + 1}, .rhs_contracting = {batch}};
    if (batch > 0) numbers.lhs_batch = numbers.rhs_batch = {0};
    return Product(cx_, lhs_, rhs_, numbers);
  }

  /// Adds `bias` before the result is rounded, if the implementation can.
  std::optional<Value> ComputeWith(Value bias) const {
    if (kernel_ != Kernel::kLibrary || lhs_.rank() != 2) return std::nullopt;
    if (bias.element() != cx_.output_element()) return std::nullopt;
    if (bias.element() == ElementType::kF32) return std::nullopt;  // XLA fuses its sum
    return Call(bias);
  }

 private:
  Value Call(std::optional<Value> bias) const {
    return CallMatmul(Operand(lhs_, transposed_.lhs), Operand(rhs_, transposed_.rhs),
                      cx_.output_element(), bias);
  }
  static Value Transposed(Value matrix) {
    return stablehlo::Transpose(matrix, matrix.rank() == 2 ? Dims{1, 0} : Dims{0, 2, 1});
  }
  static MatrixOperand Operand(Value matrix, bool transposed) {
    return {transposed ? Transposed(matrix) : matrix, transposed};
  }

  LoweringContext& cx_;
  Value lhs_, rhs_;
  Transpositions transposed_;
  Kernel kernel_ = Kernel::kStableHlo;
};

/// The product of a matrix, the node's operand `place`, with a vector.
Value MatrixVector(LoweringContext& cx, Value matrix, Value vector, size_t place) {
  // One row times the transposed matrix.
  const bool is_transposed = IsTransposed(cx.node().operands()[place]);
  if (HasFewRows(vector.element()) && vector.element() == cx.output_element() &&
      ChooseProduct(cx, vector, matrix, 1, {.lhs = false, .rhs = !is_transposed},
                    {Kernel::kStableHlo, Kernel::kFewRows}) == Kernel::kFewRows) {
    Value row = stablehlo::Reshape(vector, {1, vector.dim(0)});
    Value weights = is_transposed ? stablehlo::Transpose(matrix, {1, 0}) : matrix;
    return stablehlo::Reshape(CallFewRows(row, weights, is_transposed), {matrix.dim(0)});
  }
  return Product(cx, matrix, vector, {.lhs_contracting = {1}, .rhs_contracting = {0}});
}

}  // namespace

Value mm(LoweringContext& cx, Value self, Value mat2) {
  return ToOutput(cx, MatrixProduct(cx, self, mat2, 0).Compute());
}

Value mv(LoweringContext& cx, Value self, Value vec) {
  return ToOutput(cx, MatrixVector(cx, self, vec, 0));
}

Value dot(LoweringContext& cx, Value self, Value tensor) {
  if (const auto called = CallDot(cx, self, tensor)) return *called;
  return ToOutput(cx, Product(cx, self, tensor, {.lhs_contracting = {0}, .rhs_contracting = {0}}));
}

Value bmm(LoweringContext& cx, Value self, Value mat2) {
  return ToOutput(cx, MatrixProduct(cx, self, mat2, 0).Compute());
}

Value addmm(LoweringContext& cx, Value self, Value mat1, Value mat2, Value beta, Value alpha) {
  const MatrixProduct product(cx, mat1, mat2, 1);
  const ir::Node::Operands& operands = cx.node().operands();
  const bool is_sum = IsNumber(operands[3], 1) && IsNumber(operands[4], 1);
  if (is_sum) {
    if (std::optional<Value> sum = product.ComputeWith(self)) return *sum;
  }
  Value made = product.Compute();
  if (is_sum && self.dims() == Dims{made.dim(1)}) KeepProduct(cx, {made, self});
  return AddScaled(cx, self, made, beta, alpha);
}

Value addmv(LoweringContext& cx, Value self, Value mat, Value vec, Value beta, Value alpha) {
  return AddScaled(cx, self, MatrixVector(cx, mat, vec, 1), beta, alpha);
}

Value baddbmm(LoweringContext& cx, Value self, Value batch1, Value batch2, Value beta,
              Value alpha) {
  return AddScaled(cx, self, MatrixProduct(cx, batch1, batch2, 1).Compute(), beta, alpha);
}

Value addbmm(LoweringContext& cx, Value self, Value batch1, Value batch2, Value beta, Value alpha) {
  return AddScaled(
      cx, self, Product(cx, batch1, batch2, {.lhs_contracting = {0, 2}, .rhs_contracting = {0, 1}}),
      beta, alpha);
}

Value addr(LoweringContext& cx, Value self, Value vec1, Value vec2, Value beta, Value alpha) {
  const ElementType element = ComputeType(cx.output_element());
  const Dims dims = cx.output_dims();
  Value outer = Multiply(BroadcastInDim(Convert(vec1, element), dims, {0}),
                         BroadcastInDim(Convert(vec2, element), dims, {1}));
  return AddScaled(cx, self, outer, beta, alpha);
}

Value dot_general(LoweringContext& cx, Value a, Value b, c10::IntArrayRef a_dims,
                  c10::IntArrayRef b_dims) {
  return ToOutput(
      cx, Product(cx, a, b, {.lhs_contracting = a_dims.vec(), .rhs_contracting = b_dims.vec()}));
}

}  // namespace aten
}  // namespace torch_xla::lowering

namespace torch_xla::aten {
namespace {

std::vector<int64_t> Pick(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> picked;
  for (int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < static_cast<int64_t>(sizes.size()),
                      "dot_general: there is no dimension ", dim, " in ", sizes);
    picked.push_back(sizes[dim]);
  }
  return picked;
}

std::vector<int64_t> Others(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) others.push_back(sizes[i]);
  }
  return others;
}

}  // namespace

at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims) {
  const XLATensorImpl* lhs = GetImpl(a, "dot_general");
  const XLATensorImpl* rhs = GetImpl(b, "dot_general");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot_general: expected one dtype, got ",
              a.scalar_type(), " and ", b.scalar_type());
  const std::vector<int64_t> a_sizes = Pick(a.sizes(), a_dims), b_sizes = Pick(b.sizes(), b_dims);
  TORCH_CHECK(a_sizes == b_sizes, "dot_general: expected equal sizes of dimensions ",
              c10::IntArrayRef(a_dims), " of ", a.sizes(), " and ", c10::IntArrayRef(b_dims),
              " of ", b.sizes());
  std::vector<int64_t> dims = Others(a.sizes(), a_dims);
  const std::vector<int64_t> last = Others(b.sizes(), b_dims);
  dims.insert(dims.end(), last.begin(), last.end());
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(a_dims);
  writer.IntList(b_dims);
  ir::ops::dot_general.counter->Add();
  return MakeTensor(tensor::MakeNode(&ir::ops::dot_general, {lhs->Read(), rhs->Read()},
                                     std::move(words), ir::GetShape(a.scalar_type(), dims)),
                    lhs->root()->device());
}

}  // namespace torch_xla::aten
