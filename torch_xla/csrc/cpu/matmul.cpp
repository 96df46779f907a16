// Products of matrices by ATen's kernels (oneDNN, MKL) on the device's memory. XLA:CPU has a
// library for float products only. It computes other types by loops, and converts bfloat16, which
// some processors multiply directly and much faster.
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// The dimension of the result to split among threads: the longer one, since each thread packs the
/// whole operand that lacks this dimension.
int64_t BestCut(const at::Tensor& out, int64_t threads, bool is_widened) {
  const int64_t rows = out.dim() - 2;
  if (is_widened) return rows;  // its kernel can only write whole rows
  if (rows == 1 && out.size(0) >= threads) return 0;
  return out.size(rows) >= out.size(rows + 1) ? rows : rows + 1;
}

}  // namespace

void RunMatmul(const XLA_FFI_CallFrame& frame) {
  const auto call = CallOf<MatmulCall>(frame);
  at::Tensor lhs = FfiTensor(frame.args.args[0]), rhs = FfiTensor(frame.args.args[1]);
  if (call.lhs_transposed) lhs = lhs.transpose(-2, -1);
  if (call.rhs_transposed) rhs = rhs.transpose(-2, -1);
  const at::Tensor result = FfiTensor(frame.rets.rets[0]);
  at::Tensor bias;
  if (frame.args.size == 3) bias = FfiTensor(frame.args.args[2]).expand(result.sizes());
  const bool is_widened = result.scalar_type() != lhs.scalar_type();
  const int64_t threads = FfiThreads(frame), cut = BestCut(result, threads, is_widened);
  const int64_t rows = result.dim() - 2;
  const int64_t cost = result.numel() * lhs.size(-1) * choices::kProduct;
  RunAtenParts(frame, FfiParts(frame, cost, result.size(cut)), [&](const AtenPart& part) {
    const at::Tensor a = part(lhs, cut == rows + 1 ? -1 : cut);
    const at::Tensor b = part(rhs, cut == rows ? -1 : cut);
    at::Tensor out = part(result, cut);
    if (is_widened) {
      at::_int_mm_out(out, a, b);
    } else if (bias.defined()) {
      at::addmm_out(out, part(bias, cut), a, b);
    } else if (out.dim() == 3) {
      at::bmm_out(out, a, b);
    } else {
      at::mm_out(out, a, b);
    }
  });
}

}  // namespace torch_xla::cpu
