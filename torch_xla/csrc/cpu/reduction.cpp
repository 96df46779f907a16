// Reductions of large float arrays by ATen's kernels on the device's memory. XLA:CPU would also
// write the operand to memory, and sum its elements in a single chain of vectors.
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_loops.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

struct Reducer {
  ReductionCall call;

  void operator()(at::Tensor result, const at::Tensor& x, at::IntArrayRef dims) const {
    switch (call.reduction) {
      case Reduction::kSum:
        at::sum_out(result, x, dims);
        return;
      case Reduction::kProduct:
        at::prod_out(result, x, dims[0]);
        return;
      case Reduction::kMax:
        at::amax_out(result, x, dims);
        return;
      case Reduction::kMin:
        at::amin_out(result, x, dims);
        return;
      case Reduction::kNorm:
        at::linalg_vector_norm_out(result, x, call.p, dims);
        return;
    }
  }
};

/// Merges neighbouring dimensions that are all reduced or all kept, so that both kinds alternate.
struct Joined {
  Words sizes, kept_sizes, reduced;
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

template <int kLanes>
C10_ALWAYS_INLINE double Add(const c10::BFloat16* x, int64_t count) {
  double sum[1] = {};
  Sum<kLanes, 1>(count, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    to[0] += Load<Element<decltype(to)>>(x + i);
  });
  return sum[0];
}

/// Sums the elements of each row in float. (ATen would round the sum of each part.)
void SumBFloat16(const XLA_FFI_CallFrame& frame, const at::Tensor& x, float* results,
                 int64_t rows) {
  const auto sum = ForThisProcessor<&Add<4>, &Add<8>, &Add<16>>();
  const auto* elements = x.const_data_ptr<c10::BFloat16>();
  const int64_t length = x.numel() / rows, cost = x.numel() * choices::kFloat;
  // Rows are cut if there are too few rows for the threads.
  const int64_t most = PartsWorthAThread(cost, choices::kMostParts);
  const int64_t cuts = rows < 4 * most ? most : 1, parts = FfiParts(frame, cost);
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

}  // namespace

/// Splits the work along the first dimension. If that dimension is reduced, so are the parts'
/// results.
void RunReduction(const XLA_FFI_CallFrame& frame) {
  const auto words = WordsOf(frame);
  const Reducer reduce{FromWords<ReductionCall>(words)};
  const at::Tensor operand = FfiTensor(frame.args.args[0]);
  const Joined joined(operand.sizes(), words.subspan(2));
  if (operand.scalar_type() == at::kBFloat16 && reduce.call.reduction == Reduction::kSum) {
    return SumBFloat16(frame, operand, FfiData<float>(frame.rets.rets[0]),
                       joined.first_is_kept ? joined.sizes[0] : 1);
  }
  const at::Tensor x = operand.view(joined.sizes);
  const at::Tensor result = FfiTensor(frame.rets.rets[0]).view(joined.kept_sizes);
  const int64_t cost = x.numel() * choices::kFloat;
  const int64_t parts = joined.first_is_kept
                            ? FfiParts(frame, cost, x.size(0))
                            : PartsWorthAThread(cost, std::min(x.size(0), choices::kMostParts));
  at::Tensor of_parts = result;
  if (!joined.first_is_kept) {
    Words sizes = joined.kept_sizes;
    sizes.insert(sizes.begin(), parts);
    of_parts = at::empty(sizes, x.options());
  }
  RunAtenParts(frame, parts, [&](const AtenPart& part) {
    reduce(joined.first_is_kept ? part(result) : of_parts.select(0, part.index), part(x),
           joined.reduced);
  });
  if (joined.first_is_kept) return;
  const AtenCalls calls;
  reduce(result, of_parts, 0);
}

void RunDot(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = FfiTensor(frame.args.args[0]), y = FfiTensor(frame.args.args[1]);
  at::Tensor result = FfiTensor(frame.rets.rets[0]);
  const int64_t parts = PartsWorthAThread(x.numel() * choices::kFloat, choices::kMostParts);
  at::Tensor of_parts = at::empty({parts}, x.options());
  RunAtenParts(frame, parts, [&](const AtenPart& part) {
    of_parts[part.index].copy_(at::dot(part(x), part(y)));
  });
  const AtenCalls calls;
  at::sum_out(result, of_parts, at::IntArrayRef{0});
}

}  // namespace torch_xla::cpu
