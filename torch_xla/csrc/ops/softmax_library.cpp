#include "ops/softmax_library.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "lazy/cpu_handler.h"
#include "lowering/aten_calls.h"
#include "lowering/library_call.h"
#include "runtime/ffi_threads.h"

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_row_sums";

void Handle(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = FfiTensor(frame.args.args[0]).flatten(0, -2);
  const at::Tensor maximum = FfiTensor(frame.rets.rets[0]).view({-1, 1});
  const at::Tensor log_sum = FfiTensor(frame.rets.rets[1]).flatten();
  // So many elements stay in a core's cache.
  constexpr int64_t kElements = 1 << 16;
  const int64_t rows = x.size(0);
  const int64_t at_once = std::max<int64_t>(kElements / x.size(1), 1);
  const int64_t threads = std::min(rows, runtime::FfiThreads(frame));
  runtime::RunOnFfiThreads(frame, threads, [&](int64_t thread) {
    const AtenCalls calls;
    const int64_t end = rows * (thread + 1) / threads;
    for (int64_t from = rows * thread / threads; from < end; from += at_once) {
      const int64_t count = std::min(at_once, end - from);
      const at::Tensor part = x.narrow(0, from, count);
      at::Tensor largest = maximum.narrow(0, from, count), sums = log_sum.narrow(0, from, count);
      at::amax_out(largest, part, 1, /*keepdim=*/true);
      at::sum_out(sums, at::sub(part, largest).exp_(), at::IntArrayRef{1});
      sums.log_();
    }
  });
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, lazy::CpuHandler<Handle>>();

}  // namespace

RowSums CallRowSums(Value x) {
  Dims rows = x.dims();
  rows.pop_back();
  const stablehlo::Type type(x.element(), rows);
  const auto results = CallLibrary(kTarget, {x}, {type, type});
  return {results[0], results[1]};
}

}  // namespace torch_xla::lowering
