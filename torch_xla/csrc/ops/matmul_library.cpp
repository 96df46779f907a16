#include "ops/matmul_library.h"

#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <vector>

#include "cpu/aten_calls.h"
#include "cpu/ffi_threads.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_matmul";

/// The dimension of the result that threads share out: the longer one, as each packs all of the
/// operand that has it not.
int64_t BestCut(const at::Tensor& out, int64_t threads, bool is_widened) {
  const int64_t rows = out.dim() - 2;
  if (is_widened) return rows;  // whose kernel writes to nothing but whole rows
  if (rows == 1 && out.size(0) >= threads) return 0;
  return out.size(rows) >= out.size(rows + 1) ? rows : rows + 1;
}

void Handle(const XLA_FFI_CallFrame& frame) {
  const std::span<const int64_t> transposed = FfiAttributes(frame.attrs).List("transposed");
  at::Tensor lhs = FfiTensor(frame.args.args[0]), rhs = FfiTensor(frame.args.args[1]);
  if (transposed[0]) lhs = lhs.transpose(-2, -1);
  if (transposed[1]) rhs = rhs.transpose(-2, -1);
  const at::Tensor result = FfiTensor(frame.rets.rets[0]);
  at::Tensor bias;
  if (frame.args.size == 3) bias = FfiTensor(frame.args.args[2]).expand(result.sizes());
  // Less than this is not worth a second thread.
  constexpr int64_t kLeast = 1 << 20;
  const bool is_widened = result.scalar_type() != lhs.scalar_type();
  const int64_t threads = cpu::FfiThreads(frame), cut = BestCut(result, threads, is_widened);
  const int64_t rows = result.dim() - 2, products = result.numel() * lhs.size(-1);
  const int64_t parts = cpu::FfiParts(frame, products, kLeast, result.size(cut));
  cpu::RunOnFfiThreads(frame, parts, [&](int64_t i) {
    const AtenCalls calls;
    const at::Tensor a = Part(lhs, cut == rows + 1 ? -1 : cut, i, parts);
    const at::Tensor b = Part(rhs, cut == rows ? -1 : cut, i, parts);
    at::Tensor out = Part(result, cut, i, parts);
    if (is_widened) {
      at::_int_mm_out(out, a, b);
    } else if (bias.defined()) {
      at::addmm_out(out, Part(bias, cut, i, parts), a, b);
    } else if (out.dim() == 3) {
      at::bmm_out(out, a, b);
    } else {
      at::mm_out(out, a, b);
    }
  });
}

[[maybe_unused]] const bool registered = lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>();

}  // namespace

bool MultipliesNatively(ElementType element) {
#if defined(__x86_64__) && defined(__linux__)
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has && element == ElementType::kBF16;
#else
  return false;
#endif
}

bool HasTunedProducts(ElementType element) {
#if defined(__x86_64__) && defined(__linux__)
  static const bool is_intel = __builtin_cpu_is("intel");
  if (element == ElementType::kF32) return is_intel;
#endif
  return MultipliesNatively(element);
}

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

Value CallMatmul(const MatrixOperand& lhs, const MatrixOperand& rhs, ElementType element,
                 std::optional<Value> bias) {
  Dims dims = lhs.value.dims();
  const auto rank = static_cast<int64_t>(dims.size());
  dims[rank - 2] = lhs.value.dim(rank - (lhs.transposed ? 1 : 2));
  dims[rank - 1] = rhs.value.dim(rank - (rhs.transposed ? 2 : 1));
  std::vector<Value> operands = {lhs.value, rhs.value};
  if (bias) operands.push_back(*bias);
  return CallLibrary(
      kTarget, operands, {{element, dims}},
      "transposed = " + stablehlo::I64Array(Dims{lhs.transposed, rhs.transposed}))[0];
}

}  // namespace torch_xla::lowering
