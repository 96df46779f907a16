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

std::vector<Value> Unbind(Value x) {
  const int64_t count = x.dim(0);
  Dims dims = x.dims();
  dims.erase(dims.begin());
  const stablehlo::Type part(x.element(), dims);
  const auto bytes = static_cast<int64_t>(part.num_elements() * runtime::ByteWidth(part.element));
  const std::string text = BothForms(
      {x.type()},
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        std::vector<Value> parts;
        Dims starts(x.rank(), 0), limits = x.dims();
        for (int64_t i = 0; i < count; ++i) {
          starts[0] = i;
          limits[0] = i + 1;
          parts.push_back(stablehlo::Reshape(stablehlo::Slice(arguments[0], starts, limits), dims));
        }
        return parts;
      },
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        return CallLibrary(kTarget, arguments, std::vector<stablehlo::Type>(count, part),
                           "bytes = " + stablehlo::I64Array(Dims{bytes}));
      });
  stablehlo::Builder& builder = x.builder();
  return builder.Call(builder.AddFunctions(text), std::vector<Value>{x});
}

}  // namespace torch_xla::lowering
