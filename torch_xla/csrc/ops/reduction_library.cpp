#include "ops/reduction_library.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "cpu/aten_calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_threads.h"
#include "cpu/float_loops.h"
#include "cpu/instruction_sets.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_reduction";
constexpr const char* kDotTarget = "torch_xla.cpu_dot";

enum class Operation : int64_t { kSum, kProduct, kMax, kMin, kNorm };

struct Reducer {
  Operation operation;
  double p;

  void operator()(at::Tensor result, const at::Tensor& x, at::IntArrayRef dims) const {
    switch (operation) {
      case Operation::kSum:
        at::sum_out(result, x, dims);
        return;
      case Operation::kProduct:
        at::prod_out(result, x, dims[0]);
        return;
      case Operation::kMax:
        at::amax_out(result, x, dims);
        return;
      case Operation::kMin:
        at::amin_out(result, x, dims);
        return;
      case Operation::kNorm:
        at::linalg_vector_norm_out(result, x, p, dims);
        return;
    }
  }
};

/// The fewest dimensions that do, of which those that are reduced and those that are kept take
/// turns.
struct Joined {
  Dims sizes, kept_sizes, reduced;
  bool first_is_kept = false;

  Joined(at::IntArrayRef dims, std::span<const int64_t> over) {
    bool was_kept = false;
    for (int64_t i = 0; i < std::ssize(dims); ++i) {
      if (dims[i] == 1) continue;
      const bool is_kept = std::find(over.begin(), over.end(), i) == over.end();
      if (sizes.empty()) first_is_kept = is_kept;
      if (sizes.empty() || is_kept != was_kept) {
        if (is_kept) kept_sizes.push_back(1);
        if (!is_kept) reduced.push_back(std::ssize(sizes));
        sizes.push_back(1);
      }
      sizes.back() *= dims[i];
      if (is_kept) kept_sizes.back() *= dims[i];
      was_kept = is_kept;
    }
  }
};

C10_ALWAYS_INLINE double Add(const c10::BFloat16* x, int64_t count) {
  double sum[1] = {};
  Sum<1>(count, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    to[0] += Load<Element<decltype(to)>>(x + i);
  });
  return sum[0];
}
double Baseline(const c10::BFloat16* x, int64_t count) { return Add(x, count); }
TORCH_XLA_AVX2 double Avx2(const c10::BFloat16* x, int64_t count) { return Add(x, count); }
TORCH_XLA_AVX512 double Avx512(const c10::BFloat16* x, int64_t count) { return Add(x, count); }

/// Sums in float of the elements of each row: ATen's of two parts would have been rounded.
void SumBFloat16(const XLA_FFI_CallFrame& frame, const at::Tensor& x, float* results,
                 int64_t rows) {
  static const auto sum =
      ForThisProcessor<double (*)(const c10::BFloat16*, int64_t)>(&Baseline, &Avx2, &Avx512);
  const auto* elements = x.const_data_ptr<c10::BFloat16>();
  const int64_t length = x.numel() / rows, parts = cpu::FfiParts(frame, x.numel(), 1 << 16);
  // Rows are cut where there are too few to share out.
  const int64_t cuts = rows < 4 * parts ? parts : 1;
  std::vector<double> sums(cuts > 1 ? rows * cuts : 0);
  RunParts(frame, parts, rows * cuts, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = length * (i % cuts) / cuts, end = length * (i % cuts + 1) / cuts;
      const double of_part = sum(elements + i / cuts * length + begin, end - begin);
      if (cuts > 1) {
        sums[i] = of_part;
      } else {
        results[i] = static_cast<float>(of_part);
      }
    }
  });
  if (cuts == 1) return;
  for (int64_t row = 0; row < rows; ++row) {
    results[row] = static_cast<float>(
        std::accumulate(sums.begin() + row * cuts, sums.begin() + (row + 1) * cuts, 0.));
  }
}

/// Cut along the first dimension; where that is reduced, so are the results of its parts.
void Handle(const XLA_FFI_CallFrame& frame) {
  const auto words = FfiAttributes(frame.attrs).List("reduction");
  const Reducer reduce{static_cast<Operation>(words[0]), std::bit_cast<double>(words[1])};
  const at::Tensor operand = FfiTensor(frame.args.args[0]);
  const Joined joined(operand.sizes(), words.subspan(2));
  if (operand.scalar_type() == at::kBFloat16 && reduce.operation == Operation::kSum) {
    return SumBFloat16(frame, operand, FfiData<float>(frame.rets.rets[0]),
                       joined.first_is_kept ? joined.sizes[0] : 1);
  }
  const at::Tensor x = operand.view(joined.sizes);
  const at::Tensor result = FfiTensor(frame.rets.rets[0]).view(joined.kept_sizes);
  const int64_t parts = cpu::FfiParts(frame, x.numel(), 1 << 18, x.size(0));
  at::Tensor of_parts = result;
  if (!joined.first_is_kept) {
    Dims sizes = joined.kept_sizes;
    sizes.insert(sizes.begin(), parts);
    of_parts = at::empty(sizes, x.options());
  }
  cpu::RunOnFfiThreads(frame, parts, [&](int64_t i) {
    const AtenCalls calls;
    reduce(joined.first_is_kept ? Part(result, 0, i, parts) : of_parts.select(0, i),
           Part(x, 0, i, parts), joined.reduced);
  });
  if (joined.first_is_kept) return;
  const AtenCalls calls;
  reduce(result, of_parts, 0);
}

void HandleDot(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = FfiTensor(frame.args.args[0]), y = FfiTensor(frame.args.args[1]);
  at::Tensor result = FfiTensor(frame.rets.rets[0]);
  const int64_t parts = cpu::FfiParts(frame, x.numel(), 1 << 18);
  at::Tensor of_parts = at::empty({parts}, x.options());
  cpu::RunOnFfiThreads(frame, parts, [&](int64_t i) {
    const AtenCalls calls;
    of_parts[i].copy_(at::dot(Part(x, 0, i, parts), Part(y, 0, i, parts)));
  });
  const AtenCalls calls;
  at::sum_out(result, of_parts, at::IntArrayRef{0});
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>() &&
    lazy::RegisterWithClient<kDotTarget, cpu::Handler<HandleDot>>();

bool IsLast(const Dims& dims, int64_t rank) {
  return std::all_of(dims.begin(), dims.end(),
                     [&](int64_t dim) { return dim >= rank - std::ssize(dims); });
}

/// `large` and `is_long` are how many elements there are, and make one of the result, at least.
std::optional<Value> Call(const LoweringContext& cx, std::string_view name, Value x,
                          const Dims& dims, int64_t large, int64_t is_long, Operation operation,
                          double p = 0) {
  Dims kept;
  int64_t length = 1;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) {
      kept.push_back(x.dim(i));
    } else {
      length *= x.dim(i);
    }
  }
  if (length <= 1 || x.type().num_elements() == 0) return std::nullopt;
  if (ChooseKernel(
          cx, name,
          {IsLast(dims, x.rank()) ? "last" : "others", length >= is_long ? "long" : "short",
           x.type().num_elements() >= large ? "large" : "small"},
          {Kernel::kStableHlo, Kernel::kLibrary}) != Kernel::kLibrary) {
    return std::nullopt;
  }
  Dims words{static_cast<int64_t>(operation), std::bit_cast<int64_t>(p)};
  words.insert(words.end(), dims.begin(), dims.end());
  const ElementType element = operation == Operation::kSum ? ComputeType(x.element()) : x.element();
  return CallLibrary(kTarget, {x}, {{element, kept}},
                     "reduction = " + stablehlo::I64Array(words))[0];
}

bool IsWide(Value x) {
  return x.element() == ElementType::kF32 || x.element() == ElementType::kF64;
}

}  // namespace

std::optional<Value> CallSum(const LoweringContext& cx, Value x, const Dims& dims) {
  // XLA converts bfloat16 one element after the other.
  const bool is_half = x.element() == ElementType::kBF16 && IsLast(dims, x.rank());
  if (is_half) return Call(cx, "sum", x, dims, 1 << 14, 64, Operation::kSum);
  if (!IsWide(x)) return std::nullopt;
  return Call(cx, "sum", x, dims, 1 << 17, 1024, Operation::kSum);
}

std::optional<Value> CallProduct(const LoweringContext& cx, Value x, const Dims& dims) {
  // ATen's takes one dimension; those at the end are one.
  if (!IsWide(x) || !IsLast(dims, x.rank())) return std::nullopt;
  return Call(cx, "product", x, dims, 1 << 14, 64, Operation::kProduct);
}

std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y) {
  if (!IsWide(x) || x.element() != y.element()) return std::nullopt;
  const bool is_large = x.type().num_elements() >= 1 << 12;
  if (ChooseKernel(cx, "dot", {is_large ? "large" : "small"},
                   {Kernel::kStableHlo, Kernel::kLibrary}) != Kernel::kLibrary) {
    return std::nullopt;
  }
  return CallLibrary(kDotTarget, {x, y}, {{x.element(), {}}})[0];
}

std::optional<Value> CallExtreme(const LoweringContext& cx, Value x, const Dims& dims,
                                 ReduceOp op) {
  if (!runtime::IsFloat(x.element())) return std::nullopt;
  return Call(cx, "extreme", x, dims, 1 << 14, 1024,
              op == ReduceOp::kMax ? Operation::kMax : Operation::kMin);
}

std::optional<Value> CallNorm(const LoweringContext& cx, Value x, const Dims& dims, double p) {
  if (!IsWide(x) || !(p > 0)) return std::nullopt;
  // XLA does not have in memory what it sums.
  return Call(cx, "norm", x, dims, 1 << 13, 64, Operation::kNorm, p);
}

}  // namespace torch_xla::lowering
