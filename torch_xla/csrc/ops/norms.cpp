// Norms of many arrays, as those of all gradients are asked for together: one node, and on the CPU
// one call. XLA:CPU compiles two kernels for each array, and writes its squares to memory.
#include <ATen/CompositeExplicitAutogradFunctions.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "cpu/float_loops.h"
#include "cpu/instruction_sets.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/arithmetic.h"
#include "tensor/cpu_handler.h"

namespace torch_xla {
namespace lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_norms";

template <typename T>
C10_ALWAYS_INLINE double AddSquares(const T* x, int64_t count) {
  double sum[1] = {};
  Sum<1>(count, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    const auto value = Load<Element<decltype(to)>>(x + i);
    to[0] += value * value;
  });
  return sum[0];
}

template <typename T>
double Baseline(const T* x, int64_t count) {
  return AddSquares(x, count);
}
template <typename T>
TORCH_XLA_AVX2 double Avx2(const T* x, int64_t count) {
  return AddSquares(x, count);
}
template <typename T>
TORCH_XLA_AVX512 double Avx512(const T* x, int64_t count) {
  return AddSquares(x, count);
}

int64_t NumElements(const XLA_FFI_Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

/// Each part of the work is of as many elements, of the arrays one after the other.
template <typename T>
void Norms(const XLA_FFI_CallFrame& frame) {
  static const auto squares =
      ForThisProcessor<double (*)(const T*, int64_t)>(&Baseline<T>, &Avx2<T>, &Avx512<T>);
  const int64_t count = frame.args.size;
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    ends.push_back(total += NumElements(*static_cast<XLA_FFI_Buffer*>(frame.args.args[i])));
  }
  const int64_t parts = cpu::FfiParts(frame, total, 1 << 16);
  std::vector<double> sums(count * parts);
  RunParts(frame, parts, total, [&](int64_t part, int64_t at, int64_t end) {
    for (int64_t i = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin(); at < end; ++i) {
      const int64_t start = i == 0 ? 0 : ends[i - 1], stop = std::min(end, ends[i]);
      sums[part * count + i] =
          squares(FfiData<const T>(frame.args.args[i]) + at - start, stop - at);
      at = stop;
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * count + i];
    *FfiData<float>(frame.rets.rets[i]) = static_cast<float>(std::sqrt(sum));
  }
}

void Handle(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Norms<float>(frame) : Norms<c10::BFloat16>(frame);
}

[[maybe_unused]] const bool registered = lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>();

Value Norm(Value x) {
  x = stablehlo::Convert(x, ComputeType(x.element()));
  return Sqrt(Reduce(x * x, ReductionDims(std::nullopt, x.rank()), ReduceOp::kAdd));
}

bool Calls(const LoweringContext& cx, Value x) {
  return (x.element() == ElementType::kF32 || x.element() == ElementType::kBF16) &&
         ChooseKernel(cx, "norms", {}, {Kernel::kStableHlo, Kernel::kLibrary}) == Kernel::kLibrary;
}

}  // namespace

namespace aten {

std::vector<Value> Norms(LoweringContext& cx, const std::vector<Value>& arrays) {
  std::vector<Value> results;
  if (Calls(cx, arrays[0])) {
    const std::vector<stablehlo::Type> types(arrays.size(), {ElementType::kF32, {}});
    results = CallLibrary(kTarget, arrays, types);
  } else {
    for (Value array : arrays) results.push_back(Norm(array));
  }
  return ToOutputElements(cx, results);
}

}  // namespace aten
}  // namespace lowering

std::vector<at::Tensor> XLANativeFunctions::_foreach_norm_Scalar(
    at::TensorList self, const at::Scalar& ord, std::optional<at::ScalarType> dtype) {
  auto is_like_first = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == self[0].scalar_type() && tensor.device() == self[0].device() &&
           tensor.numel() > 0;
  };
  const bool fits = !self.empty() && at::isFloatingType(self[0].scalar_type()) && !dtype &&
                    !ord.isComplex() && ord.toDouble() == 2 &&
                    std::all_of(self.begin(), self.end(), is_like_first);
  if (!fits) return at::compositeexplicitautograd::_foreach_norm(self, ord, dtype);
  ir::OutputShapes shapes;
  shapes.shapes.assign(self.size(), ir::GetShape(self[0].scalar_type(), {}));
  aten::NodeBuilder builder(ir::ops::norms);
  builder.TensorList(self);
  return builder.List(shapes);
}

}  // namespace torch_xla
