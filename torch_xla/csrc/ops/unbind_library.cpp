#include "ops/unbind_library.h"

#include <cstring>

#include "lazy/cpu_handler.h"
#include "lowering/ffi_tensor.h"
#include "lowering/library_call.h"
#include "runtime/ffi_threads.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_unbind";

void Handle(const XLA_FFI_CallFrame& frame) {
  const auto& whole = *static_cast<XLA_FFI_Buffer*>(frame.args.args[0]);
  const int64_t bytes = FfiAttributes(frame.attrs).List("bytes")[0];
  const int64_t count = whole.dims[0];
  const int64_t threads = runtime::FfiParts(frame, count * bytes, 1 << 18, count);
  runtime::RunOnFfiThreads(frame, threads, [&](int64_t thread) {
    for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; ++i) {
      std::memcpy(static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i])->data,
                  static_cast<const char*>(whole.data) + i * bytes, bytes);
    }
  });
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, lazy::CpuHandler<Handle>>();

}  // namespace

std::vector<Value> CallUnbind(Value x) {
  Dims part = x.dims();
  part.erase(part.begin());
  const stablehlo::Type type(x.element(), part);
  const std::vector<stablehlo::Type> types(x.dims()[0], type);
  const auto bytes = static_cast<int64_t>(type.num_elements() * runtime::ByteWidth(type.element));
  return CallLibrary(kTarget, {x}, types, "bytes = " + stablehlo::I64Array(Dims{bytes}));
}

}  // namespace torch_xla::lowering
